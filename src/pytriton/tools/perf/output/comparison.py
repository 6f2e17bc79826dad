# SPDX-License-Identifier: Apache-2.0
"""Compares the levels of two servers, or of two runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pytriton.tools.perf.measuring.results import number_text
from pytriton.tools.perf.output.run_document import LevelRecord, ServerRun


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A level that both have.

    Attributes:
        first: The level of the run that is looked at.
        other: That of the one it is compared with.
    """

    first: LevelRecord
    other: LevelRecord

    @property
    def throughput_ratio(self) -> float:
        return _ratio(self.first.throughput, self.other.throughput)

    def latency_ratio(self, percentile: int) -> float:
        """The other's latency by the first's: above 1, the first one is quicker."""
        return _ratio(_latency(self.other, percentile), _latency(self.first, percentile))


def _latency(level: LevelRecord, percentile: int) -> float:
    return level.latency.percentiles.get(percentile, 0.0) if level.latency is not None else 0.0


def _ratio(one: float, other: float) -> float:
    return one / other if other else 0.0


def pairs_of(first: ServerRun, other: ServerRun) -> list[Pair]:
    """The levels that both have."""
    theirs = {level.value: level for level in other.levels}
    return [
        Pair(level, theirs[level.value])
        for level in first.levels
        if level.value in theirs and level.latency is not None
    ]


def table_rows(pairs: Sequence[Pair]) -> tuple[list[str], list[list[str]]]:
    """The heading and the rows of a comparison."""
    heading = ["load", "infer/s", "other", "ratio", "p50 µs", "other", "ratio", "p99 µs", "other",
               "ratio"]  # fmt: skip
    rows = []
    for pair in pairs:
        row = [
            number_text(pair.first.value),
            f"{pair.first.throughput:.0f}",
            f"{pair.other.throughput:.0f}",
            f"{pair.throughput_ratio:.2f}x",
        ]
        for percentile in (50, 99):
            row += [
                f"{_latency(pair.first, percentile):.0f}",
                f"{_latency(pair.other, percentile):.0f}",
                f"{pair.latency_ratio(percentile):.2f}x",
            ]
        rows.append(row)
    return heading, rows


def comparison_text(first: ServerRun, other: ServerRun) -> str:
    """The comparison as text."""
    pairs = pairs_of(first, other)
    lines = [f"{first.label} compared with {other.label}"]
    if not pairs:
        return f"{lines[0]}: they have no load in common"
    heading, rows = table_rows(pairs)
    widths = [max(len(row[at]) for row in [heading, *rows]) for at in range(len(heading))]
    for row in [heading, *rows]:
        cells = (text.rjust(width) for text, width in zip(row, widths, strict=True))
        lines.append(f"  {'  '.join(cells)}")
    lines.append("  A ratio above 1 is in favour of the first: more throughput, less latency.")
    return "\n".join(lines)
