# SPDX-License-Identifier: Apache-2.0
"""Clients that wait are accepted many at a time; what goes wrong with one harms no other."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import socket
import ssl
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvloop

from pytriton.serving.server.api.turns import Turns
from pytriton.serving.server.process import clients as acceptor_module
from pytriton.serving.server.process import clients as module
from pytriton.serving.server.process.clients import (
    MAX_PER_ITERATION,
    Acceptor,
    ClientOpener,
    keepalive_options,
)
from pytriton.serving.server.process.resources import lowest_free
from tests.e2e.waiting import DEADLINE_S
from tests.server.http_fakes import FakeLoop


class Greeter(asyncio.Protocol):
    """Says hello, and what it hears."""

    def __init__(self, made: list[Greeter]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._made.append(self)
        transport.write(b"hello")

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class EmptyTlsPort:
    """A port without a certificate: no handshake can be completed."""

    def __init__(self, loop) -> None:
        self.turns = Turns(loop)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.threads = ThreadPoolExecutor(1)
        self.failures: list[str] = []
        self.count_failure = self.failures.append


class Port:
    """A listening socket with its acceptor, and the clients of a test."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: EmptyTlsPort | None = None) -> None:
        self.loop = loop
        self.made: list[Greeter] = []
        self._clients = contextlib.ExitStack()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.address = self._socket.getsockname()
        self.opener = ClientOpener(loop, self.make_protocol, tls)
        self.acceptor = Acceptor(loop, self._socket, self.opener)

    def make_protocol(self) -> asyncio.Protocol:
        return Greeter(self.made)

    def connect(self) -> socket.socket:
        client = self._clients.enter_context(socket.create_connection(self.address, DEADLINE_S))
        client.setblocking(False)
        return client

    async def until(self, condition) -> int:
        """Run the loop until a condition is true; the rounds that it took."""
        rounds = 0
        deadline = self.loop.time() + DEADLINE_S
        while not condition():
            assert self.loop.time() < deadline
            await asyncio.sleep(0)
            rounds += 1
        return rounds

    async def read(self, client: socket.socket) -> bytes:
        return await asyncio.wait_for(self.loop.sock_recv(client, 100), DEADLINE_S)

    async def close(self) -> None:
        self.acceptor.close()
        self.opener.abandon()
        for greeter in self.made:
            greeter.transport.abort()
        self._clients.close()
        await self.until(lambda: not self.opener.opening_count)


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def loop(request):
    loop = request.param()
    yield loop
    loop.close()
    gc.collect()  # a socket that was left open would warn now


def run(loop, test, *, is_encrypted=False):
    async def run_test():
        port = Port(loop, EmptyTlsPort(loop) if is_encrypted else None)
        try:
            await test(port)
        finally:
            await port.close()
            await asyncio.sleep(0)

    loop.run_until_complete(run_test())


def test_all_who_wait_are_accepted_within_a_few_rounds(loop):
    waiting = 2 * MAX_PER_ITERATION + 1

    async def test(port):
        for _ in range(waiting):
            port.connect()
        port.acceptor.start()
        rounds = await port.until(lambda: len(port.made) == waiting)

        assert rounds < 20  # three to accept them, and some until transports are ready

    run(loop, test)


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
def test_round_accepts_no_more_than_its_bound(loop, monkeypatch, is_encrypted):
    monkeypatch.setattr(module, "MAX_PER_ITERATION", 3)

    async def test(port):
        for _ in range(10):
            port.connect()
        port.acceptor.start()
        port.acceptor._accept()

        assert port.opener.opening_count == 3

    run(loop, test, is_encrypted=is_encrypted)


def test_client_is_served_by_a_protocol_of_its_own(loop):
    async def test(port):
        port.acceptor.start()
        first, second = port.connect(), port.connect()
        assert await port.read(first) == await port.read(second) == b"hello"
        await loop.sock_sendall(second, b"to the second")

        assert await port.read(second) == b"to the second"
        assert len(port.made) == 2

    run(loop, test)


