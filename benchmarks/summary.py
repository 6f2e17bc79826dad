# SPDX-License-Identifier: Apache-2.0
"""Prints the short table of the project's README: python -m benchmarks.summary FILE...

The files are those of `scripts/bench --json`; a row of a later one takes the place of an earlier.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping, Sequence

from benchmarks import servers, table
from benchmarks.measurement import Measurement

Results = Mapping[str, Mapping[str, Measurement]]

# What stands in the table, and the row of the figures: what most users send comes first.
ROWS = {
    "HTTP as `tritonclient` sends, 64 connections": "HTTP binary, outputs named c=64",
    "the same with an id": "HTTP binary, id c=64",
    "the same, 1 connection, median": "HTTP binary, outputs named c=1 p50",
    "gRPC as `tritonclient` sends, 64 connections": "gRPC default call c=64",
    "the same with deadline, id and metadata": "gRPC deadline, id, metadata, outputs named c=64",
    "HTTP JSON, 64 connections": "HTTP JSON c=64",
    "HTTP identity of 16 MiB": "HTTP identity 16 MiB",
    "gRPC identity of 16 MiB": "gRPC identity 16 MiB",
    "one stream of 2,000 responses": "stream 1 x 2,000",
    "ensemble of 3 steps, HTTP, 64 connections": "HTTP ensemble of 3 steps, binary c=64",
    "BLS call, HTTP, 64 connections": "HTTP BLS call, binary c=64",
    "start to ready": "start to ready",
}
UNITS = {"req/s": "requests/s"}


def render(results: Results) -> str:
    """Both of ours, and how many times better they are than the others."""
    peers = {"vs NVIDIA PyTriton": servers.NVIDIA_PYTRITON}
    comparisons = [
        (
            servers.OURS,
            "bound function",
            {label: peer for label, peer in peers.items() if peer in results},
        ),
        (servers.OUR_TRITONSERVER, "`model.py`", {}),
    ]
    columns = [
        "",
        *(name for _, label, more in comparisons for name in (label, *more, "vs Triton")),
    ]
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|--:" * (len(columns) - 1) + "|"]
    for label, row in ROWS.items():
        if not any(row in results.get(title, {}) for title, _, _ in comparisons):
            continue
        cells = [label]
        for title, _, more in comparisons:
            ours = results.get(title, {}).get(row)
            theirs = [results.get(peer, {}).get(row) for peer in (*more.values(), servers.TRITON)]
            cells += [_figure(ours), *(table.ratio(ours, figure) for figure in theirs)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _figure(figure: Measurement | None) -> str:
    if figure is None:
        return "-"
    return f"{table.number(figure)} {UNITS.get(figure.unit, figure.unit)}"


def merged(files: Sequence[pathlib.Path]) -> dict[str, dict[str, Measurement]]:
    results: dict[str, dict[str, Measurement]] = {}
    for file in files:
        for title, figures in table.read_figures(file).items():
            results.setdefault(title, {}).update(figures)
    return results


if __name__ == "__main__":
    print(render(merged([pathlib.Path(name) for name in sys.argv[1:]])))
