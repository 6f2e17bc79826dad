# SPDX-License-Identifier: Apache-2.0
"""Reads the values of the server's flags one by one; errors name the flag."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pytriton.exceptions import PyTritonValidationError

_Word = TypeVar("_Word", bound=str)
_LEADING_FLAGS = re.compile(r"\(\?([ims]*(?:-[ims]+)?)\)")
_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


class FlagError(PyTritonValidationError):
    """The value of a flag is invalid.

    Args:
        name: name of the flag, with dashes or underscores.
        message: the expected and the actual value.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.flag = flag_of(name)


class Flags:
    """The given values by flag name with underscores; None is the same as not given."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._unread = set(self._values)

    def _take(self, name: str) -> Any:
        self._unread.discard(name)
        return self._values.get(name)

    def boolean(self, name: str, *, default: bool) -> bool:
        """Returns a boolean; text is parsed as by Triton's command line."""
        value = self._take(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        as_text = str(value).lower()
        if as_text not in _BOOLEANS:
            raise bad_value(name, "true, on, 1, false, off or 0", value)
        return _BOOLEANS[as_text]

    def optional_integer(self, name: str, minimum: int = 0, maximum: int = 2**63 - 1) -> int | None:
        """Returns an integer in a range; None if it was not given."""
        value = self._take(name)
        if value is None:
            return None
        number = _integer(value)
        if number is None or not minimum <= number <= maximum:
            raise bad_value(name, f"an integer from {minimum} to {maximum}", value)
        return number

    def integer(self, name: str, default: int, minimum: int = 0, maximum: int = 2**63 - 1) -> int:
        """Returns an integer in a range."""
        number = self.optional_integer(name, minimum, maximum)
        return default if number is None else number

    def port(self, name: str, default: int) -> int:
        """Returns a port; 0 lets the system choose one."""
        return self.integer(name, default, maximum=65535)

    def number(self, name: str, default: float) -> float:
        """Returns a number that is not negative."""
        number = self._number(name, default)
        if not 0 <= number < math.inf:
            raise bad_value(name, "a number of at least 0", self._values[name])
        return number

    def positive_number(self, name: str, default: float) -> float:
        """Returns a number greater than 0."""
        number = self._number(name, default)
        if not 0 < number < math.inf:
            raise bad_value(name, "a number greater than 0", self._values[name])
        return number

    def _number(self, name: str, default: float) -> float:
        value = self._take(name)
        if value is None:
            return default
        try:
            return float(value)
        except (TypeError, ValueError):
            return math.nan  # fails every comparison, so the caller refuses it

    def text(self, name: str, default: str) -> str:
        """Returns a text that is not empty."""
        value = self.optional_text(name)
        return default if value is None else value

    def optional_text(self, name: str) -> str | None:
        """Returns a text that is not empty; None if it was not given."""
        value = self._take(name)
        if value is None:
            return None
        as_text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
        if not as_text or not isinstance(as_text, str):
            raise bad_value(name, "text", value)
        return as_text

    def choice(self, name: str, default: _Word, choices: Collection[_Word]) -> _Word:
        """Returns one of several words; upper and lower case are equal."""
        value = self.text(name, default)
        for choice in choices:
            if value.lower() == choice.lower():
                return choice
        raise FlagError(
            name,
            f"invalid argument for {flag_of(name)}: expected one of {', '.join(choices)}, "
            f"got {value!r}",
        )

    def pattern(self, name: str) -> str | None:
        """Returns a valid regular expression; it may begin with flags as in RE2, like `(?-i)`."""
        value = self.optional_text(name)
        if value is None:
            return None
        pattern = _without_leading_flags(value)
        try:
            re.compile(pattern)
        except re.error as exc:
            raise bad_value(name, f"a regular expression ({exc})", value) from exc
        return pattern

    def texts(self, name: str) -> tuple[str, ...]:
        """Returns the values of a repeatable flag; a single one may be given without a list."""
        value = self._take(name)
        if value is None:
            return ()
        if isinstance(value, str | os.PathLike):
            value = [value]
        if not isinstance(value, list | tuple):
            raise bad_value(name, "a list of texts", value)
        return tuple(os.fspath(element) for element in value)

    def settings(self, name: str) -> dict[str, str]:
        """Returns the `<setting>=<value>` pairs of a repeatable flag; the last one wins."""
        pairs = {}
        for text in self.texts(name):
            setting, equals, value = text.partition("=")
            if not (setting and equals):
                raise FlagError(
                    name, f"{flag_of(name)} option format is <setting>=<value>. Got {text}"
                )
            pairs[setting] = value
        return pairs

    def grouped_settings(self, name: str, group_noun: str) -> dict[str, dict[str, str]]:
        """Returns the `<group>,<setting>=<value>` entries of a repeatable flag, by group."""
        groups: dict[str, dict[str, str]] = {}
        for text in self.texts(name):
            group, _, pair = text.partition(",")
            setting, equals, value = pair.partition("=")
            if not (group and setting and equals):
                form = f"<{group_noun} name>,<setting>=<value>"
                problem = (
                    f"{flag_of(name)} option format is '{form}'"
                    if group and pair
                    else f"No {group_noun} specified. {flag_of(name)} option format is {form}"
                )
                raise FlagError(name, f"{problem}. Got {text}")
            groups.setdefault(group, {})[setting] = value
        return groups

    def ignore(self, *names: str) -> None:
        """Accept flags that have no effect."""
        self._unread.difference_update(names)

    def refuse_unread(self) -> None:
        """Refuse flags that no method has read: they do not exist.

        Raises:
            PyTritonValidationError: if there are any.
        """
        if self._unread:
            names = ", ".join(flag_of(name) for name in sorted(self._unread))
            raise PyTritonValidationError(f"Expected flags of the server, got {names}")


def flag_of(name: str) -> str:
    """Returns a flag as it is written on the command line."""
    return "--" + name.replace("_", "-")


def bad_value(name: str, expected: str, value: Any) -> FlagError:
    """Returns the error for an invalid value of a flag."""
    return FlagError(name, f"Expected {expected} for {flag_of(name)}, got {value!r}")


def _integer(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]+", value):
        return int(value)
    return None


def _without_leading_flags(pattern: str) -> str:
    """Returns a pattern with its leading flags as those of a group, where Python clears them."""
    flags = _LEADING_FLAGS.match(pattern)
    if flags is None:
        return pattern
    return f"(?{flags[1]}:{_without_leading_flags(pattern[flags.end() :])})"
