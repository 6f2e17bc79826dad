# SPDX-License-Identifier: Apache-2.0
"""The server that hostile clients ask, one for each file of tests, and ways to ask it."""

from __future__ import annotations

import pathlib

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.collected import items_in
from tests.repository_e2e.conftest import starter
from tests.security.hostile import FLAGS, REPOSITORY, processes

SOURCE_ONLY = {"test_source_flaws.py", "test_table_of_flaws.py"}


def pytest_collection_modifyitems(items):
    for item in items_in(pathlib.Path(__file__).parent, items):
        if item.path.name not in SOURCE_ONLY:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="module")
def start_module_server(tmp_path_factory):
    """Starts servers that the tests of a file share; each has a folder for temporary files."""
    folder = tmp_path_factory.mktemp("servers")
    with starter(folder) as start:

        def start_with_folder(models, flags, **environment):
            temporary = folder / f"temporary{len(list(folder.iterdir()))}"
            temporary.mkdir()
            server = start(
                models, flags=flags, environment={**environment, "TMPDIR": str(temporary)}
            )
            server.temporary = temporary
            return server

        yield start_with_folder


@pytest.fixture(scope="module")
def shared_server(start_module_server):
    """The server of a file, whose processes outlive all that its tests do."""
    running = start_module_server(REPOSITORY, FLAGS).await_ready()
    before = processes(running)
    yield running
    assert before <= processes(running)


@pytest.fixture
def server(shared_server):
    """The server of a file, which serves after each test, and has met nothing unexpected."""
    yield shared_server
    assert shared_server.infer("echo", 5.0) == [5.0], shared_server.stderr[-2000:]
    assert "Traceback" not in shared_server.output


@pytest.fixture
def grpc_stub(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)
