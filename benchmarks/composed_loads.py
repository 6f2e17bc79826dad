# SPDX-License-Identifier: Apache-2.0
"""Ensembles and sequences, on a tritonserver of their own: theirs or ours."""

from __future__ import annotations

import dataclasses
import time
import urllib.error
import urllib.request
from collections.abc import Collection
from itertools import count
from typing import Any

import numpy as np
import orjson

from benchmarks import grpc_loads, http_loads, large_client, processes, servers
from benchmarks.http2 import connect
from benchmarks.measurement import Measurement
from benchmarks.sequence_client import LENGTH, SequenceStream
from benchmarks.servers import RunningServer, System

ROWS = ("ensemble", "sequence", "held")
ENSEMBLE_MODELS = ("Ident1", "Ident2", "Ident3", "Chain")
SEQUENCE_MODELS = ("Accumulate", "AccumulateDirect", "AccumulateIdle")
ENSEMBLE_CONCURRENCIES = (16, 64)
LARGE_CALLS = 60
SEQUENCES = 64
IDLE_SEQUENCES = 1000
MANY_SEQUENCES = 100_000
# A load of sequences by wrk ends amid some; they end by themselves after a second without requests.
IDLE_TIMEOUT_S = 1.5
SETTLE_S = 10

# Ids of sequences that no earlier load has used, each for as many as a load may begin.
_first_ids = count(1 << 30, 1 << 30)


def measure(system: System, port: int, rows: Collection[str], seconds: float) -> list[Measurement]:
    """Start servers with the models of the chosen rows, and measure these."""
    figures = []
    if "ensemble" in rows:
        with servers.running(dataclasses.replace(system, models=ENSEMBLE_MODELS), port) as server:
            figures += _ensemble(server, seconds)
    if "sequence" in rows or "held" in rows:
        with servers.running(dataclasses.replace(system, models=SEQUENCE_MODELS), port) as server:
            if "sequence" in rows:
                figures += _sequence(server, seconds)
            if "held" in rows:
                figures += _held(server, seconds)
    return figures


def _ensemble(server: RunningServer, seconds: float) -> list[Measurement]:
    figures = []
    x = np.ones((1, 1), np.float32)
    request = grpc_loads.checked_request(server, "Chain", {"x": x}, {"y": x})
    http_loads.wrk(server, "ident.lua", "Chain", 16, 1)  # warm-up
    for connections in ENSEMBLE_CONCURRENCIES:
        report = http_loads.wrk(server, "ident.lua", "Chain", connections, seconds)
        row = f"ensemble of 3 steps c={connections}"
        figures.append(Measurement(f"HTTP {row}", report.rate, "req/s"))
        rate = grpc_loads.rate(server, request, connections, seconds, answer_bytes=4)
        figures.append(Measurement(f"gRPC {row}", rate, "req/s"))
    row = "ensemble of 3 steps 1 MiB"
    rate = large_client.measure(server.port, 1, LARGE_CALLS, "Chain")
    figures.append(Measurement(f"HTTP {row}", rate, "MiB/s"))
    rate = grpc_loads.large_rate(server, "Chain", 1, LARGE_CALLS)
    figures.append(Measurement(f"gRPC {row}", rate, "MiB/s"))
    return figures


def _sequence(server: RunningServer, seconds: float) -> list[Measurement]:
    figures = []
    for model, strategy in (("Accumulate", "oldest"), ("AccumulateDirect", "direct")):
        check_accumulator(server, model)
        row = f"{SEQUENCES} sequences, {strategy}"
        report = http_loads.wrk(
            server,
            "accumulate.lua",
            model,
            SEQUENCES,
            seconds,
            arguments=[str(next(_first_ids))],
            threads=SEQUENCES,
        )
        figures.append(Measurement(f"HTTP {row}", report.rate, "req/s"))
        time.sleep(IDLE_TIMEOUT_S)
        with connect(server.grpc_port) as connection:
            stream = SequenceStream(connection, model, SEQUENCES, next(_first_ids))
            stream.open()
            requests, elapsed_s = stream.run(seconds)
            stream.close()
        figures.append(Measurement(f"gRPC stream {row}", requests / elapsed_s, "req/s"))
    return figures


def _held(server: RunningServer, seconds: float) -> list[Measurement]:
    """What sequences cost that nothing is sent to, and what is left of those that ended."""
    with connect(server.grpc_port) as connection:
        idle = SequenceStream(connection, "AccumulateIdle", IDLE_SEQUENCES, next(_first_ids))
        idle.open()
        idle.hold()
        time.sleep(1)
        percent = processes.idle_cpu_percent(server.pid, max(seconds, 5))
    row = f"idle CPU with {IDLE_SEQUENCES:,} sequences"
    figures = [Measurement(row, percent, "% of a core", higher_is_better=False)]
    if server.system.key == "repository":
        figures.append(_growth(server))
    return figures


def _growth(server: RunningServer) -> Measurement:
    """The memory that many ended sequences leave behind, after as many as fill all pools."""
    used = []
    for sequences in (MANY_SEQUENCES // 10, MANY_SEQUENCES):
        with connect(server.grpc_port) as connection:
            stream = SequenceStream(connection, "Accumulate", SEQUENCES, next(_first_ids))
            stream.open()
            stream.run(seconds=3600, sequences=sequences)
            stream.close()
        time.sleep(SETTLE_S)
        used.append(processes.memory(server.pid).pss_mib)
    row = f"memory grown by {MANY_SEQUENCES:,} sequences of {LENGTH}"
    return Measurement(row, used[1] - used[0], "MiB", higher_is_better=False)


def check_accumulator(server: RunningServer, model: str) -> None:
    """A server that adds up wrongly is not worth measuring."""
    sequence = next(_first_ids)
    sums = [_add(server, model, sequence, position) for position in range(LENGTH)]
    if sums != [float(number) for number in range(1, LENGTH + 1)]:
        raise RuntimeError(f"expected the sums 1 to {LENGTH}, got {sums}")


def _add(server: RunningServer, model: str, sequence: int, position: int) -> Any:
    body = {
        "parameters": {
            "sequence_id": sequence,
            "sequence_start": position == 0,
            "sequence_end": position == LENGTH - 1,
        },
        "inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}],
    }
    request = urllib.request.Request(f"{server.url}/v2/models/{model}/infer", orjson.dumps(body))
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return orjson.loads(answer.read())["outputs"][0]["data"][0]
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{model} answered {error.code}: {error.read()!r}") from error
