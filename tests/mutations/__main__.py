# SPDX-License-Identifier: Apache-2.0
"""How many small changes of the source the tests notice.

`list` prints the changes that a seed chooses. `reach` runs the tests once and finds out which test
files reach them. `run` runs those files for each change, those that take least first, until one
fails. `table` prints what `run` has found so far. Steps that were stopped go on where they were.
"""

from __future__ import annotations

import argparse
import pathlib
import queue
import shutil
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor

from tests import parts, suite
from tests.mutations import choosing, marks
from tests.mutations.copies import REPOSITORY, Copy, Outcome
from tests.mutations.state import (
    EQUIVALENT,
    FRONT_ENDS,
    LONG,
    QUICK,
    State,
    batches,
    equivalent,
    reaching,
)

PARTS = {
    QUICK: (f"--parts={parts.QUICK}",),
    LONG: ("--parts=" + ",".join(part for part in parts.PARTS if part != parts.QUICK),),
    FRONT_ENDS: (f"--parts={parts.QUICK},servers,resilience",),
}


def is_quick(file: str) -> bool:
    """Whether the default runs tests of a file."""
    return parts.QUICK in {parts.part_of(file), *parts.marked_parts(file)}


def runs_in(file: str, part: str) -> bool:
    """Whether a part has tests of a file; some files have tests of several parts."""
    if part == QUICK:
        return is_quick(file)
    if part == LONG:
        return {parts.part_of(file), *parts.marked_parts(file)} != {parts.QUICK}
    is_chosen, is_left_out = (
        any(f"{file}/".startswith(f"{place}/") for place in places)
        for places in (parts.WITH_FRONT_ENDS, parts.NOT_WITH_FRONT_ENDS)
    )
    return is_chosen and not is_left_out


def environment_of(part: str) -> dict[str, str]:
    """What tests of a part find in their environment."""
    return {"PYTRITON_FRONTEND_PROCESSES": "2"} if part == FRONT_ENDS else {}


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  this is a command


def read_sources() -> dict[str, bytes]:
    """The files of the package."""
    paths = sorted((REPOSITORY / "src/pytriton").rglob("*.py"))
    return {path.relative_to(REPOSITORY).as_posix(): path.read_bytes() for path in paths}


def test_files(places: list[str]) -> list[str]:
    """The test files in these files and folders."""
    paths = [REPOSITORY / place for place in places]
    found = {file for path in paths for file in ([path], path.rglob("test_*.py"))[path.is_dir()]}
    return sorted(file.relative_to(REPOSITORY).as_posix() for file in found)


def reach(state: State, part: str, places: list[str], folder: pathlib.Path) -> None:
    """Run tests of a part once, in a copy with marks where the mutations are."""
    copy, sources = Copy(folder / part), read_sources()
    shutil.copy(marks.__file__, copy.folder / "src/pytriton_reached.py")
    for file in {each.file for each in state.mutations}:
        here = {number: each for number, each in enumerate(state.mutations) if each.file == file}
        copy.write(file, choosing.mark(sources[file], here))
    side_by_side = ("-n", str(suite.worker_count(suite.available_cores())))
    files = [file for file in test_files(places) if runs_in(file, part)]
    outcome = copy.test(*PARTS[part], *side_by_side, *files, environment=environment_of(part))
    if outcome.stopped_in:
        raise SystemExit((copy.folder / "output.txt").read_text())
    say(f"{part}: {len(files)} files have run")
    for test in outcome.failed:
        say(f"failed, perhaps due to the marks or to what is not installed: {test}")
    log = copy.watched / "log"
    found = reaching(log.read_text() if log.exists() else "")
    state.add_reach(found, dict.fromkeys(files, 0.0) | outcome.seconds)
    state.finish_reach(part)