def test_accepted_sockets_notice_dead_peers_and_do_not_wait_to_send(loop):
    async def test(port):
        port.acceptor.start()
        port.connect()
        await port.until(lambda: port.made)
        sock = port.made[0].transport.get_extra_info("socket")

        for level, option, value in keepalive_options(socket):
            assert sock.getsockopt(level, option) == value
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(loop, test)


def test_closed_acceptor_goes_on_with_those_it_accepted(loop):
    async def test(port):
        port.acceptor.start()
        client = port.connect()
        await port.until(lambda: port.made)
        port.acceptor.close()
        port.acceptor.close()
        await loop.sock_sendall(client, b"still there")

        assert (await port.read(client)).startswith(b"hello")
        with pytest.raises(ConnectionRefusedError):
            port.connect()

    run(loop, test)


def test_protocol_that_cannot_be_made_is_logged_and_harms_no_other(loop, caplog):
    async def test(port):
        makers = [RuntimeError("no protocol today")]

        def make_protocol():
            if makers:
                raise makers.pop()
            return Greeter(port.made)

        port.opener._make_protocol = make_protocol
        port.acceptor.start()
        first, second = port.connect(), port.connect()

        assert await port.read(first) == b""
        assert await port.read(second) == b"hello"
        (record,) = caplog.records
        assert "no protocol today" in record.exc_text

    run(loop, test)


def test_client_without_tls_is_turned_away_quietly(loop, caplog):
    async def test(port):
        port.acceptor.start()
        client = port.connect()
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            while await port.read(client):
                pass
        await port.until(lambda: not port.opener.opening_count)

        assert port.made == []
        assert [it for it in caplog.records if it.levelno > logging.DEBUG] == []

    run(loop, test, is_encrypted=True)


def test_client_in_the_middle_of_tls_is_ended_with_the_server(loop):
    async def test(port):
        port.acceptor.start()
        client = port.connect()
        await port.until(lambda: port.opener.opening_count)
        port.opener.abandon()

        assert await port.read(client) == b""

    run(loop, test, is_encrypted=True)


def test_client_that_was_just_accepted_is_ended_with_the_server(loop):
    async def test(port):
        port.acceptor.start()
        client = port.connect()
        port.acceptor._accept()
        assert port.opener.opening_count == 1
        port.opener.abandon()

        assert await port.read(client) == b""

    run(loop, test)


# Without descriptors


class ScriptedSocket:
    """A listening socket whose `accept` fails as it is told, and then has nobody."""

    def __init__(self, *numbers: int) -> None:
        self.failures = [OSError(number, errno.errorcode[number]) for number in numbers]
        self.accepts = 0
        self._fd = 7

    def setblocking(self, is_blocking) -> None:
        assert not is_blocking

    def fileno(self) -> int:
        return self._fd

    def getsockname(self):
        return "0.0.0.0", 8000

    def accept(self):
        self.accepts += 1
        raise self.failures.pop(0) if self.failures else BlockingIOError(errno.EAGAIN, "nobody")

    def close(self) -> None:
        self._fd = -1


def start_scripted(*numbers: int):
    loop, sock = FakeLoop(), ScriptedSocket(*numbers)
    acceptor = Acceptor(loop, sock, ClientOpener(loop, asyncio.Protocol))
    acceptor.start()
    return loop, sock, acceptor


def test_acceptor_rests_while_there_are_no_descriptors_and_says_so_once(caplog):
    loop, sock, acceptor = start_scripted(errno.EMFILE, errno.EMFILE)
    loop.readers[7]()

    assert loop.readers == {}

    loop.advance(1.5)
    loop.readers[7]()

    assert loop.readers == {}
    assert acceptor.is_paused

    loop.advance(1.5)
    loop.readers[7]()

    assert 7 in loop.readers
    assert not acceptor.is_paused
    assert (sock.accepts, acceptor.pause_count) == (3, 2)
    assert [it.getMessage() for it in caplog.records] == [
        "new clients on port 8000 have to wait until others disconnect: [Errno 24] EMFILE"
    ]


