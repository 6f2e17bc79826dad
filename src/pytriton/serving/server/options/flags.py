# SPDX-License-Identifier: Apache-2.0
"""Reads given values by the table of settings; errors name the flag."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any

from pytriton.base.settings import BY_KEY, MAX_INTEGER, ServerSetting, Takes
from pytriton.exceptions import PyTritonValidationError

_LEADING_FLAGS = re.compile(r"\(\?([ims]*(?:-[ims]+)?)\)")
_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


class FlagError(PyTritonValidationError):
    """The value of a flag, whose name has dashes or underscores, is invalid."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.flag = flag_of(name)


class Flags:
    """The given values by flag name with underscores; None is the same as not given.

    Defaults are those of `tritonserver` if `is_command` is set, and else those of `Triton`.
    """

    def __init__(self, values: Mapping[str, Any], *, is_command: bool = False) -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._unread = set(self._values)
        self._is_command = is_command

    def _take(self, name: str) -> Any:
        self._unread.discard(name)
        return self._values.get(name)

    # By the table

    def value(self, name: str, default: Any = None) -> Any:
        """Returns the value of a setting, of the type of its row; a default replaces the row's."""
        setting = BY_KEY[name]
        value = self.given(setting)
        if value is not None or default is not None:
            return default if value is None else value
        text = "" if self._is_command else setting.config_default
        return Flags({name: text or setting.default or None}).given(setting)

    def record(self, place: str = "", **defaults: Any) -> dict[str, Any]:
        """Returns the values of all settings that fill a record of `ServerOptions`, by field.

        Its own fields have an empty place. Defaults are for fields that depend on other settings.
        """
        return {
            field: self.value(setting.key, defaults.get(field))
            for setting in BY_KEY.values()
            for parent, _, field in (setting.field.rpartition("."),)
            if field and parent == place
        }

    def given(self, setting: ServerSetting) -> Any:
        """Returns the value that was given, without defaults: None, or () for a repeatable one."""
        name = setting.key
        if setting.is_repeatable:
            return self.texts(name)
        match setting.takes:
            case Takes.BOOLEAN | Takes.NOTHING:
                return self.boolean(name)
            case Takes.INTEGER:
                return self.integer(name, *setting.range)
            case Takes.NUMBER:
                return self._number(name, is_positive=setting.is_positive)
            case Takes.PATTERN:
                return self._pattern(name)
            case _:
                text = self.text(name)
                return text if text is None else self._choice(setting, text)

    # By kind, for values that the table does not have

    def boolean(self, name: str) -> bool | None:
        """Returns a boolean, parsed as by Triton's command line; None if it was not given."""
        value = self._take(name)
        if value is None or isinstance(value, bool):
            return value
        as_text = str(value).lower()
        if as_text not in _BOOLEANS:
            raise bad_value(name, "true, on, 1, false, off or 0", value)
        return _BOOLEANS[as_text]

    def integer(self, name: str, minimum: int = 0, maximum: int = MAX_INTEGER) -> int | None:
        """Returns an integer in a range; None if it was not given."""
        value = self._take(name)
        if value is None:
            return None
        number = _integer(value)
        if number is None or not minimum <= number <= maximum:
            raise bad_value(name, f"an integer from {minimum} to {maximum}", value)
        return number

    def text(self, name: str) -> str | None:
        """Returns a text that is not empty; None if it was not given."""
        value = self._take(name)
        if value is None:
            return None
        as_text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
        if not as_text or not isinstance(as_text, str):
            raise bad_value(name, "text", value)
        return as_text

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

    def _number(self, name: str, *, is_positive: bool) -> float | None:
        value = self._take(name)
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan  # fails every comparison
        if 0 < number < math.inf or (number == 0 and not is_positive):
            return number
        expected = "greater than 0" if is_positive else "of at least 0"
        raise bad_value(name, f"a number {expected}", value)

    def _pattern(self, name: str) -> str | None:
        """Returns a valid regular expression; it may begin with flags as in RE2, like `(?-i)`."""
        value = self.text(name)
        if value is None:
            return None
        pattern = _without_leading_flags(value)
        try:
            re.compile(pattern)
        except re.error as exc:
            raise bad_value(name, f"a regular expression ({exc})", value) from exc
        return pattern

    @staticmethod
    def _choice(setting: ServerSetting, text: str) -> str:
        """Returns one of several words; upper and lower case are equal."""
        for choice in setting.choices or (text,):
            if text.lower() == choice.lower():
                return choice
        expected = f"expected one of {', '.join(setting.choices)}, got {text!r}"
        raise FlagError(setting.name, f"invalid argument for --{setting.name}: {expected}")

    def refuse_unread(self) -> None:
        """Raise PyTritonValidationError for flags that nothing has read: they do not exist."""
        unknown = [name for name in self._unread if name not in BY_KEY or BY_KEY[name].has_effect]
        if unknown:
            names = ", ".join(flag_of(name) for name in sorted(unknown))
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
