# SPDX-License-Identifier: Apache-2.0
"""What users of annotated functions are told, without a server."""

from __future__ import annotations

import json

import msgspec
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError
from pytriton.base.messages import InferTensor
from pytriton.base.request_words import came_words, expected_words, nearest_name
from pytriton.protocol.generate import parse_generate
from pytriton.protocol.kserve_json import parse_infer
from pytriton.serving.engine.validation import validate
from tests.wire.specs import model_spec, request, tensor_spec

GREET = msgspec.structs.replace(
    model_spec(
        tensor_spec("name", dtypes.BYTES, (1,), batched=False),
        tensor_spec("excited", dtypes.BOOL, (1,), batched=False, optional=True),
        tensor_spec("scores", dtypes.FP64, (3,), batched=False, optional=True),
        tensor_spec("table", dtypes.INT8, (-1, 2), batched=False, optional=True),
        tensor_spec("flags", dtypes.BOOL, (-1,), batched=False, optional=True),
        tensor_spec("tags", dtypes.BYTES, (-1,), batched=False, optional=True),
        name="greet",
    ),
    takes_parameters=False,
)
ROWS = msgspec.structs.replace(
    model_spec(
        tensor_spec("x", dtypes.FP32, (3,), batched=True),
        tensor_spec("y", dtypes.FP32, (1,), batched=True),
        name="rows",
        max_batch_size=4,
    ),
    takes_parameters=False,
)


def refused_generate(body: str, spec=GREET) -> str:
    with pytest.raises(InvalidArgumentError) as refusal:
        validate(parse_generate(body.encode(), spec), spec)
    return refusal.value.message


def refused_infer(body: str, spec=GREET) -> str:
    with pytest.raises(InvalidArgumentError) as refusal:
        validate(parse_infer(body.encode(), None, spec)[0], spec)
    return refusal.value.message


@pytest.mark.parametrize(
    "dtype, dims, words",
    [
        (dtypes.BYTES, (1,), "a text"),
        (dtypes.BYTES, (-1,), "a list of texts"),
        (dtypes.BOOL, (1,), "true or false"),
        (dtypes.INT64, (1,), "a whole number"),
        (dtypes.UINT8, (2,), "a list of 2 whole numbers of at least 0"),
        (dtypes.FP16, (3,), "a list of 3 numbers"),
        (dtypes.BF16, (), "a number"),
        (dtypes.FP32, (-1, 3), "a list of lists of 3 numbers"),
        (dtypes.FP32, (2, 3), "a list of 2 lists of 3 numbers"),
    ],
)
def test_tensor_is_described_in_words(dtype, dims, words):
    assert expected_words(tensor_spec("x", dtype, dims, batched=False)) == words


@pytest.mark.parametrize(
    "value, words",
    [
        ("Ada", "the text 'Ada'"),
        ("x" * 50, "the text '" + "x" * 40 + "…'"),
        (5, "the number 5"),
        (1.5, "the number 1.5"),
        (None, "null"),
        (True, "true"),
        ([], "an empty list"),
        (["a"], "a list with the text 'a'"),
        ([1, 2.5], "a list of 2 numbers"),
        ([1, "a"], "a list of 2 values"),
        ([[1], [2]], "a list of 2 lists"),
        ({}, "an object"),
    ],
)
def test_value_is_described_in_words(value, words):
    assert came_words(value) == words


@pytest.mark.parametrize(
    "name, near",
    [
        ("nam", "name"),
        ("NAME", "name"),
        ("exited", "excited"),
        ("prompt", ""),
        ("", ""),
        ("n" * 1_000_000, ""),
    ],
)
def test_nearest_name(name, near):
    assert nearest_name(name, ["name", "excited"]) == near


def test_nearest_name_is_found_among_many():
    names = [f"model_{number}" for number in range(5000)]

    assert nearest_name("greet", [*names, "great"]) == "great"
    assert nearest_name("model_77_", names) != ""


@pytest.mark.parametrize(
    "body, message",
    [
        ('{"nam": "Ada"}', "model 'greet' has no input 'nam', did you mean 'name'? "),
        ('{"name": "Ada", "exited": true}', "no input 'exited', did you mean 'excited'? "),
        ("{}", "model 'greet' needs the input 'name' (a text), got none"),
        ('{"excited": true}', "model 'greet' needs the input 'name' (a text), got 'excited'"),
        ('{"name": 5}', "input 'name' of model 'greet': expected a text, got the number 5"),
        ('{"name": ["a", "b"]}', "expected a text, got a list of 2 texts"),
        ('{"name": null}', "expected a text, got null"),
        ('{"name": {"a": 1}}', "expected a text, got an object"),
        ('{"name": "a", "excited": "yes"}', "expected true or false, got the text 'yes'"),
        ('{"name": "a", "excited": 1}', "expected true or false, got the number 1"),
        ('{"name": "a", "scores": [1, 2]}', "expected a list of 3 numbers, got a list of 2 num"),
        (
            '{"name": "a", "scores": [1, "x", 3]}',
            "got a list of 3 values whose element at position 1 is the text 'x'",
        ),
        (
            '{"name": "a", "flags": [true, "no"]}',
            "got a list of 2 values whose element at position 1 is the text 'no'",
        ),
        (
            '{"name": "a", "tags": ["old", 5]}',
            "got a list of 2 values whose element at position 1 is the number 5",
        ),
        ('{"name": "a", "table": [[1, 2], [3]]}', "got a list of 2 lists of different lengths"),
        (
            '{"name": "a", "table": [[1, 2], [3, 300]]}',
            "whose element at position 1, 1 is the number 300, which is not from -128 to 127",
        ),
        ("[]", "expected a JSON object with the inputs of model 'greet' (name, excited, scores"),
        ('{"name"', "the body is no JSON: Missing a colon after a name of object member. at 7"),
        ("", "the body is no JSON: The document is empty. at 0"),
    ],
)
def test_generate_says_what_is_wrong(body, message):
    assert message in refused_generate(body)


