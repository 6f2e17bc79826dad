# SPDX-License-Identifier: Apache-2.0
"""What a measurement tells those who watch it."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pytriton.tools.perf.load.records import Records
from pytriton.tools.perf.measuring.results import LevelResult, Mode
from pytriton.tools.perf.measuring.summary import WindowSummary


@dataclasses.dataclass(frozen=True, slots=True)
class Live:
    """A window as far as it has come.

    Attributes:
        done: The share of the window that has passed, 0 to 1.
        rate: Requests a second since the window began.
        recent_rate: Requests a second in the last moments.
    """

    done: float
    requests: int
    failed: int
    rate: float
    recent_rate: float
    p50_us: float
    p99_us: float
    is_limit: bool = False


class Watcher(Protocol):
    """Is told what happens; nothing depends on what it does with that."""

    def level_begins(self, mode: Mode, value: float) -> None: ...

    def window_begins(self, number: int) -> None: ...

    def ticked(self, live: Live) -> None: ...

    def window_ended(self, number: int, summary: WindowSummary) -> None: ...

    def level_ended(self, result: LevelResult) -> None: ...


class Watchers:
    """Tells several."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def level_begins(self, mode: Mode, value: float) -> None:
        for each in self._watchers:
            each.level_begins(mode, value)

    def window_begins(self, number: int) -> None:
        for each in self._watchers:
            each.window_begins(number)

    def ticked(self, live: Live) -> None:
        for each in self._watchers:
            each.ticked(live)

    def window_ended(self, number: int, summary: WindowSummary) -> None:
        for each in self._watchers:
            each.window_ended(number, summary)

    def level_ended(self, result: LevelResult) -> None:
        for each in self._watchers:
            each.level_ended(result)


class LiveWindow:
    """Adds up the records of a window while it runs."""

    def __init__(self) -> None:
        # The last seconds are enough for a display, and a window may last for hours.
        self._latencies: deque[np.ndarray[tuple[int], np.dtype[np.int64]]] = deque(maxlen=20)
        self._requests = self._failed = 0

    def add(self, part: Records, elapsed_s: float, done: float) -> Live:
        good = part.ok
        count = int(good.sum())
        self._requests += count
        self._failed += len(part) - count
        self._latencies.append((part.first_ns - part.begin_ns)[good])
        times = np.concatenate(self._latencies)
        p50, p99 = np.percentile(times, (50, 99)) / 1000 if len(times) else (0.0, 0.0)
        span_s = max((part.taken_ns - part.since_ns) / 1e9, 1e-3)
        return Live(
            done=min(done, 1.0),
            requests=self._requests,
            failed=self._failed,
            rate=self._requests / max(elapsed_s, 1e-3),
            recent_rate=count / span_s,
            p50_us=float(p50),
            p99_us=float(p99),
            is_limit=part.generator.is_limit,
        )
