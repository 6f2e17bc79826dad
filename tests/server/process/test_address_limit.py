# SPDX-License-Identifier: Apache-2.0
"""How many clients of one address a port has, and what the others get."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket

import pytest
import uvloop

from pytriton.serving.server.process.clients import (
    Acceptor,
    AddressLimit,
    ClientOpener,
    ConnectionSet,
    address_key,
)
from tests.e2e.loop_waiting import comes_true
from tests.e2e.waiting import DEADLINE_S


@pytest.mark.parametrize(
    "address, key",
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_network_of_an_address_counts_as_one_client(address, key):
    assert address_key(address) == key


def test_address_is_refused_beyond_its_limit_and_admitted_when_one_has_left():
    limit = AddressLimit(2)
    tickets = [limit.admit("192.0.2.1"), limit.admit("192.0.2.1")]

    assert limit.admit("192.0.2.1") is None
    assert limit.admit("192.0.2.2") is not None
    assert limit.most == 2
    assert limit.refused_count == 1
    limit.leave(tickets.pop())
    assert limit.admit("192.0.2.1") is not None


def test_addresses_without_clients_are_not_kept():
    limit = AddressLimit(1)
    for number in range(100):
        limit.leave(limit.admit(f"10.0.0.{number}"))

    assert limit.most == 0
    assert not limit._counts


class Idle(asyncio.Protocol):
    """A client's connection, which is in a set while it is open."""

    def __init__(self, connections: ConnectionSet[Idle]) -> None:
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def loop(request):
    loop = request.param()
    yield loop
    loop.close()
    gc.collect()


def test_clients_beyond_the_limit_are_told_why_and_disconnected(loop):
    connections: ConnectionSet[Idle] = ConnectionSet()
    limit = AddressLimit(2)
    listening = socket.create_server(("127.0.0.1", 0))
    opener = ClientOpener(loop, lambda: Idle(connections))
    opener.on_left = connections.on_left = limit.leave
    acceptor = Acceptor(loop, listening, opener, addresses=limit, refusal=b"too many")
    address = listening.getsockname()

    async def test() -> None:
        acceptor.start()
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(socket.create_connection(address)) for _ in range(3)]
            assert await comes_true(lambda: limit.refused_count == 1 and len(connections) == 2)
            clients[2].sendall(b"a request that nobody reads")
            clients[2].settimeout(DEADLINE_S)
            assert clients[2].recv(100) == b"too many"
            assert clients[2].recv(100) == b""

            clients[0].close()
            assert await comes_true(lambda: limit.most == 1)
            stack.enter_context(socket.create_connection(address))
            assert await comes_true(lambda: len(connections) == 2)
        assert await comes_true(lambda: not connections)
        assert limit.most == 0
        acceptor.close()

    loop.run_until_complete(test())


def test_flood_of_refused_clients_keeps_few_sockets(loop):
    listening = socket.create_server(("127.0.0.1", 0), backlog=1000)
    limit = AddressLimit(1)
    limit.admit("127.0.0.1")
    acceptor = Acceptor(loop, listening, ClientOpener(loop, asyncio.Protocol), addresses=limit)
    address = listening.getsockname()

    async def test() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(socket.create_connection(address))
            acceptor.start()
            assert await comes_true(lambda: limit.refused_count == 200)
            assert len(acceptor._refused) <= 64
            acceptor.close()
            assert not acceptor._refused

    loop.run_until_complete(test())
