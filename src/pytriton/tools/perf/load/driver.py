# SPDX-License-Identifier: Apache-2.0
"""When requests begin and what happens when they end: pacing for each kind of level, and records.

No I/O: lanes have carriers that send. Schedules are the same for the same seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.lane import Carrier, Choices, RequestLane
from pytriton.tools.perf.load.plan import (
    Arrivals,
    Concurrency,
    FixedSchedule,
    Intervals,
    Level,
    PeriodicConcurrency,
    RequestRate,
)
from pytriton.tools.perf.load.recipe import Recipe, TakeLevel
from pytriton.tools.perf.load.records import Recorder
from pytriton.tools.perf.load.requests import differs

_SECOND_NS = 1_000_000_000

DELAYED_NS = 1_000_000  # a request that begins later than this after its time is delayed
MAX_LANES = 1024
NEVER_NS = sys.maxsize

_FIRST_REST_NS, _LAST_REST_NS = 10_000_000, 200_000_000  # after lost connections


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
        GeneratorError: it says what was expected.
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

    def __init__(self, starter: LoadDriver, places: int, requests: int | None) -> None:
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
        self, starter: LoadDriver, offsets: Iterator[int], requests: int | None, lanes: int
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

    def __init__(self, starter: LoadDriver, level: PeriodicConcurrency) -> None:
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
    starter: LoadDriver,
    lanes: int,
) -> Pacing:
    """The pacing of one process's share of a level, and of the requests that all send together.

    `lanes` are the sequences at once of a level that begins requests at their times; 0: none.
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


class LoadDriver:
    """Begins requests as the level asks for, and records those that end.

    Args:
        recipe: What is sent.
        recorder: Keeps the rows.
        carrier_of: The carrier of the lane with a number.
    """

    def __init__(
        self, recipe: Recipe, recorder: Recorder, carrier_of: Callable[[int], Carrier]
    ) -> None:
        self._recipe = recipe
        self._recorder = recorder
        self._add = recorder.add
        self._carrier_of = carrier_of
        self._lanes: list[RequestLane] = []
        sizes = [len(stream) for stream in recipe.streams]
        self._choices = Choices(sizes, recipe.sequences)
        self._single = self._choices.single
        self._pacing: Pacing = ClosedLoop(self, 0, 0)
        self._rests: list[tuple[int, int]] = []  # when a lane may begin again, its number
        self._losses: dict[int, int] = {}  # lost connections of a lane, one after the other
        self._has_expected = any(each is not None for each in recipe.expected)
        self._is_plain = not (recipe.is_streaming or recipe.sequences or self.looks_at_answers)
        self._is_stopping = False
        self.under_way = 0

    @property
    def looks_at_answers(self) -> bool:
        return self._recipe.keeps_outputs or any(each for each in self._recipe.expected)

    @property
    def is_done(self) -> bool:
        """Whether nothing is under way and nothing will begin."""
        return not self.under_way and self._pacing.is_exhausted

    def change(self, change: TakeLevel, now_ns: int) -> None:
        """Take up a level."""
        is_new = isinstance(change.level, FixedSchedule)
        self._choices.share(change.worker, change.workers, is_new=is_new)
        sequences = self._recipe.sequences
        lanes = 0
        if sequences is not None:
            lanes = max(1, sequences.at_once // change.workers)
        self._rests.clear()  # the new level begins all its lanes itself
        self._pacing = pacing_of(
            change.level, change.requests, change.worker, change.workers, self, lanes
        )
        self._pacing.begin(now_ns)

    def stop(self, now_ns: int) -> None:
        """Begin no more requests, but for those that end sequences."""
        self._rests.clear()
        self._is_stopping = True
        self._pacing = ClosedLoop(self, 0, None if self._recipe.sequences else 0)

    @property
    def is_stopped(self) -> bool:
        return self._is_stopping and not self.under_way and not self._rests

    # What a pacing uses.

    def lane(self, number: int) -> RequestLane:
        while len(self._lanes) <= number:
            made = len(self._lanes)
            self._lanes.append(RequestLane(made, self._carrier_of(made)))
        return self._lanes[number]

    def start(self, lane: RequestLane, now_ns: int, *, delayed: bool = False) -> None:
        lane.choice = self._single or self._choices.next(lane.number)  # one input set: no call
        lane.begin_ns = now_ns
        lane.first_ns = 0
        lane.responses = 0
        lane.is_delayed = delayed
        lane.is_busy = True
        self.under_way += 1
        lane.carrier.begin(lane)

    def is_in_sequence(self, lane: RequestLane) -> bool:
        return self._recipe.sequences is not None and not self._choices.is_between(lane.number)

    # What connections tell.

    def respond(self, lane: RequestLane, now_ns: int) -> None:
        if not lane.first_ns:
            lane.first_ns = now_ns
        lane.times.append(now_ns)
        self._pacing.respond(lane)

    def keep(self, lane: RequestLane, answer: bytes, json_bytes: int) -> None:
        lane.answers.append(answer)
        lane.json_bytes.append(json_bytes)

    def finish(self, lane: RequestLane, now_ns: int, error: str = "") -> None:
        self._record(lane, now_ns, error)
        self._pacing.free(lane, now_ns)

    def lose(self, lane: RequestLane, now_ns: int, error: str) -> None:
        """The lane rests a little, longer each time, so that a dead server costs no time."""
        losses = self._losses.get(lane.number, 0)
        self._losses[lane.number] = losses + 1
        rest = min(_FIRST_REST_NS << min(losses, 10), _LAST_REST_NS)
        self._choices.end_sequence(lane.number)
        self._record(lane, now_ns, error)
        heapq.heappush(self._rests, (now_ns + rest, lane.number))

    def _record(self, lane: RequestLane, now_ns: int, error: str) -> None:
        choice = lane.choice
        if not self._is_plain:
            error = self._finish_specially(lane, error)
        if error:
            self._recorder.add_error(error)
        elif self._losses:
            self._losses.pop(lane.number, None)
        self._add(
            lane.begin_ns,
            lane.sent_ns,
            lane.first_ns or now_ns,
            now_ns,
            choice.sequence_id,
            lane.responses,
            choice.input_index,
            not error,
            lane.is_delayed,
        )
        lane.is_busy = False
        self.under_way -= 1

    def _finish_specially(self, lane: RequestLane, error: str) -> str:
        """Record times of responses and answers, and compare these; returns the error, if any."""
        recorder = self._recorder
        if self._recipe.is_streaming:
            recorder.response_ns.extend(lane.times)
            lane.times.clear()
        expected = self._recipe.expected[lane.choice.input_index] if self._has_expected else None
        if expected is not None and not error:
            error = differs(self._recipe, expected, lane.answers, lane.json_bytes)
        if self._recipe.keeps_outputs:
            recorder.answers.append(lane.answers)
            recorder.json_bytes.append(lane.json_bytes)
        # Also empty ones: the next request of the lane must not fill a list that was recorded.
        lane.answers, lane.json_bytes = [], []
        return error

    # Time.

    @property
    def due_ns(self) -> int:
        """When `tick` is needed."""
        due = self._pacing.due_ns
        return min(due, self._rests[0][0]) if self._rests else due

    def tick(self, now_ns: int) -> None:
        """Do what is due."""
        while self._rests and self._rests[0][0] <= now_ns:
            _, number = heapq.heappop(self._rests)
            lane = self._lanes[number]
            if not lane.is_busy:
                self._pacing.free(lane, now_ns)
        if self._pacing.due_ns <= now_ns:
            self._pacing.tick(now_ns)
