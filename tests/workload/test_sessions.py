# SPDX-License-Identifier: Apache-2.0
"""Sessions: what a client does after an answer, a lost connection, and bytes that make no sense."""

from __future__ import annotations

import pytest

from tests.fake_network import FakeTransport
from tests.fakes import FakeLoop
from tests.workload.calls import Call, Conduct, Cut, End, Kind, Port
from tests.workload.oracle import Cause, Oracle
from tests.workload.scripted import http_answer
from tests.workload.sessions import MAX_ATTEMPTS, ClientPlan, Session, Writers


class ScriptedWorld:
    """Connections to a server that a test plays."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.now = self.loop.time
        self.call_later = self.loop.call_later
        self.transports: list[FakeTransport] = []
        self.is_listening = True
        self.attempts = 0

    def connect(self, port, protocol) -> None:
        self.attempts += 1
        self.loop.call_soon(self._connect, protocol)

    def _connect(self, protocol) -> None:
        if not self.is_listening:
            protocol.connection_lost(ConnectionRefusedError())
            return
        self.transports.append(FakeTransport(self.loop, protocol))
        protocol.connection_made(self.transports[-1])

    @property
    def transport(self) -> FakeTransport:
        return self.transports[-1]

    def answer(self, text=None) -> None:
        self.transport.receive(http_answer(b"") if text is None else text)
        self.loop.run()

    def request_count(self) -> int:
        """How many requests the last connection has got."""
        return self.transport.taken.count(b"GET /")


def calls_of(*settings):
    return [Call(number, Kind.LIVE, Port.HTTP, **each) for number, each in enumerate(settings, 1)]


@pytest.fixture
def world():
    return ScriptedWorld()


@pytest.fixture
def run(world):
    """Starts a session with these calls; returns it and its oracle."""

    def run(*calls):
        oracle = Oracle(world.now)
        session = Session(ClientPlan(1, Port.HTTP, 0.0, list(calls)), world, oracle, Writers())
        session.start()
        world.loop.run()
        return session, oracle

    return run


def test_session_waits_for_an_answer_and_its_pause(world, run):
    session, oracle = run(*calls_of({}, {"pause_s": 2.0}))
    assert world.request_count() == 1
    world.answer()
    world.loop.advance(1.9)
    assert world.request_count() == 1
    world.loop.advance(0.2)
    assert world.request_count() == 2
    world.answer()
    world.loop.run()

    assert session.is_done
    assert oracle.account.ends == {"answered": 2}
    assert world.transport.is_aborted


def test_session_sends_what_need_not_wait(world, run):
    run(*calls_of({}, {"waits": False}, {"waits": False, "pause_s": 1.0}, {"waits": True}))
    assert world.request_count() == 2
    world.loop.advance(1.1)
    assert world.request_count() == 3
    world.answer(http_answer(b"") * 3)
    world.loop.run()

    assert world.request_count() == 4


def test_session_connects_again_after_a_loss(world, run):
    session, oracle = run(*calls_of({}, {}))
    fault = oracle.fault(Cause.NETWORK_CUT)
    world.transport.lose(ConnectionResetError())
    world.loop.advance(10.0)
    oracle.over(fault)
    world.answer()
    world.loop.run()

    assert len(world.transports) == 2
    assert session.is_done
    assert oracle.account.ends == {"lost": 1, "answered": 1}
    assert oracle.findings == []


def test_call_that_could_not_be_sent_is_sent_again(world, run):
    world.is_listening = False
    session, oracle = run(*calls_of({}))
    world.loop.advance(5.0)
    assert world.attempts > 3
    world.is_listening = True
    world.loop.advance(5.0)
    world.answer()
    world.loop.run()

    assert session.is_done
    assert (oracle.account.sent, oracle.account.ends) == (1, {"answered": 1})


def test_session_gives_a_call_up_in_the_end(world, run):
    world.is_listening = False
    session, oracle = run(*calls_of({}))
    world.loop.advance(MAX_ATTEMPTS * 3.0)

    assert session.is_done
    assert world.attempts == MAX_ATTEMPTS
    assert oracle.account.ends == {End.UNSENT.value: 1}
    assert len(oracle.findings) == 1


def test_session_leaves_after_bytes_that_make_no_sense(world, run):
    invalid, live = calls_of({"payload": b"no\r\n\r\n"}, {})
    invalid.kind = Kind.INVALID
    session, oracle = run(invalid, live)
    world.answer(http_answer(b'{"error":"no"}', status=b"400 Bad Request"))
    assert len(world.transports) == 2
    world.answer()
    world.loop.run()

    assert session.is_done
    assert oracle.findings == []


def test_session_goes_on_with_a_new_connection_after_its_client_left(world, run):
    conduct = Conduct(cut_after_sent_bytes=3, cut=Cut.HALF)
    session, oracle = run(*calls_of({"conduct": conduct}, {}))
    assert world.transport.sent_eof
    world.transport.lose()
    world.loop.run()
    world.answer()
    world.loop.run()

    assert session.is_done
    assert oracle.account.ends == {"cut": 1, "answered": 1}


def test_stopped_session_ends_when_its_open_calls_have(world, run):
    session, _ = run(*calls_of({}, {}))
    session.stop()
    assert not session.is_done
    world.answer()
    world.loop.run()

    assert session.is_done
    assert world.request_count() == 1


def test_stopped_session_ends_calls_that_it_could_not_send(world, run):
    world.is_listening = False
    session, oracle = run(*calls_of({}))
    world.loop.advance(1.0)
    oracle.fault(Cause.SERVER_STOPPING)
    session.stop()

    assert session.is_done
    assert oracle.account.ends == {End.UNSENT.value: 1}
    assert oracle.findings == []
    assert oracle.open == {}
