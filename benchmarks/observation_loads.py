# SPDX-License-Identifier: Apache-2.0
"""What it costs to observe a server: processor time with and without what records requests.

The servers of a comparison run at the same time and get their loads in turns. Each figure is the
processor time of a request in the best of the turns: other work on the machine adds to it, and
never takes away.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks import http_loads, processes, servers
from benchmarks.measurement import Measurement
from benchmarks.servers import HERE, RunningServer, System

CONCURRENCIES = (1, 64)
TURNS = 5
# By what a row says of it: the fields of TritonConfig that differ from the defaults.
WITHOUT: Mapping[str, Any] = {"metrics_config": ["latency_histograms=false"]}
OBSERVED: Mapping[str, Mapping[str, Any]] = {
    "histograms": {},
    "all metrics": {"metrics_config": ["histogram_latencies=true", "summary_latencies=true"]},
}


def observed_system(port: int, config: Mapping[str, Any]) -> System:
    """Ours with other settings."""
    command = [sys.executable, str(HERE / "serve_models.py"), str(port), json.dumps(config)]
    return System("observed", "pytriton with other settings", command)


def measure(port: int, seconds: float) -> list[Measurement]:
    """Time of a request with each of `OBSERVED` divided by the time without any."""
    variants = {"": WITHOUT, **OBSERVED}
    with contextlib.ExitStack() as stack:
        running = {
            name: stack.enter_context(
                servers.running(observed_system(port + 10 * number, config), port + 10 * number)
            )
            for number, (name, config) in enumerate(variants.items())
        }
        return [
            figure
            for connections in CONCURRENCIES
            for figure in _compare(running, connections, seconds)
        ]


def _compare(
    running: Mapping[str, RunningServer], connections: int, seconds: float
) -> list[Measurement]:
    best = dict.fromkeys(running, float("inf"))
    for _ in range(TURNS):
        for name, server in running.items():
            best[name] = min(best[name], _request_us(server, connections, seconds))
    return [
        Measurement(
            f"HTTP AddSub c={connections}, {name} : none",
            best[name] / best[""],
            "processor time",
            higher_is_better=False,
        )
        for name in running
        if name
    ]


def _request_us(server: RunningServer, connections: int, seconds: float) -> float:
    before = processes.cpu_seconds(server.pid)
    report = http_loads.wrk(server, "addsub.lua", "AddSub", connections, seconds)
    return 1e6 * (processes.cpu_seconds(server.pid) - before) / report.requests