def tensors(name, datatype, shape, data) -> str:
    entry = {"name": name, "datatype": datatype, "shape": shape, "data": data}
    return json.dumps({"inputs": [entry]})


@pytest.mark.parametrize(
    "body, message",
    [
        ('{"name": "Ada"}', "got the members 'name'. Send plain values, such as those of name, "),
        ("[1]", "as infer takes tensors, got a list with the number 1. Send plain values"),
        ("nonsense", "the body is no JSON: Invalid value. at 1"),
        (tensors("nam", "BYTES", [1], ["x"]), "has no input 'nam', did you mean 'name'?"),
        (tensors("nam", "BYTES", [1], [5]), "has no input 'nam', did you mean 'name'?"),
        (tensors("name", "BYTES", [1], [5]), "input 'name' of model 'greet': expected a text, got"),
        (
            tensors("name", "INT64", [1], [5]),
            "expected a text, got whole numbers (INT64 instead of BYTES)",
        ),
        (
            tensors("name", "BYTES", [2], ["a", "b"]),
            "expected a text, got the shape [2] instead of [1]",
        ),
        (tensors("scores", "FP64", [3], [1.5]), "of 3 numbers, got 1 value for the shape [3]"),
        (
            tensors("table", "INT8", [1, 2], [[1, 2], [3, 4]]),
            "expected a list of lists of 2 whole numbers, got 4 values for the shape [1,2]",
        ),
    ],
)
def test_infer_says_what_is_wrong(body, message):
    assert message in refused_infer(body)


@pytest.mark.parametrize(
    "inputs, message",
    [
        (
            [InferTensor("name", dtypes.BYTES, (1,), b"\x09\0\0\0a")],
            "expected a text, got 1 texts in 5 bytes for 1 in the shape [1]",
        ),
        (
            [InferTensor("name", dtypes.FP32, (1,), bytes(4))],
            "expected a text, got numbers (FP32 instead of BYTES)",
        ),
    ],
)
def test_binary_tensors_are_refused_in_words(inputs, message):
    with pytest.raises(InvalidArgumentError) as refusal:
        validate(request(*inputs), GREET)

    assert message in refusal.value.message


@pytest.mark.parametrize(
    "body, message",
    [
        ('{"x": [1, 2], "y": 1}', "expected a list of 3 numbers for each row, got a list of 2 num"),
        ('{"x": [1, 2, 3], "y": [1, 2]}', "as many rows in all inputs, got 1 of 'x' and 2 of 'y'"),
        ('{"x": [%s], "y": [1, 2, 3, 4, 5]}', "takes 1 to 4 rows at a time, got 5 rows of input"),
    ],
)
def test_batches_are_refused_in_words(body, message):
    body = body.replace("%s", ",".join("1" * 15))

    assert message in refused_generate(body, ROWS)


@pytest.mark.parametrize(
    "value, shape",
    [([[1, 2], [3, 4], [5, 6]], (3, 2)), ([[1, 2]], (1, 2)), ([1, 2, 3, 4], (2, 2))],
)
def test_lists_of_lists_say_the_shape(value, shape):
    body = json.dumps({"name": "a", "table": value}).encode()

    assert parse_generate(body, GREET).inputs["table"].shape == shape


@pytest.mark.parametrize(
    "value, shape", [([1, 2, 3], (1, 3)), ([[1, 2, 3]], (1, 3)), ([[1, 2, 3], [4, 5, 6]], (2, 3))]
)
def test_lists_of_lists_may_have_rows(value, shape):
    body = json.dumps({"x": value, "y": [1] * shape[0]}).encode()

    assert parse_generate(body, ROWS).inputs["x"].shape == shape


def test_models_that_are_no_annotated_functions_keep_flat_lists():
    spec = msgspec.structs.replace(GREET, takes_parameters=True)

    with pytest.raises(Exception, match="Shape does not match true shape of 'data' field"):
        parse_generate(b'{"table": [[1, 2], [3, 4]]}', spec)


def test_unknown_output_has_a_suggestion():
    name = InferTensor("name", dtypes.BYTES, (1,), dtypes.encode_bytes([b"a"]))

    with pytest.raises(InvalidArgumentError) as refusal:
        validate(request(name, outputs=("OUTT",)), GREET)

    assert refusal.value.message == (
        "unexpected inference output 'OUTT' for model 'greet', did you mean 'OUT'? "
        "Its outputs are: OUT"
    )


@pytest.mark.parametrize("value, shape", [([[]], (1, 0)), ([[], []], (2, 0)), ([], (1, 0))])
def test_lists_without_elements_say_the_shape(value, shape):
    spec = msgspec.structs.replace(
        model_spec(tensor_spec("table", dtypes.FP64, (-1, -1), batched=False), name="sum"),
        takes_parameters=False,
    )

    assert (
        parse_generate(json.dumps({"table": value}).encode(), spec).inputs["table"].shape == shape
    )
