# SPDX-License-Identifier: Apache-2.0
"""Calls of an engine in the caller's process, beside the same calls over HTTP."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from benchmarks import servers
from benchmarks.in_process_calls import ROWS
from benchmarks.measurement import Measurement
from benchmarks.servers import HERE
from benchmarks.table import Comparison

SUBJECT = "tritonserver in-process (this project)"
CLIENTS = {
    SUBJECT: "in-process",
    "HTTP, client of this project": "ours",
    "HTTP, tritonclient": "tritonclient",
}
TABLE = Comparison("In-process calls", SUBJECT, peers=tuple(list(CLIENTS)[1:]))
TURNS = 5


def measure(_peers: pathlib.Path | None, port: int, seconds: float) -> dict[str, list[Measurement]]:
    """Each client runs in a process of its own, in turns; the best turn counts."""
    figures: dict[str, list[Measurement]] = {title: [] for title in CLIENTS}
    system = servers.repository(None, ["AddSub", "Ident"], port)
    with servers.running(system, port):
        for row in ROWS:
            best_s = dict.fromkeys(CLIENTS, float("inf"))
            for _ in range(TURNS):
                for title, client in CLIENTS.items():
                    best_s[title] = min(best_s[title], median_s(client, row, port, seconds))
            for title, value in best_s.items():
                name = f"{row}, median of one call at a time"
                figures[title].append(Measurement(name, 1e6 * value, "us", higher_is_better=False))
    return figures


def median_s(client: str, row: str, port: int, seconds: float) -> float:
    command = [sys.executable, "-m", "benchmarks.in_process_calls", client, row]
    command += [str(port), str(seconds)]
    done = subprocess.run(command, cwd=HERE.parent, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.splitlines()[-1])
