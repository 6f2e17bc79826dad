# SPDX-License-Identifier: Apache-2.0
"""Quantiles of the durations of the last minute."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import msgspec

SLICE_NS = 12_000_000_000
SLICES = 5
# Larger values keep as many bits as this one has, so they are at most 0.1 % too small.
_LARGEST_EXACT = 2047
_EXACT_BITS = _LARGEST_EXACT.bit_length()


class Quantile(msgspec.Struct, frozen=True):
    """A quantile that summaries show."""

    rank: float  # from 0 to 1
    error: float  # how far the rank of the value may be off


class Summary:
    """Counts values, and knows quantiles of those of the last 48 to 60 seconds.

    The window is made of slices of 12 seconds: each has the number of values by value, and the
    oldest slice is dropped as a whole. The rank of a quantile is exact; what is not is the value,
    which is at most 0.1 % too small from 2048 on. The caller passes the number of the slice, which
    is the time divided by `SLICE_NS`.
    """

    __slots__ = ("_slice", "_slices", "_values", "count")

    def __init__(self) -> None:
        self.count = 0  # of all values since the start, not only of the window
        self._slice = -1
        self._values: dict[int, int] = {}  # of this slice
        self._slices: deque[tuple[int, dict[int, int]]] = deque(maxlen=SLICES)

    def add(self, value: int, count: int, now_slice: int) -> None:
        """Count a value that came `count` times."""
        if now_slice != self._slice:
            self._slice, self._values = now_slice, {}
            self._slices.append((now_slice, self._values))
        self.count += count
        if value > _LARGEST_EXACT:
            shift = value.bit_length() - _EXACT_BITS
            value = value >> shift << shift
        values = self._values
        values[value] = values.get(value, 0) + count

    def values_at(self, ranks: Sequence[float], now_slice: int) -> list[float]:
        """Returns the value at each rank from 0 to 1; NaN if the window is empty."""
        merged: dict[int, int] = {}
        for number, values in self._slices:
            if number > now_slice - SLICES:
                for value, count in values.items():
                    merged[value] = merged.get(value, 0) + count
        if not merged:
            return [math.nan] * len(ranks)
        ordered = sorted(merged.items())
        total = sum(merged.values())
        return [_value_at(rank, ordered, total) for rank in ranks]


def _value_at(rank: float, ordered: Sequence[tuple[int, int]], count: int) -> int:
    """Returns the smallest value that is not less than a share of `rank` of all values."""
    passed = 0
    for value, times in ordered:
        passed += times
        if passed >= rank * count:
            return value
    return ordered[-1][0]
