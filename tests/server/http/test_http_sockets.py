# SPDX-License-Identifier: Apache-2.0
"""What only real sockets show: resets, half-closed peers, unread bytes at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import threading
import time

import pytest
import uvloop

from pytriton.serving.server.options.server_options import ClientLimits
from pytriton.serving.server.process.clients import Acceptor, ClientOpener
from tests.e2e.waiting import DEADLINE_S
from tests.server.http_fakes import ScriptedHandler, get, post, read_answer


class LiveServer:
    """A port on loopback, served by an event loop in a thread of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **limits) -> None:
        self.loop = loop
        self.handler = ScriptedHandler(ClientLimits(**limits), loop)
        self.problems: list[dict] = []
        loop.set_exception_handler(lambda _, context: self.problems.append(context))
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self._acceptor = Acceptor(loop, listener, ClientOpener(loop, self.handler.make_connection))
        self._acceptor.start()
        self._thread = threading.Thread(target=loop.run_forever)
        self._thread.start()

    def do(self, function, *arguments):
        """Run a function on the loop's thread."""

        async def call():
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(DEADLINE_S)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), DEADLINE_S)

    def stop(self) -> None:
        for connection in list(self.handler.connections):
            self.do(connection.close)
        self.do(self._acceptor.close)
        wait_until(lambda: not self.handler.connections)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE_S)
        self.loop.close()


def wait_until(condition) -> None:
    deadline = time.monotonic() + DEADLINE_S
    step = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        step.wait(0.005)


def read_all(sock: socket.socket) -> bytearray:
    data = bytearray()
    while piece := sock.recv(1 << 16):
        data += piece
    return data


def read_one(sock: socket.socket) -> bytes:
    data = bytearray()
    while True:
        data += sock.recv(1 << 16)
        with contextlib.suppress(AssertionError):
            return read_answer(data, 0)[0].body


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def server(request, caplog):
    caplog.set_level(logging.WARNING)
    server = LiveServer(request.param(), http_max_input_bytes=8 << 20)
    yield server
    with server.connect() as sock:  # whatever happened, others are served
        sock.sendall(get(b"/still"))
        assert read_one(sock) == b"GET /still "
    server.stop()
    assert server.problems == []
    assert caplog.records == []


def test_large_body_goes_in_and_out(server):
    body = bytes(range(256)) * 20_000
    with server.connect() as sock:
        sock.sendall(post(body, b"/large", b"Connection: close"))
        answer, _ = read_answer(read_all(sock), 0)

    assert answer.body == b"POST /large " + body


def test_client_that_resets_while_it_is_answered_harms_nobody(server):
    for _ in range(20):
        sock = server.connect()
        sock.sendall(get(b"/big") * 10)
        sock.recv(1000)
        reset(sock)
    wait_until(lambda: not server.handler.connections)


def test_client_that_sends_too_much_still_reads_why_it_was_refused(server):
    with server.connect() as sock:
        sock.sendall(post(bytes(32 << 20)))
        answer, _ = read_answer(read_all(sock), 0)

    assert answer.status == 400
    assert b"exceeds the maximum allowed input size" in answer.body


def test_client_that_does_not_read_is_not_served_further(server):
    with server.connect() as sock:
        sock.sendall(get(b"/big") * 200)
        wait_until(lambda: any(it.is_writing_paused for it in server.handler.connections))
        assert len(server.handler.requests) < 100

        for _ in range(200):
            assert read_at_least(sock, 1 << 20)
    assert len(server.handler.requests) == 200


def read_at_least(sock: socket.socket, size: int) -> int:
    received = 0
    while received < size:
        received += len(sock.recv(size - received))
    return received


LONG_S = 1e6


def test_request_that_came_when_its_connection_was_to_be_ended_is_answered(server):
    with server.connect() as sock:
        sock.sendall(get(b"/a"))
        assert read_one(sock) == b"GET /a "
        (connection,) = server.handler.connections

        def send_and_check() -> None:
            connection.check_idle(server.loop.time())
            sock.sendall(get(b"/b"))  # lies unread in the system while the loop runs this
            connection.check_idle(server.loop.time() + LONG_S)

        server.do(send_and_check)

        assert read_one(sock) == b"GET /b "


def test_first_request_that_came_at_the_last_moment_is_answered(server):
    with server.connect() as sock:
        wait_until(lambda: server.handler.connections)
        (connection,) = server.handler.connections

        def send_and_check() -> None:
            sock.sendall(get(b"/a"))
            connection.check_progress(server.loop.time() + LONG_S)

        server.do(send_and_check)

        assert read_one(sock) == b"GET /a "


def test_idle_connection_ends_with_an_end_of_file_and_no_reset(server):
    with server.connect() as sock:
        sock.sendall(get(b"/a"))
        assert read_one(sock) == b"GET /a "
        (connection,) = server.handler.connections

        def check_twice() -> None:
            connection.check_idle(server.loop.time())
            connection.check_idle(server.loop.time() + LONG_S)

        server.do(check_twice)

        assert read_all(sock) == b""

        sock.sendall(get(b"/b"))  # crossed the end: it is thrown away, and nothing is reset
        assert read_all(sock) == b""
    wait_until(lambda: not server.handler.connections)
