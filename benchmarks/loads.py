# SPDX-License-Identifier: Apache-2.0
"""The measurements: small requests with wrk and h2load, large tensors, start, idle cost, memory."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
import urllib.request
from dataclasses import dataclass

from benchmarks import large_client, processes
from benchmarks.servers import HERE, RunningServer

CONCURRENCIES = (1, 16, 64)
LARGE_TENSORS = ((1, 60), (16, 16))  # mebibytes, calls
GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class Measurement:
    """One figure of one system; `higher_is_better` says how a ratio of two is to be read."""

    row: str
    value: float
    unit: str
    higher_is_better: bool = True


def measure(server: RunningServer, seconds: float) -> list[Measurement]:
    """All figures of a running system, cheapest first so that memory is read before and after."""
    check_add_sub(server)
    figures = [Measurement("start to ready", server.start_to_ready_s, "s", higher_is_better=False)]
    idle = processes.idle_cpu_percent(server.pid, max(seconds, 2))
    figures.append(Measurement("idle CPU", idle, "% of a core", higher_is_better=False))
    figures += _memory(server, "ready")
    figures += _http_small(server, seconds)
    figures += [
        Measurement(f"HTTP identity {size} MiB", rate, "MiB/s")
        for size, calls in LARGE_TENSORS
        for rate in [large_client.measure(server.port, size, calls)]
    ]
    if server.has_grpc() and shutil.which("h2load"):
        figures += _grpc_small(server, seconds)
    figures += _memory(server, "after load")
    return figures


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


def _memory(server: RunningServer, moment: str) -> list[Measurement]:
    used = processes.memory(server.pid)
    return [
        Measurement(f"memory {moment}, PSS", used.pss_mib, "MiB", higher_is_better=False),
        Measurement(f"memory {moment}, RSS", used.rss_mib, "MiB", higher_is_better=False),
    ]


def _http_small(server: RunningServer, seconds: float) -> list[Measurement]:
    figures = []
    _wrk(server, 16, 1)  # warm-up
    for connections in CONCURRENCIES:
        result = _wrk(server, connections, seconds)
        rate = result["requests"] / (result["duration_us"] / 1e6)
        figures.append(Measurement(f"HTTP AddSub c={connections}", rate, "req/s"))
        if connections == 1:
            p50 = Measurement("HTTP AddSub c=1 p50", result["p50_us"], "us", higher_is_better=False)
            figures.append(p50)
    return figures


def _wrk(server: RunningServer, connections: int, seconds: float) -> dict[str, int]:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s"]
    command += ["-s", str(HERE / "addsub.lua"), f"{server.url}/v2/models/AddSub/infer"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, int] = json.loads(output.strip().splitlines()[-1])
    if result["failed"]:
        raise RuntimeError(f"{result['failed']} of wrk's requests failed at c={connections}")
    return result


def _grpc_small(server: RunningServer, seconds: float) -> list[Measurement]:
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        body = pathlib.Path(folder, "request.bin")
        body.write_bytes(_grpc_request(server))
        for connections in CONCURRENCIES:
            rate, mean_us = _h2load(server, body, connections, seconds)
            figures.append(Measurement(f"gRPC AddSub c={connections}", rate, "req/s"))
            if connections == 1:
                row = "gRPC AddSub c=1 mean"
                figures.append(Measurement(row, mean_us, "us", higher_is_better=False))
    return figures


def _grpc_request(server: RunningServer) -> bytes:
    """A framed ModelInferRequest, tried once with the official client's stub before it is used."""
    # Heavy, and needed only where a gRPC port answers.
    import grpc  # noqa: PLC0415
    from tritonclient.grpc import service_pb2, service_pb2_grpc  # noqa: PLC0415

    request = service_pb2.ModelInferRequest(model_name="AddSub")
    for name, value in (("a", 1.0), ("b", 2.0)):
        request.inputs.add(name=name, datatype="FP32", shape=[1, 1])
        request.raw_input_contents.append(struct.pack("<f", value))
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=30)
    results = [struct.unpack("<f", raw)[0] for raw in answer.raw_output_contents]
    if sorted(results) != [-1.0, 3.0]:
        raise RuntimeError(f"expected 3 and -1 over gRPC, got {results}")
    message: bytes = request.SerializeToString()
    return struct.pack(">BI", 0, len(message)) + message


def _h2load(
    server: RunningServer, body: pathlib.Path, connections: int, seconds: float
) -> tuple[float, float]:
    """Requests per second and the mean time of one in microseconds."""
    command = ["h2load", f"-c{connections}", "-m1", "-t1", f"-D{max(1, round(seconds))}"]
    command += ["--warm-up-time=1", "-d", str(body), "-H", "te: trailers"]
    command += ["-H", "content-type: application/grpc"]
    command.append(f"http://127.0.0.1:{server.grpc_port}{GRPC_METHOD}")
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rate = re.search(r"finished in .*?, ([\d.]+) req/s", output)
    mean = re.search(r"time for request:\s+\S+\s+\S+\s+([\d.]+)(us|ms|s)\b", output)
    outcome = re.search(r"(\d+) failed, (\d+) errored, (\d+) timeout", output)
    if not rate or not mean or not outcome:
        raise RuntimeError(f"h2load printed no figures:\n{output}")
    if any(int(count) for count in outcome.groups()):
        raise RuntimeError(f"h2load at c={connections}: {outcome.group()}")
    return float(rate[1]), float(mean[1]) * {"us": 1, "ms": 1e3, "s": 1e6}[mean[2]]
