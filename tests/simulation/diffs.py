# SPDX-License-Identifier: Apache-2.0
"""Applies unified diffs, as `git diff` prints them, to a copy of the source.

The numbers of lines may have changed since a diff was made, but not the lines themselves.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterator

_HUNK = re.compile(r"@@ -(\d+)")
_TARGET = "+++ b/"


class DiffError(Exception):
    """A diff does not fit the source."""


@dataclasses.dataclass(slots=True)
class Hunk:
    """Neighbouring lines of a file, before a change and after it."""

    file: str  # its path in the repository
    line: int  # of the first of them
    before: list[str] = dataclasses.field(default_factory=list)
    after: list[str] = dataclasses.field(default_factory=list)


def read_hunks(lines: list[str]) -> Iterator[Hunk]:
    """Yields the hunks of a diff; what stands before the first one may be any text."""
    file, hunk = "", None
    for line in lines:
        if line.startswith(("--- a/", _TARGET)) or (found := _HUNK.match(line)):
            if hunk is not None:
                yield hunk
            hunk = None
            if line.startswith(_TARGET):
                file = line.removeprefix(_TARGET)
            elif not line.startswith("-"):
                assert found is not None
                hunk = Hunk(file, int(found[1]))
        elif hunk is not None:
            if not line.startswith("+"):
                hunk.before.append(line[1:])
            if not line.startswith("-"):
                hunk.after.append(line[1:])
    if hunk is not None:
        yield hunk


def apply(hunks: list[Hunk], folder: pathlib.Path) -> None:
    """Change the files in a folder.

    Raises:
        DiffError: A file does not have the lines that a hunk changes, or has them twice.
    """
    for hunk in hunks:
        path = folder / hunk.file
        if not path.is_file():
            raise DiffError(f"there is no {hunk.file}")
        lines = path.read_text().splitlines()
        size = len(hunk.before)
        places = [at for at in range(len(lines)) if lines[at : at + size] == hunk.before]
        if len(places) != 1:
            raise DiffError(
                f"{hunk.file} has {len(places)} places with the lines that the diff has at line "
                f"{hunk.line}, and one was expected"
            )
        (at,) = places
        lines[at : at + size] = hunk.after
        path.write_text("\n".join(lines) + "\n")
