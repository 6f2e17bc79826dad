# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.model_spec import SequenceSpec
from pytriton.protocol.generate import (
    encode_error_event,
    encode_event,
    encode_generate_response,
    parse_generate,
)
from pytriton.protocol.kserve_response import encode_large_generate_response
from tests.wire.specs import ADD_SUB, model_spec, single, tensor_spec

# Every text of an error is compared with the real Triton's in tests/differential.


def parse(document, spec=ADD_SUB):
    return parse_generate(json.dumps(document).encode(), spec)


def test_members_become_inputs_and_parameters():
    request = parse({"id": "x", "a": 1, "b": [2], "color": "red", "n": 3, "parameters": {"m": 1.5}})

    assert request.fields.id == "x"
    assert {name: tensor.shape for name, tensor in request.inputs.items()} == {
        "a": (1, 1),
        "b": (1, 1),
    }
    assert request.fields.parameters == {"id": "x", "color": "red", "n": 3, "m": 1.5}


@pytest.mark.parametrize(
    "member, hint",
    [("excites", ", did you mean 'excited'?"), ("stream", ".")],
)
def test_member_that_is_ignored_is_refused_with_the_nearest_input(member, hint):
    spec = model_spec(
        tensor_spec("name", dtypes.BYTES, (1,), batched=False),
        tensor_spec("excited", dtypes.BOOL, (1,), batched=False, optional=True),
    )
    function = msgspec.structs.replace(spec, takes_parameters=False)

    with pytest.raises(InvalidArgumentError) as refusal:
        parse({"name": "Ada", member: True}, function)

    assert refusal.value.message == (
        f"model '{spec.name}' has no input '{member}'{hint} Its inputs are: name, excited"
    )
    assert parse({"name": "Ada", member: True}, spec).fields.parameters == {member: True}


def annotated(dtype, dims, max_batch_size=0, nullable=()):
    """A function with annotations, with an optional input and an output of this type."""
    batched = max_batch_size > 0
    given = tensor_spec("IN", dtype, dims, batched=batched, optional=True)
    spec = model_spec(given, max_batch_size=max_batch_size)
    output = tensor_spec("OUT", dtype, dims, batched=batched)
    return msgspec.structs.replace(
        spec, outputs={"OUT": output}, takes_parameters=False, nullable=nullable
    )


TEXTS = [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    "dims, shape, expected",
    [
        ((1,), (1,), "a"),
        ((-1,), (1,), ["a"]),
        ((-1,), (2,), ["a", "b"]),
        ((-1,), (0,), []),
        ((-1, -1), (1, 1), [["a"]]),
        ((-1, -1), (2, 2), [["a", "b"], ["c", "d"]]),
        ((-1, -1), (2, 0), [[], []]),
        ((2, 1, 2), (2, 1, 2), [[["a", "b"]], [["c", "d"]]]),
    ],
)
@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("write", [encode_generate_response, encode_large_generate_response])
def test_type_of_an_answer_is_what_the_annotation_says(dims, shape, expected, rows, write):
    count = int(np.prod(shape))
    spec = annotated(dtypes.BYTES, dims, 8 * rows)
    shape = (rows, *shape) if rows else shape
    output = InferTensor("OUT", dtypes.BYTES, shape, dtypes.encode_bytes(TEXTS[:count]))
    body = write(InferResponse("model", "1", "", [output]), spec)

    assert json.loads(body if type(body) is bytes else b"".join(body))["OUT"] == expected


@pytest.mark.parametrize("count", [4, 100])
@pytest.mark.parametrize("number", [1.5, math.inf])
@pytest.mark.parametrize("write", [encode_generate_response, encode_large_generate_response])
def test_numbers_are_nested_as_annotated(count, number, write):
    array = np.full((count, 2), number)
    spec = annotated(dtypes.FP64, (-1, 2))
    output = InferTensor("OUT", dtypes.FP64, array.shape, array.tobytes())
    body = write(InferResponse("model", "1", "", [output]), spec)

    assert json.loads(body if type(body) is bytes else b"".join(body))["OUT"] == array.tolist()


def test_several_rows_are_a_list_of_what_one_row_is():
    array = np.arange(3.0)
    output = InferTensor("OUT", dtypes.FP64, (3, 1), array.tobytes())
    body = encode_generate_response(
        InferResponse("model", "1", "", [output]), annotated(dtypes.FP64, (1,), 8)
    )

    assert json.loads(body)["OUT"] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("null", [None, [None]])
@pytest.mark.parametrize("dtype", [dtypes.FP64, dtypes.BYTES, dtypes.BOOL])
def test_null_is_none_where_the_type_says_so(dtype, null):
    assert parse({"IN": null}, annotated(dtype, (1,), nullable=("IN",))).inputs == {}
    with pytest.raises(InvalidArgumentError, match=r"got (a list with )?null"):
        parse({"IN": null}, annotated(dtype, (1,)))


def test_function_without_parameters_takes_an_id_a_sequence_and_named_parameters():
    sequence = msgspec.structs.replace(ADD_SUB, takes_parameters=False, sequence=SequenceSpec())

    request = parse({"id": "x", "a": 1, "sequence_id": 7, "parameters": {"m": 1}}, sequence)

    assert (request.fields.id, request.fields.correlation_id, request.fields.parameters["m"]) == (
        "x",
        7,
        1,
    )


