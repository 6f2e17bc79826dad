# SPDX-License-Identifier: Apache-2.0
"""With time to leave, servers behind a balancer are restarted in turn and no request is lost."""

from __future__ import annotations

import threading

import numpy as np

from tests.e2e.http_client import infer
from tests.e2e.waiting import eventually
from tests.repository_e2e.balancer import CHECK_INTERVAL_S, Balancer
from tests.repository_e2e.model_files import code, model

ROUNDS = 2  # each of the two servers that there are at first
GRACE_S = 20 * CHECK_INTERVAL_S
X = {"X": np.ones((1, 1), np.float32)}


class Clients:
    """Threads that each send one request after the other."""

    def __init__(self, port, count=2):
        self._port = port
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(count)]
        self.answer_count = 0
        self.errors: list[Exception] = []

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _send(self):
        while not self._is_over.is_set():
            self._ask()

    def _ask(self):
        try:
            infer(self._port, "m", X)
        except Exception as error:  # noqa: BLE001  each is a request that was lost
            self.errors.append(error)
        else:
            self.answer_count += 1


def test_rolling_restart_loses_no_request(start_server):
    repository = {"m": model(code("time.sleep(0.05); y = x"))}
    flags = [f"--exit-grace-secs={GRACE_S}"]
    servers = [start_server(repository, flags=flags) for _ in range(2)]
    for server in servers:
        server.await_ready()

    with Balancer([server.http_port for server in servers]) as balancer:
        assert eventually(lambda: len(balancer.ready) == 2)
        with Clients(balancer.port) as clients:
            for _ in range(ROUNDS):
                old, other = servers
                old.signal()
                new = start_server(repository, flags=flags)
                assert old.exit_code() == 0
                servers = [other, new]
                balancer.ports = [server.http_port for server in servers]
                assert eventually(lambda: len(balancer.ready) == 2), servers[1].output
            count = clients.answer_count
            assert eventually(lambda: clients.answer_count > count + 10 or clients.errors)

    assert clients.errors == []


def test_server_that_leaves_says_so_and_goes_on_serving(start_server):
    server = start_server({"m": model()}, flags=["--exit-grace-secs=60"]).await_ready()

    server.signal()

    assert eventually(lambda: server.get("/v2/health/ready").status == 400)
    assert server.get("/v2/health/live").status == 200
    assert server.infer("m", 3.0) == [3.0]
    with server.grpc_client() as client:
        assert not client.is_server_ready()
        assert client.is_model_ready("m")
