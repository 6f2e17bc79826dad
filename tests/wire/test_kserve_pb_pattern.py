# SPDX-License-Identifier: Apache-2.0
"""Patterns read and write the same as the codecs that look into every message."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base import dtypes
from pytriton.base.columns import Column
from pytriton.base.errors import ServerError
from pytriton.base.messages import InferResponse, InferTensor, RequestFields
from pytriton.base.protos import service_pb2
from pytriton.protocol.grpc import message_prefix
from pytriton.protocol.kserve_pb import build_request, parse_message
from pytriton.protocol.kserve_pb_response import encode_infer_response, encode_stream_response
from pytriton.protocol.pb_columns import (
    PbRequestPattern,
    PbResponsePattern,
    PbStreamedResponsePattern,
    RequestLayout,
    layout_of,
    patterns_of_size,
    read_entries,
)
from tests.fakes import model_spec

VALUES = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9) | st.floats()
NAMES = st.sampled_from(
    ["priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "a", "b", "triton_x"]
)
CHOICES = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}


def request(*tensors: bytes, name: str = "m", parameters=None, **fields) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=name, **fields)
    for key, value in (parameters or {}).items():
        setattr(message.parameters[key], CHOICES[type(value)], value)
    for number, data in enumerate(tensors):
        message.inputs.add(name=f"x:{number}", datatype="UINT8", shape=[len(data)])
    message.raw_input_contents.extend(tensors)
    content: bytes = message.SerializeToString(deterministic=True)
    return content


def framed(message: bytes) -> bytes:
    return message_prefix(len(message)) + message


def learn(message: bytes) -> RequestLayout | None:
    return layout_of(message, parse_message(message)[1])


def pattern_for(layout: RequestLayout, message: bytes, **options) -> PbRequestPattern | None:
    (pattern,) = patterns_of_size(len(message), [layout], **{"is_framed": False, **options})
    return pattern


def read(layout: RequestLayout, message: bytes) -> tuple[RequestFields, list[bytes]] | None:
    """What a message has in the holes of a layout; None if it has to be read by the parser."""
    pattern = pattern_for(layout, message)
    holes = None if pattern is None else pattern.read(message)
    if pattern is None or holes is None:
        return None
    request_id, entries = pattern.split_heads(holes)
    try:
        found = read_entries(entries)
        found.id = request_id.decode()
    except (ServerError, DecodeError, UnicodeDecodeError):
        return None
    return found, list(holes[pattern.heads :])


@given(
    st.text(max_size=40),
    st.text(max_size=40),
    st.dictionaries(NAMES, VALUES, max_size=3),
    st.dictionaries(NAMES, VALUES, max_size=3),
    st.lists(st.binary(max_size=9), min_size=1, max_size=3),
    st.booleans(),
)
def test_pattern_reads_what_the_parser_reads(known_id, other_id, known, other, tensors, is_like):
    if is_like:  # as many parameters, whose values often have the same sizes
        other = {name: other.get(name, value) for name, value in known.items()}
    layout = learn(request(*(bytes(len(data)) for data in tensors), id=known_id, parameters=known))
    if layout is None:
        assert len(known_id.encode()) > 127
        return
    message = request(*tensors, id=other_id, parameters=other)
    found = read(layout, message)
    if found is None:
        return
    fields, inputs = found
    built = build_request(*parse_message(message), model_spec()).request

    assert str(fields) == str(built.fields)  # a NaN is not equal to itself
    assert inputs == [tensor.data for tensor in built.inputs.values()]


@pytest.mark.parametrize("sizes", [(4,), (4, 4), (0, 1, 200), (1000, 0)])
@pytest.mark.parametrize("ids", [("", ""), ("7", "8"), ("7", "é" * 60), ("x" * 127, "y")])
@pytest.mark.parametrize("parameters", [{}, {"priority": 3}, {"sequence_id": "s", "a": 0.5}])
@pytest.mark.parametrize("is_framed", [False, True])
def test_pattern_reads_other_ids_and_tensors(sizes, ids, parameters, is_framed):
    source = random.Random(1)
    blank = (bytes(size) for size in sizes)
    layout = learn(request(*blank, id=ids[0], parameters=parameters))
    tensors = [source.randbytes(size) for size in sizes]
    message = request(*tensors, id=ids[1], parameters=parameters)
    if is_framed:
        message = framed(message)

    pattern = pattern_for(layout, message, is_framed=is_framed)
    holes = pattern.read(message)

    assert pattern.size == len(message)
    assert list(holes[pattern.heads :]) == tensors
    request_id, entries = pattern.split_heads(holes)
    assert request_id.decode() == ids[1]
    assert len(entries) == len(parameters)


@pytest.mark.parametrize(
    "other",
    [
        framed(request(b"abcd", b"efgh", name="n")),
        framed(request(b"abc", b"efghi")),
        b"\1" + framed(request(b"abcd", b"efgh"))[1:],
        framed(request(b"abcd", b"efgh").replace(b"UINT8", b"UINT7")),
    ],
)
def test_pattern_refuses_other_layouts_of_the_same_size(other):
    pattern = pattern_for(learn(request(b"1234", b"5678")), other, is_framed=True)

    assert len(other) == pattern.size
    assert pattern.read(other) is None


@pytest.mark.parametrize(
    "other",
    [
        request(b"abcd", parameters={"sequence_id": 7}).replace(b"\x10\x07", b"\x10\x87"),
        request(b"abcd", parameters={"sequence_id": 7}).replace(b"\x10\x07", b"\x28\x07"),
        request(b"abcd", parameters={"sequence_id": 7}).replace(b"\x0bseq", b"\x0cseq"),
        request(b"abcd", parameters={"triton___id": 7}),
    ],
)
def test_wrong_parameters_are_left_to_the_parser(other):
    layout = learn(request(b"1234", parameters={"sequence_id": 7}))

    assert pattern_for(layout, other).read(other) is not None
    assert read(layout, other) is None


def test_id_that_is_no_text_is_left_to_the_parser():
    message = request(b"abcd", id="ab")
    other = message.replace(b"\x02ab", b"\x02\xff\xfe")

    assert other != message
    assert read(learn(message), other) is None


def test_length_of_an_id_has_to_be_right():
    message = request(b"abcd", id="ab")

    assert read(learn(message), message.replace(b"\x02ab", b"\x01ab")) is None


@pytest.mark.parametrize(
    "message",
    [
        request(b"abcd") + b"\x0a\x01m",  # the name follows
        request(b"abcd") + b"\x1a\x01r",  # the id comes after the tensors
        b"\x1a\x01r" + request(b"abcd", id="s"),  # two ids
        request(b"abcd", id="x" * 128),
        b"\x1a\x00" + request(b"abcd"),  # an empty id
        b"\x18\x01" + request(b"abcd"),  # a number in the place of the id
        b"\x20\x01" + request(b"abcd"),  # and of a parameter
        # Lengths with superfluous bytes.
        request(b"abcd").replace(b"\x3a\x04abcd", b"\x3a\x84\x00abcd"),
        request(b"abcd", id="ab").replace(b"\x1a\x02ab", b"\x1a\x82\x00ab"),
        request(),  # no tensors
    ],
)
def test_other_messages_have_no_layout(message):
    assert learn(message) is None


IDS = [[b""] * 4, [b"7", b"8", b"9", b"a"], [b"", b"7", b"x" * 200, b"8"]]


@pytest.mark.parametrize("rows", [None, 1, 3])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("parameters", [None, {"sequence_id": 0, "sequence_end": False}])
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_responses_are_those_of_the_encoder(rows, seed, parameters, ids, is_streamed):
    source = random.Random(seed)
    first = source.randint(0, 3)
    columns = []
    for number in range(source.randint(0, 3)):
        dtype = source.choice([dtypes.FP32, dtypes.UINT8])
        shape = tuple(source.choice([0, 1, 2, 50]) for _ in range(source.randint(0, 2)))
        size = dtype.itemsize
        for dimension in shape:
            size *= dimension
        data = source.randbytes((first + len(ids) * (rows or 1)) * size)
        columns.append(Column(f"y{number}", dtype, shape, size, memoryview(data)))

    make = PbStreamedResponsePattern if is_streamed else PbResponsePattern
    pattern = make("m", "1", rows, columns, parameters)
    messages = [b"".join(parts) for parts in pattern.encode(columns, first, ids)]

    assert len(messages) == len(ids)
    for index, (message, request_id) in enumerate(zip(messages, ids, strict=True)):
        tensors = []
        for column in columns:
            start = (first + index * (rows or 1)) * column.row_bytes
            data = bytes(column.data[start : start + (rows or 1) * column.row_bytes])
            shape = column.shape if rows is None else (rows, *column.shape)
            tensors.append(InferTensor(column.name, column.dtype, shape, data))
        response = InferResponse("m", "1", request_id.decode(), tensors, parameters)
        parts = encode_infer_response(response)
        if is_streamed:
            parts = encode_stream_response(parts, is_final=True)
        assert message == framed(b"".join(parts))
        assert pattern.layout(len(request_id)).size == len(message)
