# SPDX-License-Identifier: Apache-2.0
"""The fake behaves as the seam says, so that tests with it mean something."""

from __future__ import annotations

from pytriton.tools.perf.load.plan import Concurrency, RequestRate
from tests.e2e.waiting import DEADLINE_S
from tests.perf.load.fake_load import FakeLoad


def test_fake_load_keeps_the_concurrency():
    load = FakeLoad(lambda _level, _number: 10_000_000)
    load.start(Concurrency(4))
    is_done = load.wait(1.0)
    records = load.take()

    assert not is_done
    assert len(records) == 400
    assert records.taken_ns - records.since_ns == 1_000_000_000


def test_fake_load_ends_after_the_asked_requests():
    load = FakeLoad()
    load.start(RequestRate(100.0), requests=7)

    assert load.wait(DEADLINE_S)
    assert len(load.take()) == 7
    assert load.take().is_done


def test_fake_load_counts_failures_and_responses():
    load = FakeLoad(responses=3, fail=lambda number: number % 2 == 0)
    load.start(Concurrency(1), requests=2)
    load.wait(1.0)
    records = load.stop()

    assert list(records.ok) == [False, True]
    assert records.errors == {"it failed": 1}
    assert list(records.responses) == [3, 3]
    assert len(records.response_ns) == 6
