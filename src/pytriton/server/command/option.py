# SPDX-License-Identifier: Apache-2.0
"""What is said of an option of the `tritonserver` command."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Takes(enum.Enum):
    """What follows an option, as the help shows it."""

    NOTHING = ""
    BOOLEAN = "<boolean>"
    INTEGER = "<integer>"
    NUMBER = "<number>"
    TEXT = "<text>"
    PATH = "<path>"
    PATTERN = "<regex>"


@dataclass(frozen=True, slots=True)
class Option:
    """One option; a default of "" means that there is none."""

    name: str
    takes: Takes
    default: str
    help: str
    form: str = ""  # of the value, where it is more than what `takes` says
    is_repeatable: bool = False
    has_effect: bool = True
    range: tuple[int, int] | None = None
    instead: str = ""  # of a deprecated option: what to write, with "..." for the value
    becomes: tuple[str, str] | None = None  # the option it is read as, and what precedes the value

    @property
    def value(self) -> str:
        """What follows the option, as the help shows it."""
        return self.form or self.takes.value
