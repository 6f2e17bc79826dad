# SPDX-License-Identifier: Apache-2.0
"""How `scripts/test` runs tests, runs failed ones again, and ends."""

from __future__ import annotations

import contextlib
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
since = 2026-05-17
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
import datetime as dt
import signal
import sys
from tests import suite
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for jobs in its background
suite.RUNS_BESIDE_LOAD = 1
suite.available_cores = lambda: 1  # for the load
again = suite.Repetition(thorough="thorough" in sys.argv)
sys.exit(suite.run(["-p", "xdist"], again, dt.date(2026, 5, 17)))
"""


def run_suite(
    folder: pathlib.Path, *words: str, workers: int = 1, **files: str
) -> subprocess.CompletedProcess[str]:
    """Run a small suite in a folder of its own."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    ours = {
        "PYTHONPATH": str(REPOSITORY),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take most of the time
        "WORKERS": str(workers),
    }
    others = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=folder,
        env=others | ours,
        check=False,
        capture_output=True,
        text=True,
    )


def test_process_that_dies_ends_the_run_with_the_name_of_its_test(tmp_path):
    done = run_suite(tmp_path, workers=2, test_dies=DIES, test_long=LONG, test_longer=LONG)

    assert "DIED   test_dies.py::test_dies: the process in which it ran ended" in done.stdout
    assert "runs alone" not in done.stdout
    assert done.returncode == 1


def test_passing_tests_end_in_silence_and_do_not_ignore_interrupts(tmp_path):
    done = run_suite(tmp_path, workers=2, test_long=LONG, test_interruptible=INTERRUPTIBLE)

    assert done.stdout.rstrip().splitlines()[-1].startswith("=")
    assert "41 passed" in done.stdout.rstrip().splitlines()[-1]
    assert done.returncode == 0


def test_test_that_fails_again_fails_the_run(tmp_path):
    done = run_suite(tmp_path, test_fails=FAILS)

    assert "FAILED test_fails.py::test_fails, also when it ran again" in done.stdout
    assert done.returncode == 1


def test_test_that_passes_alone_lets_the_run_pass_with_an_entry_to_copy(tmp_path):
    done = run_suite(tmp_path, test_race=RACE)

    assert "test_race.py::test_race runs alone" in done.stdout
    assert "FLAKY  test_race.py::test_race\n       Mend it, or commit this entry" in done.stdout
    assert '       test = "test_race.py::test_race"\n       since = 2026-05-17\n' in done.stdout
    assert "beside a load" not in done.stdout
    assert done.returncode == 0


def test_test_of_a_long_part_also_runs_beside_a_load(tmp_path):
    done = run_suite(tmp_path, "thorough", test_race=RACE)

    assert "test_race.py::test_race runs 1 of 1 times beside a load" in done.stdout
    assert "FLAKY  test_race.py::test_race" in done.stdout
    assert done.returncode == 0


def test_test_that_is_skipped_afterwards_has_not_passed(tmp_path):
    done = run_suite(tmp_path, test_skips=SKIPS)

    assert "1 skipped" in done.stdout
    assert "FAILED test_skips.py::test_skips, also when it ran again" in done.stdout
    assert done.returncode == 1


def test_file_that_cannot_be_read_fails_the_run_beside_a_race(tmp_path):
    done = run_suite(tmp_path, test_race=RACE, test_unreadable=UNREADABLE)

    assert "ERROR  test_unreadable.py: its tests could not be collected" in done.stdout
    assert "runs alone" not in done.stdout
    assert done.returncode == 1


def test_test_without_an_end_fails_when_the_time_is_over(tmp_path, monkeypatch):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_hangs.py").write_text(
        "import threading\ndef test(): threading.Event().wait()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))

    assert suite.passes_once("test_hangs.py::test", 3.0) is False


