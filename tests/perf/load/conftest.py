# SPDX-License-Identifier: Apache-2.0
"""One real server for the tests of a module that need one."""

from __future__ import annotations

import pathlib

import pytest

from tests.collected import items_in
from tests.repository_e2e.server_process import ServerProcess
from tests.started_command import ROOT

MODELS = ("AddSub", "Ident", "repeat_int32", "Accumulate")


def pytest_collection_modifyitems(items):
    for item in items_in(pathlib.Path(__file__).parent, items):
        if "server" in item.fixturenames:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Our `tritonserver` with small models: sums, streams and sequences."""
    flags = ["--allow-client-shm=true", "--model-control-mode=explicit"]
    flags += [f"--load-model={model}" for model in MODELS]
    repository = ROOT / "benchmarks/model_repository"
    with ServerProcess(tmp_path_factory.mktemp("server"), [repository], flags) as running:
        running.await_ready()
        yield running
