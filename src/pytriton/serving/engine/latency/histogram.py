# SPDX-License-Identifier: Apache-2.0
"""Histograms of durations: how many of them were not longer than each of some bounds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Counts durations in nanoseconds by bounds in another unit.

    A duration belongs to the first of `counts` whose limit in `limits_ns` it does not exceed; the
    last one has no limit.

    Args:
        bounds: The upper bounds of the buckets, ascending.
        unit_ns: The unit of the bounds, in nanoseconds.
    """

    __slots__ = ("bounds", "counts", "limits_ns")

    def __init__(self, bounds: Sequence[float], unit_ns: int) -> None:
        self.bounds = tuple(bounds)
        self.limits_ns = [round(bound * unit_ns) for bound in bounds]
        self.counts = [0] * (len(bounds) + 1)

    def add(self, ns: int, count: int = 1) -> None:
        """Count `count` events that took `ns` each."""
        self.counts[bisect_left(self.limits_ns, ns)] += count

    @property
    def count(self) -> int:
        """The number of all events."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Returns how many events were within each bound, and at last the number of all."""
        return list(accumulate(self.counts))


def count_within(sizes: Sequence[tuple[int, int]], bounds: Sequence[float]) -> list[int]:
    """Returns the cumulative counts of a histogram, made of (size, count) pairs."""
    counts = [0] * (len(bounds) + 1)
    for size, count in sizes:
        counts[bisect_left(bounds, size)] += count
    return list(accumulate(counts))
