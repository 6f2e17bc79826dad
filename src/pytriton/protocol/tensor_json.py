# SPDX-License-Identifier: Apache-2.0
"""Converts tensor data between JSON (numbers, booleans or strings) and the protocol's bytes.

As in Triton, the nesting of arrays is not compared with the shape, only the number of elements is,
and values are not converted between JSON's types. Unlike Triton, which truncates an integer that
is out of range for its datatype, this module refuses it.
"""

from __future__ import annotations

import struct
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import orjson

from pytriton.base import dtypes
from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.protocol.json_text import (
    MAX_NESTING,
    NESTING_ERROR,
    access_error,
    dump_json,
    dump_json_leniently,
)

if TYPE_CHECKING:
    from pytriton.base.dtypes import DataType
    from pytriton.base.messages import InferTensor

# For up to this many elements a compiled struct is used: it takes 0.15 us, numpy 0.9 us.
SMALL_ELEMENTS = 16


class _Conversion:
    """The JSON form of a datatype."""

    __slots__ = ("code", "is_float", "kind", "pack", "types", "unpack")

    def __init__(self, code: str, kind: str, *types: type) -> None:
        sizes = [struct.Struct(f"<{count}{code}") for count in range(SMALL_ELEMENTS + 1)]
        self.code = code
        self.kind = kind  # Triton's name of the JSON type
        self.types = frozenset(types)  # the Python types that a JSON parser returns for it
        self.is_float = float in types
        self.pack = [size.pack for size in sizes]  # by number of elements
        self.unpack = [size.unpack for size in sizes]


_CONVERSIONS: dict[DataType, _Conversion] = {
    dtypes.BOOL: _Conversion("?", "boolean", bool),
    dtypes.UINT8: _Conversion("B", "unsigned-integer", int),
    dtypes.UINT16: _Conversion("H", "unsigned-integer", int),
    dtypes.UINT32: _Conversion("I", "unsigned-integer", int),
    dtypes.UINT64: _Conversion("Q", "unsigned-integer", int),
    dtypes.INT8: _Conversion("b", "signed-integer", int),
    dtypes.INT16: _Conversion("h", "signed-integer", int),
    dtypes.INT32: _Conversion("i", "signed-integer", int),
    dtypes.INT64: _Conversion("q", "signed-integer", int),
    dtypes.FP32: _Conversion("f", "number", int, float),
    dtypes.FP64: _Conversion("d", "number", int, float),
}


def struct_code(dtype: DataType) -> str:
    """Returns the code of a number in a struct; an empty text if it is not a number in JSON."""
    conversion = _CONVERSIONS.get(dtype)
    return "" if conversion is None else conversion.code


def json_type(dtype: DataType) -> type | None:
    """Returns the type of an element as a JSON decoder knows it; None for other datatypes."""
    conversion = _CONVERSIONS.get(dtype)
    if conversion is None:
        return None
    return float if conversion.is_float else next(iter(conversion.types))


def tensor_from_json(data: list[Any], dtype: DataType, count: int, name: str) -> bytes:
    """Returns the bytes of an input whose shape has `count` elements.

    Raises:
        InternalError: An element has another JSON type, or there are more or fewer than `count`.
        InvalidArgumentError: JSON does not support the datatype, an integer is out of its range, or
            the arrays are nested too deeply.
    """
    conversion = _CONVERSIONS.get(dtype)
    if conversion is None:
        if dtype is dtypes.BYTES:
            return _bytes_from_json(data)
        raise InvalidArgumentError(
            f"receiving {dtype.name} data via JSON is not supported. "
            f"Please use the binary data format for input {name}"
        )
    if len(data) == count <= SMALL_ELEMENTS:
        types = conversion.types
        for value in data:
            if type(value) not in types:
                break
        else:
            try:
                return conversion.pack[count](*data)
            except (struct.error, OverflowError):
                return _pack_wide(data, dtype, name)
    return _pack_many(data, dtype, conversion, count, name)


