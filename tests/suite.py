# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.suite [PYTEST ARGUMENTS]` runs tests in several processes, for `scripts/test`.

A test that failed runs twenty times more beside a load on all cores. If it fails again, it is
broken. If it does not, the test or the product has a rare race. Both fail the run: only a race that
is in tests/flaky.toml, with an owner and a date, is let pass until that date.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

RUNS = 20
MAX_FAILED_TESTS = 10  # of more than these, none runs again: the change broke something
MAX_S = 1200.0  # of all these runs together; a test that has not passed all by then has failed
MAX_WORKERS = 16
USUAL_DAYS = 14  # to mend a race
MAX_DAYS = 60  # a later date is no promise
FLAKY = pathlib.Path(__file__).with_name("flaky.toml")


@dataclass
class Outcome:
    """What `tests/suite_report.py` says about a run."""

    failed: list[str] = field(default_factory=list)
    died: list[str] = field(default_factory=list)  # tests whose process ended while they ran
    unreadable: list[str] = field(default_factory=list)  # files whose tests are not even known
    passed_count: int = 0


@dataclass(frozen=True)
class Flaky:
    """A test that is known to have a race."""

    test: str
    owner: str
    until: dt.date
    why: str


def read_flaky(text: str) -> dict[str, Flaky]:
    """The entries of tests/flaky.toml by the names of tests."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return {each["test"]: Flaky(**each) for each in toml.loads(text).get("flaky", [])}


def worker_count(cores: int) -> int:
    """How many processes run tests side by side: many tests wait more than they compute."""
    return min(MAX_WORKERS, cores + cores // 2)


def available_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_side_by_side(arguments: list[str]) -> tuple[int, Outcome | None]:
    """The exit status of pytest, and the outcome if pytest came to an end."""
    workers = os.environ.get("WORKERS") or str(worker_count(available_cores()))
    # A process that died is not replaced: after that, pytest-xdist may wait for ever for the tests
    # which it had given to that process.
    processes = ("--numprocesses", workers, "--dist", "loadfile", "--max-worker-restart", "0")
    return pytest([*processes, *arguments])


def pytest(arguments: list[str], timeout_s: float | None = None) -> tuple[int, Outcome | None]:
    """See `run_side_by_side`; pytest is killed after `timeout_s`."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "outcome.json")
        plugin = ("-p", "tests.suite_report", "--outcome", str(file))
        command = [sys.executable, "-m", "pytest", *plugin, *arguments]
        try:
            status = subprocess.run(command, check=False, timeout=timeout_s).returncode
        except subprocess.TimeoutExpired:
            return 1, None
        return status, Outcome(**json.loads(file.read_text())) if file.exists() else None


def passes_once(test: str, timeout_s: float) -> bool:
    """Whether a test passes now; one that is skipped, or that has no end in time, does not."""
    status, outcome = pytest(["-q", "--no-header", "-p", "no:xdist", test], timeout_s)
    return status == 0 and outcome is not None and outcome.passed_count > 0


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  before pytest goes on in another process


@contextlib.contextmanager
def load() -> Iterator[None]:
    """Keeps all cores busy."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(available_cores())]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def passes_again(
    test: str,
    deadline_s: float,
    passes: Callable[[str, float], bool] = passes_once,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Whether a test passes every time; the first failure ends it."""
    for count in range(1, RUNS + 1):
        left_s = deadline_s - clock()
        if left_s <= 0:
            say(f"{test} has run {count - 1} of {RUNS} times; there is no time for more.")
            return False
        say(f"{test}: run {count} of {RUNS} beside a load")
        if not passes(test, left_s):
            return False
    return True


def judge(races: list[str], known: dict[str, Flaky], today: dt.date) -> tuple[int, str]:
    """The exit status and the last words about tests that failed once and passed twenty times."""
    lines, status = [], 0
    for test in races:
        entry = known.get(test)
        lines.append(f"FLAKY  {test}")
        if entry is None:
            status = 1
            lines.append(how_to_go_on(test, today))
        elif entry.until < today:
            status = 1
            lines.append(f"       {entry.owner} had until {entry.until} to mend it.")
        else:
            lines.append(f"       {entry.owner} mends it by {entry.until}: {entry.why}")
    title = f"{len(races)} tests failed once and then passed {RUNS} times. They have races:"
    return status, "\n".join([title, *lines]) if races else ""


def how_to_go_on(test: str, today: dt.date) -> str:
    """What to do about a race that nobody knew of."""
    return f"""\
       It fails this run, because it is not in tests/flaky.toml. The test or the product has a race: mend it.
       If others must not wait for that, add an entry with your name, which lets it pass until its date:

       [[flaky]]
       test = {json.dumps(test)}
       owner = "who mends it"
       until = {today + dt.timedelta(days=USUAL_DAYS)}
       why = "the race, as far as it is known"
"""  # noqa: E501  the lines of a terminal


def judge_failures(outcome: Outcome) -> tuple[int, str]:
    """Run failed tests again; returns the exit status and the last words of the output."""
    if len(outcome.failed) > MAX_FAILED_TESTS:
        return 1, f"{len(outcome.failed)} tests failed; no more than {MAX_FAILED_TESTS} run again."
    deadline_s = time.monotonic() + MAX_S
    say(f"\nSome tests failed. They run {RUNS} times more; the first that fails again ends it.\n")
    with load():
        for test in outcome.failed:
            if not passes_again(test, deadline_s):
                return 1, f"FAILED {test}, also when it ran again"
    today = dt.datetime.now(dt.timezone.utc).date()
    return judge(outcome.failed, read_flaky(FLAKY.read_text()), today)


def main(arguments: list[str]) -> int:
    """Run tests; returns the exit status."""
    # A shell ignores SIGINT for its background jobs. Servers of tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status, outcome = run_side_by_side(arguments)
    words = ""
    if outcome is None:
        status = status or 1
    elif outcome.died or outcome.unreadable:
        status = 1
        lines = [f"DIED   {test}: the process in which it ran ended" for test in outcome.died]
        lines += [f"ERROR  {file}: its tests could not be collected" for file in outcome.unreadable]
        words = "\n".join(lines)
    elif status == 1 and outcome.failed:
        status, words = judge_failures(outcome)
    if words:
        rule = "=" * 80
        say(f"\n{rule}\n{words}\n{rule}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
