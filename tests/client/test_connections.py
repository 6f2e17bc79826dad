# SPDX-License-Identifier: Apache-2.0
"""The HTTP connections of both kinds, against servers that do as they are told."""

from __future__ import annotations

import asyncio
import inspect
import threading
from types import SimpleNamespace

import pytest

from pytriton.client import asyncio_connections
from pytriton.client.asyncio_connections import AsyncioHttpConnections
from pytriton.client.connections import HttpConnections
from pytriton.client.exceptions import PyTritonClientClosedError
from pytriton.client.url import TritonUrl
from tests.client.scripted_server import OK, ScriptedServer
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.fake_network import FakeTransport
from tests.fakes import FakeLoop
from tests.free_ports import free_ports

LAST = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


class Both:
    """One face for both kinds: it runs the loop of the asyncio ones."""

    def __init__(self, kind, url):
        self._loop = asyncio.new_event_loop() if kind is AsyncioHttpConnections else None
        address = TritonUrl.from_url(url)
        if self._loop is None:
            self.connections = HttpConnections(address, DEADLINE_S)
        else:
            self.connections = self._run(self._make(address))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._run(self.connections.close())
        if self._loop is not None:
            self._loop.close()

    def get(self, path):
        answer = self._run(self.connections.ask("GET", path))
        return answer.status_code, bytes(answer.body)

    def post(self, path, body):
        return bytes(self._run(self.connections.ask("POST", path, None, [body])).body)

    def close(self):
        self._run(self.connections.close())

    async def _make(self, address):
        return AsyncioHttpConnections(address)

    def _run(self, result):
        return self._loop.run_until_complete(result) if inspect.isawaitable(result) else result


@pytest.fixture(params=[HttpConnections, AsyncioHttpConnections])
def connect(request):
    return lambda url: Both(request.param, url)


def test_connection_is_used_again(connect):
    with ScriptedServer([OK, OK]) as server, connect(server.url) as connections:
        assert connections.get("/a") == connections.get("/b") == (200, b"ok")

        assert [len(requests) for requests in server.requests] == [2]


def test_connection_that_the_server_ends_is_not_used_again(connect):
    with ScriptedServer([LAST], [OK]) as server, connect(server.url) as connections:
        assert connections.get("/a") == connections.get("/b") == (200, b"ok")


def test_connection_closed_while_idle_is_replaced(connect):
    with ScriptedServer([OK], [OK]) as server, connect(server.url) as connections:
        connections.get("/a")
        assert server.closed.acquire(timeout=DEADLINE_S)

        assert connections.get("/b") == (200, b"ok")


def test_large_body_arrives_whole(connect):
    body = bytes(range(256)) * 4096
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with ScriptedServer([answer]) as server, connect(server.url) as connections:
        assert connections.get("/a") == (200, body)


def test_body_in_chunks_arrives_whole(connect):
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    with ScriptedServer([answer]) as server, connect(server.url) as connections:
        assert connections.get("/a") == (200, b"abc")


def test_body_that_ends_with_the_connection_arrives_whole(connect):
    with (
        ScriptedServer([b"HTTP/1.1 200 OK\r\n\r\nabc"]) as server,
        connect(server.url) as connections,
    ):
        assert connections.get("/a") == (200, b"abc")


def test_answer_before_the_end_of_a_large_request_is_heard(connect):
    answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"
    with ScriptedServer([answer]) as server, connect(server.url) as connections:
        try:
            assert connections.post("/a", bytes(8_000_000)) == b"no"
        except ConnectionError:
            # The system may throw the answer away together with what the server did not read.
            assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab",
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
)
def test_answer_cut_short_or_in_no_known_form_is_an_error(connect, answer):
    with ScriptedServer([answer], [OK]) as server, connect(server.url) as connections:
        with pytest.raises(ConnectionError):
            connections.get("/a")

        assert connections.get("/b") == (200, b"ok")


def test_refused_connection_is_an_error(connect):
    (port,) = free_ports(1)
    with (
        connect(f"http://127.0.0.1:{port}") as connections,
        pytest.raises(ConnectionRefusedError),
    ):
        connections.get("/a")


def test_closed_connections_are_not_opened_again(connect):
    with ScriptedServer([OK]) as server, connect(server.url) as connections:
        connections.get("/a")
        connections.close()
        connections.close()

        with pytest.raises(PyTritonClientClosedError, match=server.url):
            connections.get("/b")
        assert "closed" in repr(connections.connections)


def test_call_in_progress_ends_well_when_another_thread_closes():
    waiting, released = threading.Event(), threading.Event()

    class Slow(ScriptedServer):
        def _answer(self, connection, answers):
            connection.recv(65536)
            waiting.set()
            released.wait(DEADLINE_S)
            connection.sendall(OK)

    with Slow([OK]) as server:
        connections = HttpConnections(TritonUrl.from_url(server.url), DEADLINE_S)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(connections.ask("GET", "/a").body))
        thread.start()
        assert waiting.wait(DEADLINE_S)
        connections.close()
        released.set()
        thread.join()

    assert answers == [b"ok"]
    assert "closed" in repr(connections)


def test_each_thread_that_asks_at_the_same_time_has_a_connection_of_its_own(our_server):
    connections = HttpConnections(TritonUrl.from_url(our_server.urls["http"]), DEADLINE_S)
    together = threading.Barrier(8)
    statuses = []

    def ask():
        together.wait(DEADLINE_S)
        statuses.extend(connections.ask("GET", "/v2/health/ready").status_code for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert statuses == [200] * 160
    assert eventually(lambda: "idle" in repr(connections))
    connections.close()


@pytest.mark.parametrize(
    "event, expected",
    [
        (
            lambda c: c.data_received(b"\x00\x00\x18\x04\x00\x00\x00\x00\x00"),
            "such ports need an address with grpc://",
        ),
        (lambda c: c.connection_lost(None), "closed before an answer came"),
        (lambda c: c.connection_lost(ConnectionResetError("reset")), "reset"),
    ],
    ids=["other protocol", "closed", "reset"],
)
def test_question_on_a_connection_that_has_ended_fails_at_once(event, expected):
    connection = asyncio_connections._Connection()
    connection.connection_made(FakeTransport(FakeLoop(), connection))

    event(connection)

    with pytest.raises(ConnectionError, match=expected):
        asyncio.run(connection.exchange([b"GET / HTTP/1.1\r\n\r\n"]))


def test_abort_of_a_connection_that_was_lost_leaves_its_transport_alone():
    aborts = []
    connection = asyncio_connections._Connection()
    connection.connection_made(SimpleNamespace(abort=lambda: aborts.append(connection)))
    connection.connection_lost(None)

    connection.abort()

    assert aborts == []


def test_scope_of_an_address_is_kept(monkeypatch):
    hosts = []

    async def scenario():
        async def connect(protocol, host, port, **_):
            hosts.append(host)
            return None, protocol()

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect)
        for place in (("fe80::1", 8000, 0, 2), ("::1", 8000, 0, 0), ("127.0.0.1", 8000)):
            url = TritonUrl("http", "machine", 8000)
            await asyncio_connections._attempt((None, None, None, "", place), url, None)

    asyncio.run(scenario())

    assert hosts == ["fe80::1%2", "::1", "127.0.0.1"]
