# SPDX-License-Identifier: Apache-2.0
"""Makes an array of a tensor as JSON has it: values, base64, or content with a shape."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.tools.perf.data.settings import fits
from pytriton.tools.perf.errors import DataError
from pytriton.tools.perf.model_description import MeasuredTensor


def array_of(
    tensor: MeasuredTensor, value: Any, shapes: Mapping[str, tuple[int, ...]], place: str
) -> NDArray[Any]:
    """The array of a tensor, without a batch axis.

    Args:
        tensor: What the model expects.
        value: A value, a list (flat or nested), `{"b64": text}`, or `{"content": list or value}`,
            both with an optional `shape`.
        shapes: Shapes that a person chose for inputs that vary.
        place: File and entry, for errors.

    Raises:
        DataError: It does not fit.
    """
    shape: tuple[int, ...] | None = None
    content = value
    if isinstance(value, dict):
        content, shape = _content(tensor, value, place)
    if isinstance(content, bytes):
        flat = _from_raw(tensor, content, place)
    else:
        flat = _from_values(tensor, content, place)
    found = shape or _nested_shape(tensor, content)
    return flat.reshape(_shape(tensor, found, flat.size, shapes, place))


def _content(
    tensor: MeasuredTensor, value: Mapping[str, Any], place: str
) -> tuple[Any, tuple[int, ...] | None]:
    shape = value.get("shape")
    if shape is not None and not (
        isinstance(shape, list) and all(isinstance(size, int) for size in shape)
    ):
        raise DataError(f"{place}: expected a list of integers as shape, got {shape!r}")
    given = None if shape is None else tuple(shape)
    if "b64" in value:
        try:
            return base64.b64decode(value["b64"], validate=True), given
        except (binascii.Error, TypeError, ValueError) as error:
            raise DataError(
                f"{place}: b64 of input {tensor.name} is not base64: {error}"
            ) from error
    if "content" not in value:
        raise DataError(
            f"{place}: expected content or b64 for input {tensor.name}, got {sorted(value)}"
        )
    content = value["content"]
    if isinstance(content, dict):
        return _content(tensor, {**content, "shape": shape}, place)
    return content, given


def _from_raw(tensor: MeasuredTensor, raw: bytes, place: str) -> NDArray[Any]:
    if tensor.dtype is dtypes.BYTES:
        try:
            elements = dtypes.decode_bytes(raw)
        except ValueError as error:
            raise DataError(
                f"{place}: b64 of input {tensor.name} has to have a 4-byte length before each "
                f"string: {error}"
            ) from error
        return _objects(elements)
    size = tensor.dtype.itemsize
    if len(raw) % size:
        raise DataError(
            f"{place}: b64 of input {tensor.name} has {len(raw)} bytes, expected a multiple of "
            f"{size} for {tensor.dtype.name}"
        )
    return np.frombuffer(raw, tensor.dtype.numpy)


def _from_values(tensor: MeasuredTensor, content: Any, place: str) -> NDArray[Any]:
    values = _flatten(content)
    if tensor.dtype is dtypes.BYTES:
        wrong = next((each for each in values if not isinstance(each, str)), None)
        if wrong is not None:
            raise DataError(f"{place}: expected strings for input {tensor.name}, got {wrong!r}")
        return _objects([each.encode() for each in values])
    wrong = next((each for each in values if not isinstance(each, int | float)), None)
    if wrong is not None:
        raise DataError(f"{place}: expected numbers for input {tensor.name}, got {wrong!r}")
    try:
        array = np.array(values)
        if tensor.dtype.numpy.kind in "iu" and array.size:
            limits = np.iinfo(tensor.dtype.numpy)
            if array.dtype.kind == "f" or array.min() < limits.min or array.max() > limits.max:
                raise DataError(
                    f"{place}: values of input {tensor.name} do not fit {tensor.dtype.name}"
                )
        return np.array(values, tensor.dtype.numpy)
    except (OverflowError, ValueError, TypeError) as error:
        raise DataError(
            f"{place}: values of input {tensor.name} do not fit {tensor.dtype.name}: {error}"
        ) from error


def _objects(elements: list[bytes]) -> NDArray[Any]:
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def _flatten(content: Any) -> list[Any]:
    if not isinstance(content, list):
        return [content]
    flat: list[Any] = []
    for each in content:
        flat.extend(_flatten(each) if isinstance(each, list) else [each])
    return flat


def _nested_shape(tensor: MeasuredTensor, content: Any) -> tuple[int, ...] | None:
    """The shape of nested lists that have as many levels as the tensor; None for flat ones."""
    if len(tensor.shape) < 2:
        return None
    shape = []
    while isinstance(content, list) and content:
        shape.append(len(content))
        content = content[0]
    return tuple(shape) if len(shape) == len(tensor.shape) else None


def _shape(
    tensor: MeasuredTensor,
    given: tuple[int, ...] | None,
    count: int,
    shapes: Mapping[str, tuple[int, ...]],
    place: str,
) -> tuple[int, ...]:
    shape = given
    if shape is None and -1 in tensor.shape:
        shape = shapes.get(tensor.name)
    if shape is None:
        shape = tensor.shape
        known = int(np.prod([size for size in shape if size >= 0]))
        if shape.count(-1) == 1 and known and count % known == 0:
            shape = tuple(count // known if size < 0 else size for size in shape)
        if -1 in shape:
            raise DataError(
                f"{place}: input {tensor.name} has the shape {list(tensor.shape)}, provide its "
                'shape: "shape": [...] beside "content", or --shape'
            )
    if not fits(shape, tensor.shape):
        raise DataError(
            f"{place}: input {tensor.name} has the shape {list(shape)}, expected one that fits "
            f"{list(tensor.shape)}"
        )
    if int(np.prod(shape)) != count:
        raise DataError(
            f"{place}: input {tensor.name} has {count} values, expected {int(np.prod(shape))} for "
            f"the shape {list(shape)}"
        )
    return shape
