# SPDX-License-Identifier: Apache-2.0
"""The page of a run: the numbers that matter, plots, tables, and what it is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from pytriton.tools.perf.measuring.results import number_text
from pytriton.tools.perf.output.run_document import (
    LevelRecord,
    Pair,
    RunDocument,
    ServerRun,
    latency_us,
    pairs_of,
    table_rows,
)
from pytriton.tools.plots.page import Cell, Page, Section, Table

_CLEAR = 0.03  # a ratio that differs less from 1 is not coloured


def run_page(
    document: RunDocument, pictures: Sequence[str], others: Sequence[ServerRun] = ()
) -> Page:
    """Make the page of a run with its plots as SVG, compared with other runs."""
    first = document.runs[0]
    sections = [Section("", notes=_notes(document))] if _notes(document) else []
    compared = [*document.runs[1:], *others]
    sections += [_comparison(first, other) for other in compared]
    sections.append(Section("Plots", pictures=pictures))
    sections += [
        Section(
            f"Levels of {run.label}" if len(document.runs) > 1 else "Levels",
            table=_levels_table(document, run),
        )
        for run in document.runs
    ]
    sections += [
        Section("Settings", table=_facts(document.settings), is_folded=True),
        Section("Environment", table=_facts(document.environment), is_folded=True),
    ]
    return Page(
        title=f"Load test of {first.model}",
        subtitle=f"{first.server} at {first.url} over {first.protocol}, {document.when}",
        tiles=_tiles(document, first),
        sections=sections,
    )


def _tiles(document: RunDocument, run: ServerRun) -> list[tuple[str, str]]:
    levels = [level for level in run.levels if level.latency is not None]
    if not levels:
        return []
    best = max(levels, key=lambda level: level.throughput)
    quick = min(levels, key=document.latency_us)
    load = "concurrency" if document.mode == "concurrency" else "rate"
    tiles = [
        (f"{best.throughput:,.0f}/s", f"most inferences, {load} {number_text(best.value)}"),
        (_time(latency_us(best, 99)), "p99 latency there"),
        (_time(latency_us(quick, 50)), f"lowest p50, {load} {number_text(quick.value)}"),
    ]
    if document.is_decoupled:
        rate = max(level.response_rate for level in levels)
        tiles.append((f"{rate:,.0f}/s", "most responses"))
    failed = sum(level.failed for level in run.levels)
    if failed:
        tiles.append((f"{failed:,}", "requests failed"))
    return tiles


def _notes(document: RunDocument) -> list[str]:
    notes = []
    for run in document.runs:
        name = f"{run.label}: " if len(document.runs) > 1 else ""
        limited = [number_text(each.value) for each in run.levels if each.is_generator_limit]
        if limited:
            notes.append(
                f"{name}The load generator itself was the limit at {', '.join(limited)}; the "
                "server may be quicker."
            )
        for level in run.levels:
            texts = "; ".join(f"{count} x {text}" for text, count in list(level.errors.items())[:3])
            if level.failed:
                notes.append(
                    f"{name}{level.failed} requests failed at {number_text(level.value)}: {texts}"
                )
        unsure = [
            f"{number_text(level.value)} ({level.status})"
            for level in run.levels
            if not level.is_sure
        ]
        if unsure:
            notes.append(f"{name}Less sure, with hollow points in the plots: {', '.join(unsure)}")
    return notes


def _comparison(first: ServerRun, other: ServerRun) -> Section:
    pairs = pairs_of(first, other)
    title = f"{first.label} compared with {other.label}"
    if not pairs:
        return Section(title, texts=["They have no load in common."])
    heading, rows = table_rows(pairs)
    cells = [_judged(pair, row) for pair, row in zip(pairs, rows, strict=True)]
    text = "A ratio above 1 is in favour of the first: more throughput, less latency."
    return Section(title, texts=[text], table=Table(heading, cells))


def _judged(pair: Pair, row: Sequence[str]) -> list[str | Cell]:
    ratios = {3: pair.throughput_ratio, 6: pair.latency_ratio(50), 9: pair.latency_ratio(99)}
    cells: list[str | Cell] = list(row)
    for at, ratio in ratios.items():
        if abs(ratio - 1) > _CLEAR:
            cells[at] = Cell(row[at], "good" if ratio > 1 else "bad")
    return cells


def _levels_table(document: RunDocument, run: ServerRun) -> Table:
    heading = ["concurrency" if document.mode == "concurrency" else "rate", "infer/s", "avg", "p50",
               "p90", "p95", "p99", "requests", "failed"]  # fmt: skip
    if document.is_decoupled:
        heading += ["responses/s", "between p50", "between p99"]
    has_server = any(level.server_us for level in run.levels)
    if has_server:
        heading += ["queue", "compute", "batch"]
    rows = [
        _level_row(document, level, has_server=has_server)
        for level in sorted(run.levels, key=lambda level: level.value)
    ]
    return Table([*heading, "state"], rows)


def _level_row(document: RunDocument, level: LevelRecord, *, has_server: bool) -> list[str | Cell]:
    row: list[str | Cell] = [number_text(level.value), f"{level.throughput:,.1f}"]
    row.append(_time(level.latency.avg_us) if level.latency is not None else "-")
    row += [_time(latency_us(level, percentile)) for percentile in (50, 90, 95, 99)]
    row += [f"{level.requests:,}", Cell(f"{level.failed:,}", "bad" if level.failed else "")]
    if document.is_decoupled:
        row.append(f"{level.response_rate:,.0f}")
        times = level.between
        row += [_time(times.percentiles[each]) if times is not None else "-" for each in (50, 99)]
    if has_server:
        server = level.server_us
        compute = sum(value for name, value in server.items() if name.startswith("compute"))
        row += [_time(server.get("queue", 0.0)), _time(compute), f"{level.batch:.2f}"]
    row.append(Cell(level.status, "" if level.is_sure else "bad"))
    return row


def _facts(facts: object) -> Table:
    assert isinstance(facts, dict)
    return Table(["", ""], [[str(name), str(value)] for name, value in facts.items()])


def _time(us: float) -> str:
    """A time with three digits and its unit."""
    if us >= 1e6:
        return f"{us / 1e6:.3g} s"
    return f"{us / 1e3:.3g} ms" if us >= 1e3 else f"{us:.3g} µs"
