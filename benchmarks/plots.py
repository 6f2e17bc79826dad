# SPDX-License-Identifier: Apache-2.0
"""Draws figures of `scripts/bench --json FILE`: python -m benchmarks.plots FILE FOLDER."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping, Sequence

from benchmarks import servers, table
from benchmarks.measurement import Measurement
from pytriton.tools.plots.pictures import Bars, Line, Panel, Picture, draw

Results = Mapping[str, Mapping[str, Measurement]]

CONNECTIONS = (1, 16, 64)
SYSTEMS = (servers.OURS, servers.OUR_TRITONSERVER, servers.TRITON, servers.NVIDIA_PYTRITON)
LABELS = {
    servers.OURS: "pytriton: bound function",
    servers.OUR_TRITONSERVER: "pytriton: model.py",
    servers.TRITON: "Triton: model.py",
    servers.NVIDIA_PYTRITON: "NVIDIA PyTriton: bound function",
}
# The rows of the picture of ratios: what stands there, and the row of the table.
RATIOS = {
    "HTTP, 64 connections": "HTTP AddSub c=64",
    "gRPC, 64 connections": "gRPC AddSub c=64",
    "HTTP, one at a time": "HTTP AddSub c=1",
    "HTTP, 16 MiB": "HTTP identity 16 MiB",
    "gRPC, 16 MiB": "gRPC identity 16 MiB",
    "a stream of 2,000": "stream 1 x 2,000",
    "start to ready": "start to ready",
}


def pictures(results: Results) -> dict[str, Picture]:
    """The pictures of the documentation by name."""
    return {
        "bench_requests": draw(request_panels(results), columns=1),
        "bench_ratios": draw([ratio_panel(results)], columns=1),
    }


def request_panels(results: Results) -> list[Panel]:
    """Requests a second over the number of connections, for each protocol."""
    return [
        Panel(
            title=f"{protocol}: requests a second",
            x_label="connections, one request at a time on each",
            lines=_lines(results, f"{protocol} AddSub c={{}}"),
            is_log_x=True,
            x_ticks=CONNECTIONS,
        )
        for protocol in ("HTTP", "gRPC")
    ]


def ratio_panel(results: Results) -> Panel:
    """How many times better than Triton each system of ours is, whichever direction is better."""
    triton = results[servers.TRITON]
    ours = (servers.OURS, servers.OUR_TRITONSERVER)
    bars = [_bars(LABELS[title], results[title], triton) for title in ours if title in results]
    return Panel(
        title="How many times as good as Triton",
        x_label="1 is Triton with its Python backend",
        bars=bars,
        bar_names=list(RATIOS),
    )


def _lines(results: Results, row: str) -> Sequence[Line]:
    rows = [row.format(number) for number in CONNECTIONS]
    return [
        Line(LABELS[title], CONNECTIONS, [results[title][name].value for name in rows])
        for title in SYSTEMS
        if title in results
    ]


def _bars(label: str, ours: Mapping[str, Measurement], other: Mapping[str, Measurement]) -> Bars:
    values = [_times_better(ours[row], other[row]) for row in RATIOS.values()]
    return Bars(label, values, [f"{value:.2g}x" for value in values])


def _times_better(ours: Measurement, other: Measurement) -> float:
    better, worse = (ours, other) if ours.higher_is_better else (other, ours)
    return better.value / worse.value


def main() -> int:
    figures, folder = map(pathlib.Path, sys.argv[1:3])
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures(table.read_figures(figures)).items():
        path = folder / f"{name}.png"
        path.write_bytes(picture.png())
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
