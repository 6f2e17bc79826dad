# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import struct

import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.protocol.kserve_json import (
    ALL_BINARY,
    ALL_JSON,
    AS_JSON,
    OutputChoice,
    OutputFormat,
)
from pytriton.protocol.kserve_response import encode_infer_response

ADD = InferTensor("add", dtypes.FP32, (1, 1), struct.pack("<f", 3.0))
SUB = InferTensor("sub", dtypes.FP32, (1, 1), struct.pack("<f", -1.0))


def response(*outputs, request_id="", parameters=None):
    return InferResponse("model", "1", request_id, list(outputs), parameters)


def test_json_response_is_one_compact_document():
    header_length, buffers = encode_infer_response(response(ADD, SUB), ALL_JSON)

    assert header_length is None
    assert b"".join(buffers) == (
        b'{"model_name":"model","model_version":"1","outputs":['
        b'{"name":"add","datatype":"FP32","shape":[1,1],"data":[3.0]},'
        b'{"name":"sub","datatype":"FP32","shape":[1,1],"data":[-1.0]}]}'
    )


def test_response_echoes_the_id_and_the_models_parameters():
    answer = response(ADD, request_id='a"b', parameters={"x": 1, "y": "z", "t": True})

    _, (body,) = encode_infer_response(answer, ALL_JSON)

    document = json.loads(body)
    assert document["id"] == 'a"b'
    assert document["parameters"] == {"x": 1, "y": "z", "t": True}


def test_binary_outputs_follow_the_json_by_reference():
    large = memoryview(bytearray(1 << 20))
    output = InferTensor("big", dtypes.UINT8, (1 << 20,), large)

    header_length, buffers = encode_infer_response(response(ADD, output), ALL_BINARY)

    header, *parts = buffers
    sizes = [entry["parameters"]["binary_data_size"] for entry in json.loads(header)["outputs"]]
    assert header_length == len(header)
    assert sizes == [4, 1 << 20]
    assert parts[1] is large


def test_listed_output_has_its_own_form():
    output_format = OutputFormat(AS_JSON, {"sub": OutputChoice(binary=True)})

    header_length, (header, part) = encode_infer_response(response(ADD, SUB), output_format)

    add, sub = json.loads(header)["outputs"]
    assert header_length == len(header)
    assert add["data"] == [3.0]
    assert sub["parameters"] == {"binary_data_size": 4}
    assert part == SUB.data


def test_empty_binary_outputs_leave_plain_json():
    empty = InferTensor("e", dtypes.FP32, (0,), b"")

    header_length, buffers = encode_infer_response(response(empty), ALL_BINARY)

    assert header_length is None
    assert json.loads(b"".join(buffers))["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_classes_carry_the_labels_of_their_output():
    scores = InferTensor("s", dtypes.FP32, (1, 3), struct.pack("<3f", 1, 3, 2))
    output_format = OutputFormat(OutputChoice(class_count=2), {})

    _, (body,) = encode_infer_response(
        response(scores), output_format, is_batched=True, labels={"s": ("cat", "dog")}
    )

    (output,) = json.loads(body)["outputs"]
    assert output["shape"] == [1, 2]
    assert output["data"] == ["3.000000:1:dog", "2.000000:2"]


def test_output_without_a_json_form_is_an_error():
    half = InferTensor("h", dtypes.FP16, (1,), b"\0<")

    with pytest.raises(InvalidArgumentError, match="sending FP16 data via JSON"):
        encode_infer_response(response(half), ALL_JSON)
