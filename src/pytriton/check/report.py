# SPDX-License-Identifier: Apache-2.0
"""What a check found, as text for a person and as JSON for a machine."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any


class State(enum.Enum):
    """What a finding means."""

    FACT = "fact"
    OK = "ok"
    NOTE = "note"  # worth a look, and no reason not to serve
    FAILED = "failed"


_MARKS = {State.FACT: "", State.OK: "[ok] ", State.NOTE: "[note] ", State.FAILED: "[FAILED] "}


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report."""

    name: str
    value: str
    state: State = State.FACT

    def to_text(self) -> str:
        """The line for a person; further lines of the value are indented under it."""
        line = f"  {_MARKS[self.state]}{self.name}"
        return line + ": " + self.value.replace("\n", "\n      ") if self.value else line


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """Findings under a common title."""

    title: str
    findings: tuple[Finding, ...]

    def to_text(self) -> str:
        """The title and a line for each finding."""
        return "\n".join([self.title, *(finding.to_text() for finding in self.findings)])

    def to_json(self) -> dict[str, Any]:
        """The same as a document."""
        findings = [
            {"name": finding.name, "value": finding.value, "state": finding.state.value}
            for finding in self.findings
        ]
        return {"title": self.title, "findings": findings}


def failures(sections: Iterable[Section]) -> list[Finding]:
    """All that failed."""
    return [
        finding
        for section in sections
        for finding in section.findings
        if finding.state is State.FAILED
    ]
