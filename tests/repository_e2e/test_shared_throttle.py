# SPDX-License-Identifier: Apache-2.0
"""Wrong credentials that came to one process of a server slow their sender down at all of them."""

from __future__ import annotations

import http.client
import itertools

import grpc
import pytest

from tests.access_policies import PolicyFolder
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.model_files import config, model

LIMIT = 10
POLICY = f"""
max_failures_per_minute = {LIMIT}
[principals.office]
apis = ["*"]
"""
WRONG = {"authorization": "Basic YWRtaW46YWRtaW4="}  # counts also while its sender has to wait


class Connection:
    """A connection that is kept, so that all its requests are for one process."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)

    def ask(self, headers, path="/v2") -> int:
        self._connection.request("GET", path, headers=headers)
        response = self._connection.getresponse()
        response.read()
        return response.status

    def close(self) -> None:
        self._connection.close()


class ThrottlingServer:
    """A server with two front ends, one connection to each, and one to the core."""

    def __init__(self, folder, start) -> None:
        self.policy = PolicyFolder(folder, POLICY)
        # A key that a process has accepted before need not wait: each is used once.
        self.new_keys = ({"x-api-key": key} for key in self.policy.keys("office", 3000))
        flags = [f"--auth-config={self.policy.path}", "--frontend-processes=2"]
        repository = {"plain": model(settings=config("dynamic_batching { }"))}
        self.server = start(repository, flags=flags).await_ready()
        self.core = Connection(self.server.metrics_port)
        self.front_ends = [Connection(self.server.http_port) for _ in range(2)]
        # Each is passed to the front end with the fewest clients, so they have to stay.
        assert [each.ask(next(self.new_keys)) for each in self.front_ends] == [200, 200]
        assert self.core.ask(next(self.new_keys), "/metrics") == 200

    def is_slowed(self, connection: Connection, path: str = "/v2") -> bool:
        return connection.ask(next(self.new_keys), path) == 429

    def is_slowed_by_grpc(self, channel) -> bool:
        call = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
        try:
            call(b"", metadata=list(next(self.new_keys).items()), timeout=DEADLINE_S)
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return False

    def close(self) -> None:
        for each in (self.core, *self.front_ends):
            each.close()


@pytest.fixture
def throttling(tmp_path, start_server):
    server = ThrottlingServer(tmp_path, start_server)
    yield server
    server.close()


@pytest.mark.parametrize("origin", ["front end", "core"])
def test_wrong_credentials_at_one_process_count_in_all(throttling, origin):
    first, second = throttling.front_ends
    asked, path = (first, "/v2") if origin == "front end" else (throttling.core, "/metrics")

    # Enough for a wait of a minute, longer than what follows.
    statuses = [asked.ask(WRONG, path) for _ in range(2 * LIMIT)]

    assert set(statuses) == {401}
    assert eventually(lambda: throttling.is_slowed(second))
    assert eventually(lambda: throttling.is_slowed(first))
    assert eventually(lambda: throttling.is_slowed(throttling.core, "/metrics"))
    with grpc.insecure_channel(f"127.0.0.1:{throttling.server.grpc_port}") as channel:
        assert eventually(lambda: throttling.is_slowed_by_grpc(channel))


def test_tries_at_both_front_ends_count_together(throttling):
    ways = itertools.cycle(throttling.front_ends)

    # Half of them would be too few for a wait at either; together they are enough for a minute.
    statuses = [next(ways).ask(WRONG) for _ in range(2 * LIMIT - 2)]

    assert set(statuses) == {401}
    assert eventually(lambda: all(map(throttling.is_slowed, throttling.front_ends)))
