# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base import dtypes
from pytriton.base.errors import InternalError, InvalidArgumentError, ServerError
from pytriton.protocol.kserve_json import (
    ALL_BINARY,
    ALL_JSON,
    AS_BINARY,
    AS_JSON,
    OutputChoice,
    parse_header_length,
    parse_infer,
)
from tests.wire.specs import ADD_SUB, model_spec, single, tensor_spec

# Every text of an error is compared with the real Triton's in tests/differential.

A = {"name": "a", "datatype": "FP32", "shape": [1, 1], "data": [1.5]}
B = {"name": "b", "datatype": "FP32", "shape": [1, 1], "data": [2.5]}


def parse(document, spec=ADD_SUB, header_length=None):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_infer(body, header_length, spec)


def in_binary(name, size):
    parameters = {"binary_data_size": size}
    return {"name": name, "datatype": "FP32", "shape": [1, 1], "parameters": parameters}


def test_request_has_its_id_and_inputs():
    request, output_format = parse({"id": "x", "inputs": [A, B], "unknown": {}})

    assert (request.model_name, request.fields.id, request.outputs) == ("model", "x", None)
    assert request.inputs["a"].data == struct.pack("<f", 1.5)
    assert request.inputs["b"].shape == (1, 1)
    assert request.inputs["b"].dtype is dtypes.FP32
    assert output_format is ALL_JSON


def test_binary_parts_are_slices_of_the_body():
    header = json.dumps({"inputs": [in_binary("a", 4), B]}).encode()
    body = header + b"1234"

    request, _ = parse(body, header_length=len(header))

    assert isinstance(request.inputs["a"].data, memoryview)
    assert request.inputs["a"].data.obj is body
    assert bytes(request.inputs["a"].data) == b"1234"


def test_binary_parts_come_in_the_order_of_their_inputs():
    header = json.dumps({"inputs": [in_binary("b", 3), A, in_binary("c", 2)]}).encode()

    request, _ = parse(header + b"12345", header_length=len(header))

    assert bytes(request.inputs["b"].data) == b"123"
    assert bytes(request.inputs["c"].data) == b"45"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_a_body(kind):
    header = json.dumps({"inputs": [in_binary("a", 4)]}).encode()

    request, _ = parse_infer(kind(header + b"1234"), len(header), ADD_SUB)

    assert bytes(request.inputs["a"].data) == b"1234"


def test_known_parameters_are_consumed():
    parameters = {
        "priority": 3, "timeout": 7, "sequence_id": 2**64 - 1, "sequence_start": True,
        "sequence_end": False, "binary_data_output": True, "mine": "x", "long": 2**63,
    }  # fmt: skip

    request, output_format = parse({"inputs": [A], "parameters": parameters})

    assert (request.fields.priority, request.fields.timeout_us) == (3, 7)
    assert (request.fields.correlation_id, request.fields.flags) == (2**64 - 1, 1)
    assert request.fields.parameters == {"mine": "x", "long": float(2**63)}
    assert output_format is ALL_BINARY


@pytest.mark.parametrize(
    "parameters,expected",
    [
        ({}, (0, 0)),
        ({"sequence_id": 0, "sequence_start": False}, (0, 0)),
        ({"sequence_id": "one", "sequence_end": True}, ("one", 2)),
        ({"sequence_id": 5, "sequence_end": True, "sequence_start": True}, (5, 3)),
    ],
)
def test_place_in_a_sequence_is_carried(parameters, expected):
    request, _ = parse({"inputs": [A], "parameters": parameters})

    assert (request.fields.correlation_id, request.fields.flags) == expected
    assert request.fields.parameters == {}


@pytest.mark.parametrize("value", [-1, 2**64, True, 1.5, None])
def test_sequence_id_is_an_unsigned_number_or_text(value):
    with pytest.raises(InternalError) as refused:
        parse({"inputs": [A], "parameters": {"sequence_id": value}})

    assert refused.value.message == (
        "Unable to parse 'sequence_id': attempt to access JSON non-string as string"
    )


def test_parameter_beyond_a_double_is_refused():
    with pytest.raises(InvalidArgumentError, match="'x' is too big to be stored in double"):
        parse({"inputs": [A], "parameters": {"x": 10**400}})


def test_parameters_are_not_shared_between_requests():
    first, _ = parse({"inputs": [A], "parameters": {"x": 1}})
    second, _ = parse({"inputs": [A]})

    assert (first.fields.parameters, second.fields.parameters) == ({"x": 1}, {})


def test_listed_outputs_have_their_form():
    entries = [
        {"name": "add", "parameters": {"binary_data": True}},
        {"name": "sub", "parameters": {"classification": 3}},
    ]

    request, output_format = parse({"inputs": [A], "outputs": entries})

    assert request.outputs == ("add", "sub")
    assert output_format.listed == {"add": AS_BINARY, "sub": OutputChoice(False, 3)}
    assert output_format.default is AS_JSON


