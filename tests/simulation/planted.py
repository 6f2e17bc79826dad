# SPDX-License-Identifier: Apache-2.0
"""Bugs to be found: each breaks a copy of the project a little, in which a scenario runs.

A bug is a file in `planted`: what the broken code does, the profile of the clients among whom it is
looked for, what a scenario needs for it, and then the change as `git diff` prints it. So
`git apply tests/simulation/planted/NAME.diff` plants it by hand.

`python -m tests.simulation.planted` looks for all of them in ordinary scenarios, one seed after the
other, and prints at which one each was found; with `--write` it keeps that in `planted.json`, from
which `test_planted.py` knows where to look. A seed of null says that a bug was not found yet: a
workload, a fault or a check is missing for it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytriton
from tests.simulation.campaign import Job, run_job
from tests.simulation.diffs import DiffError, Hunk, apply, read_hunks
from tests.simulation.elsewhere import Elsewhere
from tests.simulation.faults import HANG_S
from tests.simulation.scenario import Scenario, make_scenario

FOLDER = pathlib.Path(__file__).with_name("planted")
RECORD = pathlib.Path(__file__).with_name("planted.json")
SOURCE = pathlib.Path("src/pytriton")
_REPOSITORY = pathlib.Path(__file__).parents[2]
MOST_CALLS = 240  # of a scenario in which bugs are looked for: small ones are quick
MANY_CALLS = "many calls"  # what some bugs need
_MOST_OF_MANY = 640
LONGEST_S = 600.0  # of the search for one bug


@dataclasses.dataclass(frozen=True, slots=True)
class Bug:
    """A bug.

    Args:
        name: of its file.
        sentence: what the broken code does.
        profile: of the clients among whom it is looked for.
        needs: what a scenario has to have, else it is not tried: words of `words_of`. It saves the
            time of scenarios that do not run the broken code.
        hunks: how the source is changed.
    """

    name: str
    sentence: str
    profile: str
    needs: frozenset[str]
    hunks: list[Hunk]

    @contextlib.contextmanager
    def planted(self) -> Iterator[Elsewhere]:
        """Gives a process in which the project has the bug."""
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder)
            # With the compiled files, so that only what is changed is compiled.
            shutil.copytree(_REPOSITORY / SOURCE, copy / SOURCE)
            self.apply(copy)
            with Elsewhere(copy / SOURCE.parent) as process:
                assert process.call(_source) == copy / SOURCE
                yield process

    def apply(self, folder: pathlib.Path) -> None:
        """Change a copy of the source.

        Raises:
            DiffError: The source has changed too much since the bug was made.
        """
        try:
            apply(self.hunks, folder)
        except DiffError as error:
            message = (
                f"the bug '{self.name}' cannot be planted, as {error}. Make the change to the "
                f"source as it is now, put `git diff` into {self.name}.diff, and undo it"
            )
            raise DiffError(message) from error


def _source() -> pathlib.Path:
    assert pytriton.__file__ is not None
    return pathlib.Path(pytriton.__file__).parent


def _read(path: pathlib.Path) -> Bug:
    sentence, *lines = path.read_text().splitlines()
    words = dict(line.split(": ", 1) for line in lines if line.startswith(("profile: ", "needs: ")))
    needs = frozenset(words["needs"].split(", ")) if "needs" in words else frozenset()
    return Bug(path.stem, sentence, words["profile"], needs, list(read_hunks(lines)))


BUGS = {path.stem: _read(path) for path in sorted(FOLDER.glob("*.diff"))}


def words_of(scenario: Scenario) -> set[str]:
    """What there is in a scenario: its kind of system, its faults, and those that come often."""
    words = {"repository" if scenario.has_repository else "bound"}
    if scenario.call_count > MOST_CALLS:
        words.add(MANY_CALLS)
    if scenario.front_ends:
        words.add("front ends")
    faults = collections.Counter(f"{each.kind} {each.role}".strip() for each in scenario.faults)
    for name, count in faults.items():
        words |= {name, *(f"{number} x {name}" for number in range(2, count + 1))}
    if any(each.kind == "stop" and each.for_s >= HANG_S for each in scenario.faults):
        words.add("hang")
    return words


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """Where a bug was found; a seed of None says that it was not."""

    seed: int | None
    tried: int
    seconds: float
    finding: str


def look(bug: Bug, seeds: int, clean: Elsewhere) -> Found:
    """Try so many seeds; `clean` is a process without the bug."""
    began_s = time.monotonic()
    tried, seed = 0, -1
    with bug.planted() as process:
        while tried < seeds and time.monotonic() - began_s < LONGEST_S:
            seed += 1
            scenario = make_scenario(seed, bug.profile)
            most = _MOST_OF_MANY if MANY_CALLS in bug.needs else MOST_CALLS
            if scenario.call_count > most or not words_of(scenario) >= bug.needs:
                continue
            tried += 1
            job = Job(bug.profile, seed)
            findings = process.call(run_job, job).findings
            if findings and not clean.call(run_job, job).findings:
                return Found(seed, tried, time.monotonic() - began_s, findings[0])
    return Found(None, tried, time.monotonic() - began_s, "not found")


def read_record() -> dict[str, int | None]:
    """The seeds at which bugs were found, by their names."""
    return {each["bug"]: each["seed"] for each in json.loads(RECORD.read_text())}


def _write_record(seeds: dict[str, Any]) -> None:
    lines = [json.dumps({"bug": name, "seed": seeds.get(name)}) for name in BUGS]
    RECORD.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def main() -> int:
    """Search; returns 1 if a bug was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted")
    parser.add_argument("names", nargs="*", help="bugs; all that were found, without a name")
    parser.add_argument("--seeds", type=int, default=200, help="to try for each")
    parser.add_argument("--write", action="store_true", help="keep what was found for the tests")
    options = parser.parse_args()
    kept, is_missed = read_record(), False
    row = "{:36} {:11} {:>6} {:>6} {:>8}  {}\n"
    sys.stdout.write(row.format("bug", "profile", "seed", "tried", "seconds", "finding"))
    with Elsewhere() as clean:
        for name in options.names or (name for name in BUGS if kept.get(name, 0) is not None):
            found = look(BUGS[name], options.seeds, clean)
            is_missed |= found.seed is None
            where = "-" if found.seed is None else found.seed
            text, seconds = found.finding.splitlines()[0][:150], f"{found.seconds:.1f}"
            profile = BUGS[name].profile
            sys.stdout.write(row.format(name, profile, where, found.tried, seconds, text))
            sys.stdout.flush()
            kept[name] = found.seed
            if options.write:
                _write_record(kept)
    return int(is_missed)


if __name__ == "__main__":
    # By its own name, under which other processes find its functions.
    from tests.simulation import planted

    sys.exit(planted.main())
