# SPDX-License-Identifier: Apache-2.0
"""The description of an option of the `tritonserver` command."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Takes(enum.Enum):
    """The kind of value that an option takes, as the help shows it."""

    NOTHING = ""
    BOOLEAN = "<boolean>"
    INTEGER = "<integer>"
    NUMBER = "<number>"
    TEXT = "<text>"
    PATH = "<path>"
    PATTERN = "<regex>"


@dataclass(frozen=True, slots=True)
class Option:
    """One option; a default of "" means that it has no default."""

    name: str
    takes: Takes
    default: str
    help: str
    form: str = ""  # of the value, if it is more specific than `takes`
    is_repeatable: bool = False
    has_effect: bool = True
    range: tuple[int, int] | None = None
    instead: str = ""  # for a deprecated option: what to use instead, with "..." for the value
    becomes: tuple[str, str] | None = None  # the option that replaces it, and a prefix

    @property
    def value(self) -> str:
        """The form of the value, as the help shows it."""
        return self.form or self.takes.value
