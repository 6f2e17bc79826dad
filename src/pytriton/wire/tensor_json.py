# SPDX-License-Identifier: Apache-2.0
"""Tensor data between its JSON form (numbers, booleans or strings) and the protocol's bytes.

The nesting of an array is not compared with the shape: only the number of elements counts.
Values are never converted between JSON's types, all as Triton does; but an integer beyond its
datatype is refused, where Triton cuts it to another number.
"""

from __future__ import annotations

import struct
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import orjson

from pytriton import dtypes
from pytriton.errors import InternalError, InvalidArgumentError
from pytriton.wire.json_members import access_error
from pytriton.wire.json_text import (
    MAX_NESTING,
    NESTING_ERROR,
    dump_json,
    dump_json_leniently,
)

if TYPE_CHECKING:
    from pytriton.dtypes import DataType
    from pytriton.messages import InferTensor

# With few elements a compiled struct takes 0.15 us, numpy 0.9 us.
_SMALL = 16


class _Form:
    """The JSON form of a datatype."""

    __slots__ = ("code", "is_float", "kind", "pack", "types", "unpack")

    def __init__(self, code: str, kind: str, *types: type) -> None:
        sizes = [struct.Struct(f"<{count}{code}") for count in range(_SMALL + 1)]
        self.code = code
        self.kind = kind  # what Triton calls the JSON type
        self.types = frozenset(types)  # what a JSON parser makes of it
        self.is_float = float in types
        self.pack = [size.pack for size in sizes]  # by number of elements
        self.unpack = [size.unpack for size in sizes]


_FORMS: dict[DataType, _Form] = {
    dtypes.BOOL: _Form("?", "boolean", bool),
    dtypes.UINT8: _Form("B", "unsigned-integer", int),
    dtypes.UINT16: _Form("H", "unsigned-integer", int),
    dtypes.UINT32: _Form("I", "unsigned-integer", int),
    dtypes.UINT64: _Form("Q", "unsigned-integer", int),
    dtypes.INT8: _Form("b", "signed-integer", int),
    dtypes.INT16: _Form("h", "signed-integer", int),
    dtypes.INT32: _Form("i", "signed-integer", int),
    dtypes.INT64: _Form("q", "signed-integer", int),
    dtypes.FP32: _Form("f", "number", int, float),
    dtypes.FP64: _Form("d", "number", int, float),
}


def tensor_from_json(data: list[Any], dtype: DataType, count: int, name: str) -> bytes:
    """The bytes of an input whose shape has `count` elements.

    Raises:
        InternalError: An element has another JSON type, or there are more or fewer than `count`.
        InvalidArgumentError: The datatype has no JSON form, an integer is beyond it, or the arrays
            are nested too deeply.
    """
    form = _FORMS.get(dtype)
    if form is None:
        if dtype is dtypes.BYTES:
            return _bytes_from_json(data)
        raise InvalidArgumentError(
            f"receiving {dtype.name} data via JSON is not supported. "
            f"Please use the binary data format for input {name}"
        )
    if len(data) == count <= _SMALL:
        types = form.types
        for value in data:
            if type(value) not in types:
                break
        else:
            try:
                return form.pack[count](*data)
            except (struct.error, OverflowError):
                return _pack_wide(data, dtype, name)
    return _pack_many(data, dtype, form, count, name)


def json_from_tensor(tensor: InferTensor) -> Any:
    """The elements of an output as a flat sequence that orjson prints, or a numpy array.

    FP32 is widened to double before it is printed, as Triton does.

    Raises:
        InvalidArgumentError: The datatype has no JSON form.
        InternalError: The data is not what the shape says.
    """
    dtype, data = tensor.dtype, tensor.data
    count = prod(tensor.shape)
    form = _FORMS.get(dtype)
    if form is None:
        if dtype is dtypes.BYTES:
            return _json_from_bytes(tensor, count)
        raise InvalidArgumentError(
            f"sending {dtype.name} data via JSON is not supported. "
            "Please use the binary data format for output"
        )
    if count <= _SMALL:
        try:
            values = form.unpack[count](data)
        except struct.error:
            refuse_output_size(tensor)
        if form.is_float:
            for value in values:
                if value - value != 0.0:  # NaN or an infinity
                    return [orjson.Fragment(dump_json_leniently(value)) for value in values]
        return values
    return _json_from_many(tensor, form, count)


