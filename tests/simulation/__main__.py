# SPDX-License-Identifier: Apache-2.0
"""`scripts/simulate` runs scenarios of seeds, and shrinks those that have findings."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.campaign import Summary, Totals, jobs_of, measure_speed, run_jobs
from tests.simulation.scenario import PROFILES
from tests.simulation.shrink import Shrinker, kind_of
from tests.simulation.story import regression_test, tell

_PROGRESS_S = 10.0
_DEFAULT_COUNT = 10
_MOST_SHRUNK = 3


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--count", type=int, help=f"of seeds; {_DEFAULT_COUNT} if nothing is said")
    parser.add_argument("--hours", type=float, help="run until so much time was simulated")
    parser.add_argument("--until-found", action="store_true", help="run until there is a finding")
    parser.add_argument("--profile", choices=(*PROFILES, "all"), default="all")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--trace", action="store_true", help="print the trace hash of each seed")
    parser.add_argument("--speed", action="store_true", help="measure how fast the simulation is")
    parser.add_argument("--no-shrink", action="store_true", help="only name what is found")
    options = parser.parse_args(arguments)
    if options.count is None and options.hours is None and not options.until_found:
        options.count = _DEFAULT_COUNT
    return options


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _run(options: argparse.Namespace, profiles: tuple[str, ...]) -> Totals:
    totals = Totals()
    jobs = jobs_of(options.seed, profiles, is_long=options.hours is not None)
    said_s = time.monotonic()
    for summary in run_jobs(jobs, options.jobs):
        totals.add(summary)
        job = summary.job
        if options.trace:
            _say(f"{job.profile} {job.seed} {summary.trace}")
        for finding in summary.findings[:1]:
            _say(f"{job.profile} {job.seed}: {len(summary.findings)} findings, first {finding}")
        if time.monotonic() - said_s > _PROGRESS_S:
            said_s = time.monotonic()
            _say(str(totals))
        if _is_enough(options, totals, len(profiles)):
            break
    return totals


def _is_enough(options: argparse.Namespace, totals: Totals, profiles: int) -> bool:
    if options.until_found and totals.failing:
        return True
    if options.count is not None and totals.runs >= options.count * profiles:
        return True
    return options.hours is not None and totals.hours >= options.hours


def _explain(summary: Summary) -> None:
    """Print the story of a finding, after it was made as short as possible, and its test."""
    job = summary.job
    shrunk = Shrinker(job.seed, job.profile, job.length).shrink()
    if shrunk is None:
        _say(f"{job.profile} {job.seed}: run alone, this seed has no finding")
        return
    _say(f"\n{job.profile} {job.seed}, made shorter in {shrunk.runs} runs\n")
    _say(tell(shrunk.result))
    _say(
        f"\nThe test for tests/simulation/test_regressions.py:\n\n{regression_test(shrunk.result)}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run scenarios; returns 1 if there was a finding."""
    options = _parse(arguments)
    profiles = PROFILES if options.profile == "all" else (options.profile,)
    if options.speed:
        for line in measure_speed(profiles):
            _say(line)
        return 0
    totals = _run(options, profiles)
    _say(str(totals))
    first_of_kind = {kind_of(each.findings[0]): each for each in reversed(totals.failing)}
    if not options.no_shrink:
        for summary in list(first_of_kind.values())[::-1][:_MOST_SHRUNK]:
            _explain(summary)
    return int(bool(totals.failing))


if __name__ == "__main__":
    sys.exit(main())