def test_nested_member_can_be_an_input():
    assert "b" in parse({"a": 1, "parameters": {"b": 2}}).inputs


@pytest.mark.parametrize(
    "dims,batch,count,shape",
    [
        ((1,), 8, 3, (3, 1)),
        ((-1,), 0, 4, (4,)),
        ((-1,), 0, 0, (0,)),
        ((-1,), 8, 4, (1, 4)),
        ((2, -1), 8, 4, (1, 2, 2)),
        ((-1, 2), 0, 6, (3, 2)),
        ((2, 3), 0, 6, (2, 3)),
        ((2, 3), 8, 12, (2, 2, 3)),
        ((-1, -1), 0, 5, (1, 5)),
    ],
)
def test_shape_is_found_from_the_inside_out(dims, batch, count, shape):
    request = parse({"IN": [0] * count}, single(dtypes.INT32, dims, batch))

    assert request.inputs["IN"].shape == shape


@pytest.mark.parametrize("dims,count", [((2, 3), 7), ((2, 3), 3), ((2, 3), 12), ((2,), 0)])
def test_elements_that_fill_no_shape_are_refused(dims, count):
    with pytest.raises(InvalidArgumentError, match="The schema can not convert input 'IN'"):
        parse({"IN": [0] * count}, single(dtypes.INT32, dims))


@pytest.mark.parametrize("name", ["IN", "\\u0049N"])
@pytest.mark.parametrize("others", ["", '"a":":",', '"parameters":{"b":1},'])
def test_repeated_input_is_refused(others, name):
    spec = single(dtypes.INT32)

    with pytest.raises(InvalidArgumentError, match="input 'IN' already exists in request"):
        parse_generate(f'{{{others}"IN":1,"{name}":2}}'.encode(), spec)


def test_first_of_repeated_parameters_counts():
    spec = single(dtypes.INT32)

    request = parse_generate(b'{"id":"x","IN":1,"a":1,"a":[],"id":"y"}', spec)

    assert request.fields.id == "x"
    assert request.fields.parameters["a"] == 1


def test_input_named_like_the_nested_object_is_refused():
    spec = model_spec(tensor_spec("parameters", dtypes.FP32, (1,), batched=False))

    with pytest.raises(InvalidArgumentError, match="Keyword 'parameters' for nested schema also"):
        parse({"parameters": 1}, spec)


def test_error_of_a_nested_member_keeps_its_kind():
    with pytest.raises(InternalError, match=r"^Converting keyword: 'parameters': .*non-number"):
        parse({"parameters": {"a": "x"}})


@pytest.mark.parametrize("nested", [False, True])
def test_reserved_names_are_refused(nested):
    members = {"triton_enable_empty_final_response": True}

    with pytest.raises(InvalidArgumentError, match="reserved for Triton usage"):
        parse({"parameters": members} if nested else members)


def output(name, values, dtype):
    array = np.array(values, dtype.numpy)
    return InferTensor(name, dtype, array.shape, array.tobytes())


def test_outputs_become_members():
    text = InferTensor("text", dtypes.BYTES, (1, 1), dtypes.encode_bytes([b"hi"]))
    outputs = [text, output("n", [1, 2], dtypes.INT32), output("none", [], dtypes.FP32)]

    body = encode_generate_response(InferResponse("model", "1", "x", outputs, {"p": True}), ADD_SUB)

    assert json.loads(body) == {
        "model_name": "model",
        "model_version": "1",
        "id": "x",
        "p": True,
        "text": "hi",
        "n": [1, 2],
        "none": [],
    }


def test_single_special_value_is_a_member_too():
    outputs = [output("x", [math.nan], dtypes.FP32)]

    body = encode_generate_response(InferResponse("model", "1", "", outputs), ADD_SUB)

    assert b'"x":NaN' in body


def test_events_are_framed():
    assert encode_event(b"{}") == b"data: {}\n\n"
    assert encode_error_event(InternalError("a\nb")) == b'data: {"error":"a\\nb"}\n\n'


def test_members_of_a_sequence_are_read_for_sequence_models():
    spec = msgspec.structs.replace(single(dtypes.INT32), sequence=SequenceSpec())

    request = parse({"IN": 1, "sequence_id": 5, "sequence_start": True}, spec)
    nested = parse({"IN": 1, "parameters": {"sequence_id": "five", "sequence_end": True}}, spec)

    assert (request.fields.correlation_id, request.fields.flags, request.fields.parameters) == (
        5,
        1,
        {},
    )
    assert (nested.fields.correlation_id, nested.fields.flags, nested.fields.parameters) == (
        "five",
        2,
        {},
    )


def test_members_of_a_sequence_are_parameters_of_other_models():
    request = parse({"IN": 1, "sequence_id": 5, "sequence_start": True}, single(dtypes.INT32))

    assert (request.fields.correlation_id, request.fields.flags) == (0, 0)
    assert request.fields.parameters == {"sequence_id": 5, "sequence_start": True}


def test_flag_of_a_sequence_has_to_be_a_boolean():
    spec = msgspec.structs.replace(single(dtypes.INT32), sequence=SequenceSpec())

    with pytest.raises(InternalError, match="Unable to parse 'sequence_start'"):
        parse({"IN": 1, "sequence_id": 5, "sequence_start": 1}, spec)
