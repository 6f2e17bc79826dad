# SPDX-License-Identifier: Apache-2.0
"""The server that hostile clients ask, one for each file of tests, and ways to ask it."""

from __future__ import annotations

import pathlib

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.collected import items_in
from tests.free_ports import free_ports
from tests.repository_e2e.server_process import starter
from tests.security.hostile import (
    FLAGS,
    GROUPS,
    REPOSITORY,
    ROUTES_OF_VERTEX_AI,
    SECRET,
    processes,
)

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


@pytest.fixture(scope="module")
def guarded(start_module_server):
    """A server with all its ports, which answers nothing without a secret."""
    sagemaker, vertex_ai = free_ports(2)
    flags = (
        f"--http-restricted-api={GROUPS}:token={SECRET}",
        f"--grpc-restricted-protocol={GROUPS}:token={SECRET}",
        "--allow-sagemaker=true",
        f"--sagemaker-port={sagemaker}",
        "--allow-vertex-ai=true",
        f"--vertex-ai-port={vertex_ai}",
        "--vertex-ai-default-model=echo",
        "--log-verbose=2",
    )
    models = {name: REPOSITORY[name] for name in ("echo", "chat")}
    running = start_module_server(models, flags, **ROUTES_OF_VERTEX_AI).await_ports()
    running.sagemaker_port, running.vertex_ai_port = sagemaker, vertex_ai
    return running


@pytest.fixture
def guarded_stub(guarded):
    with grpc.insecure_channel(f"127.0.0.1:{guarded.grpc_port}") as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.fixture
def grpc_stub(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)
