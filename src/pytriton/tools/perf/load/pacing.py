# SPDX-License-Identifier: Apache-2.0
"""When lanes begin their next requests: one class for each kind of level. No I/O."""

from __future__ import annotations

import itertools
import random
import sys
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.lane import RequestLane
from pytriton.tools.perf.load.plan import (
    Arrivals,
    Concurrency,
    FixedSchedule,
    Intervals,
    Level,
    PeriodicConcurrency,
    RequestRate,
)

_SECOND_NS = 1_000_000_000


def offsets_ns(level: RequestRate | Intervals | FixedSchedule) -> Iterator[int]:
    """The time of each request, from the start of the level, in nanoseconds; not falling."""
    if isinstance(level, FixedSchedule):
        return (round(moment * 1e6) for moment in level.milliseconds)
    if isinstance(level, Intervals):
        gaps = itertools.cycle([gap * 1000 for gap in level.microseconds])
        return itertools.accumulate(gaps, initial=0)
    if level.distribution is Arrivals.POISSON:
        return _poisson(level)
    return _constant(level.per_second)


def _constant(per_second: float) -> Iterator[int]:
    # Computed from the number, not from the time before, so that rounding does not add up.
    return (round(number * _SECOND_NS / per_second) for number in itertools.count())


def _poisson(level: RequestRate) -> Iterator[int]:
    generator = random.Random(level.seed)  # noqa: S311  # a schedule is no secret
    moment = 0.0
    while True:
        yield round(moment)
        moment += generator.expovariate(level.per_second) * _SECOND_NS


def share(offsets: Iterator[int], worker: int, workers: int) -> Iterator[int]:
    """The times that one of several processes serves: every one of them takes its turn."""
    return itertools.islice(offsets, worker, None, workers)


def check_level(level: Level) -> None:
    """Refuse a level that cannot be kept.

    Raises:
        LoadError: it says what was expected.
    """
    problem = ""
    if isinstance(level, Concurrency) and level.number < 1:
        problem = f"expected a concurrency of 1 or more, got {level.number}"
    elif isinstance(level, RequestRate) and not 0 < level.per_second < 1e9:
        problem = f"expected a request rate above 0, got {level.per_second}"
    elif isinstance(level, Intervals) and (
        not any(level.microseconds) or min(level.microseconds) < 0
    ):
        problem = "expected intervals of 0 microseconds or more, not all of them 0"
    elif isinstance(level, FixedSchedule):
        moments = level.milliseconds
        if not moments or moments[0] < 0 or any(a > b for a, b in itertools.pairwise(moments)):
            problem = "expected times of a schedule from 0 ms on, in their order, at least one"
    elif isinstance(level, PeriodicConcurrency) and (
        min(level.start, level.step, level.period) < 1 or level.end < level.start
    ):
        problem = (
            "expected a start, step and period of 1 or more and an end not below the start, "
            f"got {level}"
        )
    if problem:
        raise GeneratorError(problem)


def share_of_number(number: int, worker: int, workers: int) -> int:
    """How much of a number one of several processes takes; together they take all of it."""
    return number // workers + (1 if worker < number % workers else 0)


DELAYED_NS = 1_000_000  # a request that begins later than this after its time is delayed
MAX_LANES = 1024
NEVER_NS = sys.maxsize


class RequestStarter(Protocol):
    """What a pacing uses: lanes, and a way to begin requests on them."""

    def lane(self, number: int) -> RequestLane:
        """The lane with a number, which is made if it is new."""

    def start(self, lane: RequestLane, now_ns: int, *, delayed: bool = False) -> None:
        """Begin the next request of a lane."""

    def is_in_sequence(self, lane: RequestLane) -> bool:
        """Whether a sequence is under way on a lane, which has to be ended."""


class Pacing(Protocol):
    """Decides when requests begin."""

    due_ns: int

    @property
    def is_exhausted(self) -> bool:
        """Whether no more requests will begin."""

    def begin(self, now_ns: int) -> None:
        """The level begins."""

    def free(self, lane: RequestLane, now_ns: int) -> None:
        """A lane has no request any more."""

    def respond(self, lane: RequestLane) -> None:
        """A response of a stream came."""

    def tick(self, now_ns: int) -> None:
        """The time `due_ns` has come."""


class ClosedLoop:
    """Keeps lanes busy: each begins its next request when the one before has ended."""

    def __init__(self, starter: RequestStarter, places: int, requests: int | None) -> None:
        self._starter = starter
        self._places = places
        self._left = sys.maxsize if requests is None else requests
        self.due_ns = NEVER_NS

    @property
    def is_exhausted(self) -> bool:
        return self._left <= 0

    def begin(self, now_ns: int) -> None:
        for number in range(self._places):
            lane = self._starter.lane(number)
            if not lane.is_busy:
                self.free(lane, now_ns)

    def free(self, lane: RequestLane, now_ns: int) -> None:
        if self._left > 0 and (lane.number < self._places or self._starter.is_in_sequence(lane)):
            self._left -= 1
            self._starter.start(lane, now_ns)

    def respond(self, lane: RequestLane) -> None:
        pass

    def tick(self, now_ns: int) -> None:
        pass


