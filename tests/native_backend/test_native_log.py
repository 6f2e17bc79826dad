# SPDX-License-Identifier: Apache-2.0
"""What code in C writes to standard error is in the log of the page, also before a crash."""

from __future__ import annotations

import json

import pytest

from tests.e2e.http_client import call
from tests.e2e.waiting import eventually
from tests.native_backend import building
from tests.native_backend.models import FURTHER
from tests.repository_e2e.server_process import starter

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(building.missing()), reason=building.missing()),
]


@pytest.fixture
def server(tmp_path):
    with starter(tmp_path) as start:
        models = {"crash": {"config.pbtxt": FURTHER["crash"], "1/none": ""}}
        flags = [f"--backend-directory={building.backend_directory()}"]
        environment = {"PYTRITON_PAGE_TOKEN": "page-secret"}
        yield start(models, flags=flags, environment=environment).await_ready()


def ask(server, script):
    tensor = {"name": "SCRIPT", "datatype": "BYTES", "shape": [1], "data": [script]}
    body = json.dumps({"inputs": [tensor]}).encode()
    return call(server.http_port, "/v2/models/crash/infer", body)


def kept(server):
    headers = {"triton-access-token": "page-secret"}
    answer = call(server.metrics_port, "/page/api/log?model=crash&text=SCRIPT", headers=headers)
    return [(line["text"], line["place"], line["model"]) for line in answer.json["lines"]]


@pytest.mark.parametrize("script", ["live", "segfault"])
def test_standard_error_of_a_compiled_backend_is_kept_and_written_once(server, script):
    ask(server, script)

    assert eventually(lambda: kept(server) == [(f"SCRIPT is {script}", "stderr", "crash")])
    assert eventually(lambda: f"SCRIPT is {script}\n" in server.output)
    assert server.output.count(f"SCRIPT is {script}\n") == 1
