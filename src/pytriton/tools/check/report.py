# SPDX-License-Identifier: Apache-2.0
"""The findings of a check, as text and as JSON."""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


class State(enum.Enum):
    """The meaning of a finding."""

    FACT = "fact"
    OK = "ok"
    NOTE = "note"  # of interest, but no obstacle to serving
    FAILED = "failed"


_MARKS = {State.FACT: "", State.OK: "[ok] ", State.NOTE: "[note] ", State.FAILED: "[FAILED] "}


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report."""

    name: str
    value: str
    state: State = State.FACT
    took_ms: float | None = None

    @classmethod
    def of_error(cls, name: str, error: BaseException) -> Finding:
        """Make the finding for a check that ended with an error."""
        text = f"Error occurred in command: {type(error).__name__}: {error}"
        return cls(name, text, State.FAILED)

    def to_text(self) -> str:
        """Returns the line as text; further lines of the value are indented."""
        line = f"  {_MARKS[self.state]}{self.name}"
        if self.value:
            line += ": " + self.value.replace("\n", "\n      ")
        return line if self.took_ms is None else f"{line} ({self.took_ms:.1f} ms)"

    def to_json(self) -> dict[str, Any]:
        """Returns the line as a JSON document."""
        return dataclasses.asdict(self) | {"state": self.state.value}


@dataclasses.dataclass(frozen=True, slots=True)
class ReportSection:
    """Findings under a common title."""

    title: str
    findings: list[Finding] = dataclasses.field(default_factory=list)


class CheckReport:
    """All findings; each line is shown and logged when it is added.

    Args:
        show: called with each line.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.sections: list[ReportSection] = []
        self._show = show

    def begin(self, title: str) -> None:
        """Begin a section."""
        self.sections.append(ReportSection(title))
        self._show_line(title)

    def add(self, finding: Finding) -> None:
        """Add a line to the last section."""
        self.sections[-1].findings.append(finding)
        self._show_line(finding.to_text())

    def count(self, state: State) -> int:
        """Returns the number of findings with that state."""
        return sum(
            finding.state is state for section in self.sections for finding in section.findings
        )

    def to_text(self) -> str:
        """Returns all lines."""
        lines = []
        for section in self.sections:
            lines += [section.title, *(finding.to_text() for finding in section.findings)]
        return "\n".join(lines)

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the sections as JSON documents."""
        return [
            {"title": section.title, "findings": [found.to_json() for found in section.findings]}
            for section in self.sections
        ]

    def _show_line(self, line: str) -> None:
        self._show(line)
        logger.info("%s", line)
