# SPDX-License-Identifier: Apache-2.0
"""A value of a request as the tensor of an input."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import orjson

from pytriton.base import dtypes
from pytriton.base.messages import InferTensor
from pytriton.base.model_spec import TensorSpec
from pytriton.protocol.openai.errors import wrong

MAX_INPUT_BYTES = 32 << 20  # of all that one request of a client gives the model

_INTEGERS = frozenset(
    {
        dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64,
        dtypes.UINT8, dtypes.UINT16, dtypes.UINT32, dtypes.UINT64,
    }
)  # fmt: skip


def input_tensor(expected: TensorSpec, member: str, value: Any, rows: int = 0) -> InferTensor:
    """Returns the tensor for one value, which is the same in each row.

    An input of strings gets a text as it is, a list of texts as its elements if it has a variable
    dimension, and everything else as JSON. Other inputs get a number, a boolean or a list of them.

    Args:
        expected: The input.
        member: The member that the value comes from, for the error.
        value: A decoded JSON value.
        rows: The number of rows; 0 if the model does not batch.

    Raises:
        OpenAIError: The value does not fit the input.
    """
    if expected.dtype is dtypes.BYTES:
        elements = _texts(expected, member, value)
        data = dtypes.encode_bytes(elements)
    else:
        elements = value if isinstance(value, list) else [value]
        data = _numbers(expected, member, elements)
    shape = _shape(expected, member, len(elements))
    if rows:
        check_input_bytes(member, rows, len(data))
        data, shape = data * rows, (rows, *shape)
    return InferTensor(expected.name, expected.dtype, shape, data)


def check_input_bytes(member: str, count: int, size: int) -> None:
    """Raise OpenAIError if the model would get too much for one request of a client.

    Args:
        member: The member of the request that says how often, or what.
        count: How often the model gets it.
        size: How many bytes these are.
    """
    if count * size > MAX_INPUT_BYTES:
        raise wrong(
            member,
            f"expected at most {MAX_INPUT_BYTES} bytes for the model in one request, got {count} "
            f"times {size}",
        )


def text_tensor(expected: TensorSpec, texts: list[str], *, is_batched: bool) -> InferTensor:
    """Returns the tensor with texts: one in each row, or only one if the model does not batch."""
    shape = _shape(expected, expected.name, 1)
    data = dtypes.encode_bytes([text.encode() for text in texts])
    return InferTensor(
        expected.name, expected.dtype, (len(texts), *shape) if is_batched else shape, data
    )


def as_json(member: str, value: Any) -> bytes:
    """Returns a value as JSON text.

    Raises:
        OpenAIError: It has what cannot be written again.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise wrong(
            member,
            f"expected integers of up to 64 bits and up to 254 levels as '{member}': {error}",
        ) from None


def _texts(expected: TensorSpec, member: str, value: Any) -> list[bytes]:
    if isinstance(value, str):
        return [value.encode()]
    is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
    if is_list and -1 in expected.dims:
        return [each.encode() for each in value]
    return [as_json(member, value)]


def _numbers(expected: TensorSpec, member: str, values: list[Any]) -> bytes:
    dtype = expected.dtype
    kinds: tuple[type, ...] = (int, float)
    words = "a number"
    if dtype is dtypes.BOOL:
        kinds, words = (bool,), "true or false"
    elif dtype in _INTEGERS:
        kinds, words = (int,), "an integer"
    for each in values:
        if type(each) not in kinds:
            raise wrong(member, f"expected {words} as '{member}', got {_shown(each)}")
    try:
        return np.array(values, dtype.numpy).tobytes()
    except OverflowError:
        raise wrong(
            member, f"expected values of type {dtype.name} as '{member}', got {_shown(values)}"
        ) from None


def _shape(expected: TensorSpec, member: str, count: int) -> tuple[int, ...]:
    """Returns the shape of `count` elements: the last variable dimension gets all of them."""
    left = count
    shape: list[int] = []
    fixed = prod(size for size in expected.dims if size != -1)
    for size in reversed(expected.dims):
        if size == -1:
            shape.append(left // fixed if fixed else 0)
            left = fixed
        else:
            shape.append(size)
    if prod(shape) != count:
        raise wrong(
            member,
            f"expected {fixed} value(s) as '{member}' for the shape {list(expected.dims)} of the "
            f"model's input, got {count}",
        )
    return tuple(reversed(shape))


def _shown(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()[:100]
    except orjson.JSONEncodeError:
        return "more than 64 bits, or too many levels"
