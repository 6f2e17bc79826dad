# SPDX-License-Identifier: Apache-2.0
"""Requests of a known form: read as in the ordinary way, or left to it."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import ServerError
from pytriton.base.messages import RequestFields
from pytriton.protocol.json_columns import (
    MAX_OUTPUT_TEXTS,
    MAX_PARAMETER_TEXTS,
    HttpRequestPattern,
    request_form,
)
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


def pattern_for(text: bytes, tail: bytes = b"") -> HttpRequestPattern:
    """The pattern that is learned from a request."""
    request, output_format = parse_infer(text + tail, len(text), SPEC)
    form = request_form(request, output_format)
    assert form is not None
    pattern = HttpRequestPattern(form)
    assert pattern.learn(text, tail, request)
    return pattern


def inputs_by(pattern: HttpRequestPattern, text: bytes) -> list[bytes] | None:
    """The inputs of a request without an id or parameters, as a pattern reads them."""
    read = pattern.read(text, b"")
    if read is None:
        return None
    inputs, fields = read
    assert fields == RequestFields()
    return list(inputs)


def test_pattern_reads_other_values_of_its_structure():
    pattern = pattern_for(body(A, B))

    inputs = inputs_by(pattern, body({**A, "data": [7, -0.125]}, {**B, "data": [127]}))

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
    assert inputs_by(pattern_for(body(A, B)), text) == ordinary(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        body(B, A),
        body(A),
        body(A, B, B),
        body(A, B, id=1),
        body(A, B, id=None),
        body(A, B, more=1),
        body(A, B, parameters=None),
        body(A, B, parameters={"priority": -1}),
        body(A, B, parameters={"timeout": "1"}),
        body(A, B, parameters={"triton_x": 1}),
        body(A, B, parameters={"x": [1]}),
        body(A, B, parameters={"sequence_id": 1.5}),
        body(A, B, parameters={"sequence_id": "a" * 129}),
        body(A, B, parameters={"binary_data_output": True}),
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
    assert pattern_for(body(A, B)).read(text, b"") is None


@pytest.mark.parametrize("datatype, shape, data", [("BYTES", [1, 0], []), ("FP32", [1, 0], [])])
def test_request_without_elements_has_no_form(datatype, shape, data):
    tensor = {"name": "a", "datatype": datatype, "shape": shape, "data": data}

    assert request_form(*parse_infer(body(tensor), None, SPEC)) is None


@pytest.mark.parametrize(
    "parameters",
    [{"classification": 1}, {"shared_memory_region": "r", "shared_memory_byte_size": 4}],
)
def test_request_whose_outputs_are_no_tensors_in_the_body_has_no_form(parameters):
    text = body(A, B, outputs=[{"name": "OUT", "parameters": parameters}])

    assert request_form(*parse_infer(text, None, SPEC)) is None


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
        inputs = inputs_by(pattern, text)
        if inputs is not None:
            found += 1
            assert inputs == ordinary(text), text

    assert found > 10


def binary(tensor: dict, size: int) -> dict:
    described = {key: tensor[key] for key in ("name", "shape", "datatype")}
    return {**described, "parameters": {"binary_data_size": size}}


BINARY_A, BINARY_B = binary(A, 8), binary(B, 1)


def test_binary_inputs_are_the_bytes_behind_the_json():
    text = body(BINARY_A, BINARY_B)
    pattern = pattern_for(text, b"123456789")

    assert pattern.read(text, b"abcdefghi") == ((b"abcdefgh", b"i"), RequestFields())
    assert pattern.split(b"abcdefghi") == (b"abcdefgh", b"i")
    for tail in (b"", b"abcdefgh", b"abcdefghij"):
        assert pattern.read(text, tail) is None
        assert pattern.split(tail) is None


def test_binary_inputs_may_be_beside_others():
    pattern = pattern_for(body(A, BINARY_B), b"1")

    inputs, _ = pattern.read(body({**A, "data": [3, 4]}, BINARY_B), b"x")

    assert inputs == [np.array([3, 4], "<f4").tobytes(), b"x"]
    assert pattern.read(body(A, {**BINARY_B, "parameters": {"binary_data_size": 2}}), b"xy") is None
    assert pattern.read(body(A, B), b"") is None


@pytest.mark.parametrize(
    "parameters, fields",
    [
        ({}, RequestFields()),
        ({"priority": 3, "timeout": 7}, RequestFields(priority=3, timeout_us=7)),
        ({"x": 1, "y": "z", "b": True}, RequestFields(parameters={"x": 1, "y": "z", "b": True})),
        ({"sequence_id": 7}, RequestFields(correlation_id=7)),
        ({"sequence_id": "a", "sequence_start": True}, RequestFields(correlation_id="a", flags=1)),
        ({"sequence_end": True, "sequence_id": 7}, RequestFields(correlation_id=7, flags=2)),
        ({"binary_data_output": False}, RequestFields()),
    ],
)
def test_ids_and_parameters_may_differ(parameters, fields):
    pattern = pattern_for(body(A, B))

    for _ in range(2):  # the second time, the parameters are known
        _, read = pattern.read(body(A, B, parameters=parameters), b"")
        assert read == fields
    _, read = pattern.read(body(A, B, id="\u00fc", parameters=parameters), b"")
    assert read == RequestFields(
        "\u00fc",
        fields.parameters,
        fields.priority,
        fields.timeout_us,
        fields.correlation_id,
        fields.flags,
    )


def test_outputs_have_to_be_written_in_a_way_that_was_learned():
    listed = [{"name": "OUT", "parameters": {"binary_data": True}}]
    text = body(A, B, outputs=listed)
    pattern = pattern_for(text)

    assert pattern.read(text, b"") is not None
    for other in (body(A, B), body(A, B, outputs=[]), body(A, B, outputs=[{"name": "OUT"}])):
        assert pattern.read(other, b"") is None
    spaced = text.replace(b"true", b"  true")
    assert pattern.read(spaced, b"") is None
    request, _ = parse_infer(spaced, None, SPEC)
    assert pattern.learn(spaced, b"", request)
    assert pattern.read(spaced, b"") is not None


def test_what_a_pattern_remembers_is_bounded():
    text = body(A, B, outputs=[{"name": "OUT"}])
    pattern = pattern_for(text)
    for count in range(2 * MAX_OUTPUT_TEXTS):
        spaced = text.replace(b'"OUT"', b" " * count + b'"OUT"')
        request, _ = parse_infer(spaced, None, SPEC)
        assert pattern.learn(spaced, b"", request)
    for count in range(2 * MAX_PARAMETER_TEXTS):
        _, fields = pattern.read(spaced[:-1] + b',"parameters":{"x":%d}}' % count, b"")
        assert fields.parameters == {"x": count}

    assert len(pattern._output_texts) <= MAX_OUTPUT_TEXTS
    assert len(pattern._parameters) <= MAX_PARAMETER_TEXTS


TEXTS = {"name": "t", "shape": [1, 2], "datatype": "BYTES", "data": ["ab", "\u00fc"]}


def test_strings_in_json_are_read():
    pattern = pattern_for(body(TEXTS, B))

    inputs, _ = pattern.read(body({**TEXTS, "data": ["", "xyz"]}, {**B, "data": [5]}), b"")

    assert inputs == [dtypes.encode_bytes([b"", b"xyz"]), b"\x05"]
    for data in (["a"], ["a", "b", "c"], [["a", "b"]], ["a", 1], ["a", None]):
        assert pattern.read(body({**TEXTS, "data": data}, B), b"") is None


@pytest.mark.parametrize("strings", [(b"", b""), (b"a", b"\xff" * 300), (b"xyz", b"")])
def test_binary_strings_of_any_length_are_read(strings):
    def request(size: int) -> bytes:
        return body(binary(TEXTS, size), BINARY_B)

    learned = dtypes.encode_bytes([b"one", b"three"])
    pattern = pattern_for(request(len(learned)), learned + b"1")
    data = dtypes.encode_bytes(strings)

    assert pattern.read(request(len(data)), data + b"x") == ([data, b"x"], RequestFields())
    wrong = [data[:-1], data + b"\0", data[4:], data * 2, b"", b"\xff" * 8]
    for each in wrong:
        if each != data:
            assert pattern.read(request(len(each)), each + b"x") is None
    assert pattern.read(request(len(data)), data) is None
    assert pattern.read(request(len(data)), data + b"xy") is None


def test_one_binary_string_is_checked():
    text = {"name": "t", "shape": [1, 1], "datatype": "BYTES"}
    data = dtypes.encode_bytes([b"hello"])
    pattern = pattern_for(body(binary(text, len(data))), data)

    assert pattern.read(body(binary(text, len(data))), data) == ([data], RequestFields())
    for wrong in (b"", b"\0\0\0", b"\1\0\0\0", b"\1\0\0\0ab", dtypes.encode_bytes([b"", b""])):
        assert pattern.read(body(binary(text, len(wrong))), wrong) is None
