# SPDX-License-Identifier: Apache-2.0
"""Patterns read and write the same as the codecs that look into every message."""

from __future__ import annotations

import random

import pytest

from pytriton.base import dtypes
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.protos import service_pb2
from pytriton.protocol.grpc import message_prefix
from pytriton.protocol.kserve_pb import parse_message
from pytriton.protocol.kserve_pb_response import encode_infer_response
from pytriton.protocol.pb_columns import PbRequestPattern, PbResponsePattern, layout_of
from pytriton.runtime.executor.columns import OutputColumn


def request(*tensors: bytes, name: str = "m") -> bytes:
    message = service_pb2.ModelInferRequest(model_name=name)
    for number, data in enumerate(tensors):
        message.inputs.add(name=f"x:{number}", datatype="UINT8", shape=[len(data)])
    message.raw_input_contents.extend(tensors)
    content: bytes = message.SerializeToString()
    return content


def framed(message: bytes) -> bytes:
    return message_prefix(len(message)) + message


def pattern_of(message: bytes) -> PbRequestPattern:
    raw = parse_message(message)[1]
    layout = layout_of(message, raw)
    assert layout is not None
    return PbRequestPattern(layout, [len(data) for data in raw])


@pytest.mark.parametrize("sizes", [(4,), (4, 4), (0, 1, 200), (1000, 0)])
def test_pattern_reads_what_the_parser_reads(sizes):
    source = random.Random(1)
    pattern = pattern_of(request(*(bytes(size) for size in sizes)))
    message = request(*(source.randbytes(size) for size in sizes))

    tensors = pattern.read(framed(message))

    assert pattern.size == len(framed(message))
    assert list(tensors) == list(parse_message(message)[1])


@pytest.mark.parametrize(
    "other",
    [
        framed(request(b"abcd", b"efgh", name="n")),
        framed(request(b"abc", b"efghi")),
        b"\1" + framed(request(b"abcd", b"efgh"))[1:],
    ],
)
def test_pattern_refuses_other_layouts_of_the_same_size(other):
    pattern = pattern_of(request(b"1234", b"5678"))

    assert len(other) == pattern.size
    assert pattern.read(other) is None


def test_layout_needs_raw_tensors_at_the_end():
    message = request(b"abcd")

    assert layout_of(message, []) is None
    assert layout_of(message + b"\x0a\x01m", [b"abcd"]) is None  # the name follows


def test_lengths_with_superfluous_bytes_are_no_layout():
    message = request(b"abcd").replace(b"\x3a\x04abcd", b"\x3a\x84\x00abcd")
    raw = parse_message(message)[1]

    assert list(raw) == [b"abcd"]
    assert layout_of(message, raw) is None


@pytest.mark.parametrize("rows", [None, 1, 3])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("parameters", [None, {"sequence_id": 0, "sequence_end": False}])
def test_responses_are_those_of_the_encoder(rows, seed, parameters):
    source = random.Random(seed)
    count, first = source.randint(1, 5), source.randint(0, 3)
    columns = []
    for number in range(source.randint(1, 3)):
        dtype = source.choice([dtypes.FP32, dtypes.UINT8])
        shape = tuple(source.choice([0, 1, 2, 50]) for _ in range(source.randint(0, 2)))
        size = dtype.itemsize
        for dimension in shape:
            size *= dimension
        data = source.randbytes((first + count * (rows or 1)) * size)
        columns.append(OutputColumn(f"y{number}", dtype, shape, size, memoryview(data)))

    pattern = PbResponsePattern("m", "1", rows, columns, parameters)
    messages = [b"".join(parts) for parts in pattern.encode(columns, first, count)]

    assert len(messages) == count
    for index, message in enumerate(messages):
        tensors = []
        for column in columns:
            start = (first + index * (rows or 1)) * column.row_bytes
            data = bytes(column.data[start : start + (rows or 1) * column.row_bytes])
            shape = column.shape if rows is None else (rows, *column.shape)
            tensors.append(InferTensor(column.name, column.dtype, shape, data))
        response = InferResponse("m", "1", "", tensors, parameters)
        expected = b"".join(encode_infer_response(response))
        assert message == framed(expected)
        assert pattern.size == len(message)