def json_from_tensor(tensor: InferTensor) -> Any:
    """Returns the elements of an output as a flat sequence for orjson, or as a numpy array.

    FP32 is converted to double before it is formatted, as in Triton.

    Raises:
        InvalidArgumentError: JSON does not support the datatype.
        InternalError: The size of the data does not match the shape.
    """
    dtype, data = tensor.dtype, tensor.data
    count = prod(tensor.shape)
    conversion = _CONVERSIONS.get(dtype)
    if conversion is None:
        if dtype is dtypes.BYTES:
            return _json_from_bytes(tensor, count)
        raise InvalidArgumentError(
            f"sending {dtype.name} data via JSON is not supported. "
            "Please use the binary data format for output"
        )
    if count <= SMALL_ELEMENTS:
        try:
            values = conversion.unpack[count](data)
        except struct.error:
            refuse_output_size(tensor)
        if conversion.is_float:
            for value in values:
                if value - value != 0.0:  # NaN or an infinity
                    return [orjson.Fragment(dump_json_leniently(value)) for value in values]
        return values
    return _json_from_many(tensor, conversion, count)


def _json_from_many(tensor: InferTensor, conversion: _Conversion, count: int) -> Any:
    if len(tensor.data) != count * tensor.dtype.itemsize:
        refuse_output_size(tensor)
    array = np.frombuffer(tensor.data, tensor.dtype.numpy)
    if not conversion.is_float:
        return array.tolist()
    if not np.isfinite(array).all():
        return orjson.Fragment(dump_json_leniently(array.tolist()))
    return array.astype(np.float64)


def _pack_many(
    data: list[Any], dtype: DataType, conversion: _Conversion, count: int, name: str
) -> bytes:
    flat, types = _flatten(data, prefix="Unable to parse 'data': ")
    if len(flat) != count or not types <= conversion.types:
        _refuse_elements(flat, conversion, count)
    try:
        return struct.pack(f"<{count}{conversion.code}", *flat)
    except (struct.error, OverflowError):  # a value is out of range for the datatype
        return _pack_wide(flat, dtype, name)


def _pack_wide(flat: list[Any], dtype: DataType, name: str) -> bytes:
    """Convert numbers some of which are out of range: floats become infinite, integers raise."""
    conversion = _CONVERSIONS[dtype]
    if conversion.is_float:
        with np.errstate(over="ignore"):
            return np.array(list(map(_double, flat))).astype(dtype.numpy).tobytes()
    low, high = (0, 2**64) if conversion.kind == "unsigned-integer" else (-(2**63), 2**63)
    if min(flat) < low or max(flat) >= high:
        raise InternalError(f"Unable to parse 'data': {access_error(conversion.kind)}")
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
    """Returns the scalars of nested arrays in order, and their types."""
    depth = 1
    while list in (types := {*map(type, data)}):
        depth += 1
        if depth >= MAX_NESTING:
            raise InvalidArgumentError(prefix + NESTING_ERROR)
        if len(types) == 1:
            data = list(chain.from_iterable(data))
        else:  # arrays and scalars are mixed
            flat: list[Any] = []
            _flatten_uneven(data, flat, depth, prefix)
            data = flat
    return data, types


def _flatten_uneven(data: list[Any], flat: list[Any], depth: int, prefix: str) -> None:
    """Append the scalars of `data` to `flat`; `depth` is the depth of the arrays inside it."""
    for element in data:
        if type(element) is not list:
            flat.append(element)
        elif depth >= MAX_NESTING:
            raise InvalidArgumentError(prefix + NESTING_ERROR)
        else:
            _flatten_uneven(element, flat, depth + 1, prefix)


def _refuse_elements(flat: list[Any], conversion: _Conversion, count: int) -> NoReturn:
    """Raise the error that comes first: a wrong type, or a wrong number of elements."""
    if any(type(element) not in conversion.types for element in flat[:count]):
        raise InternalError(f"Unable to parse 'data': {access_error(conversion.kind)}")
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
    except UnicodeDecodeError:  # Triton writes such bytes unchanged
        texts = [element.decode("utf-8", "surrogateescape") for element in elements]
        return [orjson.Fragment(dump_json(text)) for text in texts]


def refuse_output_size(tensor: InferTensor) -> NoReturn:
    """Raise InternalError because the size of an output's data does not match its shape."""
    raise InternalError(
        "Failed to write 'data' field: output tensor shape does not match size of output for "
        f"'{tensor.name}'"
    )
