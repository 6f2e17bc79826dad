# SPDX-License-Identifier: Apache-2.0
"""gRPC: small and large ModelInfer calls, with h2load or a raw socket, not a client library."""

from __future__ import annotations

import re
import statistics
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks import http2
from benchmarks.http2 import INITIAL_WINDOW
from benchmarks.http_loads import CONCURRENCIES, LARGE_TENSORS
from benchmarks.large_grpc_client import METHOD, LargeCallClient
from benchmarks.measurement import Measurement
from benchmarks.servers import RunningServer

ANY_LENGTH = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass(frozen=True)
class H2LoadReport:
    """The lines of h2load's output that count."""

    rate: float
    mean_us: float
    succeeded: int
    unsuccessful: int
    data_bytes: int


def small(server: RunningServer, seconds: float) -> list[Measurement]:
    figures = []
    inputs = {"a": np.full((1, 1), 1, np.float32), "b": np.full((1, 1), 2, np.float32)}
    expected = {"add": inputs["a"] + inputs["b"], "sub": inputs["a"] - inputs["b"]}
    request = checked_request(server, "AddSub", inputs, expected)
    for connections in CONCURRENCIES:
        load = [f"-c{connections}", f"-D{max(1, round(seconds))}", "--warm-up-time=1"]
        report = _h2load(server, request, load, answer_bytes=8)
        figures.append(Measurement(f"gRPC AddSub c={connections}", report.rate, "req/s"))
        if connections == 1:
            row = "gRPC AddSub c=1 mean"
            figures.append(Measurement(row, report.mean_us, "us", higher_is_better=False))
    return figures


def large(server: RunningServer) -> list[Measurement]:
    """One call at a time, in the largest frames both sides take, and in those that h2load sends."""
    figures = []
    for mebibytes, calls in LARGE_TENSORS:
        x = np.random.default_rng(0).random((1, mebibytes * 2**18), dtype=np.float32)
        request = checked_request(server, "Ident", {"x": x}, {"y": x})
        row = f"gRPC identity {mebibytes} MiB"
        for title, times_s in (
            (row, _raw_times_s(server, request, x.tobytes(), calls)),
            (f"{row}, 16 KiB frames", _h2load_times_s(server, request, x.nbytes, calls)),
        ):
            figures.append(Measurement(title, 2 * mebibytes / statistics.median(times_s), "MiB/s"))
    return figures


def rate(
    server: RunningServer, request: bytes, connections: int, seconds: float, answer_bytes: int
) -> float:
    """Calls a second, one at a time on each connection; no window closes on large ones."""
    load = [f"-c{connections}", f"-D{max(1, round(seconds))}", "--warm-up-time=1"]
    load += ["-w30", "-W30"] if answer_bytes > INITIAL_WINDOW else []
    return _h2load(server, request, load, answer_bytes).rate


def large_rate(server: RunningServer, model: str, mebibytes: int, calls: int) -> float:
    """MiB/s of an identity, both directions counted, in the largest frames both sides take."""
    x = np.random.default_rng(0).random((1, mebibytes * 2**18), dtype=np.float32)
    request = checked_request(server, model, {"x": x}, {"y": x})
    times_s = _raw_times_s(server, request, x.tobytes(), calls)
    return 2 * mebibytes / statistics.median(times_s)


def _raw_times_s(server: RunningServer, request: bytes, tensor: bytes, calls: int) -> list[float]:
    """What each call took after a first one, whose answers all have to be the tensor."""
    times_s = []
    with http2.connect(server.grpc_port) as connection:
        client = LargeCallClient(connection, len(tensor))
        client.open()
        for _ in range(1 + calls):
            elapsed_s, message = client.call(request)
            times_s.append(elapsed_s)
            answer = service_pb2.ModelInferResponse.FromString(message)
            if list(answer.raw_output_contents) != [tensor]:
                raise RuntimeError("the identity model returned other bytes than it was sent")
    return times_s[1:]


def _h2load_times_s(
    server: RunningServer, request: bytes, answer_bytes: int, calls: int
) -> list[float]:
    """The same with windows that never close, so that nothing waits for credit."""
    with tempfile.NamedTemporaryFile("r") as log:
        load = ["-c1", f"-n{calls}", "-w30", "-W30", f"--log-file={log.name}"]
        report = _h2load(server, request, load, answer_bytes)
        times_s = [int(line.split("\t")[2]) / 1e6 for line in log]
    if not calls == report.succeeded == len(times_s):
        raise RuntimeError(f"expected {calls} calls to succeed, got {report.succeeded}")
    return times_s


def checked_request(
    server: RunningServer,
    model: str,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> bytes:
    """A framed ModelInferRequest of FP32 tensors that the official stub got the right answer to."""
    got = infer(server, model, inputs)
    if got != {name: array.tobytes() for name, array in expected.items()}:
        sizes = {name: len(raw) for name, raw in got.items()}
        raise RuntimeError(f"{model} answered with other values than expected; bytes: {sizes}")
    return framed(infer_request(model, inputs))


def infer_request(model: str, inputs: Mapping[str, np.ndarray]) -> service_pb2.ModelInferRequest:
    """A request with FP32 tensors."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype="FP32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def infer(server: RunningServer, model: str, inputs: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    """The raw outputs that the official stub gets for FP32 tensors."""
    request = infer_request(model, inputs)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", ANY_LENGTH) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=60)
    names = [output.name for output in answer.outputs]
    return dict(zip(names, answer.raw_output_contents, strict=True))


def framed(request: service_pb2.ModelInferRequest) -> bytes:
    """The message as it goes into DATA frames: not compressed, after its length."""
    message: bytes = request.SerializeToString()
    return struct.pack(">BI", 0, len(message)) + message


def _h2load(
    server: RunningServer, request: bytes, load: list[str], answer_bytes: int
) -> H2LoadReport:
    """Sends the request again and again, as `load` says, one at a time on each connection."""
    with tempfile.NamedTemporaryFile() as body:
        body.write(request)
        body.flush()
        command = ["h2load", "-m1", "-t1", *load, "-d", body.name]
        command += ["-H", "te: trailers", "-H", "content-type: application/grpc"]
        command.append(f"http://127.0.0.1:{server.grpc_port}{http2.SERVICE}/{METHOD}")
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    report = parse_report(output)
    # To h2load a refused gRPC call is a success, since its HTTP status is 200, but it has no data.
    if report.unsuccessful or report.data_bytes < report.succeeded * answer_bytes:
        raise RuntimeError(f"expected {answer_bytes} bytes from every call, got:\n{output}")
    return report


def parse_report(output: str) -> H2LoadReport:
    rate = re.search(r"finished in .*?, ([\d.]+) req/s", output)
    mean = re.search(r"time for request:\s+\S+\s+\S+\s+([\d.]+)(us|ms|s)\b", output)
    outcome = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", output)
    traffic = re.search(r"\((\d+)\) data", output)
    if not (rate and mean and outcome and traffic):
        raise RuntimeError(f"h2load printed no figures:\n{output}")
    succeeded, *unsuccessful = (int(count) for count in outcome.groups())
    return H2LoadReport(
        rate=float(rate[1]),
        mean_us=float(mean[1]) * {"us": 1, "ms": 1e3, "s": 1e6}[mean[2]],
        succeeded=succeeded,
        unsuccessful=sum(unsuccessful),
        data_bytes=int(traffic[1]),
    )
