# SPDX-License-Identifier: Apache-2.0
"""How `scripts/test` runs tests, runs failed ones again, and ends."""

from __future__ import annotations

import datetime as dt
import os
import pathlib
import subprocess
import sys

import pytest

from tests import suite

REPOSITORY = pathlib.Path(__file__).parent.parent
TODAY = dt.date(2026, 5, 17)
ENTRY = """
[[flaky]]
test = "tests/test_a.py::test_race"
owner = "Ada"
until = 2026-05-17
why = "two threads"
"""

# A file runs in one process, so that each process has one of these to run when the other dies.
LONG = """
import pytest

@pytest.mark.parametrize("number", range(40))
def test_passes(number):
    pass
"""
DIES = """
import os
import signal

def test_before():
    pass

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    pass
"""
# It fails in its first run only.
RACE = """
import pathlib

def test_race():
    marker = pathlib.Path("ran")
    first = not marker.exists()
    marker.touch()
    assert not first
"""
FAILS = """
def test_fails():
    assert 1 == 2
"""
# It fails in its first run, and is skipped in those after it.
SKIPS = """
import pathlib
import pytest

def test_skips():
    marker = pathlib.Path("ran")
    if marker.exists():
        pytest.skip("a reason that the first run did not find")
    marker.touch()
    assert False
"""
INTERRUPTIBLE = """
import signal

def test_interrupt_is_not_ignored():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
UNREADABLE = "import a_package_that_nobody_has"


PROGRAM = """
import signal
import sys
from tests import suite
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for jobs in its background
suite.RUNS = 2
sys.exit(suite.main(["-p", "no:faulthandler"]))
"""


def run_suite(folder: pathlib.Path, **files: str) -> subprocess.CompletedProcess[str]:
    """Run a small suite in a folder of its own, in two processes; failed tests run twice more."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    ours = {"PYTHONPATH": str(REPOSITORY), "WORKERS": "2"}
    others = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env=others | ours,
        check=False,
        capture_output=True,
        text=True,
    )


def test_process_that_dies_ends_the_run_with_the_name_of_its_test(tmp_path):
    done = run_suite(tmp_path, test_dies=DIES, test_long=LONG, test_longer=LONG)

    assert "DIED   test_dies.py::test_dies: the process in which it ran ended" in done.stdout
    assert "run 1 of" not in done.stdout
    assert done.returncode == 1


def test_passing_tests_end_in_silence(tmp_path):
    done = run_suite(tmp_path, test_long=LONG)

    assert done.stdout.rstrip().splitlines()[-1].startswith("=")
    assert "40 passed" in done.stdout.rstrip().splitlines()[-1]
    assert done.returncode == 0


def test_run_in_the_background_of_a_shell_does_not_ignore_interrupts(tmp_path):
    done = run_suite(tmp_path, test_interruptible=INTERRUPTIBLE)

    assert done.returncode == 0


def test_test_that_fails_again_fails_at_once(tmp_path):
    done = run_suite(tmp_path, test_long=LONG, test_fails=FAILS)

    assert "FAILED test_fails.py::test_fails, also when it ran again" in done.stdout
    assert "run 2 of" not in done.stdout
    assert done.returncode == 1


def test_test_that_passes_afterwards_fails_the_run_with_an_entry_to_copy(tmp_path):
    done = run_suite(tmp_path, test_race=RACE)

    assert "test_race.py::test_race: run 2 of 2" in done.stdout
    assert "FLAKY  test_race.py::test_race\n       It fails this run" in done.stdout
    assert '       test = "test_race.py::test_race"\n' in done.stdout
    assert done.returncode == 1


def test_test_that_is_skipped_afterwards_has_not_passed(tmp_path):
    done = run_suite(tmp_path, test_skips=SKIPS)

    assert "1 skipped" in done.stdout
    assert "FAILED test_skips.py::test_skips, also when it ran again" in done.stdout
    assert done.returncode == 1


def test_file_that_cannot_be_read_fails_the_run_beside_a_race(tmp_path):
    done = run_suite(tmp_path, test_race=RACE, test_unreadable=UNREADABLE)

    assert "ERROR  test_unreadable.py: its tests could not be collected" in done.stdout
    assert "run 1 of" not in done.stdout
    assert done.returncode == 1


def test_test_without_an_end_fails_when_the_time_is_over(tmp_path, monkeypatch):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_hangs.py").write_text(
        "import threading\ndef test(): threading.Event().wait()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))

    assert suite.passes_once("test_hangs.py::test", 3.0) is False


def test_of_many_failed_tests_none_runs_again(monkeypatch):
    def refuse():
        raise AssertionError("tests run again")

    monkeypatch.setattr(suite, "load", refuse)
    failed = [f"test_a.py::test_{number}" for number in range(11)]

    status, words = suite.judge_failures(suite.Outcome(failed=failed))

    assert status == 1
    assert words == "11 tests failed; no more than 10 run again."


def test_failed_test_runs_twenty_times():
    runs = []

    passed = suite.passes_again(
        "test_a.py::test", 10.0, lambda *run: not runs.append(run), lambda: 0.0
    )

    assert passed is True
    assert runs == [("test_a.py::test", 10.0)] * 20


def test_runs_end_when_their_time_is_over():
    times_s = iter([0.0, 5.0, 11.0])
    runs = []

    passed = suite.passes_again(
        "test_a.py::test", 10.0, lambda *run: not runs.append(run), lambda: next(times_s)
    )

    assert passed is False
    assert [left_s for _, left_s in runs] == [10.0, 5.0]


@pytest.mark.parametrize(
    "days, status, words", [(0, 0, "Ada mends it by"), (1, 1, "Ada had until")]
)
def test_known_race_is_let_pass_until_its_date(days, status, words):
    known = suite.read_flaky(ENTRY)

    judged = suite.judge(list(known), known, TODAY + dt.timedelta(days=days))

    assert judged[0] == status
    assert words in judged[1]


def test_new_race_fails_the_run_beside_a_known_one():
    known = suite.read_flaky(ENTRY)
    new = 'tests/test_b.py::test_new["quoted"]'

    status, words = suite.judge([*known, new], known, TODAY)
    entry = words[words.index("[[flaky]]") :].replace("\n       ", "\n")

    assert status == 1
    assert f"FLAKY  {new}\n       It fails this run, because it is not in" in words
    assert suite.read_flaky(entry)[new].until == dt.date(2026, 5, 31)


def test_list_of_known_races_is_well_formed_and_names_tests_that_exist():
    last_day = dt.datetime.now(dt.timezone.utc).date() + dt.timedelta(days=suite.MAX_DAYS)
    for entry in suite.read_flaky(suite.FLAKY.read_text()).values():
        file, _, function = entry.test.partition("::")

        assert f"def {function.partition('[')[0]}(" in (REPOSITORY / file).read_text()
        assert entry.owner
        assert entry.why
        assert entry.until <= last_day


@pytest.mark.parametrize("cores, workers", [(1, 1), (2, 3), (4, 6), (16, 16), (64, 16)])
def test_processes_are_chosen_by_cores(cores, workers):
    assert suite.worker_count(cores) == workers