def test_listed_outputs_are_read_only_as_far_as_they_can_be_right():
    entries = [{"name": f"output {number}"} for number in range(100_000)]

    request, _ = parse({"inputs": [A], "outputs": entries})

    assert request.outputs == ("output 0", "output 1", "output 2")


def test_raw_request_is_the_only_input():
    request, output_format = parse(bytes(16), single(dtypes.FP32, (2, -1), 4), header_length=0)

    assert request.inputs["IN"].shape == (1, 2, 2)
    assert output_format is ALL_BINARY


def test_raw_string_gets_its_length():
    request, _ = parse(b"hello", single(dtypes.BYTES, (1,)), header_length=0)

    assert dtypes.decode_bytes(request.inputs["IN"].data) == [b"hello"]


@pytest.mark.parametrize("text,length", [("0", 0), ("10", 10), ("100", 100)])
def test_header_length_is_read(text, length):
    assert parse_header_length(text, 100) == length


@pytest.mark.parametrize("text", ["", "x", "-", "--1", "+1", "1 ", "1_0", "\u0661", "9" * 5000])
def test_header_length_that_is_no_plain_number_is_refused(text):
    with pytest.raises(InvalidArgumentError, match="Unable to parse Inference-Header"):
        parse_header_length(text, 100)


@pytest.mark.parametrize("text", ["-1", "101"])
def test_header_length_beyond_the_body_is_refused(text):
    with pytest.raises(InvalidArgumentError, match=r"in range \(0, 100\), got: "):
        parse_header_length(text, 100)


@pytest.mark.parametrize(
    "shape,problem",
    [
        ([2**4, 2**60 + 2], "element count"),
        ([2**63], "invalid dimensions"),
        ([2**64, 0], "non-unsigned-integer"),
        ([2**61], "byte size overflow"),
        ([2**62] * 100_000, "element count"),
        ([1] * 100_000, "element count"),
        ([10**4000] * 64, "too big"),
    ],
)
def test_enormous_shapes_are_refused_before_anything_is_computed(shape, problem):
    with pytest.raises(ServerError, match=problem):
        parse({"inputs": [{**A, "shape": shape, "data": [1]}]})


@pytest.mark.parametrize("size", [5, 2**31, 2**62])
def test_announced_size_is_not_trusted(size):
    header = json.dumps({"inputs": [in_binary("a", size)]}).encode()

    with pytest.raises(InvalidArgumentError, match=f"expecting {size - 4} additional bytes"):
        parse(header + b"1234", header_length=len(header))


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":"\xff","inputs":[]}',
        b'{"inputs":[],"parameters":{"\xff":1}}',
        b'{"inputs":[],"parameters":{"a":"\xff"}}',
        b'{"inputs":[{"name":"\xff","datatype":"FP32","shape":[1],"data":[1]}]}',
        b'{"inputs":[],"outputs":[{"name":"\xff"}]}',
    ],
)
def test_names_and_texts_must_be_utf8(body):
    with pytest.raises(InvalidArgumentError, match="expected UTF-8 text"):
        parse(body)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "FP32", "a"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["inputs", "outputs", "parameters", "id", "name", "datatype", "shape", "data",
             "binary_data_size", "binary_data", "classification", "shared_memory_region"]
        ),
        inner,
        max_size=6,
    ),
    max_leaves=30,
)  # fmt: skip


@given(ANYTHING)
def test_any_document_is_parsed_or_refused_with_an_error_of_ours(document):
    try:
        request, _ = parse(json.dumps(document).encode())
    except ServerError:
        return
    assert request.model_name == "model"


@pytest.mark.parametrize("dtype", [dtypes.FP64, dtypes.BYTES])
def test_null_is_none_where_the_type_says_so(dtype):
    given = tensor_spec("IN", dtype, (1,), batched=False, optional=True)
    other = tensor_spec("OTHER", dtypes.FP32, (1,), batched=False)
    spec = msgspec.structs.replace(model_spec(given, other), takes_parameters=False)
    nullable = msgspec.structs.replace(spec, nullable=("IN",))
    null = {"name": "IN", "datatype": dtype.name, "shape": [1], "data": [None]}
    number = {"name": "OTHER", "datatype": "FP32", "shape": [1], "data": [2]}
    body = json.dumps({"id": "x", "inputs": [null, number]}).encode()

    request, _ = parse_infer(body, None, nullable)
    assert (request.fields.id, list(request.inputs)) == ("x", ["OTHER"])
    with pytest.raises(InvalidArgumentError, match="input 'IN'"):
        parse_infer(body, None, spec)
