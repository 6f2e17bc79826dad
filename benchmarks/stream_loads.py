# SPDX-License-Identifier: Apache-2.0
"""Streams: how fast a decoupled model's small responses arrive, and how soon the first one does.

On its own: python -m benchmarks.stream_loads GRPC_PORT
"""

from __future__ import annotations

import statistics
import struct
import sys

import numpy as np
from tritonclient.grpc import service_pb2

from benchmarks.grpc_loads import framed
from benchmarks.http2 import connect
from benchmarks.measurement import Measurement
from benchmarks.stream_client import StreamCall, StreamResult

RUNS = 5


def measure(grpc_port: int) -> list[Measurement]:
    """The medians of several calls."""
    run_once(grpc_port, requests=1, responses=50)  # warm-up
    long_calls = [run_once(grpc_port, requests=1, responses=2000) for _ in range(RUNS)]
    shared_calls = [run_once(grpc_port, requests=32, responses=100) for _ in range(RUNS)]
    first_ms = statistics.median(call.first_s * 1e3 for call in long_calls)
    return [
        Measurement("stream 1 x 2,000", _median_rate(long_calls), "responses/s"),
        Measurement("stream first of 2,000", first_ms, "ms", higher_is_better=False),
        Measurement("stream 32 x 100", _median_rate(shared_calls), "responses/s"),
    ]


def _median_rate(calls: list[StreamResult]) -> float:
    return statistics.median(call.responses / call.last_s for call in calls)


def run_once(grpc_port: int, requests: int, responses: int) -> StreamResult:
    """One stream with that many requests for that many responses each, all checked."""
    sent = [repeat_request(responses, number) for number in range(requests)]
    with connect(grpc_port) as connection:
        call = StreamCall(connection)
        call.open()
        result, raw_responses = call.run(sent)
    check_responses(raw_responses, requests, responses)
    return result


def repeat_request(responses: int, request_id: int) -> bytes:
    """Asks repeat_int32 for that many responses without pauses."""
    request = service_pb2.ModelInferRequest(model_name="repeat_int32", id=str(request_id))
    inputs = {
        "IN": np.arange(responses, dtype=np.int32),
        "DELAY": np.zeros(responses, np.uint32),
        "WAIT": np.zeros(1, np.uint32),
    }
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=array.dtype.name.upper(), shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return framed(request)


def check_responses(raw_responses: list[bytes], requests: int, responses: int) -> None:
    """Every request has to have got all of its responses, in their order."""
    values: dict[str, list[tuple[int, int]]] = {str(number): [] for number in range(requests)}
    for raw in raw_responses:
        message = service_pb2.ModelStreamInferResponse.FromString(raw)
        if message.error_message:
            raise RuntimeError(f"expected a response, got the error {message.error_message!r}")
        response = message.infer_response
        names = [output.name for output in response.outputs]
        tensors = dict(zip(names, response.raw_output_contents, strict=True))
        pair = struct.unpack("<I", tensors["IDX"])[0], struct.unpack("<i", tensors["OUT"])[0]
        values[response.id].append(pair)
    expected = [(number, number) for number in range(responses)]
    wrong = [request for request, pairs in values.items() if pairs != expected]
    if wrong:
        raise RuntimeError(f"expected 0 to {responses - 1} for every request, not so for {wrong}")


if __name__ == "__main__":
    for figure in measure(int(sys.argv[1])):
        print(f"{figure.row}: {figure.value:,.1f} {figure.unit}")
