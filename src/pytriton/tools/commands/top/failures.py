# SPDX-License-Identifier: Apache-2.0
"""The last failures of a server in groups, as its page tells them, and as lines; no I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.text import Text

REASONS = {
    "BACKEND": "the model failed",
    "REFUSED": "refused",
    "REJECTED": "too long in the queue",
    "CANCELED": "cancelled",
    "OTHER": "not run",
}
NO_DETAILS = "Places and messages need the page's token: --token, or the variable {}."
NOTHING_FAILED = "No request has failed since the server started."


@dataclasses.dataclass(frozen=True, slots=True)
class FailureRow:
    """A group of failures."""

    model: str
    version: str
    kind: str
    reason: str
    count: int
    last_s: float
    place: str = ""
    message: str = ""

    @property
    def is_red(self) -> bool:
        """Whether somebody should look at it: a client that goes away is no error."""
        return self.reason != "CANCELED"


@dataclasses.dataclass(frozen=True, slots=True)
class FailuresReading:
    """All groups, or why they are not known."""

    rows: Sequence[FailureRow] = ()
    has_details: bool = True
    problem: str = ""


def read_failures(document: Any) -> FailuresReading:
    """Read the page's document; KeyError, TypeError or ValueError if it is another one."""
    rows = [_row(each) for each in document["groups"]]
    return FailuresReading(rows, bool(document["has_details"]))


def _row(group: Any) -> FailureRow:
    example = group.get("example") or {}
    # The last line of a traceback has the class of the exception and what it says.
    said = str(example.get("traceback") or "").rstrip().rpartition("\n")[2]
    return FailureRow(
        _printable(group["model"]),
        group["version"],
        _printable(group["kind"]),
        group["reason"],
        int(group["count"]),
        float(group["last"]),
        _printable(group.get("place", "")),
        _printable(said or str(example.get("message") or "").partition("\n")[0]),
    )


def _printable(text: str) -> str:
    """Returns text that does nothing to a terminal: clients may have written it."""
    return "".join(each if each.isprintable() else "�" for each in text)


def failure_lines(
    reading: FailuresReading | None, age: dict[float, str], token_variable: str, room: int
) -> list[Text]:
    """Returns the groups as lines.

    Args:
        reading: what the server told; None if it has not answered yet.
        age: how long ago each time is, in words.
        token_variable: the environment variable of the token.
        room: the number of lines; what does not fit is counted in the last one.
    """
    if reading is None:
        return [Text(" …", style="dim")]
    if reading.problem:
        return [Text(f" {reading.problem}", style="yellow")]
    if not reading.rows:
        return [Text(f" {NOTHING_FAILED}", style="dim")]
    lines = []
    if not reading.has_details:
        lines.append(Text(f" {NO_DETAILS.format(token_variable)}", style="yellow"))
    for number, row in enumerate(reading.rows):
        group = _group_lines(row, age[row.last_s])
        is_last = number + 1 == len(reading.rows)
        if len(lines) + len(group) > room - (not is_last):
            more = len(reading.rows) - number
            return [*lines, Text(f" and {more} more; the page shows them", style="dim")]
        lines += group
    return lines


def _group_lines(row: FailureRow, ago: str) -> list[Text]:
    where = f"{row.model} v{row.version}" if row.model else "no model"
    head = Text(f" {row.count:>7,}  ", style="bold red" if row.is_red else "dim")
    head.append(row.kind, style="bold")
    head.append(f"  {where}, {REASONS.get(row.reason, row.reason)}, {ago} ago", style="default")
    # Without a place in the code, the place is the message without what differs: one is enough.
    is_said = bool(row.message) and ("…" in row.place or row.place in row.message)
    more = [text for text in ("" if is_said else row.place, row.message) if text]
    return [head, *(Text(f"          {text}", style="dim") for text in more)]
