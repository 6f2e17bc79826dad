# SPDX-License-Identifier: Apache-2.0
"""Whatever runs out: typed errors with the reason, nothing crashes, and all is well afterwards."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys

import numpy as np
import psutil
import pytest
import tritonclient.http as triton_http

from tests.e2e.http_client import call
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.exhaustion import LARGE, SMALL, Clients, Exhaustion, lacks
from tests.repository_e2e.model_files import (
    DECOUPLED,
    code,
    config,
    decoupled_code,
    ensemble,
    model,
)

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits of other processes are set on Linux only"
)
CONFIG = {
    "backend": "python",
    "max_batch_size": 8,
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
}
MODELS = {
    "plain": model(),
    "loaded": model(),
    "chain": ensemble("plain", "plain"),
    "count": model(decoupled_code("send(x)\nsend(x + 1)"), config(DECOUPLED)),
}


# The kinds of requests that fail for each resource; others may fail, too.
FAILING = {
    "descriptors": {"http", "http_large", "stream", "ensemble", "upload"},
    "address_space": {"http_large", "grpc_large", "ensemble_large"},
    "processes": {"http", "grpc", "stream", "ensemble", "upload"},
    "threads": {"client_memory"},
    "pids": {"http", "grpc", "stream", "ensemble", "client_memory", "upload"},
    "shared_memory": {"http_large", "grpc_large", "ensemble_large"},
    "disk": {"upload"},
}
# Without these, no worker can be started in place of one that ended.
NEEDED_FOR_STARTS = ["descriptors", "processes", "pids"]
KINDS = [
    "http",
    "http_large",
    "grpc",
    "grpc_large",
    "stream",
    "ensemble",
    "ensemble_large",
    "client_memory",
    "upload",
]


class RepositoryClients(Clients):
    def __init__(self, server, stack) -> None:
        super().__init__(server.http_port, server.grpc_port, server.metrics_port, stack)
        self.share_memory()

    def upload(self):
        super().upload(json.dumps({"name": "loaded", **CONFIG}), code())

    def failing(self):
        return {kind for kind in KINDS if lacks(getattr(self, kind))}


@pytest.mark.parametrize("front_ends", [0, 2])
@pytest.mark.parametrize("what", FAILING)
def test_resource_runs_out_and_comes_back(start_server, tmp_path, what, front_ends):
    exhaustion = Exhaustion(tmp_path / "exhaustion")
    flags = [
        "--allow-client-shm=true",
        f"--frontend-processes={front_ends}",
        "--model-control-mode=explicit",
        "--load-model=*",
    ]
    server = start_server(MODELS, flags=flags, environment=exhaustion.environment).await_ready()
    with contextlib.ExitStack() as stack:
        clients = RepositoryClients(server, stack)
        processes = [psutil.Process(server.pid), *server.descendants()]
        failing = set()
        with exhaustion.of(what, processes):
            if what in NEEDED_FOR_STARTS:
                for worker in server.workers():
                    worker.kill()
                for name in ("plain", "count", "loaded"):
                    assert eventually(lambda name=name: not clients.serves(name)), name
            for _ in range(2):
                failing |= clients.failing()
                assert (clients.health(), clients.metrics()) == (200, 200)

        assert failing >= FAILING[what], server.output
        assert eventually(lambda: clients.readiness() == 200), server.output
        assert eventually(lambda: not clients.failing()), server.output
    assert "Traceback" not in server.output, server.output
    assert server.end() == 0, server.output


# Clients that take all descriptors that they can get

LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
os.execv(sys.executable, [sys.executable, "-m", "pytriton.server", *sys.argv[1:]])
"""


@pytest.mark.parametrize("front_ends, idle_count", [(0, 150), (2, 300)])
def test_idle_clients_leave_descriptors_for_models_and_metrics(
    start_server, front_ends, idle_count
):
    server = start_server(
        {"plain": model()},
        flags=[f"--frontend-processes={front_ends}"],
        command=(sys.executable, "-c", LIMITED),
    ).await_ready()
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", server.http_port)
        known = stack.enter_context(server.http_client(network_timeout=DEADLINE_S))
        assert known.is_server_live()
        idle = contextlib.ExitStack()
        stack.push(idle)
        for _ in range(idle_count):
            idle.enter_context(socket.create_connection(address, DEADLINE_S))
        assert eventually(lambda: accept_paused(server) == 1), server.output
        for size in (SMALL, LARGE):
            x = np.ones((1, size), np.float32)
            tensor = triton_http.InferInput("X", x.shape, "FP32")
            tensor.set_data_from_numpy(x)
            assert np.array_equal(known.infer("plain", [tensor]).as_numpy("Y"), x)

        (worker,) = server.workers()
        worker.kill()
        assert eventually(lambda: worker not in server.workers())
        assert eventually(lambda: known.is_model_ready("plain")), server.output
        assert np.array_equal(known.infer("plain", [tensor]).as_numpy("Y"), x)

        idle.close()
        assert eventually(lambda: accept_paused(server) == 0)
        assert server.infer("plain", 2.0) == [2.0]
    assert server.output.count("have to wait until others disconnect") == 1, server.output
    assert server.index()["plain"]["state"] == "READY"


def accept_paused(server):
    page = call(server.metrics_port, "/metrics").body.decode()
    return int(re.search(r"^nv_accept_paused (\d)$", page, re.MULTILINE)[1])
