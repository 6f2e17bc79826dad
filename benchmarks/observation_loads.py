# SPDX-License-Identifier: Apache-2.0
"""What it costs to observe a server: processor time with and without what records requests.

The servers of a comparison run at the same time and get their loads in turns. Each figure is the
processor time of a request in the best of the turns: other work on the machine adds to it, and
never takes away.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib.util
import itertools
import json
import pathlib
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import http_loads, processes, servers
from benchmarks.measurement import Measurement
from benchmarks.servers import HERE, RunningServer, System

CONCURRENCIES = (1, 64)
TURNS = 5
PORTS = 10  # between the first ports of two servers

Start = Callable[[int], System]  # makes the system of a port


@dataclass(frozen=True)
class Comparison:
    """Servers that differ only in what they record: one that does not, and those beside it."""

    baseline: str
    without: Start
    recording: Mapping[str, Start]


def bound(fields: Mapping[str, Any]) -> Start:
    """Bound functions, with fields of TritonConfig that differ from the defaults."""

    def start(port: int) -> System:
        command = [sys.executable, str(HERE / "serve_models.py"), str(port), json.dumps(fields)]
        return System("observed", "pytriton with other settings", command)

    return start


def command(*options: str) -> Start:
    """The `tritonserver` command, which has more options for the log, with these."""
    return functools.partial(servers.tritonserver_with, options)


def metrics(_stack: contextlib.ExitStack) -> Comparison:
    """Metrics that are distributions: those that are on by default, and all."""
    everything = ["histogram_latencies=true", "summary_latencies=true"]
    return Comparison(
        "none",
        bound({"metrics_config": ["latency_histograms=false"]}),
        {"histograms": bound({}), "all metrics": bound({"metrics_config": everything})},
    )


def log(stack: contextlib.ExitStack) -> Comparison:
    """The log, from what is on by default to two lines for each request."""
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    file, json_file = (f"--log-file={folder / name}" for name in ("log.txt", "log.json"))
    return Comparison(
        "no log",
        command("--log-info=false", "--log-warning=false", "--log-error=false"),
        {
            "log": command(),
            "verbose log": command("--log-verbose=1", file),
            "verbose log in JSON": command("--log-verbose=1", "--log-format=json", json_file),
        },
    )


def traces(stack: contextlib.ExitStack) -> Comparison:
    """Traces in files and as spans of OpenTelemetry, if that is installed."""
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))

    def files(name: str, rate: int) -> Start:
        settings = [f"triton,file={folder / name}", "level=TIMESTAMPS", f"rate={rate}"]
        return bound({"trace_config": settings})

    recording = {
        "1 in 1,000 traced": files("some.json", 1000),
        "all traced": files("all.json", 1),
    }
    if importlib.util.find_spec("opentelemetry") is not None:
        settings = ["mode=opentelemetry", "level=TIMESTAMPS", "rate=1000"]
        settings.append(f"opentelemetry,url={stack.enter_context(collector())}")
        recording["1 in 1,000 traced with OpenTelemetry"] = bound({"trace_config": settings})
    return Comparison("no traces", bound({}), recording)


class _Collector(http.server.BaseHTTPRequestHandler):
    """Takes spans and forgets them."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """The address of a collector that runs for the length of the block."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
        server.shutdown()


ROWS: Mapping[str, Callable[[contextlib.ExitStack], Comparison]] = {
    "observed": metrics,
    "logged": log,
    "traced": traces,
}


def measure(row: str, port: int, seconds: float) -> list[Measurement]:
    """Time of a request with each way of recording divided by the time without any."""
    with contextlib.ExitStack() as stack:
        comparison = ROWS[row](stack)
        starts = {comparison.baseline: comparison.without, **comparison.recording}
        running = {
            name: stack.enter_context(servers.running(start(first), first))
            for first, (name, start) in zip(itertools.count(port, PORTS), starts.items())
        }
        for server in running.values():
            http_loads.check_add_sub(server)
        return [
            figure
            for connections in CONCURRENCIES
            for figure in _compare(running, comparison.baseline, connections, seconds)
        ]


def _compare(
    running: Mapping[str, RunningServer], baseline: str, connections: int, seconds: float
) -> list[Measurement]:
    best = dict.fromkeys(running, float("inf"))
    for _ in range(TURNS):
        for name, server in running.items():
            best[name] = min(best[name], _request_us(server, connections, seconds))
    return [
        Measurement(
            f"HTTP AddSub c={connections}, {name} : {baseline}",
            best[name] / best[baseline],
            "processor time",
            higher_is_better=False,
        )
        for name in running
        if name != baseline
    ]


def _request_us(server: RunningServer, connections: int, seconds: float) -> float:
    before = processes.cpu_seconds(server.pid)
    report = http_loads.wrk(server, "addsub.lua", "AddSub", connections, seconds)
    return 1e6 * (processes.cpu_seconds(server.pid) - before) / report.requests
