# SPDX-License-Identifier: Apache-2.0
"""When requests begin that do not wait for answers: pure, and the same for the same seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from pytriton.tools.perf.errors import GeneratorError
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
