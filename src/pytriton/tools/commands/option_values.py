# SPDX-License-Identifier: Apache-2.0
"""Reads the values of options, for several commands; a wrong one is refused in a sentence. Pure."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _refused(expected: str, text: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"expected {expected}, got {text}")


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns a reader of whole numbers between two limits."""
    limit = f"from {least} to {most}" if most is not None else f"of at least {least}"

    def read(text: str) -> int:
        value = int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else None
        if value is None or value < least or (most is not None and value > most):
            raise _refused(f"a whole number {limit}", text)
        return value

    return read


def _finite(text: str) -> float:
    """Returns a number; NaN if it is none, or infinite."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def positive_number(text: str) -> float:
    """Read a number above 0."""
    value = _finite(text)
    if not value > 0:
        raise _refused("a number above 0", text)
    return value


def number_from_0(text: str) -> float:
    """Read a number of at least 0."""
    value = _finite(text)
    if not value >= 0:
        raise _refused("a number of at least 0", text)
    return value


def number_between(least: float, most: float) -> Callable[[str], float]:
    """Returns a reader of numbers between two limits."""

    def read(text: str) -> float:
        value = _finite(text)
        if not least <= value <= most:
            raise _refused(f"a number from {least:g} to {most:g}", text)
        return value

    return read


def share(text: str) -> float:
    """Read a share such as 0.1 or 10%."""
    value = _finite(text[:-1]) / 100 if text.endswith("%") else _finite(text)
    if not 0 < value <= 1:
        raise _refused("a share such as 0.1 or 10%", text)
    return value


def size_in_bytes(text: str) -> int:
    """Read a size such as 500M."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)i?b?", text.strip().lower())
    value = int(float(found[1]) * _UNITS[found[2]]) if found is not None else 0
    if value < 1:
        raise _refused("a size such as 500M", text)
    return value
