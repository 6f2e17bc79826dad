# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.suite [PART…] [PYTEST ARGUMENTS]` runs tests side by side, for `scripts/test`.

A test that failed runs once more alone. If it passes then, it has a race: the run passes, and ends
with an entry for tests/flaky.toml. An entry that is older than fourteen days fails every run.
Where another part than the quick one runs, such a test also has to pass twenty times beside a load.
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

from tests import last_green, parts

RUNS_BESIDE_LOAD = 20
MAX_FAILED_TESTS = 10  # of more than these, none runs again: the change broke something
MAX_S = 1200.0  # of all these runs together; a test that has not passed all by then has failed
MAX_WORKERS = 16
MAX_DAYS = 14  # to mend a race
FLAKY = pathlib.Path(__file__).with_name("flaky.toml")
RULE = "=" * 80


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
    since: dt.date
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


def red(text: str) -> str:
    return f"\033[31m{text}\033[0m" if sys.stdout.isatty() else text


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


@dataclass
class Repetition:
    """Runs failed tests again, all of them within a time."""

    thorough: bool  # also beside a load
    passes: Callable[[str, float], bool] = passes_once
    clock: Callable[[], float] = time.monotonic
    beside_load: Callable[[], contextlib.AbstractContextManager[None]] = load

    def first_broken(self, tests: list[str]) -> str | None:
        """The first test that fails again."""
        deadline_s = self.clock() + MAX_S
        for test in tests:
            if not self._passes(test, "alone", deadline_s):
                return test
        if self.thorough:
            with self.beside_load():
                for test in tests:
                    for number in range(1, RUNS_BESIDE_LOAD + 1):
                        how = f"{number} of {RUNS_BESIDE_LOAD} times beside a load"
                        if not self._passes(test, how, deadline_s):
                            return test
        return None

    def _passes(self, test: str, how: str, deadline_s: float) -> bool:
        left_s = deadline_s - self.clock()
        if left_s <= 0:
            say(f"There is no time for {test} to run {how}.")
            return False
        say(f"{test} runs {how}")
        return self.passes(test, left_s)


def words_of_races(races: list[str], known: dict[str, Flaky], today: dt.date) -> str:
    """The last words about tests that failed, and passed when they ran again."""
    lines = [
        f"{len(races)} tests failed once and then passed. Each has a race, or the product has:"
    ]
    for test in races:
        lines.append(red(f"FLAKY  {test}"))
        if entry := known.get(test):
            lines.append(f"       known since {entry.since}: {entry.why}")
        else:
            lines.append(how_to_go_on(test, today))
    return "\n".join(lines)


def how_to_go_on(test: str, today: dt.date) -> str:
    """What to do about a race that nobody knew of."""
    return f"""\
       Mend it, or commit this entry to tests/flaky.toml, which gives {MAX_DAYS} days for that:

       [[flaky]]
       test = {json.dumps(test)}
       since = {today}
       why = "the race, as far as it is known"
"""


def words_of_old_entries(known: dict[str, Flaky], today: dt.date) -> str:
    """What is said of races that nobody has mended in time; empty if there are none."""
    old = [each for each in known.values() if (today - each.since).days > MAX_DAYS]
    return "\n".join(
        red(f"OLD    {each.test}")
        + f"\n       is in tests/flaky.toml since {each.since}, for over {MAX_DAYS} days."
        for each in old
    )


def judge(
    status: int, outcome: Outcome | None, again: Repetition, today: dt.date
) -> tuple[int, str]:
    """The exit status of a run, and its last words."""
    if outcome is None:
        return status or 1, ""
    if outcome.died or outcome.unreadable:
        lines = [f"DIED   {test}: the process in which it ran ended" for test in outcome.died]
        lines += [f"ERROR  {file}: its tests could not be collected" for file in outcome.unreadable]
        return 1, "\n".join(lines)
    if status != 1 or not outcome.failed:
        return status, ""
    if len(outcome.failed) > MAX_FAILED_TESTS:
        count = len(outcome.failed)
        return 1, f"{count} tests failed; no more than {MAX_FAILED_TESTS} run again."
    if broken := again.first_broken(outcome.failed):
        return 1, red(f"FAILED {broken}, also when it ran again")
    return 0, words_of_races(outcome.failed, read_flaky(FLAKY.read_text()), today)


def run(arguments: list[str], again: Repetition, today: dt.date) -> int:
    """Run tests, and failed ones again; returns the exit status."""
    # A shell ignores SIGINT for its background jobs. Servers of tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status, outcome = run_side_by_side(arguments)
    status, words = judge(status, outcome, again, today)
    if words:
        say(f"\n{RULE}\n{words}\n{RULE}")
    return status


def main(arguments: list[str]) -> int:
    """Run parts of the suite; returns the exit status."""
    today = dt.datetime.now(dt.timezone.utc).date()
    chosen, rest = parts.choose(arguments)
    again = Repetition(thorough=chosen != [parts.QUICK])
    began_at = last_green.committed()
    status = run([f"--parts={','.join(chosen)}", *rest], again, today)
    if "servers" in chosen and not rest:
        say("\nOnce more with front ends in processes of their own, as on large machines.\n")
        os.environ["PYTRITON_FRONTEND_PROCESSES"] = "2"
        status = run(parts.front_end_tests(), again, today) or status
    if old := words_of_old_entries(read_flaky(FLAKY.read_text()), today):
        status = status or 1
        say(f"\n{old}")
    if status == 0 and not rest:
        last_green.record([part for part in chosen if part != parts.QUICK], today, began_at)
    if not rest:
        last_green.remind(today)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
