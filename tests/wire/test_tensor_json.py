# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base import dtypes
from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.base.messages import InferTensor
from pytriton.protocol.json_text import load_json
from pytriton.protocol.tensor_json import json_from_tensor, tensor_from_json

INTEGERS = [
    dtypes.UINT8, dtypes.UINT16, dtypes.UINT32, dtypes.UINT64,
    dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64,
]  # fmt: skip
MISMATCH = "Unable to parse 'data': Shape does not match true shape of 'data' field"


def printed(tensor):
    return orjson.dumps(json_from_tensor(tensor), None, orjson.OPT_SERIALIZE_NUMPY)


def values_of(dtype):
    if dtype is dtypes.BOOL:
        return st.booleans()
    if dtype in INTEGERS:
        limits = np.iinfo(dtype.numpy)
        return st.integers(int(limits.min), int(limits.max))
    if dtype is dtypes.BYTES:
        return st.text()
    width = dtype.itemsize * 8
    return st.floats(width=width, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    "dtype", [dtypes.BOOL, *INTEGERS, dtypes.FP32, dtypes.FP64, dtypes.BYTES], ids=repr
)
@given(data=st.data())
def test_values_survive_the_way_in_and_out(dtype, data):
    values = data.draw(st.lists(values_of(dtype), max_size=40))
    content = tensor_from_json(values, dtype, len(values), "x")

    text = printed(InferTensor("x", dtype, (len(values),), content))

    assert orjson.loads(text) == values


@given(st.lists(st.binary(), max_size=20))
def test_any_bytes_are_printed_as_they_are(elements):
    tensor = InferTensor("x", dtypes.BYTES, (len(elements),), dtypes.encode_bytes(elements))

    text = printed(tensor)

    strings = dtypes.decode_bytes(tensor_from_json(load_json(text), dtypes.BYTES, 0, "x"))
    assert strings == elements


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
def test_integers_beyond_the_datatype_are_refused(dtype, count):
    limits = np.iinfo(dtype.numpy)
    rest = [1] * (count - 3)
    extremes = [limits.min, 0, limits.max, *rest]
    content = tensor_from_json(extremes, dtype, count, "x")
    assert content == np.array(extremes, dtype.numpy).tobytes()

    for value in (limits.max + 1, limits.min - 1):
        if not -(2**63) <= value < 2**63 or value == -1:
            continue  # what Triton refuses itself
        words = f"expected {dtype.name} numbers from {limits.min} to {limits.max} for input 'x'"
        with pytest.raises(InvalidArgumentError, match=f"{words}, got {value}$"):
            tensor_from_json([1, value, 300, *rest], dtype, count, "x")


@pytest.mark.parametrize(
    "dtype,value,kind",
    [
        (dtypes.BOOL, 1, "non-boolean as boolean"),
        (dtypes.BOOL, None, "non-boolean as boolean"),
        (dtypes.UINT8, -1, "non-unsigned-integer as unsigned-integer"),
        (dtypes.UINT8, 1.0, "non-unsigned-integer as unsigned-integer"),
        (dtypes.UINT64, 2**64, "non-unsigned-integer as unsigned-integer"),
        (dtypes.INT8, True, "non-signed-integer as signed-integer"),
        (dtypes.INT64, 2**63, "non-signed-integer as signed-integer"),
        (dtypes.INT64, "1", "non-signed-integer as signed-integer"),
        (dtypes.FP32, True, "non-number as double"),
        (dtypes.FP64, "1", "non-number as double"),
        (dtypes.FP32, {}, "non-number as double"),
        (dtypes.FP64, 10**400, "non-number as double"),
    ],
)
@pytest.mark.parametrize("count", [1, 50])
def test_values_are_never_converted_between_json_types(dtype, value, kind, count):
    fill = {dtypes.BOOL: True}.get(dtype, 1)

    with pytest.raises(InternalError) as caught:
        tensor_from_json([fill] * (count - 1) + [value], dtype, count, "x")

    assert caught.value.message == f"Unable to parse 'data': attempt to access JSON {kind}"


def test_fp32_takes_what_is_beyond_its_range_as_infinite():
    content = tensor_from_json([1e39, -1e39, 1e-50], dtypes.FP32, 3, "x")

    assert np.frombuffer(content, "<f4").tolist() == [math.inf, -math.inf, 0.0]


