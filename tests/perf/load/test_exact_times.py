# SPDX-License-Identifier: Apache-2.0
"""What a sender does to begin requests at their times: it is connected, awake and not held up."""

from __future__ import annotations

import os
import socket

import msgspec
import pytest

from pytriton.tools.perf.load import link, worker
from pytriton.tools.perf.load.link import SocketPoller
from pytriton.tools.perf.load.requests import address_of, recipe_of
from pytriton.tools.perf.load.worker import LoadWorker, raise_priority
from tests.perf.load.rig import plan_for


class FakeEpoll:
    """Says how long it was asked to wait."""

    def __init__(self):
        self.seconds = None

    def fileno(self):
        return 0

    def poll(self, seconds, _count):
        self.seconds = seconds
        return []


@pytest.mark.skipif(not hasattr(link.select, "epoll"), reason="needs epoll")
@pytest.mark.parametrize(
    "seconds, short, coarse", [(0.005, 0.005, 0), (0.5, None, 0.49), (0, None, 0)]
)
def test_last_part_of_a_wait_is_not_rounded_to_milliseconds(monkeypatch, seconds, short, coarse):
    poller = SocketPoller()
    poller.close()
    poller._epoll = FakeEpoll()
    waits = []
    monkeypatch.setattr(link.select, "select", lambda *arguments: waits.append(arguments[3]))
    poller.poll(seconds)

    assert waits == ([] if short is None else [short])
    assert poller._epoll.seconds == pytest.approx(coarse)


def worker_to(port, **changes):
    plan = plan_for(f"127.0.0.1:{port}")
    recipe = msgspec.structs.replace(recipe_of(plan, address_of(plan), []), **changes)
    ours, theirs = socket.socketpair()
    return LoadWorker(theirs, recipe), ours, theirs


def test_connections_are_open_before_the_first_request():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender, ours, theirs = worker_to(listener.getsockname()[1], connections=3)
        with ours, theirs:
            assert sender.check() == ""
            accepted = [listener.accept()[0] for _ in range(3)]
            sender._carriers.close()
            sender._poller.close()
            for connection in accepted:
                connection.close()


class FakeDriver:
    """Has something to do at a time, and notes when it was done."""

    def __init__(self, log):
        self.due_ns = 5
        self.is_done = self.is_stopped = False
        self._log = log

    def tick(self, now_ns):
        self._log.append("request")
        self.due_ns = 1 << 62


@pytest.mark.parametrize(
    "is_exact, order",
    [(True, ["answer", "request", "answer"]), (False, ["answer", "answer", "request"])],
)
def test_request_that_is_due_does_not_wait_for_answers_that_have_come(monkeypatch, is_exact, order):
    sender, ours, theirs = worker_to(1, is_exact=is_exact)
    log = []
    now = iter([1, 2, *[9] * 20])
    monkeypatch.setattr(worker, "clock", lambda: next(now))
    sender._driver = FakeDriver(log)
    sender._poller.close()
    sender._poller.callbacks = {fd: lambda _event: log.append("answer") for fd in (7, 8)}
    monkeypatch.setattr(sender._poller, "poll", lambda _seconds: [(7, 1), (8, 1)])
    with ours, theirs:
        sender._turn()

    assert log == order


@pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="needs Linux")
def test_sender_that_may_not_run_before_others_runs_as_they_do(monkeypatch):
    asked = []

    def refuse(*arguments):
        asked.append(arguments[:2])
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    raise_priority()

    assert asked == [(0, os.SCHED_RR)]
