# SPDX-License-Identifier: Apache-2.0
"""Times as numbers that people compare: mean, deviation, percentiles, and the whole curve."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

USUAL_PERCENTILES = (50, 90, 95, 99)
CURVE = (*(step / 2 for step in range(200)), 99.9, 100.0)  # the percentiles of a curve
_BINS = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Distribution:
    """Times in microseconds.

    Attributes:
        percentiles: The usual ones, and the one that was asked for.
        curve_us: The times at the percentiles of `CURVE`.
        bins_us: The edges of the histogram's bins, which grow by a constant factor.
        counts: How many times are in each bin.
    """

    count: int
    avg_us: float
    std_us: float
    min_us: float
    max_us: float
    percentiles: Mapping[int, float]
    curve_us: tuple[float, ...] = ()
    bins_us: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        document = dataclasses.asdict(self)
        document["percentiles"] = {str(key): value for key, value in self.percentiles.items()}
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Distribution:
        return cls(
            **{
                **document,
                "percentiles": {int(k): float(v) for k, v in document["percentiles"].items()},
                "curve_us": tuple(document.get("curve_us", ())),
                "bins_us": tuple(document.get("bins_us", ())),
                "counts": tuple(document.get("counts", ())),
            }
        )


def percentile_index(percentile: float, count: int) -> int:
    """The place of a percentile in sorted values, as perf_analyzer rounds it."""
    return min(int(percentile / 100 * (count - 1) + 0.5), count - 1)


def distribution_of(
    times_ns: NDArray[np.int64], extra_percentile: int | None = None
) -> Distribution | None:
    """The distribution of times; None if there are none."""
    count = len(times_ns)
    if count == 0:
        return None
    ordered = np.sort(times_ns) / 1000.0
    wanted = sorted({*USUAL_PERCENTILES, *([extra_percentile] if extra_percentile else [])})
    bins, counts = _histogram(ordered)
    return Distribution(
        count=count,
        avg_us=float(ordered.mean()),
        std_us=float(ordered.std(ddof=1)) if count > 1 else 0.0,
        min_us=float(ordered[0]),
        max_us=float(ordered[-1]),
        percentiles={each: float(ordered[percentile_index(each, count)]) for each in wanted},
        curve_us=_rounded([float(ordered[percentile_index(each, count)]) for each in CURVE]),
        bins_us=bins,
        counts=counts,
    )


def _histogram(ordered: NDArray[np.float64]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    low, high = max(float(ordered[0]), 1.0), max(float(ordered[-1]), 2.0)
    if high <= low * 1.01:
        low, high = low * 0.9, high * 1.1
    edges = np.geomspace(low, high, _BINS + 1)
    counts, _ = np.histogram(np.clip(ordered, edges[0], edges[-1]), edges)
    return _rounded(edges.tolist()), tuple(int(each) for each in counts)


def _rounded(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(value, 1) for value in values)
