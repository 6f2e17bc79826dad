# SPDX-License-Identifier: Apache-2.0
"""Runs the scenarios of many seeds, in several processes if asked, and sums up what came of it."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor

from tests.simulation.scenario import (
    EVERYTHING,
    USUAL_LENGTH,
    Kept,
    Length,
    Run,
    make_ordinary_scenario,
    make_scenario,
)
from tests.simulation.story import tell

# With `--hours`, a run of this profile is about an hour, and one of the others some minutes.
LONG = {"quiet": Length(stretch=1500.0)}
LONG_OTHERS = Length(stretch=60.0)
_FASTEST = "quiet"
ORDINARY_CALLS = 500  # of each client, where the speed of ordinary requests is measured


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One scenario to run, or what is kept of it."""

    profile: str
    seed: int
    length: Length = USUAL_LENGTH
    kept: Kept = EVERYTHING


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What came of a scenario, without its objects; the story of one without findings is empty."""

    job: Job
    trace: str
    findings: list[str]
    calls: int
    virtual_s: float
    processor_s: float
    story: str = ""


def run_job(job: Job) -> Summary:
    result = Run(make_scenario(job.seed, job.profile, job.kept, job.length)).run()
    return Summary(
        job,
        result.trace,
        result.findings,
        result.calls,
        result.virtual_s,
        result.processor_s,
        tell(result) if result.findings else "",
    )


def jobs_of(first_seed: int, profiles: Iterable[str], *, is_long: bool) -> Iterator[Job]:
    """Yields scenarios without end: each seed in every profile."""
    for seed in itertools.count(first_seed):
        for profile in profiles:
            length = LONG.get(profile, LONG_OTHERS) if is_long else USUAL_LENGTH
            yield Job(profile, seed, length)


def run_jobs(jobs: Iterable[Job], processes: int) -> Iterator[Summary]:
    """Yields what came of scenarios, in their order, as long as its caller wants more."""
    if processes == 1:
        yield from map(run_job, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        waiting: deque[Future[Summary]] = deque()
        try:
            for job in jobs:
                waiting.append(pool.submit(run_job, job))
                if len(waiting) > 2 * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()


class Totals:
    def __init__(self) -> None:
        self.runs = 0
        self.calls = 0
        self.virtual_s = 0.0
        self.processor_s = 0.0
        self.failing: list[Summary] = []
        self._began_s = time.monotonic()

    def add(self, summary: Summary) -> None:
        self.runs += 1
        self.calls += summary.calls
        self.virtual_s += summary.virtual_s
        self.processor_s += summary.processor_s
        if summary.findings:
            self.failing.append(summary)

    @property
    def hours(self) -> float:
        return self.virtual_s / 3600

    def __str__(self) -> str:
        processor_s = max(self.processor_s, 1e-9)
        return (
            f"{self.runs} runs, {self.calls} calls, {self.hours:.2f} simulated hours, "
            f"{self.virtual_s / processor_s:.0f} times faster than the clock, "
            f"{60 * self.calls / processor_s:.0f} requests per minute and core, "
            f"{len(self.failing)} with findings, {time.monotonic() - self._began_s:.0f} s"
        )


def measure_speed(profiles: Iterable[str]) -> Iterator[str]:
    """Yields lines on the speed of a quiet schedule, and of many requests, by processor time."""
    run_job(Job(_FASTEST, 0))  # imports and compiles everything
    totals = Totals()
    for seed in range(2):
        totals.add(run_job(Job(_FASTEST, seed, LONG[_FASTEST])))
    yield f"a quiet schedule: {totals}"
    yield measure_ordinary(ORDINARY_CALLS)
    for profile in profiles:
        totals = Totals()
        for seed in range(2):
            totals.add(run_job(Job(profile, seed, Length(calls=200))))
        yield f"{profile}: {totals}"


def measure_ordinary(calls: int) -> str:
    """Returns how many small requests a minute of one core simulates, with start and end of a run.

    Raises:
        AssertionError: The run has findings.
    """
    result = Run(make_ordinary_scenario(calls)).run()
    assert not result.findings, result.findings[:3]
    rate = 60 * result.calls / max(result.processor_s, 1e-9)
    return (
        f"{len(result.scenario.clients)} clients of small alike requests: {result.calls} calls, "
        f"{result.processor_s:.1f} s of processor time, {rate:.0f} requests per minute and core"
    )
