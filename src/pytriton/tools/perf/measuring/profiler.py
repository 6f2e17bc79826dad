# SPDX-License-Identifier: Apache-2.0
"""Measures levels: windows until they agree, and one level after the other.

The next load is one step higher, or halves the distance to the latency limit.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator

from pytriton.tools.perf.load.plan import Level
from pytriton.tools.perf.measuring.results import (
    NEEDED,
    LevelResult,
    LevelStatus,
    Mode,
    ProfileWatcher,
    StabilityRules,
    WindowFigures,
    judge,
)
from pytriton.tools.perf.measuring.source import LoadSource
from pytriton.tools.perf.measuring.summary import SummaryRules, Window, WindowSummary, summarise

Load = float
Search = Generator[Load, bool, None]


@dataclasses.dataclass(frozen=True, slots=True)
class LoadRange:
    """Loads from `start` to `end`; an end of 0 is that of the latency limit."""

    start: float
    end: float
    step: float = 1.0

    @property
    def is_single(self) -> bool:
        return self.start == self.end

    def count(self) -> int | None:
        """How many loads a linear search visits at most; None if that is open."""
        if self.end == 0:
            return None
        return int((self.end - self.start) / self.step + 1e-9) + 1


def linear(loads: LoadRange) -> Search:
    """Visit one load after the other, until one is not met: not stable, or over the limit."""
    number = 0
    while loads.end == 0 or (number < (loads.count() or 0)):
        met = yield loads.start + number * loads.step
        if not met:
            return
        number += 1


def binary(loads: LoadRange) -> Search:
    """Find the highest load that is met, up to the range's step."""
    low, high = loads.start, loads.end
    if not (yield low):
        return
    if (yield high):
        return
    whole = all(float(each).is_integer() for each in (low, high, loads.step))
    while high - low > loads.step:
        middle = float(int((low + high) / 2)) if whole else (low + high) / 2
        if (yield middle):
            low = middle
        else:
            high = middle


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileRules:
    """How levels are measured.

    Attributes:
        request_count: Measure one window of so many requests; 0: windows until they agree.
        warmup_count: Requests before that are not measured.
        keeps_windows: All windows are kept, for exports.
        single_window: The load itself has an end: one window until then.
    """

    stability: StabilityRules = dataclasses.field(default_factory=StabilityRules)
    summary: SummaryRules = dataclasses.field(default_factory=SummaryRules)
    request_count: int = 0
    warmup_count: int = 0
    keeps_windows: bool = False
    single_window: bool = False


class Profiler:
    """Measures levels of one server."""

    def __init__(self, source: LoadSource, rules: ProfileRules, watcher: ProfileWatcher) -> None:
        self._source = source
        self._rules = rules
        self._watcher = watcher

    def measure(self, mode: Mode, value: float, level: Level) -> LevelResult:
        """Measure a level."""
        self._watcher.level_begins(mode, value)
        rules = self._rules
        if rules.warmup_count:
            self._source.begin(level, rules.warmup_count)
            self._source.wait_until_done()
        self._source.begin(level, rules.request_count or None)
        offset_ns = time.time_ns() - self._source.now_ns()
        if rules.request_count or rules.single_window:
            windows, status, trials = self._one_window()
        else:
            windows, status, trials = self._windows()
        last = windows[-1:] if rules.request_count else windows[-NEEDED:]
        summary = summarise(last, rules.summary)
        if summary.requests == 0 and (summary.failed or status is LevelStatus.COUNTED):
            status = LevelStatus.FAILED
        result = LevelResult(
            mode=mode,
            value=value,
            status=status,
            summary=summary,
            windows=windows if rules.keeps_windows else last,
            trials=trials,
            wall_offset_ns=offset_ns,
        )
        self._watcher.level_ended(result)
        return result

    def _one_window(self) -> tuple[list[Window], LevelStatus, int]:
        self._watcher.window_begins(1)
        window = self._source.window(self._watcher.ticked, self._rules.request_count or 1)
        self._watcher.window_ended(1, summarise([window], self._rules.summary))
        return [window], LevelStatus.INTERRUPTED if window.is_cut else LevelStatus.COUNTED, 1

    def _windows(self) -> tuple[list[Window], LevelStatus, int]:
        windows: list[Window] = []
        figures: list[WindowFigures] = []
        while True:
            number = len(figures) + 1
            self._watcher.window_begins(number)
            window = self._source.window(self._watcher.ticked)
            if window.is_cut and windows and window.duration_s < windows[-1].duration_s / 2:
                # A piece of a window says less than whole ones.
                return windows, LevelStatus.INTERRUPTED, len(figures)
            windows.append(window)
            if not self._rules.keeps_windows:
                del windows[:-NEEDED]
            summary = summarise([window], self._rules.summary)
            figures.append(self._figures(summary))
            self._watcher.window_ended(number, summary)
            if window.is_cut:
                return windows, LevelStatus.INTERRUPTED, number
            if summary.requests == 0 and summary.failed:
                return windows, LevelStatus.FAILED, number
            status = judge(figures, self._rules.stability)
            if status is not None:
                return windows, status, number

    def _figures(self, summary: WindowSummary) -> WindowFigures:
        latency_us = summary.latency_us(self._rules.summary.percentile)
        return WindowFigures(summary.requests, summary.throughput, latency_us)


def is_met(result: LevelResult, *, keeps_unstable: bool) -> bool:
    """Whether a search goes on beyond this level."""
    if result.status is LevelStatus.UNSTABLE:
        return keeps_unstable
    return result.status.has_numbers


def sweep(
    search: Search,
    measure: Callable[[float], list[LevelResult]],
    *,
    keeps_unstable: bool = False,
) -> list[list[LevelResult]]:
    """Measure the levels of a search, on one server or on several.

    The result of the first server decides where the search goes.
    """
    found: list[list[LevelResult]] = []
    try:
        value = next(search)
        while True:
            results = measure(value)
            found.append(results)
            if any(each.status is LevelStatus.INTERRUPTED for each in results):
                break
            if any(each.status is LevelStatus.FAILED for each in results):
                break
            value = search.send(is_met(results[0], keeps_unstable=keeps_unstable))
    except StopIteration:
        pass
    return found
