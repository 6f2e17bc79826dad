# SPDX-License-Identifier: Apache-2.0
"""What the pictures of a run show."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pytriton.tools.perf.measuring.results import number_text
from pytriton.tools.perf.measuring.summary import CURVE, Distribution
from pytriton.tools.perf.output.run_document import LevelRecord, RunDocument, ServerRun
from pytriton.tools.plots.pictures import Bars, Line, Panel, short_text

_PERCENTILES = (50, 95, 99)
_SHOWN_LEVELS = 5  # curves of more levels could not be told apart
_LINE_LEVELS = 3  # a line of fewer points says less than bars with their values


class Unit(NamedTuple):
    """A unit of time that fits the numbers."""

    name: str
    in_us: float


def unit_for(largest_us: float) -> Unit:
    if largest_us >= 2e6:
        return Unit("s", 1e6)
    return Unit("ms", 1e3) if largest_us >= 2e3 else Unit("µs", 1.0)


def panels_of(document: RunDocument, others: Sequence[ServerRun] = ()) -> dict[str, Panel]:
    """The panels of a run by the names of their files, without those that would show nothing.

    Args:
        document: The run.
        others: Runs that it is compared with.
    """
    runs = [
        run
        for run in (*document.runs, *others)
        if any(level.latency is not None for level in run.levels)
    ]
    panels: dict[str, Panel] = {}
    if not runs:
        return panels
    has_range = any(len(run.levels) > 1 for run in runs)
    has_lines = any(len(_levels(run)) >= _LINE_LEVELS for run in runs)
    if has_range and not has_lines:
        panels["throughput"] = _throughput_bars(document, runs)
        panels["latency"] = _latency_bars(document, runs)
    elif has_range:
        panels["throughput"] = _throughput(document, runs)
        panels["latency"] = _latency(document, runs)
        panels["throughput_latency"] = _trade(document, runs)
    panels["distribution"] = _cdf(document, runs)
    panels["histogram"] = _histogram(document, runs)
    if any(level.between is not None for run in runs for level in run.levels):
        if has_lines:
            panels["responses"] = _responses(document, runs)
        panels["between_responses"] = _streams(document, runs)
    elif any(level.server_us for run in runs for level in run.levels):
        panels["server"] = _server(document, runs)
    return panels


def _levels(run: ServerRun) -> list[LevelRecord]:
    return sorted(
        (level for level in run.levels if level.latency is not None), key=lambda level: level.value
    )


def _hollow(levels: Sequence[LevelRecord]) -> list[int]:
    return [index for index, level in enumerate(levels) if not level.is_sure]


def _prefix(run: ServerRun, runs: Sequence[ServerRun]) -> str:
    return f"{run.label} " if len(runs) > 1 else ""


def _ticks(runs: Sequence[ServerRun]) -> list[float]:
    values = sorted({level.value for run in runs for level in _levels(run)})
    return values if len(values) <= 12 else []


def _load_panel(
    title: str, document: RunDocument, runs: Sequence[ServerRun], y_label: str, lines: list[Line]
) -> Panel:
    return Panel(
        title=title,
        x_label=document.load_name,
        y_label=y_label,
        lines=lines,
        x_ticks=_ticks(runs),
    )


def _load_lines(runs: Sequence[ServerRun], figure: Callable[[LevelRecord], float]) -> list[Line]:
    """A line for each run: a figure of its levels, by their load."""
    return [
        Line(
            run.label,
            [level.value for level in _levels(run)],
            [figure(level) for level in _levels(run)],
            hollow=_hollow(_levels(run)),
        )
        for run in runs
    ]


def _throughput(document: RunDocument, runs: Sequence[ServerRun]) -> Panel:
    lines = _load_lines(runs, lambda level: level.throughput)
    return _load_panel("Throughput", document, runs, "inferences per second", lines)


def _level_bars(
    title: str,
    document: RunDocument,
    runs: Sequence[ServerRun],
    unit: str,
    figures: dict[str, Callable[[LevelRecord], float]],
) -> Panel:
    """Bars of some figures, by their names, of each level and run."""
    loads = sorted({level.value for run in runs for level in _levels(run)})
    bars = []
    for run in runs:
        by_load = {level.value: level for level in _levels(run)}
        for name, figure in figures.items():
            found = [by_load.get(load) for load in loads]
            bars.append(
                Bars(
                    f"{_prefix(run, runs)}{name}".strip(),
                    [0.0 if level is None else figure(level) for level in found],
                    [_bar_text(level, figure) for level in found],
                )
            )
    names = [_load_text(document, load) for load in loads]
    return Panel(title=title, x_label=unit, bars=bars, bar_names=names)


def _bar_text(level: LevelRecord | None, figure: Callable[[LevelRecord], float]) -> str:
    if level is None:
        return "not measured"
    text = short_text(figure(level))
    return text if level.is_sure else f"{text} (less sure)"


def _throughput_bars(document: RunDocument, runs: Sequence[ServerRun]) -> Panel:
    figures: dict[str, Callable[[LevelRecord], float]] = {"": lambda level: level.throughput}
    return _level_bars("Throughput", document, runs, "inferences per second", figures)


def _latency_bars(document: RunDocument, runs: Sequence[ServerRun]) -> Panel:
    unit = unit_for(_largest(runs, 99))
    percentiles = _PERCENTILES if len(runs) == 1 else (50, 99)

    def figure(percentile: int) -> Callable[[LevelRecord], float]:
        return lambda level: _percentile(level.latency, percentile) / unit.in_us

    figures = {f"p{percentile}": figure(percentile) for percentile in percentiles}
    title = "Time to first response" if document.is_decoupled else "Latency"
    panel = _level_bars(title, document, runs, unit.name, figures)
    if document.latency_limit_ms:
        limit = (document.latency_limit_ms * 1000 / unit.in_us, "limit")
        return dataclasses.replace(panel, limits=[limit])
    return panel


def _responses(document: RunDocument, runs: Sequence[ServerRun]) -> Panel:
    lines = _load_lines(runs, lambda level: level.response_rate)
    return _load_panel("Response throughput", document, runs, "responses per second", lines)


def _latency(document: RunDocument, runs: Sequence[ServerRun]) -> Panel:
    unit = unit_for(_largest(runs, 99))
    lines = []
    percentiles = _PERCENTILES if len(runs) == 1 else (50, 99)
    for index, run in enumerate(runs):
        levels = _levels(run)
        for order, percentile in enumerate(percentiles):
            lines.append(
                Line(
                    f"{_prefix(run, runs)}p{percentile}",
                    [level.value for level in levels],
                    [_percentile(level.latency, percentile) / unit.in_us for level in levels],
                    is_dashed=len(runs) > 1 and percentile == 99,
                    hollow=_hollow(levels),
                    colour=index if len(runs) > 1 else order,
                )
            )
    title = "Time to first response" if document.is_decoupled else "Latency"
    panel = _load_panel(title, document, runs, unit.name, lines)
    if document.latency_limit_ms:
        limit = (document.latency_limit_ms * 1000 / unit.in_us, "limit")
        return dataclasses.replace(panel, limits=[limit])
    return panel


def _trade(document: RunDocument, runs: Sequence[ServerRun]) -> Panel:
    """Latency against throughput: the curve on which a deployment chooses its place."""
    unit = unit_for(_largest(runs, 99))
    lines = []
    for run in runs:
        levels = _levels(run)
        y = [_percentile(level.latency, 99) / unit.in_us for level in levels]
        x = [level.throughput for level in levels]
        texts = [number_text(level.value) for level in levels]
        shown = range(0, len(levels), max(1, len(levels) // 8))
        notes = [(x[at], y[at], texts[at]) for at in shown]
        lines.append(Line(run.label, x, y, hollow=_hollow(levels), notes=notes))
    return Panel(
        title=f"Latency at a throughput (points: {document.load_name})",
        x_label="inferences per second",
        y_label=f"p99 latency, {unit.name}",
        lines=lines,
    )


def _chosen(run: ServerRun, most: int) -> list[LevelRecord]:
    levels = _levels(run)
    if len(levels) <= most:
        return levels
    step = (len(levels) - 1) / (most - 1)
    return [levels[round(index * step)] for index in range(most)]


def _curves(
    document: RunDocument,
    runs: Sequence[ServerRun],
    line: Callable[[str, Distribution, Unit], Line],
    times: Callable[[LevelRecord], Distribution | None],
) -> tuple[list[Line], Unit]:
    """A line for each level, of one run or of several."""
    most = _SHOWN_LEVELS if len(runs) == 1 else 2
    found = [
        (_label(document, run, level, runs), distribution, number, order > 0)
        for number, run in enumerate(runs)
        for order, level in enumerate(_chosen(run, most))
        if (distribution := times(level)) is not None
    ]
    unit = unit_for(max(_percentile(each, 99) for _, each, _, _ in found))
    lines = []
    for label, each, number, is_second in found:
        drawn = line(label, each, unit)
        if len(runs) > 1:  # the colour tells the servers apart, and dashes the levels
            drawn = dataclasses.replace(drawn, colour=number, is_dashed=is_second)
        lines.append(drawn)
    return lines, unit


def _label(
    document: RunDocument, run: ServerRun, level: LevelRecord, runs: Sequence[ServerRun]
) -> str:
    return f"{_prefix(run, runs)}{_load_text(document, level.value)}"


def _load_text(document: RunDocument, load: float) -> str:
    kind = "concurrency" if document.mode == "concurrency" else "rate"
    return f"{kind} {number_text(load)}"


def _curve_panel(
    title: str,
    y_label: str,
    document: RunDocument,
    runs: Sequence[ServerRun],
    line: Callable[[str, Distribution, Unit], Line],
    times: Callable[[LevelRecord], Distribution | None],
) -> Panel:
    """A line for each level by time, on a logarithmic axis."""
    lines, unit = _curves(document, runs, line, times)
    shown = [value for each in lines for value in each.x if value > 0]
    return Panel(
        title=title,
        x_label=unit.name,
        y_label=y_label,
        lines=lines,
        is_log_x=True,
        x_ticks=_log_ticks(min(shown), max(shown)),
    )


def _cdf(document: RunDocument, runs: Sequence[ServerRun]) -> Panel:
    def line(label: str, times: Distribution, unit: Unit) -> Line:
        return Line(label, [us / unit.in_us for us in times.curve_us], CURVE)

    name = "Time to first response" if document.is_decoupled else "Latency"
    title = f"{name}: share of requests answered within"
    return _curve_panel(title, "% of requests", document, runs, line, lambda each: each.latency)


def _histogram(document: RunDocument, runs: Sequence[ServerRun]) -> Panel:
    is_alone = len(runs) == 1 and len(_levels(runs[0])) == 1

    def line(label: str, times: Distribution, unit: Unit) -> Line:
        share = [100 * count / times.count for count in times.counts]
        edges = [us / unit.in_us for us in times.bins_us]
        return Line(label, edges, [*share, 0.0], is_steps=True, is_filled=is_alone)

    name = "time to first response" if document.is_decoupled else "latency"
    title, y_label = f"Histogram of the {name}", "% of requests in a bin"
    return _curve_panel(title, y_label, document, runs, line, lambda each: each.latency)


def _streams(document: RunDocument, runs: Sequence[ServerRun]) -> Panel:
    def line(label: str, times: Distribution, unit: Unit) -> Line:
        return Line(label, [max(us, 1.0) / unit.in_us for us in times.curve_us], CURVE)

    title = "Time between responses: share that came within"
    return _curve_panel(title, "% of responses", document, runs, line, lambda each: each.between)


def _server(document: RunDocument, runs: Sequence[ServerRun]) -> Panel:
    """Where the mean time of a request goes, of the first run."""
    run = next(each for each in runs if any(level.server_us for level in each.levels))
    levels = [level for level in _levels(run) if level.server_us]
    if len(levels) >= _LINE_LEVELS:
        unit = unit_for(max(level.latency.avg_us for level in levels if level.latency))
        loads = [level.value for level in levels]
        lines = [
            Line(name, loads, [parts[index] / unit.in_us for parts in map(_parts, levels)])
            for index, name in enumerate(("queue", "compute", "network and rest", "client: send"))
        ]
        return _load_panel(
            f"Where the mean time goes{f' ({run.label})' if len(runs) > 1 else ''}",
            document, [run], unit.name, lines,
        )  # fmt: skip
    return _shares(document, levels)


def _shares(document: RunDocument, levels: Sequence[LevelRecord]) -> Panel:
    unit = unit_for(max(part for level in levels for part in _parts(level)))
    bars = []
    for level in levels:
        values = [part / unit.in_us for part in _parts(level)]
        label = _load_text(document, level.value) if len(levels) > 1 else ""
        texts = [short_text(float(f"{value:.3g}")) for value in values]
        bars.append(Bars(label, values, texts))
    names = ("queue", "compute", "network and rest", "client: send")
    return Panel(title="Where the mean time goes", x_label=unit.name, bars=bars, bar_names=names)


def _parts(level: LevelRecord) -> tuple[float, float, float, float]:
    server = level.server_us
    queue = server.get("queue", 0.0)
    compute = sum(
        server.get(name, 0.0)
        for name in ("compute input", "compute infer", "compute output", "cache")
    )
    mean = level.latency.avg_us if level.latency is not None else 0.0
    rest = max(mean - queue - compute - level.send_us, 0.0)
    return queue, compute, rest, level.send_us


def _percentile(times: Distribution | None, percentile: int) -> float:
    return 0.0 if times is None else times.percentiles.get(percentile, times.avg_us)


def _largest(runs: Sequence[ServerRun], percentile: int) -> float:
    return max(_percentile(level.latency, percentile) for run in runs for level in _levels(run))


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each power of ten, or only the powers if that would be too many."""
    ticks = [
        digit * 10.0**power
        for power in range(-6, 8)
        for digit in (1, 2, 5)
        if low * 0.99 <= digit * 10.0**power <= high * 1.01
    ]
    powers = [tick for tick in ticks if f"{tick:e}".startswith("1.0")]
    return ticks if len(ticks) <= 9 else powers
