# SPDX-License-Identifier: Apache-2.0
"""Requests of a known structure: read as in the ordinary way, or left to it."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import ServerError
from pytriton.base.messages import InferRequest, InferTensor
from pytriton.protocol.json_columns import JsonRequestPattern, request_structure
from pytriton.protocol.kserve_json import parse_infer
from pytriton.serving.engine.validation import validate
from tests.wire.specs import model_spec, tensor_spec

A = {"name": "a", "shape": [1, 2], "datatype": "FP32", "data": [1, 2.5]}
B = {"name": "b", "shape": [1, 1], "datatype": "INT8", "data": [-3]}
SPEC = model_spec(
    tensor_spec("a", dtypes.FP32, (2,), batched=True),
    tensor_spec("b", dtypes.INT8, (1,), batched=True),
    max_batch_size=4,
)


def body(*inputs: dict, **more) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def ordinary(text: bytes) -> list[bytes] | None:
    """The bytes of the inputs as the ordinary way reads them; None if it refuses the request."""
    try:
        request, _ = parse_infer(text, None, SPEC)
        validate(request, SPEC)
    except ServerError:
        return None
    return [bytes(tensor.data) for tensor in request.inputs.values()]


def pattern_for(text: bytes) -> JsonRequestPattern:
    request, _ = parse_infer(text, None, SPEC)
    structure = request_structure(request)
    assert structure is not None
    return JsonRequestPattern(structure)


def test_pattern_reads_other_values_of_its_structure():
    pattern = pattern_for(body(A, B))

    inputs = pattern.read(body({**A, "data": [7, -0.125]}, {**B, "data": [127]}))

    assert inputs == [np.array([7, -0.125], "<f4").tobytes(), b"\x7f"]


@pytest.mark.parametrize(
    "text",
    [
        body(A, B).replace(b" ", b"\r\n\t "),
        json.dumps({"inputs": [dict(reversed(A.items())), B]}).encode(),
        body(A, B).replace(b'"a"', b'"\\u0061"'),
        body(A, B).replace(b"2.5", b"123456789012345678901234567890"),
    ],
    ids=["whitespace", "order of members", "escapes", "large integer"],
)
def test_pattern_reads_other_spellings(text):
    inputs = pattern_for(body(A, B)).read(text)

    assert inputs == ordinary(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        body(B, A),
        body(A),
        body(A, B, B),
        body(A, B, id="1"),
        body(A, B, parameters={"priority": 1}),
        body(A, B, outputs=[{"name": "OUT"}]),
        body({**A, "parameters": {"binary_data_size": 8}}, B),
        body({**A, "shape": [1, 2, 1]}, B),
        body({**A, "shape": [2, 1]}, B),
        body({**A, "shape": [1.0, 2]}, B),
        body({**A, "shape": [True, 2]}, B),
        body({**A, "datatype": "FP64"}, B),
        body({**A, "data": [[1, 2.5]]}, B),
        body({**A, "data": [1]}, B),
        body({**A, "data": [1, 2, 3]}, B),
        body({**A, "data": [1, True]}, B),
        body({**A, "data": [1, "2"]}, B),
        body({**A, "data": [1, None]}, B),
        body({**A, "data": [1, 1e39]}, B),
        body({**A, "data": [1, 10**400]}, B),
        body(A, {**B, "data": [128]}),
        body(A, {**B, "data": [1.0]}),
        body(A, {**B, "data": [True]}),
        body(A, B)[:-1],
        body(A, B) + b" {}",
        body(A, B).replace(b"2.5", b"NaN"),
        body(A, B).replace(b"2.5", b"02"),
        body(A, B).replace(b'"b"', b'"\xff"'),
        b"[" * 5000,
        b"",
    ],
)
def test_pattern_leaves_everything_else_to_the_ordinary_way(text):
    assert pattern_for(body(A, B)).read(text) is None


@pytest.mark.parametrize(
    "more",
    [
        {"id": "1"},
        {"outputs": [{"name": "OUT"}]},
        {"parameters": {"x": 1}},
        {"parameters": {"priority": 1}},
        {"parameters": {"timeout": 1}},
        {"parameters": {"sequence_id": 1}},
        {"parameters": {"sequence_start": True}},
    ],
)
def test_request_that_says_more_than_its_inputs_has_no_structure(more):
    request, _ = parse_infer(body(A, B, **more), None, SPEC)

    assert request_structure(request) is None


@pytest.mark.parametrize("datatype, shape, data", [("BYTES", [1], ["x"]), ("FP32", [1, 0], [])])
def test_request_with_strings_or_without_elements_has_no_structure(datatype, shape, data):
    tensor = {"name": "a", "datatype": datatype, "shape": shape, "data": data}
    request, _ = parse_infer(body(tensor), None, SPEC)

    assert request_structure(request) is None


NUMBERS = ["0", "-0", "-0.0", "1", "2.5", "1e3", "1E-50", "16777217", "1e38", "3.5e38", "1" * 30]
NUMBERS += ["127", "128", "-128", "-129", "true", "null", '"1"', "[1]", "1.", ".5", "+1", "1e999"]


@pytest.mark.parametrize("seed", range(20))
def test_pattern_reads_what_the_ordinary_way_reads(seed):
    dice = random.Random(seed)
    pattern = pattern_for(body(A, B))
    found = 0
    for _ in range(500):
        a, b = (",".join(dice.choices(NUMBERS[: dice.choice([9, 23])], k=k)) for k in (2, 1))
        text = body({**A, "data": ["A"]}, {**B, "data": ["B"]})
        text = text.replace(b'"A"', a.encode()).replace(b'"B"', b.encode())
        if dice.random() < 0.3:
            at = dice.randrange(len(text))
            text = text[:at] + dice.choice([b"", b" ", b"1", b"}", b"\x80"]) + text[at + 1 :]
        inputs = pattern.read(text)
        if inputs is not None:
            found += 1
            assert inputs == ordinary(text), text

    assert found > 10


IN_SEQUENCE = (("x", dtypes.INT32, (1,)),)


def body_in_sequence(parameters: str) -> bytes:
    inputs = '[{"name":"x","datatype":"INT32","shape":[1],"data":[5]}]'
    return f'{{"inputs":{inputs},"parameters":{parameters}}}'.encode()


@pytest.mark.parametrize(
    "parameters, sequence_id, flags",
    [
        ('{"sequence_id":7}', 7, 0),
        ('{"sequence_id":"a","sequence_start":true}', "a", 1),
        ('{"sequence_end":true,"sequence_id":7,"sequence_start":false}', 7, 2),
        ('{"sequence_id":7,"sequence_start":true,"sequence_end":true}', 7, 3),
    ],
)
def test_request_of_a_sequence_is_read(parameters, sequence_id, flags):
    pattern = JsonRequestPattern(IN_SEQUENCE, in_sequence=True)
    inputs, read = pattern.read_in_sequence(body_in_sequence(parameters))

    assert inputs == [b"\x05\x00\x00\x00"]
    assert (read.sequence_id, read.flags) == (sequence_id, flags)


@pytest.mark.parametrize(
    "parameters",
    [
        "{}",
        '{"sequence_id":0}',
        '{"sequence_id":-1}',
        '{"sequence_id":""}',
        '{"sequence_id":7.0}',
        '{"sequence_id":true}',
        '{"sequence_id":99999999999999999999}',
        '{"sequence_id":"%s"}' % ("a" * 129),
        '{"sequence_id":7,"sequence_start":1}',
        '{"sequence_id":7,"priority":1}',
        '{"sequence_id":7,"other":1}',
        "null",
    ],
)
def test_unusual_request_of_a_sequence_has_to_be_read_fully(parameters):
    pattern = JsonRequestPattern(IN_SEQUENCE, in_sequence=True)

    assert pattern.read_in_sequence(body_in_sequence(parameters)) is None


def test_structure_depends_on_whether_the_model_has_sequences():
    tensor = InferTensor("x", dtypes.INT32, (1,), bytes(4))
    plain = InferRequest("m", {"x": tensor})
    in_sequence = InferRequest("m", {"x": tensor}, correlation_id=7, flags=1)

    assert (
        request_structure(plain) == request_structure(in_sequence, in_sequence=True) == IN_SEQUENCE
    )
    assert request_structure(plain, in_sequence=True) is None
    assert request_structure(in_sequence) is None
