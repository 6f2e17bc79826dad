# SPDX-License-Identifier: Apache-2.0
"""Wrong credentials that came to one process count in the others."""

from __future__ import annotations

import pytest

from pytriton.serving.server.access.control import AccessControl
from pytriton.serving.server.access.credentials import Peer
from pytriton.serving.server.access.decisions import Reason
from pytriton.serving.server.access.failure_feed import INTERVAL_S, FailureFeed
from pytriton.serving.server.access.keys import make_key
from pytriton.serving.server.access.policy import Policy
from tests.fakes import FakeLoop


class Client:
    """A connection of an address."""

    def __init__(self, address):
        self.peer = Peer(address)


class Process:
    """One of several processes, and what it has passed on."""

    def __init__(self, loop, limit=4):
        policy = Policy(principals={}, max_failures_per_minute=limit)
        self.control = AccessControl(policy, "own", loop.time)
        self.sent = []
        self.feed = FailureFeed(loop, self.control, self.sent.append)

    def try_key(self, address="10.0.0.1"):
        headers = {b"x-api-key": make_key("team", 0)[0].encode()}
        return self.control.identify(headers.get, Client(address)).reason


@pytest.fixture
def loop():
    return FakeLoop()


def test_first_failure_is_passed_on_at_once_and_others_together(loop):
    process = Process(loop, limit=100)

    process.try_key()
    loop.run()
    for _ in range(3):
        process.try_key()
    process.try_key("2001:db8::1")
    process.try_key("2001:db8::2")
    loop.run()
    before = list(process.sent)
    loop.clock.advance(INTERVAL_S)
    loop.run()

    assert before == [{"10.0.0.1": 1}]
    assert process.sent[1:] == [{"10.0.0.1": 3, "2001:db8::/64": 2}]


def test_nothing_is_passed_on_without_failures(loop):
    process = Process(loop, limit=100)
    process.try_key()
    loop.run()
    loop.clock.advance(INTERVAL_S)
    loop.run()
    idle = loop.timer_count
    process.try_key()
    loop.run()

    assert idle == 0
    assert process.sent == [{"10.0.0.1": 1}] * 2


def test_processes_share_the_tries_of_an_address(loop):
    one, other = Process(loop), Process(loop)
    reasons = []
    for process, told in ((one, other), (other, one)) * 3:
        reasons.append(process.try_key())
        loop.run()
        loop.clock.advance(INTERVAL_S)
        while process.sent:
            told.control.count_failures(process.sent.pop())

    assert reasons == [Reason.UNKNOWN_KEY] * 4 + [Reason.THROTTLED] * 2
    assert other.try_key("10.0.0.2") is Reason.UNKNOWN_KEY
    assert one.control.failure_counts == {"10.0.0.1": 4}


def test_failures_of_others_are_not_passed_on_again(loop):
    process = Process(loop)

    process.control.count_failures({"10.0.0.1": 3})
    loop.run()

    assert process.sent == []


def test_failures_that_nobody_counts_are_not_passed_on(loop):
    process = Process(loop, limit=0)

    process.try_key()
    loop.run()

    assert process.sent == []


def test_feed_that_was_stopped_passes_on_nothing(loop):
    process = Process(loop)
    process.try_key()
    loop.run()

    process.try_key()
    process.feed.stop()
    process.feed.stop()
    process.try_key()
    loop.clock.advance(1)
    loop.run()

    assert process.sent == [{"10.0.0.1": 1}]
