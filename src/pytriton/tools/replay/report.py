# SPDX-License-Identifier: Apache-2.0
"""What came of a replay, as text, as a document, and as a page with plots. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.tools.plots.page import Page, Section, Table
from pytriton.tools.plots.pictures import Line, Panel
from pytriton.tools.replay.replaying import ReplayResult

MAX_DIFFERENCES = 20  # in texts and pages; the document has all
_RANKS = (50.0, 90.0, 99.0, 100.0)
_POINTS = 2000  # of a plot
_EXACT_MS = 1.0  # within which a request counts as sent at its time


def text(result: ReplayResult, notes: Sequence[str] = ()) -> str:
    """Returns the report for a terminal."""
    lines = [*(f"note: {note}" for note in _notes(result, notes)), _summary(result)]
    lines.append(f"latency        {_quantiles(result.latency_ms)}")
    lines.append(f"when recorded  {_quantiles(result.recorded_latency_ms)}")
    if result.is_paced:
        lines.append(f"sent late by   {_quantiles(result.late_ms)}")
        lines.append(
            f"{_exact_share(result):.2%} of the requests were sent within 1 ms of their times"
        )
    lines += [f"{count} x {' '.join(error.split())}" for error, count in result.errors.items()]
    if result.found:
        requests = len({each.number for each in result.found})
        lines += ["", f"The answers to {_requests(requests)} differ:"]
        lines += [f"  {each.text()}" for each in result.found[:MAX_DIFFERENCES]]
        more = len(result.found) - MAX_DIFFERENCES
        if more > 0:
            lines.append(f"  and {more:,} more")
    elif result.compared:
        lines += ["", f"All {result.compared:,} answers that were compared are equal."]
    return "\n".join(lines)


def document(result: ReplayResult, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the report as plain values, with all differences."""
    return {
        "requests": len(result.due_s),
        "elapsed_s": round(result.elapsed_s, 6),
        "failed": result.failed,
        "compared": result.compared,
        "skipped": dict(result.skipped),
        "notes": _notes(result, notes),
        "errors": dict(result.errors),
        "latency_ms": _quantile_values(result.latency_ms),
        "recorded_latency_ms": _quantile_values(result.recorded_latency_ms),
        "late_ms": _quantile_values(result.late_ms) if result.is_paced else {},
        "share_within_1_ms": round(_exact_share(result), 6) if result.is_paced else None,
        "differences": [
            {
                "request": each.number,
                "model": each.model,
                "output": each.output,
                "response": each.response,
                "index": list(each.index),
                "expected": each.expected,
                "got": each.got,
                "elements": each.count,
            }
            for each in result.found
        ],
    }


def page(result: ReplayResult, title: str, pictures: Sequence[str], notes: Sequence[str]) -> Page:
    """Returns the page, with its plots as SVG."""
    tiles = [
        (f"{len(result.due_s):,}", "requests sent"),
        (f"{len({each.number for each in result.found}):,}", "of which have other answers"),
        (f"{result.failed:,}", "of which failed"),
        (_milliseconds(_at(result.latency_ms, 99)), "p99 latency"),
    ]
    if result.is_paced:
        tiles.append((_milliseconds(_at(result.late_ms, 99)), "p99 of being late"))
    rows = [
        (
            str(each.number),
            each.model,
            each.output,
            ", ".join(map(str, each.index)),
            each.expected,
            each.got,
            f"{each.count:,}" if each.count else "",
        )
        for each in result.found[:MAX_DIFFERENCES]
    ]
    heading = ("request", "model", "output", "index", "expected", "got", "elements")
    sections = [Section("", notes=_notes(result, notes))] if _notes(result, notes) else []
    sections.append(Section("Plots", pictures=pictures))
    if rows:
        sections.append(Section("Differences", table=Table(heading, rows)))
    return Page("Replay of a recording", title, tiles, sections)


def panels(result: ReplayResult) -> list[Panel]:
    """Returns the plots: arrivals, lateness, latencies now and then."""
    seconds = result.due_s
    drawn = [
        Panel(
            "Latency by time of arrival",
            "s",
            "ms",
            [
                _points("now", seconds, result.latency_ms),
                _points("recorded", seconds, result.recorded_latency_ms),
            ],
        ),
        Panel(
            "Latency by share of requests",
            "percent",
            "ms",
            [_shares("now", result.latency_ms), _shares("recorded", result.recorded_latency_ms)],
        ),
        _arrivals(seconds),
    ]
    if result.is_paced:
        late = _shares("sent late by", result.late_ms)
        drawn.append(Panel("How late requests were sent", "percent", "ms", [late]))
    return drawn


def _arrivals(seconds: NDArray[np.float64]) -> Panel:
    counts = Counter(math.floor(each) for each in seconds.tolist())
    x = list(range(max(counts, default=0) + 1))
    line = Line("requests", x, [counts[each] for each in x], is_steps=True, is_filled=True)
    return Panel("Arrivals in each second", "s", "requests", [line])


def _points(label: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> Line:
    step = max(1, len(x) // _POINTS)
    return Line(label, x[::step].tolist(), y[::step].tolist(), is_points=True)


def _shares(label: str, values: NDArray[np.float64]) -> Line:
    ranks = np.linspace(0, 100, 201)
    found = np.percentile(values, ranks) if len(values) else np.zeros(201)
    return Line(label, ranks.tolist(), found.tolist())


def _notes(result: ReplayResult, notes: Sequence[str]) -> list[str]:
    every = list(notes)
    every += [
        f"{_requests(count)} {'was' if count == 1 else 'were'} not sent: {reason}"
        for reason, count in result.skipped.items()
    ]
    redacted = sum(each.is_redacted for each in result.exchanges)
    if redacted:
        have = "has" if redacted == 1 else "have"
        every.append(f"{_requests(redacted)} {have} redacted inputs, so that answers must differ")
    if result.is_generator_limit:
        every.append("The sender itself was busy nearly all the time, so it may have been late.")
    return every


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def _summary(result: ReplayResult) -> str:
    count = len(result.due_s)
    elapsed_s = result.elapsed_s
    rate = f", {count / elapsed_s:,.0f}/s" if elapsed_s else ""
    return f"{count:,} requests answered in {elapsed_s:.3g} s{rate}; {result.failed:,} failed"


def _exact_share(result: ReplayResult) -> float:
    late = result.late_ms
    return float(np.count_nonzero(late <= _EXACT_MS) / len(late)) if len(late) else 1.0


def _at(values: NDArray[np.float64], rank: float) -> float:
    return float(np.percentile(values, rank)) if len(values) else 0.0


def _quantiles(values: NDArray[np.float64]) -> str:
    names = {50.0: "p50", 90.0: "p90", 99.0: "p99", 100.0: "max"}
    return "  ".join(f"{names[rank]} {_milliseconds(_at(values, rank)):>9}" for rank in _RANKS)


def _quantile_values(values: NDArray[np.float64]) -> dict[str, float]:
    names = ("p50", "p90", "p99", "max")
    return {name: round(_at(values, rank), 6) for name, rank in zip(names, _RANKS, strict=True)}


def _milliseconds(value: float) -> str:
    return f"{value:.3f} ms" if value < 10 else f"{value:,.1f} ms"
