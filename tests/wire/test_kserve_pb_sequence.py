# SPDX-License-Identifier: Apache-2.0
"""Patterns of sequences read and write the same as the codecs that look into every message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base import dtypes
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.protos import service_pb2
from pytriton.protocol.grpc import message_prefix
from pytriton.protocol.kserve_pb import build_request, parse_message
from pytriton.protocol.kserve_pb_response import encode_infer_response, encode_stream_response
from pytriton.protocol.pb_columns import (
    PbStreamedResponsePattern,
    SequencePattern,
    sequence_layout_of,
)
from pytriton.runtime.executor.columns import OutputColumn
from tests.fakes import model_spec

IDS = st.integers(1, 2**63 - 1) | st.text(min_size=1, max_size=140)


def request(sequence_id=7, *tensors: bytes, start=None, end=None, **fields) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="m", **fields)
    choice = "string_param" if isinstance(sequence_id, str) else "int64_param"
    if sequence_id is not None:
        setattr(message.parameters["sequence_id"], choice, sequence_id)
    if start is not None:
        message.parameters["sequence_start"].bool_param = start
    if end is not None:
        message.parameters["sequence_end"].bool_param = end
    for number, data in enumerate(tensors or (b"abcd",)):
        message.inputs.add(name=f"x:{number}", datatype="UINT8", shape=[len(data)])
        message.raw_input_contents.append(data)
    content: bytes = message.SerializeToString(deterministic=True)
    return content


def pattern_of(message: bytes) -> SequencePattern | None:
    layout = sequence_layout_of(message, parse_message(message)[1])
    return None if layout is None else SequencePattern(layout)


@given(
    IDS,
    IDS,
    st.booleans() | st.none(),
    st.booleans() | st.none(),
    st.text(max_size=3),
    st.lists(st.binary(max_size=9), min_size=1, max_size=3),
)
def test_pattern_reads_what_the_parser_reads(known, other, start, end, name, tensors):
    pattern = pattern_of(
        request(known, *(bytes(len(data)) for data in tensors), start=start, end=end, id=name)
    )
    if pattern is None:
        assert isinstance(known, str)
        assert len(known.encode()) > 100
        return
    message = request(
        other,
        *tensors,
        start=None if start is None else not start,
        end=None if end is None else not end,
        id=name[::-1],
    )
    read = pattern.read(message) if len(message) == pattern.size else None
    if read is None:  # another length or type of the ids, or text that is not ASCII
        assert type(known) is not type(other) or len(message) != pattern.size or not name.isascii()
        return
    built = build_request(*parse_message(message), model_spec()).request

    assert read.correlation_id == built.correlation_id
    assert read.flags == built.flags
    assert read.id.decode() == built.id
    assert list(read.inputs) == [tensor.data for tensor in built.inputs.values()]


@pytest.mark.parametrize("known", [7, 300, "seven", "é"])
def test_pattern_reads_the_message_that_it_was_made_of(known):
    message = request(known, start=True, end=False, id="r")
    pattern = pattern_of(message)

    assert pattern.size == len(message)
    assert pattern.read(message) == ((b"abcd",), known, 1, b"r")


@pytest.mark.parametrize(
    "other",
    [
        request(0, start=True),  # a request without a sequence
        request(7, start=True).replace(b"\x08\x01", b"\x08\x02"),  # a flag of 2
        request(7, start=True).replace(b"\x10\x07", b"\x10\x87"),  # a number that does not end
        request(7, start=True).replace(b"\x10\x07", b"\x28\x07"),  # a number of another type
        request(7, start=True).replace(b"UINT8", b"UINT7"),
    ],
)
def test_pattern_leaves_other_messages_of_the_same_size_alone(other):
    pattern = pattern_of(request(7, start=True))

    assert pattern.size == len(other)
    assert pattern.read(other) is None


@pytest.mark.parametrize("text", [b"\xff\xfe", b"\xc3\xa9"])
def test_pattern_leaves_request_ids_alone_that_are_not_ascii(text):
    message = request(7, id="ab")
    changed = message.replace(b"ab\x22", text + b"\x22", 1)

    assert changed != message
    assert pattern_of(message).read(changed) is None


@pytest.mark.parametrize(
    "message",
    [
        request(None),
        request(None, start=True),
        request(-1),
        request("x" * 127),
        request(7, parameters={"priority": service_pb2.InferParameter(int64_param=1)}),
        request(7, parameters={"sequence_i": service_pb2.InferParameter(int64_param=1)}),
        request(7) + b"\x1a\x01r",  # the id comes after the tensors
        b"\x1a\x01r" + request(7, id="s"),  # two ids
    ],
)
def test_other_messages_have_no_layout(message):
    assert pattern_of(message) is None


@pytest.mark.parametrize("outputs", [0, 1, 3])
@pytest.mark.parametrize("rows", [None, 1, 2])
def test_responses_are_those_of_the_codec(outputs, rows):
    each = rows or 1
    columns = [
        OutputColumn(f"y{number}", dtypes.INT16, (2,), 4, memoryview(bytes(range(60))))
        for number in range(outputs)
    ]
    pattern = PbStreamedResponsePattern("m", "3", rows, columns, {"a": 1})
    ids = [b"", b"7", b"x" * 200, b"8"]

    messages = list(pattern.encode(columns, 1, ids))

    for number, (message, request_id) in enumerate(zip(messages, ids, strict=True)):
        at = 4 * (1 + number * each)
        tensors = [
            InferTensor(
                column.name,
                dtypes.INT16,
                (2,) if rows is None else (rows, 2),
                column.data[at : at + 4 * each],
            )
            for column in columns
        ]
        response = InferResponse("m", "3", request_id.decode(), tensors, {"a": 1})
        parts = encode_stream_response(encode_infer_response(response), is_final=True)
        content = b"".join(parts)
        assert message == message_prefix(len(content)) + content
