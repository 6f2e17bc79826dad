# SPDX-License-Identifier: Apache-2.0
"""Checks arguments from models. Strings may also be bytes, like the elements of BYTES tensors."""

from __future__ import annotations

from typing import Any

from pytriton.base.errors import sendable_text


def text(value: str | bytes, what: str) -> str:
    """Returns `value` as a plain string that can be sent.

    Raises:
        TypeError: `value` is neither bytes in UTF-8 nor a str that can be encoded as UTF-8.
    """
    if type(value) is str and value.isascii():
        return value
    if not isinstance(value, str | bytes):
        raise TypeError(f"{what} must be a str, got {type(value)}")
    try:
        # A lone surrogate cannot be encoded as UTF-8.
        return (str.encode(value) if isinstance(value, str) else value).decode()
    except UnicodeError as error:
        raise TypeError(f"{what} must be text in UTF-8, got {value!r}") from error


def message(value: str | bytes, what: str) -> str:
    """Returns `value` as a plain string for humans; characters that cannot be sent are escaped.

    Raises:
        TypeError: `value` is neither a str nor bytes in UTF-8.
    """
    if isinstance(value, str):
        return sendable_text(str.__str__(value))
    return text(value, what)


def boolean(value: bool, what: str) -> bool:
    """Returns `value` as a plain bool; numbers and None are accepted.

    Raises:
        TypeError: `value` is of another type, such as str.
    """
    if value is not None and not hasattr(type(value), "__bool__"):
        raise TypeError(f"{what} must be a bool, got {type(value)}")
    return bool(value)


def integer(value: int, what: str, *, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> int:
    """Returns `value` as a plain int; numpy's integers are accepted.

    Raises:
        TypeError: `value` is not an integer, or not between `low` and `high`.
    """
    try:
        number = value.__index__()
    except (AttributeError, TypeError):
        raise TypeError(f"{what} must be an int, got {type(value)}") from None
    if not low <= number <= high:
        raise TypeError(f"{what} must be between {low} and {high}, got {number}")
    return number


def sequence(values: Any, what: str) -> list[Any]:
    """Returns the elements of `values` as a list.

    Raises:
        TypeError: `values` is None, a string, or not iterable.
    """
    if isinstance(values, str | bytes):
        raise TypeError(f"{what} must be a list, got {type(values)}")
    try:
        return list(values)
    except TypeError:
        raise TypeError(f"{what} must be a list, got {type(values)}") from None
