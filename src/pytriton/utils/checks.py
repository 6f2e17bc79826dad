# SPDX-License-Identifier: Apache-2.0
"""Checks of users' settings, at the place where they are written."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytriton.exceptions import PyTritonBadParameterError


def check_type(value: object, what: str, *allowed: type) -> None:
    """Raise PyTritonBadParameterError if a setting has another type than those allowed.

    Args:
        value: The setting.
        what: Its name for the message.
        *allowed: Its types. NoneType is not named in the message.
    """
    if not isinstance(value, allowed):
        names = " or ".join(each.__name__ for each in allowed if each is not type(None))
        raise PyTritonBadParameterError(f"Expected an object of {names} as {what}, got {value!r}.")


def check_plain_fields(record: Any) -> None:
    """Check the integers and booleans of a mutable dataclass, by its annotations as text.

    Numpy's integers and booleans become Python's, and 0 and 1 booleans.

    Raises:
        PyTritonBadParameterError: A field has another type.
    """
    kind = type(record).__name__
    for each in dataclasses.fields(record):
        convert = _CONVERSIONS.get(str(each.type))
        if convert is not None:
            value = getattr(record, each.name)
            setattr(record, each.name, convert(value, f"{each.name} of {kind}"))


def check_list(value: object, what: str, kind: type, words: str) -> None:
    """Raise PyTritonBadParameterError if a setting is no list, or has something else in it.

    Args:
        value: The setting.
        what: Its name for the message.
        kind: The type of its elements; integers may be numpy's.
        words: What they are, for the message.
    """
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if not is_list or not all(isinstance(each, kind) or _is_integer(each, kind) for each in value):  # type: ignore[attr-defined]  # a Sequence
        raise PyTritonBadParameterError(f"Expected a list of {words} as {what}, got {value!r}.")


def _is_integer(value: object, kind: type) -> bool:
    return kind is int and isinstance(value, np.integer)


def _as_integer(value: Any, what: str) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise PyTritonBadParameterError(f"Expected an integer as {what}, got {value!r}.")
    return operator.index(value)


def _as_boolean(value: Any, what: str) -> bool:
    if not isinstance(value, bool | int | np.bool_ | np.integer) or value not in (0, 1):
        raise PyTritonBadParameterError(f"Expected True or False as {what}, got {value!r}.")
    return bool(value)


_CONVERSIONS = {"int": _as_integer, "bool": _as_boolean}
