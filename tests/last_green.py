# SPDX-License-Identifier: Apache-2.0
"""When each long part of the suite was last green as a whole: tests/last_green.toml."""

from __future__ import annotations

import datetime as dt
import importlib
import pathlib
import subprocess
import sys
from dataclasses import dataclass

from tests import parts

FILE = pathlib.Path(__file__).with_name("last_green.toml")
MAX_DAYS = 3
HEADER = """\
# The commit and the day on which each long part of the suite was last green as a whole.
# `scripts/test PART` writes them, if all changes are committed.
"""


@dataclass(frozen=True)
class Green:
    """A run of a part in which no test failed."""

    commit: str
    day: dt.date


def read(text: str) -> dict[str, Green]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return {part: Green(**entry) for part, entry in toml.loads(text).items()}


def written(greens: dict[str, Green]) -> str:
    entries = [
        f'[{part}]\ncommit = "{green.commit}"\nday = {green.day}\n'
        for part, green in sorted(greens.items())
    ]
    return "\n".join([HEADER, *entries])


def why_old(green: Green | None, today: dt.date, changed: bool) -> str:
    """Why a part has to run again; empty if it has not."""
    if green is None:
        return "never"
    if (today - green.day).days > MAX_DAYS:
        return str(green.day)
    return "before changes of what it covers" if changed else ""


def reminder(reasons: dict[str, str]) -> str:
    """One line about parts that have to run again; empty if there are none."""
    old = {part: why for part, why in reasons.items() if why}
    if not old:
        return ""
    listed = ", ".join(f"{part} ({why})" for part, why in old.items())
    return f"Long parts, and when they were last green: {listed}. Run: scripts/test {' '.join(old)}"


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *words], cwd=parts.REPOSITORY, check=False, capture_output=True, text=True
    )


def has_changed(part: parts.Part, commit: str) -> bool:
    """Whether a part covers what changed since a commit; also if the commit is not known here."""
    return git("diff", "--quiet", commit, "HEAD", "--", *part.covers, *part.files).returncode != 0


def committed() -> str:
    """The commit of this checkout; empty if it has changes beside it, or is no clone."""
    head = git("rev-parse", "HEAD")
    changes = git("status", "--porcelain", "--", ".", f":!{FILE.relative_to(parts.REPOSITORY)}")
    return "" if head.returncode or changes.stdout else head.stdout.strip()


def record(names: list[str], today: dt.date, began_at: str) -> None:
    """Write that these parts are green, if a run that began at a commit also ends there."""
    if not names:
        return
    if not began_at or committed() != began_at:
        why = "there are changes that are not committed, or there were when the tests began"
        print(f"tests/last_green.toml stays as it is: {why}.")  # noqa: T201
        return
    now = Green(began_at, today)
    FILE.write_text(written(read(FILE.read_text()) | dict.fromkeys(names, now)))
    print(f"tests/last_green.toml has this run of {', '.join(names)} now; commit it.")  # noqa: T201


def remind(today: dt.date) -> None:
    """Say which long parts have to run again."""
    if git("rev-parse", "HEAD").returncode:
        return  # not a clone
    greens = read(FILE.read_text())
    reasons = {}
    for name, part in parts.PARTS.items():
        if name != parts.QUICK:
            green = greens.get(name)
            reasons[name] = why_old(green, today, bool(green) and has_changed(part, green.commit))
    if line := reminder(reasons):
        print(line)  # noqa: T201