def _json_from_many(tensor: InferTensor, form: _Form, count: int) -> Any:
    if len(tensor.data) != count * tensor.dtype.itemsize:
        refuse_output_size(tensor)
    array = np.frombuffer(tensor.data, tensor.dtype.numpy)
    if not form.is_float:
        return array.tolist()
    if not np.isfinite(array).all():
        return orjson.Fragment(dump_json_leniently(array.tolist()))
    return array.astype(np.float64)


def _pack_many(data: list[Any], dtype: DataType, form: _Form, count: int, name: str) -> bytes:
    flat, types = _flatten(data, prefix="Unable to parse 'data': ")
    if len(flat) != count or not types <= form.types:
        _refuse_elements(flat, form, count)
    try:
        return struct.pack(f"<{count}{form.code}", *flat)
    except (struct.error, OverflowError):  # a value beyond the datatype's width
        return _pack_wide(flat, dtype, name)


def _pack_wide(flat: list[Any], dtype: DataType, name: str) -> bytes:
    """The bytes of numbers of which some are beyond the datatype: floats become infinite."""
    form = _FORMS[dtype]
    if form.is_float:
        with np.errstate(over="ignore"):
            return np.array(list(map(_double, flat))).astype(dtype.numpy).tobytes()
    low, high = (0, 2**64) if form.kind == "unsigned-integer" else (-(2**63), 2**63)
    if min(flat) < low or max(flat) >= high:
        raise InternalError(f"Unable to parse 'data': {access_error(form.kind)}")
    limits = np.iinfo(dtype.numpy)
    value = next(value for value in flat if not limits.min <= value <= limits.max)
    raise InvalidArgumentError(
        f"Unable to parse 'data': expected {dtype.name} numbers from {limits.min} to {limits.max} "
        f"for input '{name}', got {value}"
    )


def _double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer
        raise InternalError(f"Unable to parse 'data': {access_error('number')}") from None


def _flatten(data: list[Any], prefix: str) -> tuple[list[Any], set[type]]:
    """The scalars of nested arrays in order, and their types."""
    depth = 1
    while list in (types := {*map(type, data)}):
        depth += 1
        if depth >= MAX_NESTING:
            raise InvalidArgumentError(prefix + NESTING_ERROR)
        if len(types) == 1:
            data = list(chain.from_iterable(data))
        else:  # arrays beside scalars
            flat: list[Any] = []
            _flatten_uneven(data, flat, depth, prefix)
            data = flat
    return data, types


def _flatten_uneven(data: list[Any], flat: list[Any], depth: int, prefix: str) -> None:
    """Append the scalars of `data` to `flat`; `depth` is that of the arrays inside it."""
    for element in data:
        if type(element) is not list:
            flat.append(element)
        elif depth >= MAX_NESTING:
            raise InvalidArgumentError(prefix + NESTING_ERROR)
        else:
            _flatten_uneven(element, flat, depth + 1, prefix)


def _refuse_elements(flat: list[Any], form: _Form, count: int) -> NoReturn:
    """Name the first mistake in reading order: a wrong type, or an element too many or too few."""
    if any(type(element) not in form.types for element in flat[:count]):
        raise InternalError(f"Unable to parse 'data': {access_error(form.kind)}")
    raise InternalError("Unable to parse 'data': Shape does not match true shape of 'data' field")


def _bytes_from_json(data: list[Any]) -> bytes:
    flat, types = _flatten(data, prefix="")
    if not types <= {str}:
        raise InternalError(f"Unable to parse JSON bytes array: {access_error('string')}")
    try:
        return dtypes.encode_bytes([text.encode() for text in flat])
    except UnicodeEncodeError:  # bytes that were not UTF-8
        return dtypes.encode_bytes([text.encode("utf-8", "surrogateescape") for text in flat])


def _json_from_bytes(tensor: InferTensor, count: int) -> Any:
    try:
        elements = dtypes.decode_bytes(tensor.data)
    except ValueError:
        refuse_output_size(tensor)
    if len(elements) != count:
        refuse_output_size(tensor)
    try:
        return [element.decode() for element in elements]
    except UnicodeDecodeError:  # Triton writes the bytes as they are
        texts = [element.decode("utf-8", "surrogateescape") for element in elements]
        return [orjson.Fragment(dump_json(text)) for text in texts]


def refuse_output_size(tensor: InferTensor) -> NoReturn:
    """Refuse to write an output whose data is not what its shape says."""
    raise InternalError(
        "Failed to write 'data' field: output tensor shape does not match size of output for "
        f"'{tensor.name}'"
    )
