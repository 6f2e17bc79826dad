# SPDX-License-Identifier: Apache-2.0
"""When lanes begin their next requests, with a fake of everything else."""

from __future__ import annotations

from pytriton.tools.perf.load.driver import NEVER_NS, pacing_of
from pytriton.tools.perf.load.lane import RequestLane
from pytriton.tools.perf.load.plan import (
    Concurrency,
    FixedSchedule,
    PeriodicConcurrency,
    RequestRate,
)

MILLISECOND = 1_000_000


class FakeStarter:
    """Keeps what was begun: the lane, the time, and whether it was late."""

    def __init__(self):
        self.lanes = {}
        self.begun = []
        self.in_sequence = set()

    def lane(self, number):
        return self.lanes.setdefault(number, RequestLane(number, None))

    def start(self, lane, now_ns, *, delayed=False):
        lane.is_busy = True
        self.begun.append((lane.number, now_ns, delayed))

    def is_in_sequence(self, lane):
        return lane.number in self.in_sequence

    def end(self, pacing, number, now_ns):
        self.lanes[number].is_busy = False
        pacing.free(self.lanes[number], now_ns)


def begin(level, requests=None, lanes=0, starter=None):
    starter = starter or FakeStarter()
    pacing = pacing_of(level, requests, 0, 1, starter, lanes)
    pacing.begin(0)
    return starter, pacing


def test_concurrency_keeps_so_many_under_way():
    starter, pacing = begin(Concurrency(2))
    starter.end(pacing, 1, 50)

    assert starter.begun == [(0, 0, False), (1, 0, False), (1, 50, False)]
    assert not pacing.is_exhausted


def test_exactly_so_many_requests_begin():
    starter, pacing = begin(Concurrency(2), requests=3)
    for number in (0, 1, 0):
        starter.end(pacing, number, 50)

    assert len(starter.begun) == 3
    assert pacing.is_exhausted


def test_smaller_level_lets_lanes_rest_but_ends_their_sequences():
    starter, _ = begin(Concurrency(3))
    starter.begun.clear()
    starter.in_sequence = {2}
    _, pacing = begin(Concurrency(1), starter=starter)
    for number in range(3):
        starter.end(pacing, number, 50)

    assert [lane for lane, _, _ in starter.begun] == [0, 2]


def test_rate_takes_free_lanes_and_more_when_none_is_free():
    starter, pacing = begin(RequestRate(1000.0))
    pacing.tick(1 * MILLISECOND)
    starter.end(pacing, 0, 1 * MILLISECOND + 1)
    pacing.tick(2 * MILLISECOND)

    assert starter.begun == [
        (0, 0, False),
        (1, 1 * MILLISECOND, False),
        (0, 2 * MILLISECOND, False),
    ]
    assert pacing.due_ns == 3 * MILLISECOND


def test_request_without_a_lane_waits_and_is_delayed():
    starter, pacing = begin(RequestRate(1000.0), lanes=1)
    pacing.tick(1 * MILLISECOND)
    assert pacing.due_ns == NEVER_NS
    starter.end(pacing, 0, 9 * MILLISECOND)

    assert starter.begun == [(0, 0, False), (0, 9 * MILLISECOND, True)]


def test_sequences_of_a_rate_take_turns():
    starter, pacing = begin(RequestRate(1000.0), lanes=3)
    for moment in range(1, 7):
        starter.end(pacing, starter.begun[-1][0], moment * MILLISECOND - 1)
        pacing.tick(moment * MILLISECOND)

    assert [lane for lane, _, _ in starter.begun] == [0, 1, 2, 0, 1, 2, 0]


def test_rate_begins_exactly_so_many():
    starter, pacing = begin(RequestRate(1000.0), requests=2)
    pacing.tick(50 * MILLISECOND)

    assert len(starter.begun) == 2
    assert pacing.is_exhausted
    assert pacing.due_ns == NEVER_NS


def test_schedule_is_exhausted_after_its_last_request():
    starter, pacing = begin(FixedSchedule((0, 1)))
    assert not pacing.is_exhausted
    pacing.tick(1 * MILLISECOND)

    assert len(starter.begun) == 2
    assert pacing.is_exhausted


def test_lane_that_is_busy_since_the_level_before_is_not_taken():
    starter, _ = begin(Concurrency(1))
    begin(RequestRate(1000.0), starter=starter)

    assert [lane for lane, _, _ in starter.begun] == [0, 1]


def test_periodic_concurrency_goes_up_after_enough_responses_of_each():
    starter, pacing = begin(PeriodicConcurrency(2, 5, 2, 3))
    for number in (0, 0, 0, 1, 1):
        pacing.respond(starter.lanes[number])
    assert pacing.due_ns == NEVER_NS
    pacing.respond(starter.lanes[1])
    assert pacing.due_ns == 0
    pacing.tick(9)
    starter.end(pacing, 2, 10)  # it ended with fewer responses
    starter.end(pacing, 3, 11)

    assert [lane for lane, _, _ in starter.begun] == [0, 1, 2, 3, 4]
    assert pacing.is_exhausted
