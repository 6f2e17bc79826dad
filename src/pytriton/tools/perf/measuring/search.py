# SPDX-License-Identifier: Apache-2.0
"""Which load comes next: one after the other, or halving the distance to the latency limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator

Load = float
Search = Generator[Load, bool, None]


@dataclasses.dataclass(frozen=True, slots=True)
class LoadRange:
    """Loads from `start` to `end`; an end of 0 is that of the latency limit."""

    start: float
    end: float
    step: float = 1.0

    @property
    def is_single(self) -> bool:
        return self.start == self.end

    def count(self) -> int | None:
        """How many loads a linear search visits at most; None if nobody knows."""
        if self.end == 0:
            return None
        return int((self.end - self.start) / self.step + 1e-9) + 1


def linear(loads: LoadRange) -> Search:
    """Visit one load after the other, until one is not met: not stable, or over the limit."""
    number = 0
    while loads.end == 0 or (number < (loads.count() or 0)):
        met = yield loads.start + number * loads.step
        if not met:
            return
        number += 1


def binary(loads: LoadRange) -> Search:
    """Find the highest load that is met, up to the range's step."""
    low, high = loads.start, loads.end
    if not (yield low):
        return
    if (yield high):
        return
    whole = all(float(each).is_integer() for each in (low, high, loads.step))
    while high - low > loads.step:
        middle = float(int((low + high) / 2)) if whole else (low + high) / 2
        if (yield middle):
            low = middle
        else:
            high = middle
