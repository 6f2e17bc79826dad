# SPDX-License-Identifier: Apache-2.0
"""What a check found, as text for a person and as JSON for a machine."""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


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
    took_ms: float | None = None

    @classmethod
    def of_error(cls, name: str, error: BaseException) -> Finding:
        """What is said where looking or trying ended with an error."""
        text = f"Error occurred in command: {type(error).__name__}: {error}"
        return cls(name, text, State.FAILED)

    def to_text(self) -> str:
        """The line for a person; further lines of the value are indented under it."""
        line = f"  {_MARKS[self.state]}{self.name}"
        if self.value:
            line += ": " + self.value.replace("\n", "\n      ")
        return line if self.took_ms is None else f"{line} ({self.took_ms:.1f} ms)"

    def to_json(self) -> dict[str, Any]:
        """The same as a document."""
        return dataclasses.asdict(self) | {"state": self.state.value}


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """Findings under a common title."""

    title: str
    findings: list[Finding] = dataclasses.field(default_factory=list)


class Report:
    """Everything that was found; each line is shown and logged as soon as it is known.

    Args:
        show: called with each line.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.sections: list[Section] = []
        self._show = show

    def begin(self, title: str) -> None:
        """Begin a section."""
        self.sections.append(Section(title))
        self._tell(title)

    def add(self, finding: Finding) -> None:
        """Add a line to the last section."""
        self.sections[-1].findings.append(finding)
        self._tell(finding.to_text())

    def count(self, state: State) -> int:
        """How many findings are of that state."""
        return sum(
            finding.state is state for section in self.sections for finding in section.findings
        )

    def to_text(self) -> str:
        """All lines."""
        lines = []
        for section in self.sections:
            lines += [section.title, *(finding.to_text() for finding in section.findings)]
        return "\n".join(lines)

    def to_json(self) -> list[dict[str, Any]]:
        """The sections as documents."""
        return [
            {"title": section.title, "findings": [found.to_json() for found in section.findings]}
            for section in self.sections
        ]

    def _tell(self, line: str) -> None:
        self._show(line)
        logger.info("%s", line)
