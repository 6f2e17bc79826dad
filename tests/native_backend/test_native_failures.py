# SPDX-License-Identifier: Apache-2.0
"""Errors of compiled backends are in the page's list of failures, with the model and its words."""

from __future__ import annotations

import json

import pytest

from tests.e2e.http_client import call
from tests.e2e.waiting import eventually
from tests.native_backend import building
from tests.native_backend.models import FURTHER, WANTED
from tests.repository_e2e.server_process import starter

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(building.missing()), reason=building.missing()),
]

TOKEN = "page-secret"


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "two front ends"])
def server(request, tmp_path_factory):
    with starter(tmp_path_factory.mktemp("servers")) as start:
        texts = {"failing": WANTED["failing"], "crash": FURTHER["crash"]}
        models = {name: {"config.pbtxt": text, "1/none": ""} for name, text in texts.items()}
        flags = [
            f"--backend-directory={building.backend_directory()}",
            f"--frontend-processes={request.param}",
        ]
        yield start(models, flags=flags, environment={"PYTRITON_PAGE_TOKEN": TOKEN}).await_ready()


def ask(server, name: str, script: str) -> str:
    """The error with which a model answers a script."""
    tensor = {"name": "SCRIPT", "datatype": "BYTES", "shape": [1], "data": [script]}
    body = json.dumps({"id": script, "inputs": [tensor]}).encode()
    return call(server.http_port, f"/v2/models/{name}/infer", body).error


def groups(server, **fields) -> list[dict]:
    """The groups of failures with these fields."""
    headers = {"triton-access-token": TOKEN}
    found = call(server.metrics_port, "/page/api/failures", headers=headers).json["groups"]
    return [each for each in found if fields.items() <= each.items()]


@pytest.mark.parametrize(
    "script, kind",
    [("respond INVALID_ARG", "Invalid argument"), ("execute UNAVAILABLE", "Unavailable")],
)
def test_error_of_a_compiled_backend_is_listed_with_its_model_and_text(server, script, kind):
    message = ask(server, "failing", script)
    said = f"said by {script}"
    assert eventually(lambda: groups(server, place=said))
    (group,) = groups(server, place=said)

    assert said in message
    assert (group["model"], group["version"], group["kind"]) == ("failing", "1", kind)
    assert (group["reason"], group["count"]) == ("BACKEND", 1)
    assert (group["example"]["id"], group["example"]["message"]) == (script, message)
    shape = {"name": "SCRIPT", "datatype": "BYTES", "shape": [1]}
    assert group["example"]["inputs"] == [shape]


def test_crash_of_a_compiled_backend_is_listed(server):
    message = ask(server, "crash", "segfault")
    assert eventually(lambda: groups(server, model="crash"))
    (group,) = groups(server, model="crash")

    assert group["reason"] == "BACKEND"
    assert group["example"]["message"] == message
