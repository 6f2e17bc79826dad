# SPDX-License-Identifier: Apache-2.0
"""HTTP: small requests with wrk, large tensors over a raw socket, and what a cache miss costs."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import large_client
from benchmarks.measurement import Measurement
from benchmarks.servers import HERE, RunningServer

CONCURRENCIES = (1, 16, 64)
LARGE_TENSORS = ((1, 60), (16, 16))  # mebibytes, calls
CACHE_CONCURRENCY = 64
CACHE_TURNS = 3


@dataclass(frozen=True)
class WrkReport:
    """The line of JSON that load generators print; `bytes` are those of all answers."""

    requests: int
    duration_us: int
    p50_us: int
    p99_us: int
    failed: int
    bytes: int = 0
    calls: int = 0

    @property
    def rate(self) -> float:
        return self.requests / (self.duration_us / 1e6)


def check_add_sub(server: RunningServer) -> None:
    """A server that answers wrongly is not worth measuring."""
    scalar = {"shape": [1, 1], "datatype": "FP32"}
    inputs = [{"name": "a", "data": [1], **scalar}, {"name": "b", "data": [2], **scalar}]
    request = urllib.request.Request(
        f"{server.url}/v2/models/AddSub/infer", json.dumps({"inputs": inputs}).encode()
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        outputs = {item["name"]: item["data"] for item in json.load(answer)["outputs"]}
    if outputs != {"add": [3.0], "sub": [-1.0]}:
        raise RuntimeError(f"expected add 3 and sub -1, got {outputs}")


def small(server: RunningServer, seconds: float) -> list[Measurement]:
    check_add_sub(server)
    figures = []
    _wrk(server, "AddSub", 16, 1)  # warm-up
    for connections in CONCURRENCIES:
        report = _wrk(server, "AddSub", connections, seconds)
        figures.append(Measurement(f"HTTP AddSub c={connections}", report.rate, "req/s"))
        if connections == 1:
            p50 = Measurement("HTTP AddSub c=1 p50", report.p50_us, "us", higher_is_better=False)
            figures.append(p50)
    return figures


def large(server: RunningServer) -> list[Measurement]:
    return [
        Measurement(f"HTTP identity {size} MiB", rate, "MiB/s")
        for size, calls in LARGE_TENSORS
        for rate in [large_client.measure(server.port, size, calls)]
    ]


def cache_miss(server: RunningServer, seconds: float) -> list[Measurement]:
    """How much longer a request takes for which the cache is asked in vain.

    The two take turns, so that a machine that becomes busy slows both down.
    """
    rates: dict[str, list[float]] = {"AddSub": [], "AddSubCached": []}
    for turn in range(CACHE_TURNS):
        for model, measured in rates.items():
            report = _wrk(server, model, CACHE_CONCURRENCY, seconds, distinct=turn + 1)
            measured.append(report.rate)
    _check_only_misses(server)
    plain, cached = (statistics.median(measured) for measured in rates.values())
    row = f"HTTP AddSub c={CACHE_CONCURRENCY}, cache miss : no cache"
    return [Measurement(row, plain / cached, "time", higher_is_better=False)]


def _check_only_misses(server: RunningServer) -> None:
    with urllib.request.urlopen(server.metrics_url, timeout=30) as answer:
        hits, misses = cache_counts(answer.read().decode(), "AddSubCached")
    if hits or not misses:
        raise RuntimeError(f"expected cache misses only, got {hits} hits and {misses} misses")


def cache_counts(metrics: str, model: str) -> tuple[int, int]:
    """How often the cache had a response of the model, and how often not."""
    counts = []
    for kind in ("hits", "misses"):
        pattern = rf'^nv_cache_num_{kind}_per_model{{model="{model}",.*}} (\d+)$'
        found = re.search(pattern, metrics, re.MULTILINE)
        if found is None:
            raise RuntimeError(f"expected the metrics to count the cache {kind} of {model}")
        counts.append(int(found[1]))
    hits, misses = counts
    return hits, misses


def _wrk(
    server: RunningServer, model: str, connections: int, seconds: float, distinct: int | None = None
) -> WrkReport:
    """Loads AddSub; with `distinct`, a number that tells runs apart, no two requests are equal."""
    arguments = [] if distinct is None else [str(distinct)]
    return wrk(server, "addsub.lua", model, connections, seconds, arguments)


def wrk(
    server: RunningServer,
    script: str,
    model: str,
    connections: int,
    seconds: float,
    arguments: Sequence[str] = (),
    threads: int = 1,
) -> WrkReport:
    """Loads a model as a script of this folder says; all requests have to succeed."""
    command = ["wrk", f"-t{threads}", f"-c{connections}", f"-d{max(1, round(seconds))}s"]
    command += ["-s", str(HERE / script), f"{server.url}/v2/models/{model}/infer"]
    command += ["--", *arguments] if arguments else []
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    report = WrkReport(**json.loads(output.strip().splitlines()[-1]))
    if report.failed:
        raise RuntimeError(f"{report.failed} of wrk's requests failed at c={connections}")
    return report
