# SPDX-License-Identifier: Apache-2.0
"""The load generator of `pytriton perf` beside others, on one server with a bound function."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import grpc_loads, http_loads, servers
from benchmarks.generator_client import ARRAYS
from benchmarks.measurement import Measurement
from benchmarks.servers import HERE, RunningServer
from benchmarks.table import Comparison
from benchmarks.turns import answered_requests

SUBJECT = "pytriton perf"
TOOLS = "wrk, h2load"
THREADS, ASYNCIO = "tritonclient, threads", "tritonclient, asyncio"
PERF_ANALYZER = "perf_analyzer"
TABLE = Comparison("Load generators", SUBJECT, (TOOLS, THREADS, ASYNCIO, PERF_ANALYZER))
# perf_analyzer asks for statistics, which the server of a bound function restricts.
TOKEN = "benchmark"  # noqa: S105
TOKEN_HEADERS = {
    "http": "triton-access-token",
    "grpc": "triton-grpc-protocol-triton-access-token",
}
CONCURRENCY = 64
TURNS = 3


@dataclass(frozen=True)
class Turn:
    """What a generator reached, and the processor time that it took for a request."""

    rate: float
    cpu_us: float


Send = Callable[[RunningServer, str, float], Turn]


def measure(_peers: pathlib.Path | None, port: int, seconds: float) -> dict[str, list[Measurement]]:
    """Each generator runs alone, in turns; the best turn counts, as in the other tables."""
    found = generators()
    figures: dict[str, list[Measurement]] = {title: [] for title in found}
    system = servers.serving(json.dumps({"access_token": TOKEN}), servers.MODELS, port)
    with servers.running(system, port) as server:
        http_loads.check_add_sub(server)
        for protocol in ("http", "grpc"):
            turns: dict[str, list[Turn]] = {title: [] for title in found}
            for _ in range(TURNS):
                for title, send in found.items():
                    turns[title].append(send(server, protocol, seconds))
            for title, taken in turns.items():
                figures[title] += best(protocol, taken)
    return figures


def best(protocol: str, turns: list[Turn]) -> list[Measurement]:
    name = {"http": "HTTP", "grpc": "gRPC"}[protocol]
    row = f"{name} AddSub c={CONCURRENCY}"
    time_row = f"{row}, processor time of the generator"
    least_us = min(turn.cpu_us for turn in turns)
    return [
        Measurement(row, max(turn.rate for turn in turns), "req/s"),
        Measurement(time_row, least_us, "us", higher_is_better=False),
    ]


def of_program(send: Callable[[RunningServer, str, float], float]) -> Send:
    """A program's processor time includes its start, divided by all that it sent."""

    def turn(server: RunningServer, protocol: str, seconds: float) -> Turn:
        before, answered = _children_s(), answered_requests(server, "AddSub")
        rate = send(server, protocol, seconds)
        sent = answered_requests(server, "AddSub") - answered
        return Turn(rate, 1e6 * (_children_s() - before) / sent)

    return turn


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def generators() -> dict[str, Send]:
    """Those that can run here, by their titles."""
    found: dict[str, Send] = {SUBJECT: _client("ours"), TOOLS: of_program(_tools)}
    found |= {THREADS: _client("threads"), ASYNCIO: _client("asyncio")}
    program = os.environ.get("PERF_ANALYZER") or shutil.which("perf_analyzer")
    if program is not None:
        found[PERF_ANALYZER] = of_program(_perf_analyzer(program))
    return found


def _client(kind: str) -> Send:
    def send(server: RunningServer, protocol: str, seconds: float) -> Turn:
        command = [sys.executable, "-m", "benchmarks.generator_client", kind, protocol]
        command += [str(_port(server, protocol)), str(CONCURRENCY), str(seconds)]
        done = subprocess.run(
            command, cwd=HERE.parent, check=True, stdout=subprocess.PIPE, text=True
        )
        said = json.loads(done.stdout.splitlines()[-1])
        return Turn(said["answered"] / said["seconds"], 1e6 * said["cpu_s"] / said["answered"])

    return send


def _port(server: RunningServer, protocol: str) -> int:
    return server.port if protocol == "http" else server.grpc_port


def _tools(server: RunningServer, protocol: str, seconds: float) -> float:
    if protocol == "http":
        return http_loads.wrk(server, "addsub.lua", "AddSub", CONCURRENCY, seconds).rate
    request = grpc_loads.framed(grpc_loads.infer_request("AddSub", ARRAYS))
    return grpc_loads.rate(server, request, CONCURRENCY, seconds, answer_bytes=8)


def _perf_analyzer(program: str) -> Callable[[RunningServer, str, float], float]:
    """One window that cannot fail to be stable; its own threads, one for each request."""

    def send(server: RunningServer, protocol: str, seconds: float) -> float:
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.csv"
            command = [program, "-m", "AddSub", "-i", protocol, "-f", str(report)]
            command += ["-u", f"127.0.0.1:{_port(server, protocol)}", "-s", "1000", "-r", "3"]
            command += [f"--concurrency-range={CONCURRENCY}", "-p", str(round(seconds * 1000))]
            command += ["-H", f"{TOKEN_HEADERS[protocol]}:{TOKEN}"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            with report.open() as file:
                (row,) = csv.DictReader(file)
        return float(row["Inferences/Second"])

    return send
