# SPDX-License-Identifier: Apache-2.0
"""With time to leave, servers behind a service are replaced in turn and no request is lost.

The test plays what Kubernetes does: the probe of readiness, connections that stay with their pod,
and an update that starts a new pod, waits until it is ready, and then ends an old one.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import sys
import threading

import numpy as np
import psutil
import tritonclient.grpc as triton_grpc

from tests.e2e.http_client import infer, is_ready
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import code, model
from tests.repository_e2e.steered_exit import GRACE_S, HALVES

CHECK_INTERVAL_S = 0.2


class Balancer:
    """Runs in a thread. Each connection goes to one server, and stays with it, as in Kubernetes."""

    def __init__(self, servers, protocol="http"):
        self.ready: list[object] = []  # of the last look
        self.servers = servers  # a test may set others
        self._protocol = protocol
        self._turns = itertools.count()
        self._has_started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self):
        self._thread.start()
        self._has_started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()

    async def _run(self):
        self._loop = asyncio.get_running_loop()
        self._is_over = asyncio.Event()
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        async with listener:
            while not self._is_over.is_set():
                servers = self.servers
                answers = await asyncio.gather(
                    *(asyncio.to_thread(is_ready, each.http_port) for each in servers)
                )
                self.ready = [each for each, good in zip(servers, answers, strict=True) if good]
                self._has_started.set()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._is_over.wait(), CHECK_INTERVAL_S)

    async def _serve(self, reader, writer):
        ready = self.ready
        server = ready[next(self._turns) % len(ready)]
        port = getattr(server, f"{self._protocol}_port")
        try:
            there = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))


async def _copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one of both is gone, and the client notices what it misses
    finally:
        writer.close()


COMMAND = (sys.executable, "-m", "tests.repository_e2e.steered_exit")
X = np.ones((1, 1), np.float32)
BODY = json.dumps({"inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [1]}]})


@contextlib.contextmanager
def new_connections(http_port, _grpc_port):
    """A client that opens a connection for each request."""
    yield lambda: infer(http_port, "m", {"X": X})


@contextlib.contextmanager
def kept_http_connection(http_port, _grpc_port):
    """A client that keeps its connection until an answer says otherwise; it tries once."""
    connection = http.client.HTTPConnection("127.0.0.1", http_port)

    def ask():
        connection.request("POST", "/v2/models/m/infer", BODY)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()

    yield ask
    connection.close()


@contextlib.contextmanager
def kept_grpc_channel(_http_port, grpc_port):
    """A client with one channel, which connects again where a server sent it away."""
    tensor = triton_grpc.InferInput("X", [1, 1], "FP32")
    tensor.set_data_from_numpy(X)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
        yield lambda: client.infer("m", [tensor])


class Clients:
    """Threads that each send one request after the other."""

    def __init__(self, http_port, grpc_port):
        kinds = [new_connections, kept_http_connection, kept_grpc_channel]
        self.answers = {kind.__name__: 0 for kind in kinds}
        self.errors: list[tuple[str, Exception]] = []
        self._ports = http_port, grpc_port
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(kind,)) for kind in kinds]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _send(self, kind):
        with kind(*self._ports) as ask:
            while not self._is_over.is_set():
                self._ask(kind.__name__, ask)

    def _ask(self, name, ask):
        try:
            ask()
        except Exception as error:  # noqa: BLE001  each is a request that was lost
            self.errors.append((name, error))
        else:
            self.answers[name] += 1

    def have_been_served(self):
        """Returns whether each of them was answered some more times."""
        before = dict(self.answers)
        return eventually(
            lambda: self.errors or all(self.answers[name] > before[name] + 5 for name in before)
        )


def leave(server, services):
    """End a server as soon as no service leads to it any more, and no client has a connection."""

    def is_left():
        ports = {server.http_port, server.grpc_port}
        found = psutil.net_connections("tcp")
        return not any(each.laddr.port in ports and each.status == "ESTABLISHED" for each in found)

    noticed, left = [server.folder / name for name in HALVES]
    server.signal()
    assert eventually(lambda: not any(server in each.ready for each in services))
    noticed.touch()
    assert eventually(is_left)
    left.touch()
    assert server.exit_code() == 0


def test_rolling_update_loses_no_request(start_server):
    repository = {"m": model(code("time.sleep(0.02); y = x"))}
    settings = {"flags": [f"--exit-grace-secs={GRACE_S}"], "command": COMMAND}
    servers = [start_server(repository, **settings) for _ in range(2)]
    for server in servers:
        server.await_ready()

    with Balancer(servers) as http_service, Balancer(servers, "grpc") as grpc_service:
        services = [http_service, grpc_service]
        assert eventually(lambda: all(len(each.ready) == 2 for each in services))
        with Clients(http_service.port, grpc_service.port) as clients:
            for old in list(servers):
                assert clients.have_been_served()
                new = start_server(repository, **settings).await_ready()
                servers = [*servers, new]
                for service in services:
                    service.servers = servers
                assert eventually(lambda new=new: all(new in each.ready for each in services))
                leave(old, services)
                servers = [each for each in servers if each is not old]
                for service in services:
                    service.servers = servers
            assert clients.have_been_served()

    assert clients.errors == []
    assert min(clients.answers.values()) > 0


def test_server_that_leaves_says_so_and_goes_on_serving(start_server):
    server = start_server({"m": model()}, flags=["--exit-grace-secs=60"]).await_ready()

    server.signal()

    assert eventually(lambda: server.get("/v2/health/ready").status == 400)
    assert server.get("/v2/health/live").status == 200
    assert server.infer("m", 3.0) == [3.0]
    with server.grpc_client() as client:
        assert not client.is_server_ready()
        assert client.is_model_ready("m")
