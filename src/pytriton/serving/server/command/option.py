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


def switch(name: str, default: str, text: str, *, has_effect: bool = True) -> Option:
    """Returns an option with a boolean."""
    return Option(name, Takes.BOOLEAN, default, text, has_effect=has_effect)


def integer(name: str, default: str, text: str, *, has_effect: bool = True) -> Option:
    """Returns an option with an integer."""
    return Option(name, Takes.INTEGER, default, text, has_effect=has_effect)


def text(name: str, default: str, text: str, form: str = "", *, has_effect: bool = True) -> Option:
    """Returns an option with a text of the given form."""
    return Option(name, Takes.TEXT, default, text, form, has_effect=has_effect)


def path(name: str, default: str, text: str, *, has_effect: bool = True) -> Option:
    """Returns an option with a path."""
    return Option(name, Takes.PATH, default, text, has_effect=has_effect)


def each(name: str, form: str, text: str, *, has_effect: bool = True) -> Option:
    """Returns an option with a text that may be repeated."""
    return Option(name, Takes.TEXT, "", text, form, is_repeatable=True, has_effect=has_effect)
