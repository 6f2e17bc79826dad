# SPDX-License-Identifier: Apache-2.0
"""A load without processes, sockets and real time, for tests of what measures with a load."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from pytriton.tools.perf.load.plan import (
    Concurrency,
    FixedSchedule,
    Intervals,
    Level,
    PeriodicConcurrency,
    RequestRate,
)
from pytriton.tools.perf.load.records import GeneratorState, Records

SECOND_NS = 1_000_000_000


@dataclasses.dataclass
class FakeLoad:
    """Each request takes what `latency_ns(level, number)` says; time passes only in `wait`.

    Attributes:
        latency_ns: The time that request `number` takes at a level.
        responses: Responses of each request; the first comes after `latency_ns`, the others one
            millisecond after each other.
        fail: Whether request `number` fails, with the text "it failed".
        generator: What each take says of the generator.
        levels: The levels that were asked for, in their order, with their numbers of requests.
    """

    latency_ns: Callable[[Level, int], int] = lambda _level, _number: 1_000_000
    responses: int = 1
    fail: Callable[[int], bool] = lambda _number: False
    generator: GeneratorState = dataclasses.field(default_factory=GeneratorState)
    levels: list[tuple[Level, int | None]] = dataclasses.field(default_factory=list)
    is_stopped: bool = False
    _now_ns: int = 1_000 * SECOND_NS
    _taken_ns: int = 1_000 * SECOND_NS
    _number: int = 0
    _left: int | None = None
    _free_ns: list[int] = dataclasses.field(default_factory=list)
    _rows: list[tuple[int, int, bool]] = dataclasses.field(default_factory=list)

    def start(self, level: Level, requests: int | None = None) -> None:
        self._taken_ns = self._now_ns
        self.change(level, requests)

    def change(self, level: Level, requests: int | None = None) -> None:
        self.levels.append((level, requests))
        if isinstance(level, FixedSchedule):
            requests = len(level.milliseconds)
        elif isinstance(level, PeriodicConcurrency):
            requests = level.end
        self._left = requests
        places = level.number if isinstance(level, Concurrency) else 1
        self._free_ns = [self._now_ns] * places

    def wait(self, seconds: float) -> bool:
        until_ns = self._now_ns + int(seconds * SECOND_NS)
        while self._left is None or self._left > 0:
            place = min(range(len(self._free_ns)), key=self._free_ns.__getitem__)
            if self._free_ns[place] >= until_ns:
                break
            self._send(place)
        if self._left == 0 and all(end <= until_ns for _begin, end, _ok in self._rows):
            self._now_ns = max((end for _begin, end, _ok in self._rows), default=self._now_ns)
            return True
        self._now_ns = until_ns
        return False

    def _send(self, place: int) -> None:
        level = self.levels[-1][0]
        begin = self._free_ns[place]
        latency = self.latency_ns(level, self._number)
        gaps = (self.responses - 1) * 1_000_000
        self._rows.append((begin, begin + latency + gaps, not self.fail(self._number)))
        self._free_ns[place] += self._gap_ns(level, latency + gaps)
        self._number += 1
        if self._left is not None:
            self._left -= 1

    def _gap_ns(self, level: Level, latency_ns: int) -> int:
        if isinstance(level, RequestRate):
            return int(SECOND_NS / level.per_second)
        if isinstance(level, Intervals):
            return level.microseconds[self._number % len(level.microseconds)] * 1_000
        return latency_ns

    def take(self) -> Records:
        ended = sorted((row for row in self._rows if row[1] <= self._now_ns), key=lambda r: r[1])
        self._rows = [row for row in self._rows if row[1] > self._now_ns]
        begin = np.array([row[0] for row in ended], np.int64)
        last = np.array([row[1] for row in ended], np.int64)
        ok = np.array([row[2] for row in ended], np.bool_)
        offsets = np.arange(self.responses, dtype=np.int64) * 1_000_000
        first = last - (self.responses - 1) * 1_000_000
        is_stream = self.responses > 1
        records = Records(
            begin_ns=begin,
            sent_ns=begin + 10_000,
            first_ns=first,
            last_ns=last,
            responses=np.full(len(ended), self.responses, np.int64),
            ok=ok,
            delayed=np.zeros(len(ended), np.bool_),
            input_index=np.zeros(len(ended), np.int64),
            sequence_id=np.zeros(len(ended), np.uint64),
            response_ns=(first[:, None] + offsets).ravel() if is_stream else first[:0],
            errors={"it failed": int((~ok).sum())} if not ok.all() else {},
            generator=self.generator,
            taken_ns=self._now_ns,
            since_ns=self._taken_ns,
            is_done=self._left == 0 and not self._rows,
        )
        self._taken_ns = self._now_ns
        return records

    def now_ns(self) -> int:
        return self._now_ns

    def stop(self, *, at_once: bool = False) -> Records:
        self.is_stopped = True
        self._left = 0
        if self._rows and not at_once:
            self._now_ns = max(row[1] for row in self._rows)
        return self.take()
