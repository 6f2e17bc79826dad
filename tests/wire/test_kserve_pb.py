# SPDX-License-Identifier: Apache-2.0
"""The infer request over gRPC: the same whichever way a message is read, and never copied."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import assume, given
from hypothesis import strategies as st

from pytriton.base import dtypes
from pytriton.base.errors import InternalError, InvalidArgumentError, UnsupportedError
from pytriton.base.protos import service_pb2
from pytriton.protocol.kserve_pb import MessageStart, build_request, parse_message, read_start
from tests.differential.grpc_case import message, output, tensor
from tests.fakes import model_spec

PARAMETERS_FIELD = service_pb2.ModelInferRequest.PARAMETERS_FIELD_NUMBER
NAMES = st.text(max_size=8)
PARAMETERS = st.dictionaries(
    NAMES, st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5), max_size=2
)


@st.composite
def messages(draw):
    inputs = [
        tensor(name, draw(st.sampled_from(["FP32", "BYTES", "?"])), draw(SHAPES))
        for name in draw(st.lists(NAMES, max_size=3))
    ]
    outputs = [output(name) for name in draw(st.lists(NAMES, max_size=2))]
    return message(
        draw(NAMES),
        inputs,
        raw=draw(st.lists(st.binary(max_size=300), max_size=3)),
        id=draw(NAMES),
        model_version=draw(NAMES),
        outputs=outputs,
        parameters=draw(PARAMETERS),
    )


SHAPES = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)


def build(request, **spec):
    return build_request(*parse_message(request.SerializeToString()), model_spec(**spec))


def parts(content) -> tuple:
    """The parts of a message, as values that can be compared."""
    parsed, raw = parse_message(content)
    return (
        parsed.model_name,
        parsed.model_version,
        parsed.id,
        {key: repr(tuple(value)) for key, value in (parsed.parameters or {}).items()},
        [(item.name, item.dtype.name, item.shape, item.contents) for item in parsed.inputs],
        [item.name for item in parsed.outputs],
        [bytes(part) for part in raw],
    )


def choice_and_value(parameter) -> tuple:
    choice = parameter.WhichOneof("parameter_choice")
    return (choice, getattr(parameter, choice) if choice else None)


def expected_parts(request) -> tuple:
    known = dtypes.BY_NAME
    return (
        request.model_name,
        request.model_version,
        request.id,
        {key: repr(choice_and_value(value)) for key, value in request.parameters.items()},
        [
            (
                item.name,
                item.datatype if item.datatype in known else "<invalid>",
                tuple(item.shape),
                item.contents if item.HasField("contents") else None,
            )
            for item in request.inputs
        ],
        [item.name for item in request.outputs],
        list(request.raw_input_contents),
    )


@given(messages())
def test_form_says_what_the_message_says(request):
    content = request.SerializeToString()

    assert parts(content) == expected_parts(request)
    assert parts(content) == expected_parts(request)  # and again, when its parts are known
    assert parts(memoryview(bytearray(content))) == expected_parts(request)


@given(messages(), st.data())
def test_fields_in_any_order_say_the_same(request, data):
    pieces = []
    for field, _ in request.ListFields():
        piece = service_pb2.ModelInferRequest()
        piece.CopyFrom(request)
        for other, _ in request.ListFields():
            if other.name != field.name:
                piece.ClearField(other.name)
        pieces.append(piece.SerializeToString())
    assert parts(b"".join(data.draw(st.permutations(pieces)))) == expected_parts(request)


@given(st.binary(max_size=60))
def test_bytes_of_anybody_are_read_as_protobuf_reads_them(content):
    try:
        expected = expected_parts(service_pb2.ModelInferRequest.FromString(content))
    except DecodeError:
        with pytest.raises(InternalError, match="Unable to parse request"):
            parse_message(content)
    else:
        assert parts(content) == expected


@given(messages(), st.data())
def test_damaged_message_is_read_as_protobuf_reads_it(request, data):
    content = bytearray(request.SerializeToString() or b"\0")
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        parsed = service_pb2.ModelInferRequest.FromString(damaged)
    except DecodeError:
        with pytest.raises(InternalError):
            parse_message(damaged)
    else:
        # An entry of a map with a field that nobody knows: Python's protobuf drops the entry, that
        # of C++, as in Triton, and this server drop the field.
        assume(all(field.field_number != PARAMETERS_FIELD for field in UnknownFieldSet(parsed)))
        assert parts(damaged) == expected_parts(parsed)


def test_unknown_field_of_a_parameter_is_ignored():
    entry = b"\n\x01p" + b"\x35\0\0\0\0" + b"\x12\x02\x10\x07"  # field 6 is unknown
    content = bytes([PARAMETERS_FIELD << 3 | 2, len(entry)]) + entry

    assert parts(content)[3] == {"p": "('int64_param', 7)"}


def test_length_in_more_bytes_than_it_needs_is_read():
    content = b"*\x84\x80\x80\x80\x80\x00\n\x02ab" + b"\n\x01m"

    assert parts(content) == expected_parts(service_pb2.ModelInferRequest.FromString(content))


def test_colon_in_a_name_is_not_taken_for_the_tag_of_tensors():
    request = message("a:b", [tensor(":", "FP32", [1])], raw=[b":::"], id="::")

    assert parts(request.SerializeToString()) == expected_parts(request)
    assert parts(request.SerializeToString()) == expected_parts(request)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_large_tensors_are_views_of_the_message(kind):
    request = message("m", [tensor("x", "UINT8", [100_000])], raw=[bytes(100_000)])
    content = kind(request.SerializeToString())

    _, (raw,) = parse_message(content)

    assert isinstance(raw, memoryview)
    assert np.shares_memory(np.frombuffer(raw, np.uint8), np.frombuffer(content, np.uint8))


def test_request_has_what_the_message_says():
    request = message(
        "ignored",
        [tensor("x", "FP32", [1, 1])],
        raw=[b"\0\0\x80\x3f"],
        id="seven",
        outputs=[output("y", classification=3), output("z")],
        parameters={
            "priority": 2,
            "timeout": 500,
            "mine": 1.5,
            "triton_enable_empty_final_response": True,
        },
    )

    built = build(request)

    made = built.request
    assert (made.fields.id, made.fields.priority, made.fields.timeout_us) == ("seven", 2, 500)
    assert made.fields.parameters == {"mine": 1.5}
    assert made.outputs == ("y", "z")
    assert made.inputs["x"].data == b"\0\0\x80\x3f"
    assert built.class_counts == {"y": 3}
    assert built.wants_empty_final


def test_request_without_outputs_asks_for_all():
    assert build(message("m")).request.outputs is None


@pytest.mark.parametrize(
    "datatype, contents, expected",
    [
        ("BOOL", {"bool_contents": [True, False]}, np.array([True, False])),
        ("INT8", {"int_contents": [-1, 300]}, np.array([-1, 44], np.int8)),
        ("INT16", {"int_contents": [-1, 70000]}, np.array([-1, 4464], np.int16)),
        ("INT32", {"int_contents": [-1, 5]}, np.array([-1, 5], np.int32)),
        ("INT64", {"int64_contents": [-1, 2**40]}, np.array([-1, 2**40])),
        ("UINT8", {"uint_contents": [1, 257]}, np.array([1, 1], np.uint8)),
        ("UINT16", {"uint_contents": [1, 2]}, np.array([1, 2], np.uint16)),
        ("UINT32", {"uint_contents": [1, 2**32 - 1]}, np.array([1, 2**32 - 1], np.uint32)),
        ("UINT64", {"uint64_contents": [1, 2**64 - 1]}, np.array([1, 2**64 - 1], np.uint64)),
        ("FP32", {"fp32_contents": [1.5, -2]}, np.array([1.5, -2], np.float32)),
        ("FP64", {"fp64_contents": [1.5, 1e300]}, np.array([1.5, 1e300])),
    ],
)
def test_typed_contents_become_the_tensor(datatype, contents, expected):
    built = build(message("m", [tensor("x", datatype, [2], **contents)]))

    assert built.request.inputs["x"].data == expected.tobytes()


def test_typed_strings_get_their_lengths():
    built = build(message("m", [tensor("x", "BYTES", [2], bytes_contents=[b"one", b""])]))

    assert built.request.inputs["x"].data == b"\x03\0\0\0one\0\0\0\0"


@pytest.mark.parametrize(
    "parameters, expected",
    [
        ({}, (0, 0)),
        ({"sequence_id": 7, "sequence_start": True, "sequence_end": False}, (7, 1)),
        ({"sequence_id": -1, "sequence_start": True, "sequence_end": True}, (2**64 - 1, 3)),
        ({"sequence_id": "one", "sequence_end": True}, ("one", 2)),
        ({"sequence_id": ""}, ("", 0)),
    ],
)
def test_place_in_a_sequence_is_carried(parameters, expected):
    request = build(message("m", parameters=parameters)).request

    assert (request.fields.correlation_id, request.fields.flags) == expected
    assert request.fields.parameters == {}


@pytest.mark.parametrize(
    "parameters, error, text",
    [
        ({"sequence_id": True}, InvalidArgumentError, "expected int64_param or string_param"),
        ({"sequence_id": "x" * 129}, UnsupportedError, "longer than 128"),
        ({"sequence_start": 1}, InvalidArgumentError, "expected bool_param"),
        ({"priority": -1}, InvalidArgumentError, "expected value >= 0"),
        ({"priority": "1"}, InvalidArgumentError, "expected int64_param or uint64_param"),
        ({"timeout": "1"}, InvalidArgumentError, "expected int64_param"),
        ({"triton_x": 1}, InvalidArgumentError, "reserved for Triton usage"),
        ({"x": ("uint64_param", 1)}, InvalidArgumentError, "expected int64_param, bool_param"),
        ({"x": None}, InvalidArgumentError, "invalid value type for 'x'"),
    ],
)
def test_wrong_parameters_are_refused(parameters, error, text):
    with pytest.raises(error, match=text):
        build(message("m", parameters=parameters))


@pytest.mark.parametrize(
    "request_message, error, text",
    [
        (message("m", [tensor("x", "FP32", [1])]), InvalidArgumentError, "unable to find data"),
        (
            message("m", [tensor("x", "FP32", [1], fp32_contents=[1])], raw=[b""]),
            InvalidArgumentError,
            "contents field must not be specified",
        ),
        (
            message("m", [tensor("x", "FP32", [1]), tensor("x", "FP32", [1])], raw=[b"", b""]),
            InvalidArgumentError,
            "input 'x' already exists in request",
        ),
        (
            message("m", [tensor("x", "FP32", [1], int_contents=[1])]),
            InvalidArgumentError,
            "of type 'INT32', expected datatype 'FP32'",
        ),
        (
            message("m", [tensor("x", "FP32", [1], fp32_contents=[1], fp64_contents=[1])]),
            InvalidArgumentError,
            "binary data was already supplied",
        ),
        (
            message("m", [tensor("x", "FP32", [1], {"shared_memory_region": "r"})], raw=[b""]),
            InvalidArgumentError,
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region'",
        ),
        (
            message("m", outputs=[output("y", shared_memory_region="r")]),
            InvalidArgumentError,
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region'",
        ),
        (
            message("m", outputs=[output("y", shared_memory_region="r", classification=1)]),
            InvalidArgumentError,
            "can't set both",
        ),
        (
            message("m", outputs=[output("y", classification=0)]),
            InvalidArgumentError,
            "expected >= 0",
        ),
        (
            message("m", outputs=[output("y", classification="x")]),
            InvalidArgumentError,
            "expected int64_param",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_tensors_are_refused(request_message, error, text):
    with pytest.raises(error, match=text):
        build(request_message)


def test_memory_of_known_parts_is_bounded():
    for number in range(5000):
        parse_message(
            message(f"m{number}", [tensor(f"x{number}", "FP32", [1])]).SerializeToString()
        )

    assert parse_message(message("last").SerializeToString())[0].model_name == "last"


# The beginning of a message


def test_start_tells_the_model_and_where_the_first_tensor_begins():
    request = message("müller", [tensor("x", "FP32", [9])], raw=[b"!" * 300], model_version="7")
    content = request.SerializeToString()

    first = content.index(b"!")
    assert read_start(content[:200]) == MessageStart("müller", "7", first - 3, first)
    assert parse_message(content[: first - 3])[0].model_name == "müller"


def test_start_without_a_raw_tensor_tells_nothing():
    content = message("m", [tensor("x", "FP32", [9])], raw=[b"!" * 300]).SerializeToString()

    for size in range(content.index(b"!") - 2):
        assert read_start(content[:size]) is None


def test_start_is_not_searched_for_long():
    content = message("m", [tensor("x", "FP32", [9])], id="i" * 5000, raw=[b"!"])

    assert read_start(content.SerializeToString()) is None


@given(st.binary(max_size=200))
def test_start_may_be_anything(content):
    found = read_start(memoryview(content))

    assert found is None or found.raw_offset <= len(content)