class Judge:
    """Finds tests that fail with a mutation, and not without it."""

    def __init__(self, state: State, folder: pathlib.Path) -> None:
        self.copy = Copy(folder)
        self._state = state
        self._sources = read_sources()
        self._failing: dict[str, list[str] | None] = {}  # without a mutation; None: not all ran

    def catch(self, number: int, part: str) -> str | None:
        """The test of a part that fails, if there is one."""
        mutation = self._state.mutations[number]
        original = self._sources[mutation.file]
        files = [file for file in self._state.files[number] if runs_in(file, part)]
        seconds = {file: self._state.seconds.get(file, 0.0) for file in files}
        for batch in batches(seconds):
            left = list(batch)
            while left:
                self.copy.write(mutation.file, mutation.apply(original))
                blamed = self._run(left, part, "-x").blamed
                self.copy.write(mutation.file, original)
                if blamed is None:
                    break
                file = blamed.partition("::")[0]
                file = file if file in left else left[0]
                if by := self._confirm(file, part, mutation):
                    return by
                left.remove(file)
        return None

    def _confirm(self, file: str, part: str, mutation: choosing.Mutation) -> str | None:
        """What fails in a file once more, other than what fails without the mutation."""
        if file not in self._failing:
            outcome = self._run([file], part)
            self._failing[file] = None if outcome.stopped_in else outcome.failed
        failing = self._failing[file]
        if failing is None:
            say(f"{file} does not end in time by itself, and is left out")
            return None
        self.copy.write(mutation.file, mutation.apply(self._sources[mutation.file]))
        outcome = self._run([file], part, "-x", *(f"--deselect={test}" for test in failing))
        self.copy.write(mutation.file, self._sources[mutation.file])
        return f"{file} (the process died or hung)" if outcome.stopped_in else outcome.blamed

    def _run(self, files: list[str], part: str, *options: str) -> Outcome:
        limit_s = 60 + 5 * sum(self._state.seconds.get(file, 0.0) for file in files)
        options = (*PARTS[part], "-p", "no:xdist", *options)
        return self.copy.test(*options, *files, limit_s=limit_s, environment=environment_of(part))


def run(state: State, part: str, jobs: int, folder: pathlib.Path) -> None:
    """Find tests of a part that fail for each mutation which none has caught yet."""
    left = state.left(part)
    seconds = sum(state.seconds.get(file, 0.0) for each in left for file in state.files[each])
    say(f"{part}: {len(left)} changes; all files that reach them take {seconds / 60:.0f} minutes")
    if not left:
        return
    judges: queue.SimpleQueue[Judge] = queue.SimpleQueue()
    all_judges = [Judge(state, folder / f"{part}-{number}") for number in range(jobs)]
    for judge in all_judges:
        judges.put(judge)

    def judge_one(number: int) -> None:
        judge = judges.get()
        try:
            by = judge.catch(number, part)
        finally:
            judges.put(judge)
        state.add_result(number, part, by)
        say(f"{state.mutations[number].file}:{state.mutations[number].line} {part}: {by}")

    with ThreadPoolExecutor(jobs) as pool:
        try:
            list(pool.map(judge_one, left))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for judge in all_judges:
                judge.copy.close()
            raise


def main() -> None:
    """Do one step of it."""
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("step", choices=["list", "reach", "run", "table"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--rooms", nargs="+", help="where the changes are (default: all rooms)")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="files and folders")
    parser.add_argument("--all", action="store_true", help="the other parts, too")
    parser.add_argument("--jobs", type=int, default=suite.available_cores())
    parser.add_argument("--state", type=pathlib.Path, default=REPOSITORY / "build/mutations")
    arguments = parser.parse_args()
    # A shell ignores SIGINT for its background jobs. Servers of tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to remove the copies

    sources = read_sources()
    chosen = choosing.choose(sources, arguments.seed, arguments.count, arguments.rooms)
    if arguments.step == "list":
        for each in chosen:
            say(f"{each.file}:{each.line} {each.words}\n{each.diff(sources[each.file])}\n")
        return
    same = equivalent(chosen, sources, EQUIVALENT.read_text())
    state = State(arguments.state, chosen, same)
    for part in PARTS if arguments.all else (QUICK,):
        with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
            if arguments.step == "reach" and part not in state.reached_parts:
                reach(state, part, arguments.tests, pathlib.Path(folder))
            elif arguments.step == "run":
                run(state, part, arguments.jobs, pathlib.Path(folder))
    say(state.table())


if __name__ == "__main__":
    main()