@pytest.mark.parametrize(
    "data,count", [([1, 2], 1), ([1], 2), ([], 1), ([1], 0), ([1] * 40, 39), ([[1], [2]], 3)]
)
def test_number_of_elements_must_be_that_of_the_shape(data, count):
    with pytest.raises(InternalError) as caught:
        tensor_from_json(data, dtypes.FP32, count, "x")

    assert caught.value.message == MISMATCH


def test_first_mistake_in_reading_order_is_named():
    with pytest.raises(InternalError, match="Shape does not match"):
        tensor_from_json([1, "x"], dtypes.FP32, 1, "x")
    with pytest.raises(InternalError, match="non-number"):
        tensor_from_json(["x", 1], dtypes.FP32, 1, "x")


@pytest.mark.parametrize(
    "data", [[1, 2, 3], [[1, 2], [3]], [[[1]], [[2, 3]]], [[1, [2]], 3], [[], [1, 2, 3], []]]
)
def test_nesting_is_flattened_in_order(data):
    assert tensor_from_json(data, dtypes.UINT8, 3, "x") == b"\1\2\3"


def nested(depth, inside):
    for _ in range(depth):
        inside = [inside]
    return inside


@pytest.mark.parametrize("uneven", [False, True])
def test_nesting_is_limited(uneven):
    extra = [1] if uneven else []

    assert tensor_from_json([*extra, *nested(99, 1)], dtypes.UINT8, 1 + uneven, "x")
    with pytest.raises(InvalidArgumentError, match=r"exceeds maximum allowed limit \(100\)"):
        tensor_from_json([*extra, *nested(100, 1)], dtypes.UINT8, 1 + uneven, "x")


@pytest.mark.parametrize("dtype", [dtypes.FP16, dtypes.BF16], ids=repr)
def test_half_floats_have_no_json_form(dtype):
    with pytest.raises(InvalidArgumentError, match=f"receiving {dtype.name} data via JSON"):
        tensor_from_json([1], dtype, 1, "x")
    with pytest.raises(InvalidArgumentError, match=f"sending {dtype.name} data via JSON"):
        json_from_tensor(InferTensor("x", dtype, (1,), b"\0\0"))


def test_strings_of_another_type_are_refused():
    with pytest.raises(InternalError, match=r"Unable to parse JSON bytes array: .* non-string"):
        tensor_from_json(["a", 1], dtypes.BYTES, 2, "x")


@pytest.mark.parametrize("count", [3, 30])
@pytest.mark.parametrize("dtype", [dtypes.FP32, dtypes.FP64], ids=repr)
def test_what_is_not_finite_is_printed_in_words(dtype, count):
    array = np.ones(count, dtype.numpy)
    array[:3] = [np.nan, np.inf, -np.inf]

    text = printed(InferTensor("x", dtype, (count,), array.tobytes()))

    assert text.startswith(b"[NaN,Infinity,-Infinity")
    assert b"null" not in text


@pytest.mark.parametrize("count", [1, 40])
def test_fp32_is_printed_as_a_double(count):
    data = np.full(count, 0.1, np.float32).tobytes()

    assert (
        orjson.loads(printed(InferTensor("x", dtypes.FP32, (count,), data)))
        == [0.10000000149011612] * count
    )


def test_unaligned_memory_is_printed():
    data = memoryview(b"x" + np.arange(20, dtype=np.float32).tobytes())[1:]

    assert orjson.loads(printed(InferTensor("x", dtypes.FP32, (20,), data))) == list(range(20))


@pytest.mark.parametrize(
    "dtype,shape,data",
    [
        (dtypes.FP32, (2,), b"\0" * 4),
        (dtypes.FP32, (40,), b"\0" * 4),
        (dtypes.BYTES, (2,), b"\0" * 4),
        (dtypes.BYTES, (1,), b"\1"),
    ],
)
def test_output_of_another_size_than_its_shape_is_refused(dtype, shape, data):
    with pytest.raises(InternalError, match=r"output tensor shape does not match size .* 'x'"):
        json_from_tensor(InferTensor("x", dtype, shape, data))
