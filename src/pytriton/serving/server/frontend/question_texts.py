# SPDX-License-Identifier: Apache-2.0
"""Texts of questions to the core. Names in the paths of clients may be any bytes, not only UTF-8.

Messages only have texts in UTF-8, so others travel as bytes. No question has bytes of its own
beside its texts, except inside of other arguments.
"""

from __future__ import annotations

from typing import Any

_ENCODING = ("utf-8", "surrogateescape")


def packed(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a question as they can be sent."""
    return {name: _packed(value) for name, value in arguments.items()}


def _packed(value: Any) -> Any:
    if not isinstance(value, str) or value.isascii():
        return value
    raw = value.encode(*_ENCODING)
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw
    return value


def unpacked(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.decode(*_ENCODING) if isinstance(value, bytes) else value
        for name, value in arguments.items()
    }
