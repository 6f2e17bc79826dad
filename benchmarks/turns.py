# SPDX-License-Identifier: Apache-2.0
"""Loads servers in turns that run at the same time, so that a busy machine slows all of them down.

A figure is the best of the turns: other work on the machine adds to the time of a request, and
never takes away. Beside the rate there is the processor time of a request, in all processes of the
server, which other work changes less.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import processes, servers
from benchmarks.measurement import Measurement
from benchmarks.servers import RunningServer, System

PORTS = 10  # between the first ports of two servers
TURNS = 3

Send = Callable[[RunningServer, str, float], float]  # server, model, seconds: requests a second


@dataclass(frozen=True, eq=False)
class Contestant:
    """A server of a comparison: how it is started on a port, and which model gets the loads."""

    title: str
    start: Callable[[int], System]
    model: str


@dataclass(frozen=True)
class Load:
    """What is sent to all contestants."""

    row: str
    send: Send


def measure(
    contestants: Sequence[Contestant],
    check: Callable[[RunningServer, str], None],
    loads: Sequence[Load],
    port: int,
    seconds: float,
) -> dict[str, list[Measurement]]:
    """Start all contestants, check their answers, and send them each load in turns.

    Returns:
        The figures of each contestant, by its title.
    """
    with contextlib.ExitStack() as stack:
        running = {
            contestant: stack.enter_context(servers.running(contestant.start(first), first))
            for first, contestant in zip(itertools.count(port, PORTS), contestants)
        }
        for contestant, server in running.items():
            check(server, contestant.model)
        figures: dict[str, list[Measurement]] = {contestant.title: [] for contestant in running}
        for load in loads:
            for contestant, best in _turns(running, load, seconds).items():
                figures[contestant.title] += best
    return figures


def _turns(
    running: Mapping[Contestant, RunningServer], load: Load, seconds: float
) -> dict[Contestant, list[Measurement]]:
    rates: dict[Contestant, list[float]] = {contestant: [] for contestant in running}
    times_us: dict[Contestant, list[float]] = {contestant: [] for contestant in running}
    for _ in range(TURNS):
        for contestant, server in running.items():
            model = contestant.model
            used_s, answered = processes.cpu_seconds(server.pid), answered_requests(server, model)
            rates[contestant].append(load.send(server, model, seconds))
            used_s = processes.cpu_seconds(server.pid) - used_s
            answered = answered_requests(server, model) - answered
            times_us[contestant].append(1e6 * used_s / answered)
    time_row = f"{load.row}, processor time"
    return {
        contestant: [
            Measurement(load.row, max(rates[contestant]), "req/s"),
            Measurement(time_row, min(times_us[contestant]), "us", higher_is_better=False),
        ]
        for contestant in running
    }


def answered_requests(server: RunningServer, model: str) -> int:
    """How many requests a model has answered, as the server counts them."""
    with urllib.request.urlopen(server.metrics_url, timeout=30) as answer:
        return request_count(answer.read().decode(), model)


def request_count(metrics: str, model: str) -> int:
    pattern = rf'^nv_inference_request_success{{model="{model}",.*}} (\d+)$'
    found = re.search(pattern, metrics, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"expected the metrics to count the requests of {model}")
    return int(found[1])
