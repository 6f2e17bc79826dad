# SPDX-License-Identifier: Apache-2.0
"""Large responses are written to the same bytes as small ones, in pieces."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import ServerError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.protocol import kserve_response
from pytriton.protocol.generate import encode_generate_response
from pytriton.protocol.kserve_json import ALL_BINARY, ALL_JSON, OutputChoice, OutputFormat
from pytriton.protocol.kserve_response import (
    encode_infer_response,
    encode_large_generate_response,
    encode_large_infer_response,
)
from tests.wire.specs import ADD_SUB


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(kserve_response, "_PIECE_ELEMENTS", 5)


def numbers(name, dtype, values):
    array = np.array(values, dtype.numpy)
    return InferTensor(name, dtype, array.shape, array.tobytes())


def strings(name, *elements):
    return InferTensor(name, dtypes.BYTES, (len(elements),), dtypes.encode_bytes(elements))


OUTPUTS = [
    [],
    [numbers("a", dtypes.INT32, range(-30, 30))],
    [numbers("a", dtypes.FP32, np.arange(60) / 7), numbers("b", dtypes.UINT64, [2**64 - 1] * 20)],
    [numbers("a", dtypes.FP64, [[1e16, 1e-7, 0.1] * 4] * 5)],
    [numbers("a", dtypes.FP32, [1e16, float("nan"), *range(30), float("-inf")])],
    [numbers("a", dtypes.BOOL, [True, False] * 9), numbers("b", dtypes.INT8, [1])],
    [numbers("a", dtypes.FP32, [])],
    [strings("a", *(b"x" * size for size in range(20)))],
    [strings("a", b"one"), strings("z", '\u00e9"\\\n'.encode(), b"", b"\xff", b"x", b"y", b"\x01")],
    [strings("a")],
    [InferTensor("a", dtypes.INT32, (3,), bytes(11))],
    [InferTensor("a", dtypes.INT32, (30,), bytes(11))],
    [InferTensor("a", dtypes.BYTES, (2,), b"\1\0\0\0ab")],
    [InferTensor("a", dtypes.BYTES, (3,), dtypes.encode_bytes([b"x"] * 20))],
    [InferTensor("a", dtypes.FP16, (2,), bytes(4))],
]  # fmt: skip


def outcome(encode, *arguments, **more):
    try:
        return encode(*arguments, **more)
    except ServerError as error:
        return type(error), error.message


def joined(result):
    if isinstance(result, bytes) or not isinstance(result[1], list):
        return result
    return result[0], b"".join(result[1])


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("output_format", [ALL_JSON, ALL_BINARY])
@pytest.mark.parametrize("more", [{}, {"id": "x", "parameters": {"p": 1, "q": "\udcff"}}])
def test_infer_response_is_written_as_usual(outputs, output_format, more):
    response = InferResponse("m", "1", more.get("id", ""), outputs, more.get("parameters"))

    usual = joined(outcome(encode_infer_response, response, output_format))

    assert joined(outcome(encode_large_infer_response, response, output_format)) == usual


def test_classes_and_mixed_forms_are_written_as_usual():
    outputs = [
        numbers("a", dtypes.INT32, np.arange(24).reshape(2, 12)),
        numbers("b", dtypes.FP32, np.arange(24).reshape(2, 12)),
        numbers("c", dtypes.FP32, np.arange(24).reshape(2, 12)),
    ]
    choices = {"a": OutputChoice(class_count=7), "b": OutputChoice(binary=True)}
    output_format = OutputFormat(OutputChoice(), choices)
    response = InferResponse("m", "1", "", outputs)
    more = {"is_batched": True, "labels": {"a": ("zero", "one")}}

    usual = joined(encode_infer_response(response, output_format, **more))

    assert joined(encode_large_infer_response(response, output_format, **more)) == usual


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("parameters", [None, {"p": 1.5, "a": "shadowed", "zz": True}])
def test_generate_response_is_written_as_usual(outputs, parameters):
    response = InferResponse("m", "1", "x", outputs, parameters)

    usual = outcome(encode_generate_response, response, ADD_SUB)
    large = outcome(encode_large_generate_response, response, ADD_SUB)

    assert (b"".join(large) if isinstance(large, list) else large) == usual


def test_no_piece_is_large():
    response = InferResponse("m", "1", "", [numbers("a", dtypes.INT32, range(1000))])

    _, parts = encode_large_infer_response(response, ALL_JSON)

    assert max(map(len, parts)) < 100
