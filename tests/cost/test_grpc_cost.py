# SPDX-License-Identifier: Apache-2.0
"""Messages of a hostile gRPC client: many of them, and messages with too much of everything."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from pytriton.base.protos import service_pb2
from pytriton.protocol.grpc import message_prefix
from tests.cost.counting import Attack, assert_paid
from tests.server.grpc_fakes import SERVICE, GrpcClient, framed, infer_request
from tests.wire.http2.frame_client import data

STREAM = 1
FRAME_BYTES = 16 << 10
READ_BYTES = 64 << 10
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
# Fields of the message that it does not define: a number, a group, and a text.
NUMBER, GROUP, TEXT = b"\x98\x06\x01", b"\x9b\x06", b"\x9a\x06"
NAME, INPUT, PARAMETER, RAW = b"\x0a\x01a", b"\x2a\x00", b"\x22\x00", b"\x3a\x00"


def request(output_names: list[str]) -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest.FromString(infer_request())
    for name in output_names:
        made.outputs.add(name=name)
    return made


def inputs(names: list[str]) -> bytes:
    made = service_pb2.ModelInferRequest(model_name="coupled")
    for name in names:
        made.inputs.add(name=name, datatype="FP32", shape=[1])
        made.raw_input_contents.append(bytes(4))
    return made.SerializeToString()


def typed(field: str, values: list[Any]) -> bytes:
    made = service_pb2.ModelInferRequest(model_name="coupled")
    tensor = made.inputs.add(name="x", datatype="FP32", shape=[len(values)])
    getattr(tensor.contents, field).extend(values)
    return made.SerializeToString()


def parameters(count: int, place: str) -> bytes:
    made = request(["y"])
    places = {"request": made, "input": made.inputs[0], "output": made.outputs[0]}
    for number in range(count):
        places[place].parameters[f"p{number}"].int64_param = number
    return made.SerializeToString()


def shaped(sizes: list[int]) -> bytes:
    made = request([])
    made.inputs[0].shape[:] = sizes
    return made.SerializeToString()


def outputs(names: list[str]) -> bytes:
    return request(names).SerializeToString()


def nested(depth: int) -> bytes:
    message = b""
    for _ in range(depth):
        size = len(message)
        length = bytes((size & 127 | 128, size >> 7 & 127 | 128, size >> 14))
        message = TEXT + length + message
    return message


MESSAGES = {
    "inputs": lambda count: inputs([f"x{number}" for number in range(count)]),
    "repeated input": lambda count: inputs(["x"] * count),
    "outputs": lambda count: outputs([f"y{number}" for number in range(count)]),
    "repeated output": lambda count: outputs(["y"] * count),
    "parameters": lambda count: parameters(count, "request"),
    "parameters of an input": lambda count: parameters(count, "input"),
    "parameters of an output": lambda count: parameters(count, "output"),
    "dimensions": lambda count: shaped([2**62] * count),
    "floats": lambda count: typed("fp32_contents", [1.0] * count),
    "integers": lambda count: typed("int_contents", [1] * count),
    "texts": lambda count: typed("bytes_contents", [b"a"] * count),
    "nested fields": nested,
    "groups": lambda count: GROUP * count,
    "unknown fields": lambda count: NUMBER * 20 * count,
    "repeated name": lambda count: NAME * 20 * count,
    "empty inputs": lambda count: INPUT * 20 * count,
    "empty parameters": lambda count: PARAMETER * 20 * count,
    "empty tensors": lambda count: infer_request() + RAW * 20 * count,
}
COMPRESSED = gzip.compress(b"")
STREAMS = {
    "empty messages": lambda count: framed(b"") * count,
    "requests": lambda count: framed(infer_request("stream")) * count,
    "requests to an unknown model": lambda count: framed(infer_request("nobody")) * count,
    "compressed messages": lambda count: (
        (message_prefix(len(COMPRESSED), is_compressed=True) + COMPRESSED) * count
    ),
}


def call(method: str, body: bytes, *fields: tuple[str, str], frame_bytes: int = FRAME_BYTES):
    """A call whose body comes in frames of a size."""
    client = GrpcClient()
    path = method if method.startswith("/") else f"{SERVICE}/{method}"
    parts = [data(STREAM, body[at : at + frame_bytes]) for at in range(0, len(body), frame_bytes)]
    wire = client.head(path, *fields) + b"".join(parts) + data(STREAM, b"", end_stream=True)

    def run() -> None:
        for at in range(0, len(wire), READ_BYTES):
            client.receive(wire[at : at + READ_BYTES])

    return Attack(len(wire), run)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ModelMetadata"])
@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_paid_for(name, method):
    assert_paid(lambda count: call(method, framed(MESSAGES[name](count))))


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ServerLive", REFLECTION])
@pytest.mark.parametrize("name", STREAMS)
def test_many_messages_are_paid_for(name, method):
    encoding = ("grpc-encoding", "gzip")

    assert_paid(lambda count: call(method, STREAMS[name](count), encoding))


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_messages_in_frames_of_one_byte_are_paid_for(method):
    assert_paid(lambda count: call(method, framed(bytes(count)), frame_bytes=1))


def test_metadata_is_paid_for():
    def make(count: int) -> Attack:
        return call("ServerLive", framed(b""), *[(f"a{x}", "b") for x in range(count)])

    assert_paid(make, (20, 160, 1280))
