# SPDX-License-Identifier: Apache-2.0
"""How many small changes of the source the quick part of the tests notices.

All tests run once with marks where the changes are, which says which files reach them. Then those
files run for each change, those that take least first, until a test fails.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import signal
import tempfile
from collections import defaultdict

from tests import parts, suite
from tests.mutations import choosing, marks
from tests.mutations.copies import REPOSITORY, Copy, Outcome

UNCHANGED = pathlib.Path(__file__).with_name("equivalent.toml")


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  this is a command


def read_sources() -> dict[str, bytes]:
    """The files of the package."""
    paths = sorted((REPOSITORY / "src/pytriton").rglob("*.py"))
    return {path.relative_to(REPOSITORY).as_posix(): path.read_bytes() for path in paths}


def reaching(log: str) -> dict[int, set[str]]:
    """The test files that reach each place, by what `marks.py` wrote.

    What runs for an unknown test counts for all that start processes.
    """
    lines = [line.split("\t") for line in dict.fromkeys(log.splitlines())]
    starting = {file for _, file, where in lines if where == "child"} - {marks.UNKNOWN}
    reached = defaultdict(set)
    for number, file, _ in lines:
        reached[int(number)] |= starting if file == marks.UNKNOWN else {file}
    return reached


class Judge:
    """Finds the tests that notice mutations, in a copy of the checkout."""

    def __init__(self, copy: Copy, sources: dict[str, bytes], places: list[str]) -> None:
        self._copy = copy
        self._sources = sources
        self._places = places
        self._reached: dict[int, set[str]] = {}
        self._usual = Outcome()

    def reach(self, mutations: dict[int, choosing.Mutation]) -> None:
        """Find out which test files reach the mutations."""
        shutil.copy(marks.__file__, self._copy.folder / "src/pytriton_reached.py")
        changed = {each.file for each in mutations.values()}
        for file in changed:
            here = {number: each for number, each in mutations.items() if each.file == file}
            self._copy.write(file, choosing.mark(self._sources[file], here))
        workers = str(suite.worker_count(suite.available_cores()))
        self._usual = self._copy.test("-n", workers, *self._places)
        if self._usual.is_stopped:
            raise SystemExit((self._copy.folder / "output.txt").read_text())
        for test in self._usual.failed:
            say(f"failed, perhaps due to the marks or to what is not installed: {test}")
        log = self._copy.watched / "log"
        self._reached = reaching(log.read_text() if log.exists() else "")
        for file in changed:
            self._copy.write(file, self._sources[file])

    def noticed_by(self, number: int, mutation: choosing.Mutation) -> str:
        """The test that fails with a mutation, or that there is none."""
        seconds = self._usual.seconds
        files = sorted(self._reached.get(number, ()), key=lambda file: seconds.get(file, 0.0))
        if not files:
            return "no test reaches it"
        original = self._sources[mutation.file]
        self._copy.write(mutation.file, mutation.apply(original))
        failing = (f"--deselect={test}" for test in self._usual.failed)
        limit_s = 60 + 5 * sum(seconds.get(file, 0.0) for file in files)
        outcome = self._copy.test("-p", "no:xdist", "-x", *failing, *files, limit_s=limit_s)
        self._copy.write(mutation.file, original)
        if outcome.is_stopped:
            return "the process died or hung"
        return f"`{outcome.failed[0].partition('[')[0]}`" if outcome.failed else "no test"


def main() -> None:
    """Choose changes, and print a row for each."""
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("--list", action="store_true", help="only print the changes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--rooms", nargs="+", help="where the changes are (default: all rooms)")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="files and folders")
    arguments = parser.parse_args()
    # A shell ignores SIGINT for its background jobs. Servers of tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to remove the copy

    sources = read_sources()
    chosen = choosing.choose(sources, arguments.seed, arguments.count, arguments.rooms)
    if arguments.list:
        for each in chosen:
            say(f"{each.file}:{each.line} {each.words}\n{each.diff(sources[each.file])}\n")
        return
    same = choosing.equivalent(chosen, sources, UNCHANGED.read_text())
    left = {number: each for number, each in enumerate(chosen) if number not in same}
    noticed = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        options = (f"--parts={parts.QUICK}",)
        judge = Judge(Copy(pathlib.Path(folder) / "copy", options), sources, arguments.tests)
        judge.reach(left)
        say("| room | line | change | noticed by |\n|---|---|---|---|")
        for number, each in enumerate(chosen):
            by = f"none can: {same[number]}" if number in same else judge.noticed_by(number, each)
            noticed += not by.startswith("no")
            place = f"`{each.file.removeprefix('src/pytriton/')}:{each.line}`"
            say(f"| {choosing.room_of(each.file)} | {place} | {each.words} | {by} |")
    say(f"\nOf {len(chosen)} changes, {len(same)} change nothing; tests notice {noticed}.")


if __name__ == "__main__":
    main()
