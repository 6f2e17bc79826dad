# SPDX-License-Identifier: Apache-2.0
"""Checks of what models pass; texts may come as bytes, as elements of BYTES tensors are."""

from __future__ import annotations

from typing import Any

from pytriton.errors import sendable_text


def text(value: str | bytes, what: str) -> str:
    """`value` as a plain string that can be sent.

    Raises:
        TypeError: it is neither bytes in UTF-8 nor a str that UTF-8 can express.
    """
    if type(value) is str and value.isascii():
        return value
    if not isinstance(value, str | bytes):
        raise TypeError(f"{what} must be a str, got {type(value)}")
    try:
        # Half a surrogate pair has no form in UTF-8.
        return (str.encode(value) if isinstance(value, str) else value).decode()
    except UnicodeError as error:
        raise TypeError(f"{what} must be text in UTF-8, got {value!r}") from error


def message(value: str | bytes, what: str) -> str:
    """`value` as a plain string for people to read; what cannot be sent is written as escapes.

    Raises:
        TypeError: it is neither str nor bytes in UTF-8.
    """
    if isinstance(value, str):
        return sendable_text(str.__str__(value))
    return text(value, what)


def truth(value: bool, what: str) -> bool:
    """`value` as a plain bool; numbers and None are fine.

    Raises:
        TypeError: it is something else, such as a text.
    """
    if value is not None and not hasattr(type(value), "__bool__"):
        raise TypeError(f"{what} must be a bool, got {type(value)}")
    return bool(value)


def integer(value: int, what: str, *, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> int:
    """`value` as a plain int; numpy's integers are fine.

    Raises:
        TypeError: it is no integer, or not between `low` and `high`.
    """
    try:
        number = value.__index__()
    except (AttributeError, TypeError):
        raise TypeError(f"{what} must be an int, got {type(value)}") from None
    if not low <= number <= high:
        raise TypeError(f"{what} must be between {low} and {high}, got {number}")
    return number


def sequence(values: Any, what: str) -> list[Any]:
    """The elements of `values`.

    Raises:
        TypeError: it is None, a text or nothing to iterate over.
    """
    if isinstance(values, str | bytes):
        raise TypeError(f"{what} must be a list, got {type(values)}")
    try:
        return list(values)
    except TypeError:
        raise TypeError(f"{what} must be a list, got {type(values)}") from None
