# SPDX-License-Identifier: Apache-2.0
"""What is known about mutations: which test files reach them, and which tests fail for them."""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType

from tests.mutations.choosing import Mutation, room_of
from tests.mutations.marks import UNKNOWN

# The default, all other parts, and what runs again with front ends in processes of their own.
QUICK, LONG, FRONT_ENDS = "quick", "long", "front ends"
BATCH_S = 20.0  # of tests in one process; a process takes a second to start
EQUIVALENT = pathlib.Path(__file__).with_name("equivalent.toml")


def equivalent(mutations: list[Mutation], sources: dict[str, bytes], text: str) -> dict[int, str]:
    """The numbers of mutations that change nothing, by equivalent.toml, and why they do not."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    reasons = {
        (each["file"], each["line"], each["change"]): each["why"]
        for each in toml.loads(text).get("equivalent", [])
    }
    lines = [sources[each.file].decode().splitlines()[each.line - 1].strip() for each in mutations]
    keys = [(each.file, line, each.words) for each, line in zip(mutations, lines, strict=True)]
    return {number: reasons[key] for number, key in enumerate(keys) if key in reasons}


def batches(seconds: dict[str, float]) -> list[list[str]]:
    """Files that run in one process, those that take least first."""
    found: list[list[str]] = []
    left_s = 0.0
    for file in sorted(seconds, key=lambda file: (seconds[file], file)):
        left_s -= seconds[file]
        if left_s < 0 or not found:
            found.append([])
            left_s = BATCH_S - seconds[file]
        found[-1].append(file)
    return found


def reaching(log: str) -> dict[int, set[str]]:
    """The test files that reach each place, by what `marks.py` wrote.

    What runs for an unknown test counts for all files that start processes.
    """
    lines = [line.split("\t") for line in log.splitlines()]
    starting = {file for _, file, where in lines if where == "child"} - {UNKNOWN}
    reached = defaultdict(set)
    for number, file, _ in lines:
        reached[int(number)] |= starting if file == UNKNOWN else {file}
    return reached


class State:
    """Is kept in a folder: `reached.json`, and a line of `results.jsonl` for each result."""

    def __init__(
        self,
        folder: pathlib.Path,
        mutations: list[Mutation],
        same: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._reached, self._results = folder / "reached.json", folder / "results.jsonl"
        self._lock = threading.Lock()
        self.mutations = mutations
        self._same = same  # why mutations change nothing
        self.reached_parts: list[str] = []
        self.files: dict[int, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        self.caught: dict[tuple[int, str], str | None] = {}
        self._read()

    def _read(self) -> None:
        if self._reached.exists():
            known = json.loads(self._reached.read_text())
            if known["mutations"] != [each.name for each in self.mutations]:
                raise SystemExit(f"{self._reached.parent} is about other mutations: remove it")
            self.reached_parts, self.seconds = known["parts"], known["seconds"]
            for number, files in known["files"].items():
                self.files[int(number)] = set(files)
        if self._results.exists():
            for line in map(json.loads, self._results.read_text().splitlines()):
                self.caught[line["number"], line["part"]] = line["by"]

    def add_reach(self, files: dict[int, set[str]], seconds: dict[str, float]) -> None:
        for number, names in files.items():
            self.files[number] |= names
        self.seconds |= {file: round(each, 1) for file, each in seconds.items()}

    def finish_reach(self, part: str) -> None:
        """Keep what was added for a part."""
        self.reached_parts.append(part)
        known = {
            "mutations": [each.name for each in self.mutations],
            "parts": self.reached_parts,
            "files": {number: sorted(files) for number, files in self.files.items()},
            "seconds": self.seconds,
        }
        self._reached.write_text(json.dumps(known, indent=1) + "\n")

    def add_result(self, number: int, part: str, by: str | None) -> None:
        """Keep which test of a part fails, or that none does."""
        with self._lock, self._results.open("a") as results:
            results.write(json.dumps({"number": number, "part": part, "by": by}) + "\n")
            self.caught[number, part] = by

    def left(self, part: str) -> list[int]:
        """The mutations that tests of a part may still catch."""
        if part not in self.reached_parts:
            raise SystemExit(f"which files of the {part} part reach a mutation is not known yet")
        return [
            number
            for number in range(len(self.mutations))
            if (number, part) not in self.caught
            and self._catcher(number) is None
            and number not in self._same
        ]

    def table(self) -> str:
        """A row for each mutation, and how many were caught."""
        rows = ["| room | line | change | caught by |", "|---|---|---|---|"]
        for number, each in enumerate(self.mutations):
            place = f"`{each.file.removeprefix('src/pytriton/')}:{each.line}`"
            rows.append(f"| {room_of(each.file)} | {place} | {each.words} | {self._by(number)} |")
        catchers = [self._catcher(number) for number in range(len(self.mutations))]
        caught = len(catchers) - catchers.count(None)
        total = f"Of {len(catchers)} changes, {len(self._same)} change nothing; the default catches"
        total += f" {catchers.count(QUICK)}, all tests together {caught}."
        return "\n".join([*rows, "", total])

    def _catcher(self, number: int) -> str | None:
        return next((part for (of, part), by in self.caught.items() if of == number and by), None)

    def _by(self, number: int) -> str:
        if number in self._same:
            return f"none can: {self._same[number]}"
        if part := self._catcher(number):
            return f"{part}: `{self.caught[number, part].partition('[')[0]}`"
        if not all((number, part) in self.caught for part in self.reached_parts or [QUICK]):
            return "?"
        return "no test" if self.files[number] else "no test reaches it"