class Runs:
    """Tests that run again, as they would; each lasts a second."""

    def __init__(self, failures=()):
        self.asked = []
        self._failures = set(failures)  # which of the runs fail
        self._now_s = 0.0

    def passes(self, test, left_s):
        self.asked.append((test, left_s))
        self._now_s += 1.0
        return len(self.asked) not in self._failures

    def repetition(self, *, thorough):
        return suite.Repetition(thorough, self.passes, lambda: self._now_s, contextlib.nullcontext)


def test_of_many_failed_tests_none_runs_again():
    runs = Runs()
    outcome = suite.Outcome(failed=[f"test_a.py::test_{number}" for number in range(11)])

    status, words = suite.judge(1, outcome, runs.repetition(thorough=False), TODAY)

    assert status == 1
    assert words == "11 tests failed; no more than 10 run again."
    assert runs.asked == []


def test_failed_tests_run_once_each_in_the_quick_part():
    runs = Runs()

    assert runs.repetition(thorough=False).first_broken(["a", "b"]) is None
    assert runs.asked == [("a", suite.MAX_S), ("b", suite.MAX_S - 1)]


def test_failed_tests_of_long_parts_run_twenty_times_more():
    runs = Runs()

    assert runs.repetition(thorough=True).first_broken(["a", "b"]) is None
    assert [test for test, _ in runs.asked] == ["a", "b", *["a"] * 20, *["b"] * 20]


@pytest.mark.parametrize("failing, broken", [(1, "a"), (2, "b"), (3, "a"), (30, "b")])
def test_first_failure_ends_the_repetitions(failing, broken):
    runs = Runs(failures={failing})

    assert runs.repetition(thorough=True).first_broken(["a", "b"]) == broken
    assert len(runs.asked) == failing


def test_test_for_which_there_is_no_time_has_failed(monkeypatch):
    monkeypatch.setattr(suite, "MAX_S", 10.0)
    runs = Runs()

    assert runs.repetition(thorough=True).first_broken(["a"]) == "a"
    assert len(runs.asked) == 10


def test_new_race_is_told_with_its_entry_beside_a_known_one():
    known = suite.read_flaky(ENTRY)
    new = 'tests/test_b.py::test_new["quoted"]'

    words = suite.words_of_races([*known, new], known, TODAY)
    entry = words[words.index("[[flaky]]") :].replace("\n       ", "\n")

    assert "FLAKY  tests/test_a.py::test_race\n       known since 2026-05-17: two threads" in words
    assert f"FLAKY  {new}\n       Mend it, or commit this entry" in words
    assert suite.read_flaky(entry)[new].since == TODAY


@pytest.mark.parametrize("days, is_old", [(14, False), (15, True)])
def test_entry_is_old_after_fourteen_days(days, is_old):
    known = suite.read_flaky(ENTRY)

    words = suite.words_of_old_entries(known, TODAY + dt.timedelta(days=days))

    assert ("OLD    tests/test_a.py::test_race" in words) == is_old


def test_old_entry_fails_a_green_run(monkeypatch, tmp_path, capsys):
    (tmp_path / "flaky.toml").write_text(ENTRY)
    monkeypatch.setattr(suite, "FLAKY", tmp_path / "flaky.toml")
    monkeypatch.setattr(suite, "run", lambda *arguments: 0)

    assert suite.main(["-x"]) == 1
    assert "OLD    tests/test_a.py::test_race" in capsys.readouterr().out


def test_list_of_known_races_is_well_formed_and_names_tests_that_exist():
    today = dt.datetime.now(dt.timezone.utc).date()
    for entry in suite.read_flaky(suite.FLAKY.read_text()).values():
        file, _, function = entry.test.partition("::")

        assert f"def {function.partition('[')[0]}(" in (REPOSITORY / file).read_text()
        assert entry.why
        assert entry.since <= today + dt.timedelta(days=1)


@pytest.mark.parametrize("cores, workers", [(1, 1), (2, 3), (4, 6), (16, 16), (64, 16)])
def test_processes_are_chosen_by_cores(cores, workers):
    assert suite.worker_count(cores) == workers
