# SPDX-License-Identifier: Apache-2.0
"""How a level ends: whether its windows agree, its result, and its watchers."""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pytriton.tools.perf.load.records import Records
from pytriton.tools.perf.measuring.summary import Window, WindowSummary

NEEDED = 3  # windows that have to agree


class LevelStatus(enum.Enum):
    """How a level ended."""

    STABLE = "stable"
    LATENCY_VARIES = "latency varies"  # enough for asynchronous load, with a warning
    UNSTABLE = "unstable"
    OVER_LIMIT = "over the latency limit"
    COUNTED = "counted"  # a number of requests, without a question of stability
    INTERRUPTED = "interrupted"
    FAILED = "failed"  # no request was answered well

    @property
    def has_numbers(self) -> bool:
        """Whether the level is reported."""
        return self not in {LevelStatus.UNSTABLE, LevelStatus.OVER_LIMIT, LevelStatus.FAILED}


@dataclasses.dataclass(frozen=True, slots=True)
class WindowFigures:
    """The figures of a window that are compared."""

    requests: int
    throughput: float
    latency_us: float


@dataclasses.dataclass(frozen=True, slots=True)
class Agreement:
    """Whether the last windows agree.

    Attributes:
        throughput_spread: The largest throughput by the smallest, less one.
        latency_spread: The same for latency.
    """

    is_empty: bool
    throughput_spread: float = 0.0
    latency_spread: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class StabilityRules:
    """When a level is stable.

    Attributes:
        percentage: How far windows may differ.
        max_trials: How many windows there are at most.
        is_async: A level whose latency alone varies counts as stable.
        limit_us: The latency above which a level is given up; 0: none.
    """

    percentage: float = 10.0
    max_trials: int = 10
    is_async: bool = False
    limit_us: float = 0.0


def agreement(windows: Sequence[WindowFigures]) -> Agreement:
    """Compare the last windows."""
    last = windows[-NEEDED:]
    if any(window.requests == 0 for window in last):
        return Agreement(is_empty=True)
    return Agreement(
        is_empty=False,
        throughput_spread=_spread([window.throughput for window in last]),
        latency_spread=_spread([window.latency_us for window in last]),
    )


def _spread(values: Sequence[float]) -> float:
    return max(values) / min(values) - 1 if min(values) > 0 else float("inf")


def judge(windows: Sequence[WindowFigures], rules: StabilityRules) -> LevelStatus | None:
    """How a level ends after these windows; None if it needs another one."""
    is_last = len(windows) >= rules.max_trials
    if len(windows) >= NEEDED:
        last = windows[-NEEDED:]
        found = agreement(last)
        allowed = rules.percentage / 100
        over = rules.limit_us > 0 and all(each.latency_us > rules.limit_us for each in last)
        if over and not found.is_empty:
            return LevelStatus.OVER_LIMIT
        steady = not found.is_empty and found.throughput_spread <= allowed
        if steady and found.latency_spread <= allowed:
            mean = sum(each.latency_us for each in last) / NEEDED
            is_over = 0 < rules.limit_us < mean
            return LevelStatus.OVER_LIMIT if is_over else LevelStatus.STABLE
        if steady and is_last and rules.is_async:
            return LevelStatus.LATENCY_VARIES
    return LevelStatus.UNSTABLE if is_last else None


class Mode(enum.Enum):
    """What the load of a run is."""

    CONCURRENCY = "concurrency"
    RATE = "request_rate"
    INTERVALS = "intervals"
    SCHEDULE = "schedule"
    PERIODIC = "periodic_concurrency"

    @property
    def is_rate(self) -> bool:
        return self in {Mode.RATE, Mode.INTERVALS, Mode.SCHEDULE}


@dataclasses.dataclass(frozen=True, slots=True)
class LevelResult:
    """A level that was measured.

    Attributes:
        value: Requests under way, or requests a second.
        status: How it ended.
        summary: The numbers of its last windows.
        windows: All windows if they are exported, else the last ones.
        trials: How many windows there were.
        wall_offset_ns: What makes the records' times those of the system's clock.
    """

    mode: Mode
    value: float
    status: LevelStatus
    summary: WindowSummary
    windows: Sequence[Window] = ()
    trials: int = 0
    wall_offset_ns: int = 0


def number_text(value: float) -> str:
    """A number as C++ prints it: six digits, and no point if it is whole."""
    return f"{value:g}"


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


class ProfileWatcher(Protocol):
    """Is told what happens; nothing depends on what it does with that."""

    def level_begins(self, mode: Mode, value: float) -> None: ...

    def window_begins(self, number: int) -> None: ...

    def ticked(self, live: Live) -> None: ...

    def window_ended(self, number: int, summary: WindowSummary) -> None: ...

    def level_ended(self, result: LevelResult) -> None: ...


class Watchers:
    """Tells several."""

    def __init__(self, watchers: Sequence[ProfileWatcher]) -> None:
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