class OpenLoop:
    """Begins requests at their times, on lanes that are free, or on more lanes.

    Args:
        starter: Begins requests.
        offsets: The times of requests, from the start of the level.
        requests: How many there are; None: as many as there are times.
        lanes: Take turns on so many lanes, which sequences need; 0: take more only if none is free.
    """

    def __init__(
        self, starter: RequestStarter, offsets: Iterator[int], requests: int | None, lanes: int
    ) -> None:
        self._starter = starter
        self._offsets = offsets
        self._left = sys.maxsize if requests is None else requests
        self._max_lanes = lanes or MAX_LANES
        self._takes_turns = lanes > 0
        self._lanes = 0
        self._free: deque[RequestLane] = deque()
        self._begin_ns = 0
        self._moment_ns = NEVER_NS  # the time of the next request
        self.due_ns = NEVER_NS  # the same, or never while no lane is free for it
        self.is_exhausted = False

    def begin(self, now_ns: int) -> None:
        self._begin_ns = now_ns
        self._advance()
        self.tick(now_ns)

    def free(self, lane: RequestLane, now_ns: int) -> None:
        if lane.number >= self._lanes:  # busy since the level before
            return
        self._free.append(lane)
        self.due_ns = self._moment_ns
        if self._moment_ns <= now_ns:
            self.tick(now_ns)

    def respond(self, lane: RequestLane) -> None:
        pass

    def tick(self, now_ns: int) -> None:
        while self._moment_ns <= now_ns:
            lane = self._take_lane()
            if lane is None:
                self.due_ns = NEVER_NS  # until a lane is free
                return
            delayed = now_ns - self._moment_ns > DELAYED_NS
            self._advance()
            self._starter.start(lane, now_ns, delayed=delayed)

    def _take_lane(self) -> RequestLane | None:
        if self._free and not (self._takes_turns and self._lanes < self._max_lanes):
            return self._free.popleft()
        while self._lanes < self._max_lanes:
            lane = self._starter.lane(self._lanes)
            self._lanes += 1
            if not lane.is_busy:
                return lane
        return self._free.popleft() if self._free else None

    def _advance(self) -> None:
        offset = next(self._offsets, None) if self._left > 0 else None
        self._left -= 1
        self.is_exhausted = offset is None
        self._moment_ns = NEVER_NS if offset is None else self._begin_ns + offset
        self.due_ns = self._moment_ns


class Periodic:
    """Begins some requests, and more whenever each of the last ones has had enough responses."""

    def __init__(self, starter: RequestStarter, level: PeriodicConcurrency) -> None:
        self._starter = starter
        self._level = level
        self._begun = 0
        self._waits: dict[int, int] = {}  # lane -> responses until it counts
        self.due_ns = NEVER_NS

    @property
    def is_exhausted(self) -> bool:
        return self._begun >= self._level.end

    def begin(self, now_ns: int) -> None:
        self._begin_some(self._level.start, now_ns)

    def free(self, lane: RequestLane, now_ns: int) -> None:
        if self._waits.pop(lane.number, None) is not None and not self._waits:
            self._begin_some(self._level.step, now_ns)

    def respond(self, lane: RequestLane) -> None:
        left = self._waits.get(lane.number)
        if left is None:
            return
        self._waits[lane.number] = left - 1
        if left == 1:
            del self._waits[lane.number]
            if not self._waits:
                self.due_ns = 0  # not from inside a connection that is being read

    def tick(self, now_ns: int) -> None:
        self.due_ns = NEVER_NS
        self._begin_some(self._level.step, now_ns)

    def _begin_some(self, count: int, now_ns: int) -> None:
        count = min(count, self._level.end - self._begun)
        numbers = range(self._begun, self._begun + count)
        self._begun += count
        self._waits = dict.fromkeys(numbers, self._level.period)
        for number in numbers:
            self._starter.start(self._starter.lane(number), now_ns)


def pacing_of(
    level: Level,
    requests: int | None,
    worker: int,
    workers: int,
    starter: RequestStarter,
    lanes: int,
) -> Pacing:
    """The pacing of one process's share of a level.

    Args:
        level: The level that all processes keep together.
        requests: How many requests all send; None: without an end.
        worker: The number of this process.
        workers: The number of processes.
        starter: Begins requests.
        lanes: The sequences at once of a level that begins requests at their times; 0: none.
    """
    mine = None if requests is None else share_of_number(requests, worker, workers)
    if isinstance(level, Concurrency):
        return ClosedLoop(starter, share_of_number(level.number, worker, workers), mine)
    if isinstance(level, PeriodicConcurrency):
        return Periodic(starter, level)
    offsets = share(offsets_ns(level), worker, workers)
    if isinstance(level, FixedSchedule):
        mine = None
    return OpenLoop(starter, offsets, mine, lanes)