def test_acceptor_says_again_that_descriptors_are_missing_after_a_while(caplog):
    loop, sock, _ = start_scripted(errno.EMFILE)
    loop.readers[7]()
    for pause_s, records in ((1.5, 1), (100, 2)):
        loop.advance(pause_s)
        loop.readers[7]()
        sock.failures.append(OSError(errno.ENFILE, "ENFILE"))
        loop.readers[7]()

        assert len(caplog.records) == records


def test_client_that_left_again_does_not_make_others_wait(caplog):
    loop, sock, _ = start_scripted(errno.ECONNABORTED, errno.EPROTO)
    loop.readers[7]()

    assert 7 in loop.readers
    assert sock.accepts == 3
    assert caplog.records == []


def test_acceptor_that_is_closed_while_it_rests_stays_closed():
    loop, _, acceptor = start_scripted(errno.EMFILE)
    loop.readers[7]()
    acceptor.close()
    loop.advance(5)

    assert loop.readers == {}


@pytest.fixture
def no_holes():
    """Lets new descriptors have numbers that follow each other, whatever other tests left open."""
    with contextlib.ExitStack() as filled:
        highest = max(int(name) for name in os.listdir("/dev/fd"))  # noqa: PTH208  numbers, no paths
        while (number := os.dup(0)) < highest:
            filled.callback(os.close, number)
        os.close(number)
        yield


def test_clients_leave_the_reserved_descriptors_free(loop, monkeypatch, caplog, no_holes):
    async def test(port):
        clients = [port.connect() for _ in range(6)]
        limit = lowest_free(clients[0].fileno()) + 3
        monkeypatch.setattr(acceptor_module, "client_limit", lambda **_: limit)
        port.acceptor.start()
        await port.until(lambda: port.acceptor.is_paused)
        await port.until(lambda: len(port.made) == 4)  # the last one used the number `limit`
        port.acceptor._resume()

        assert port.acceptor.is_paused

        for greeter in port.made[:2]:
            greeter.transport.abort()
        await port.until(lambda: len(port.made) == 6)

        assert await port.read(clients[5]) == b"hello"
        assert "have to wait until others disconnect: the first" in caplog.text
        assert len(caplog.records) == 1

    run(loop, test)


def test_no_client_is_accepted_while_those_who_serve_are_full(loop):
    async def test(port):
        port.opener.is_full = True
        clients = [port.connect() for _ in range(3)]
        port.acceptor.start()
        await port.until(lambda: len(port.made) == 1)
        port.acceptor._resume()

        assert port.acceptor.is_paused

        port.opener.is_full = False
        await port.until(lambda: len(port.made) == 3)

        assert await port.read(clients[2]) == b"hello"

    run(loop, test)


# What platforms have


def test_keepalive_times_have_another_name_on_macos():
    names = types.SimpleNamespace(
        SOL_SOCKET=1, SO_KEEPALIVE=2, IPPROTO_TCP=6,
        TCP_KEEPALIVE=16, TCP_KEEPINTVL=257, TCP_KEEPCNT=258,
    )  # fmt: skip

    assert keepalive_options(names) == [(1, 2, 1), (6, 16, 120), (6, 257, 30), (6, 258, 4)]


def test_keepalive_needs_no_times():
    names = types.SimpleNamespace(SOL_SOCKET=1, SO_KEEPALIVE=2, IPPROTO_TCP=6)

    assert keepalive_options(names) == [(1, 2, 1)]


def test_client_counts_as_opening_until_it_has_a_protocol(loop):
    counts = []

    async def test(port):
        port.opener.on_changed = lambda: counts.append((port.opener.opening_count, len(port.made)))
        for _ in range(3):
            port.connect()
        port.acceptor.start()
        await port.until(lambda: len(counts) == 3)

    run(loop, test)

    assert counts[-1] == (0, 3)
    assert [opening for opening, _ in counts] == [2, 1, 0]
