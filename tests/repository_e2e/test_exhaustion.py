# SPDX-License-Identifier: Apache-2.0
"""Whatever runs out: typed errors with the reason, nothing crashes, and all is well afterwards."""

from __future__ import annotations

import contextlib
import http.client
import queue
import re
import socket
import sys
import uuid

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.e2e.http_client import call
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.exhaustion import Exhaustion
from tests.repository_e2e.model_files import DECOUPLED, config, decoupled_code, ensemble, model

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits of other processes are set on Linux only"
)
RESOURCES = [
    "descriptors",
    "address_space",
    "processes",
    "threads",
    "pids",
    "shared_memory",
    "disk",
]
PREVENT_STARTS = ["descriptors", "processes", "pids"]  # of workers in place of others
SMALL, LARGE = 4, 5 << 20  # numbers of 4 bytes; a segment of shared memory has 16 MiB
MODELS = {
    "plain": model(),
    "chain": ensemble("plain", "plain"),
    "count": model(decoupled_code("send(x)\nsend(x + 1)"), config(DECOUPLED)),
}
REASONS = (
    "the server has no ",  # descriptors, memory, …
    "no room for a tensor of ",
    "has had no instance for ",
)


class LackError(Exception):
    """The server's answer that a resource is missing."""


class Clients:
    """Clients that connect before anything runs out; answers are right, or are a LackError."""

    def __init__(self, server, stack) -> None:
        self._server = server
        self._http = stack.enter_context(
            triton_http.InferenceServerClient(
                f"127.0.0.1:{server.http_port}",
                network_timeout=DEADLINE_S,
                connection_timeout=DEADLINE_S,
            )
        )
        self._grpc = stack.enter_context(
            triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
        )
        self._plain = [self._connect(stack, server.http_port) for _ in range(2)]
        self._metrics = self._connect(stack, server.metrics_port)
        region = f"/pytriton-test-{uuid.uuid4().hex}"
        self._region = shm.create_shared_memory_region("region", region, 4 * LARGE)
        stack.callback(shm.destroy_shared_memory_region, self._region)
        shm.set_shared_memory_region(self._region, [np.ones((1, LARGE), np.float32)])
        self._http.register_system_shared_memory("region", region, 4 * LARGE)

    @staticmethod
    def _connect(stack, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        stack.callback(connection.close)
        connection.connect()
        return connection

    def _get(self, connection, path):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def health(self):
        """The status of liveness, on a connection that was there before."""
        return self._get(self._plain[0], "/v2/health/live")

    def readiness(self):
        return self._get(self._plain[1], "/v2/health/ready")

    def metrics(self):
        return self._get(self._metrics, "/metrics")

    def http(self, size=SMALL, name="plain"):
        x = np.ones((1, size), np.float32)
        tensor = triton_http.InferInput("X", x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        with typed():
            answer = self._http.infer(name, [tensor])
            assert np.array_equal(answer.as_numpy("Y"), x)

    def http_large(self):
        self.http(LARGE)

    def ensemble(self):
        self.http(name="chain")

    def ensemble_large(self):
        self.http(LARGE, "chain")

    def client_memory(self):
        tensor = triton_http.InferInput("X", (1, LARGE), "FP32")
        tensor.set_shared_memory("region", 4 * LARGE)
        with typed():
            answer = self._http.infer("plain", [tensor])
            assert answer.as_numpy("Y").sum() == LARGE

    def grpc(self, size=SMALL):
        x = np.ones((1, size), np.float32)
        tensor = triton_grpc.InferInput("X", x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        with typed():
            answer = self._grpc.infer("plain", [tensor])
            assert np.array_equal(answer.as_numpy("Y"), x)

    def grpc_large(self):
        self.grpc(LARGE)

    def stream(self):
        x = np.ones((1, SMALL), np.float32)
        tensor = triton_grpc.InferInput("X", x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        answers = queue.Queue()
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{self._server.grpc_port}") as client:
            client.start_stream(lambda result, error: answers.put(error or result))
            client.async_stream_infer("count", [tensor], enable_empty_final_response=True)
            with typed():
                for number in range(2):
                    answer = answers.get(timeout=DEADLINE_S)
                    if isinstance(answer, Exception):
                        raise answer
                    assert np.array_equal(answer.as_numpy("Y"), x + number)
            client.stop_stream()

    def load(self):
        """A load, which reads files, starts threads and processes."""
        answer = self._server.load("plain")
        if answer.status != 200:
            check_reason(answer.json["error"])
            raise LackError


KINDS = [
    "http",
    "http_large",
    "grpc",
    "grpc_large",
    "ensemble",
    "ensemble_large",
    "client_memory",
]


@contextlib.contextmanager
def typed():
    """Turns an error about a missing resource into `LackError`; others fail the test."""
    try:
        yield
    except InferenceServerException as error:
        if str(error.status()).rpartition(".")[2] not in ("503", "UNAVAILABLE"):
            raise
        check_reason(error.message())
        raise LackError from error


def check_reason(text):
    assert any(reason in text for reason in REASONS), text


def outcomes(clients):
    """What requests of each kind come to: the kinds that failed for lack of something."""
    return [kind for kind in KINDS if lacks(getattr(clients, kind))]


def lacks(call):
    try:
        call()
    except LackError:
        return True
    return False


def server_processes(server):
    """The server, its front ends and its workers."""
    return [psutil.Process(server.pid), *server.descendants()]


@pytest.mark.parametrize("front_ends", [0, 2])
@pytest.mark.parametrize("what", RESOURCES)
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
        clients = Clients(server, stack)
        clients.http()
        clients.grpc()
        assert clients.metrics() == 200

        with exhaustion.of(what, server_processes(server)):
            if what in PREVENT_STARTS:
                for worker in server.workers():
                    worker.kill()
                assert eventually(lambda: clients.readiness() != 200)
            for _ in range(3):
                outcomes(clients)
                assert clients.health() == 200
                assert clients.metrics() == 200

        assert eventually(lambda: server.get("/v2/health/ready").status == 200), server.output
        assert eventually(lambda: outcomes(clients) == []), server.output
        clients.stream()
        clients.load()
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
