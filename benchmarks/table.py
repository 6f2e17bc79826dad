# SPDX-License-Identifier: Apache-2.0
"""Prints the figures of systems that do the same as Markdown tables with ratios."""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from benchmarks.measurement import Measurement

Rounds = Sequence[Sequence[Measurement]]
Results = Mapping[str, Mapping[str, Measurement]]  # figures by row, for each system's title


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A table: the title of the system whose ratios it has, and those of its peers."""

    heading: str
    subject: str
    peers: tuple[str, ...]


def read_figures(path: pathlib.Path) -> dict[str, dict[str, Measurement]]:
    """The median of the rounds in a file: for each system its figures by row."""
    rounds = msgspec.json.decode(path.read_bytes(), type=dict[str, list[list[Measurement]]])
    return {title: median_of_rounds(figures) for title, figures in rounds.items()}


def median_of_rounds(rounds: Rounds) -> dict[str, Measurement]:
    """One measurement per row: the median over the rounds, and how far apart they are."""
    by_row: dict[str, list[Measurement]] = {}
    for figures in rounds:
        for figure in figures:
            by_row.setdefault(figure.row, []).append(figure)
    return {row: _median(figures) for row, figures in by_row.items()}


def _median(figures: Sequence[Measurement]) -> Measurement:
    values = [figure.value for figure in figures]
    median = statistics.median(values)
    spread = (max(values) - min(values)) / median if len(values) > 1 and median else None
    return dataclasses.replace(figures[0], value=median, spread=spread)


def render_all(results: Results, comparisons: Sequence[Comparison]) -> str:
    """A table for each comparison whose subject was measured, and one for whatever is left then."""
    tables, shown = [], set()
    for comparison in comparisons:
        subject = results.get(comparison.subject)
        if subject is None:
            continue
        titles = [title for title in results if title in (comparison.subject, *comparison.peers)]
        shown.update(titles)
        # A peer that is in several tables has rows of all of them.
        like_with_like = {
            title: {row: figure for row, figure in results[title].items() if row in subject}
            for title in titles
        }
        table = render(like_with_like, comparison.subject)
        tables.append(f"### {comparison.heading}\n\n{table}")
    if left := {title: figures for title, figures in results.items() if title not in shown}:
        tables.append(render(left, subject=""))
    return "\n\n".join(tables)


def render(results: Results, subject: str) -> str:
    """The table: a row for each measurement, a column for each system, then `subject`'s ratios.

    The last column, where there were several rounds, is the largest spread of any system in a row.

    Args:
        results: for each system's title its figures by row.
        subject: the title whose figures are divided by, or into, those of the others.
    """
    others = [title for title in results if title != subject] if subject in results else []
    # The longest list has all rows in their order; only ours has the cache's.
    rows: dict[str, None] = {}
    for figures in sorted(results.values(), key=len, reverse=True):
        rows.update(dict.fromkeys(figures))
    figures_of_all = [figure for figures in results.values() for figure in figures.values()]
    has_spread = any(figure.spread is not None for figure in figures_of_all)
    lines = [["", *results, *(f"vs {title}" for title in others), *["spread"] * has_spread]]
    for row in rows:
        cells = [figures.get(row) for figures in results.values()]
        ratios = [ratio(results[subject].get(row), results[title].get(row)) for title in others]
        spread = [_spread(cells)] if has_spread else []
        lines.append([_label(row, cells), *(number(cell) for cell in cells), *ratios, *spread])
    return _markdown(lines)


def _label(row: str, cells: Sequence[Measurement | None]) -> str:
    unit = next(cell.unit for cell in cells if cell is not None)
    return f"{row} [{unit}]"


def number(cell: Measurement | None) -> str:
    if cell is None:
        return "-"
    return f"{cell.value:,.0f}" if cell.value >= 100 else f"{cell.value:.3g}"


def ratio(ours: Measurement | None, theirs: Measurement | None) -> str:
    """How many times better ours is, whichever direction is better."""
    if ours is None or theirs is None:
        return "-"
    better, worse = (ours, theirs) if ours.higher_is_better else (theirs, ours)
    return f"{better.value / worse.value:.2g}x" if worse.value else "-"


def _spread(cells: Sequence[Measurement | None]) -> str:
    spreads = [cell.spread for cell in cells if cell is not None and cell.spread is not None]
    return f"{max(spreads):.0%}" if spreads else "-"


def _markdown(lines: list[list[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    aligned = [
        [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        for line in [lines[0], rule, *lines[1:]]
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in aligned)
