# SPDX-License-Identifier: Apache-2.0
"""Joining a server: who is let in and who is turned away, on real sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

import pytest

from pytriton.runtime.transport import rendezvous
from pytriton.runtime.transport.control import (
    AskAccess,
    CallDone,
    ControlLink,
    Join,
    ServerAccess,
    ServerStart,
    ServerStop,
    Started,
)
from pytriton.serving.engine.engine import Engine
from pytriton.serving.repository.loading.instance_factory import InstanceFactory
from pytriton.serving.server.api.authorization import RestrictedGroup
from pytriton.serving.server.binding import binder_port
from pytriton.serving.server.binding.binder_port import BinderPort
from pytriton.serving.server.options.server_options import ServerOptions
from pytriton.serving.server.server import authorizations
from tests.e2e.loop_waiting import comes_true
from tests.e2e.waiting import DEADLINE_S
from tests.free_ports import free_ports

TOKEN = "secret"


def group(value=TOKEN, api="model-repository"):
    return (RestrictedGroup(apis=(api,), header="triton-access-token", value=value),)


class Scarce(socket.socket):
    """A listener on a system that runs out of descriptors for a while."""

    failures = 0

    def accept(self):
        if self.failures < 3:
            self.failures += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


class Port:
    """A binder port beside two ports that nobody opened."""

    def __init__(self, http_port=0, **options) -> None:
        self.loop = asyncio.new_event_loop()
        self.http_port, self.grpc_port = free_ports(2)
        self.http_port = http_port or self.http_port
        self.engine = Engine()
        self.port = BinderPort(
            self.engine, InstanceFactory(self.loop), authorizations(ServerOptions(**options))
        )
        ports = (self.http_port, self.grpc_port, 0)
        self.port.start(Started(*ports), ServerAccess(ports, ("127.0.0.1",) * 3, {}, {}, TOKEN))
        self.links: list[ControlLink] = []

    def until(self, condition) -> bool:
        return self.loop.run_until_complete(comes_true(condition))

    def knock(self, port=None) -> ControlLink:
        """A connection that has said nothing yet."""
        sock = rendezvous.connect(port or self.http_port, 1.0)
        sock.setblocking(False)
        link = ControlLink(sock)
        self.links.append(link)
        return link

    def join(self, token="", port=None) -> ControlLink:
        link = self.knock(port)
        link.send(Join(token))
        return link

    def answer(self, link):
        """What the server says next; None where it closes the connection."""
        said = []

        def has_come():
            try:
                message = link.receive()
            except EOFError:
                said.append(None)
            else:
                said.extend([message] if message is not None else [])
            return said

        assert self.until(has_come)
        return said[0]

    def is_served(self) -> bool:
        return isinstance(self.answer(self.join(TOKEN)), Started)

    def close(self) -> None:
        self.loop.run_until_complete(self.port.stop())
        for link in self.links:
            link.close()
        self.loop.close()


@pytest.fixture
def make_port():
    made = []

    def make(**options) -> Port:
        port = Port(**options)
        made.append(port)
        return port

    yield make
    for port in made:
        port.close()


@pytest.fixture
def port(make_port):
    return make_port(http_restricted=group(), grpc_restricted=group())


def test_who_has_the_token_is_let_in(port):
    assert port.answer(port.join(TOKEN)) == Started(port.http_port, port.grpc_port, 0)


def test_who_shows_no_token_is_let_in_by_the_credentials_of_the_socket(port):
    assert isinstance(port.answer(port.join("")), Started)


@pytest.mark.parametrize("token", ["wrong", TOKEN + "x", "sécret"])
def test_who_has_another_one_is_told_and_turned_away(port, token):
    link = port.join(token)
    refusal = port.answer(link)

    assert isinstance(refusal, CallDone)
    assert refusal.error.startswith("wrong access token: This API is restricted")
    assert TOKEN not in refusal.error
    assert port.answer(link) is None


@pytest.mark.parametrize("options", [{}, {"http_restricted": group(api="statistics")}])
def test_no_token_is_needed_where_the_repository_is_open(make_port, options):
    port = make_port(**options)

    assert isinstance(port.answer(port.join()), Started)


def test_each_port_asks_for_the_token_of_its_protocol(make_port):
    port = make_port(http_restricted=group("for http"), grpc_restricted=group("for grpc"))

    assert isinstance(port.answer(port.join("for http", port.http_port)), Started)
    assert isinstance(port.answer(port.join("for grpc", port.grpc_port)), Started)
    assert isinstance(port.answer(port.join("for http", port.grpc_port)), CallDone)


def test_who_asks_what_opens_the_server_is_told_and_does_not_stay(port):
    for number in (port.http_port, port.grpc_port):
        link = port.knock(number)
        link.send(AskAccess())
        told = port.answer(link)

        assert isinstance(told, ServerAccess)
        assert (told.ports[0], told.page_token) == (port.http_port, TOKEN)
        assert port.answer(link) is None


def test_process_of_another_user_is_told_nothing(port, monkeypatch):
    link = port.knock()
    monkeypatch.setattr(rendezvous, "is_same_user", lambda sock: False)
    link.send(AskAccess())

    assert port.answer(link) is None


def test_server_that_ends_takes_nobody_in(port):
    port.engine.refuse()

    assert port.answer(port.join(TOKEN)).error == "Server exiting"


HOSTILE = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "no message": b"\x05\x00\x00\x00hello",
    "a huge message": b"\xff\xff\xff\xff",
    "a bit too much": (16 << 20 | 1).to_bytes(4, "little"),
    "zeros": bytes(100),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_who_says_something_else_is_turned_away_at_once(port, what):
    link = port.knock()
    link.socket.sendall(HOSTILE[what])

    assert port.answer(link) is None
    assert port.is_served()


@pytest.mark.parametrize("message", [ServerStop(), ServerStart({})])
def test_who_does_not_introduce_himself_is_turned_away(port, message):
    link = port.knock()
    link.send(message)

    assert port.answer(link) is None
    assert port.is_served()


@pytest.mark.parametrize("beginning", [b"", b"\x07\x00\x00", b"\x07\x00\x00\x00\x92"])
def test_who_takes_too_long_is_turned_away(make_port, monkeypatch, beginning):
    monkeypatch.setattr(binder_port, "JOIN_TIMEOUT_S", 0.05)
    port = make_port()
    link = port.knock()
    link.socket.sendall(beginning)

    assert port.answer(link) is None
    monkeypatch.setattr(binder_port, "JOIN_TIMEOUT_S", DEADLINE_S)
    assert port.is_served()


def test_who_leaves_before_the_answer_disturbs_nobody(port, caplog):
    for token in (TOKEN, "wrong", None):
        link = port.knock()
        if token is not None:
            link.send(Join(token))
        link.close()

    assert port.is_served()
    assert caplog.records == []


def test_connections_that_say_nothing_keep_nobody_out(port):
    silent = [port.knock() for _ in range(100)]

    assert port.is_served()
    port.loop.run_until_complete(port.port.stop())
    assert [port.answer(link) for link in silent] == [None] * 100


def test_lack_of_descriptors_is_waited_out(make_port, monkeypatch, caplog):
    listen = rendezvous.listen
    monkeypatch.setattr(rendezvous, "listen", lambda port: Scarce(fileno=listen(port).detach()))
    monkeypatch.setattr(binder_port, "_RETRY_DELAY_S", 0.01)
    port = make_port()

    assert port.is_served()
    assert [r.levelname for r in caplog.records] == ["ERROR"] * 3


def test_name_that_is_taken_is_said_and_the_other_port_works(make_port, caplog):
    first = make_port()
    second = make_port(http_port=first.http_port)

    assert f"Other processes cannot bind models at port {first.http_port}" in caplog.text
    assert isinstance(second.answer(second.join(port=second.grpc_port)), Started)


def test_sessions_end_with_the_port(port):
    link = port.join(TOKEN)
    assert isinstance(port.answer(link), Started)

    port.loop.run_until_complete(port.port.stop())

    assert port.answer(link) is None
    with pytest.raises(ConnectionRefusedError):
        port.knock()
