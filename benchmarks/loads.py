# SPDX-License-Identifier: Apache-2.0
"""Which rows there are, and in which order a system is measured for those that were chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from benchmarks import (
    composed_loads,
    grpc_loads,
    http_loads,
    many_models,
    observation_loads,
    processes,
    servers,
    shared_memory_loads,
    stream_loads,
)
from benchmarks.measurement import Measurement
from benchmarks.servers import RunningServer, System

ROWS = (
    "start", "idle", "memory", "http", "grpc", "large", "stream", "models", "cache",
    *observation_loads.ROWS, *composed_loads.ROWS, *shared_memory_loads.ROWS,
)  # fmt: skip
TOOLS = {
    "http": ("wrk",),
    "cache": ("wrk",),
    **dict.fromkeys(observation_loads.ROWS, ("wrk",)),
    "grpc": ("h2load",),
    "large": ("h2load",),
    "ensemble": ("wrk", "h2load"),
    "sequence": ("wrk",),
}
OWN_SERVER_ROWS = {
    "models", "cache", *observation_loads.ROWS, *composed_loads.ROWS, *shared_memory_loads.ROWS,
}  # fmt: skip
SETTLE_S = 10  # for all systems alike; allocators and pools give memory back late

Load = Callable[[RunningServer, float], list[Measurement]]


def measure(system: System, port: int, rows: Collection[str], seconds: float) -> list[Measurement]:
    """Starts a system, measures the chosen rows, and stops it; some rows start it once more."""
    figures: list[Measurement] = []
    if not set(rows) <= OWN_SERVER_ROWS:
        with servers.running(system, port) as server:
            figures += _measure_running(server, rows, seconds)
    if "models" in rows and system.repository is not None:
        figures += many_models.measure(system, port)
    if not set(rows).isdisjoint(composed_loads.ROWS) and system.repository is not None:
        figures += composed_loads.measure(system, port, rows, seconds)
    if "shared" in rows and system.repository is not None:
        figures += shared_memory_loads.measure(system, port, seconds)
    if "cache" in rows and system.key == "ours":
        with servers.running(servers.cached_system(port), port) as server:
            figures += http_loads.cache_miss(server, seconds)
    if system.key == "ours":
        for row in observation_loads.ROWS:
            if row in rows:
                figures += observation_loads.measure(row, port, seconds)
    return figures


def _measure_running(
    server: RunningServer, rows: Collection[str], seconds: float
) -> list[Measurement]:
    """What a server costs before any load, then the loads, then what it holds on to."""
    figures = []
    if "start" in rows:
        start = server.start_to_ready_s
        figures.append(Measurement("start to ready", start, "s", higher_is_better=False))
    if "idle" in rows:
        idle = processes.idle_cpu_percent(server.pid, max(seconds, 2))
        figures.append(Measurement("idle CPU", idle, "% of a core", higher_is_better=False))
    if "memory" in rows:
        figures += _memory(server, "ready")
    under_load = [
        figure for row, load in LOADS.items() if row in rows for figure in load(server, seconds)
    ]
    if "memory" in rows and under_load:
        time.sleep(SETTLE_S)
        under_load += _memory(server, f"{SETTLE_S} s after load")
    return figures + under_load


def _memory(server: RunningServer, moment: str) -> list[Measurement]:
    used = processes.memory(server.pid)
    return [
        Measurement(f"memory {moment}, PSS", used.pss_mib, "MiB", higher_is_better=False),
        Measurement(f"memory {moment}, RSS", used.rss_mib, "MiB", higher_is_better=False),
    ]


def _large(server: RunningServer, _seconds: float) -> list[Measurement]:
    return http_loads.large(server) + grpc_loads.large(server)


def _stream(server: RunningServer, _seconds: float) -> list[Measurement]:
    return stream_loads.measure(server.grpc_port)


LOADS: dict[str, Load] = {
    "http": http_loads.small,
    "grpc": grpc_loads.small,
    "large": _large,
    "stream": _stream,
}
