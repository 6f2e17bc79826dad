# SPDX-License-Identifier: Apache-2.0
"""Decides whether the last windows of a level agree."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

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
