# SPDX-License-Identifier: Apache-2.0
"""Turns values that a person typed or has in a file into arrays that fit a model's inputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.client.kserve.errors import AskError
from pytriton.client.kserve.records import NamedArray
from pytriton.tools.commands.kserve.models import TensorCard

_KINDS = {"b": "booleans", "i": "integers", "u": "integers", "f": "numbers"}


class ValueMismatchError(AskError):
    """A value does not fit the input that it is for."""


def tensor_of(card: TensorCard, value: Any, *, has_batches: bool | None) -> NamedArray:
    """Make the tensor for an input.

    Args:
        card: the input, with the axis of batches in its shape.
        value: an array, or what JSON gives: numbers, booleans, texts, bytes, nested lists of them.
        has_batches: whether the first axis is the batch; None if nobody said.

    Raises:
        ValueMismatchError: The value does not fit.
    """
    if card.datatype not in dtypes.BY_NAME:
        raise ValueMismatchError(f"Input '{card.name}' has the unknown datatype {card.datatype}.")
    array = _of_bytes(card, value) if card.datatype == "BYTES" else _of_numbers(card, value)
    return NamedArray(card.name, card.datatype, _fitted(card, array, has_batches=has_batches))


def _of_bytes(card: TensorCard, value: Any) -> NDArray[Any]:
    if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
        elements = dtypes.array_to_bytes_elements(value)
        return dtypes.bytes_elements_to_array(elements, value.shape)
    array = _object_array(card, value)
    elements = []
    for each in array.reshape(-1).tolist():
        if not isinstance(each, str | bytes):
            raise ValueMismatchError(
                f"Input '{card.name}' expects text (BYTES), got {_shown(each)}."
            )
        elements.append(each.encode() if isinstance(each, str) else each)
    return dtypes.bytes_elements_to_array(elements, array.shape)


def _object_array(card: TensorCard, value: Any) -> NDArray[Any]:
    """Returns an array of the objects in nested lists, whose lengths must agree."""
    shape: list[int] = []
    level = [value]
    while level and all(isinstance(each, list) for each in level):
        lengths = {len(each) for each in level}
        if len(lengths) > 1:
            raise ValueMismatchError(
                f"Input '{card.name}' expects lists of one length, got lengths "
                f"{', '.join(map(str, sorted(lengths)))}."
            )
        shape.append(lengths.pop())
        level = [element for each in level for element in each]
    if any(isinstance(each, list) for each in level):
        raise ValueMismatchError(f"Input '{card.name}' expects lists that are equally deep.")
    return dtypes.bytes_elements_to_array(level, tuple(shape))


def _of_numbers(card: TensorCard, value: Any) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        array = value
    else:
        objects = _object_array(card, value)
        for each in objects.reshape(-1).tolist():
            if not isinstance(each, bool | int | float):
                raise ValueMismatchError(
                    f"Input '{card.name}' expects {card.datatype}, got {_shown(each)}."
                )
        try:
            array = np.asarray(value if objects.size else objects.astype(float))
        except OverflowError:
            array = objects
    if array.dtype.kind == "O" and array.size:  # integers beyond 64 bits
        raise _out_of_range(card, max(array.reshape(-1).tolist(), key=abs))
    return _converted(card, array)


def _converted(card: TensorCard, array: NDArray[Any]) -> NDArray[Any]:
    """Convert numbers, but only where no value changes beyond rounding."""
    target = dtypes.BY_NAME[card.datatype].numpy
    if array.dtype == target or not array.size:
        return array.astype(target)
    kind = array.dtype.kind
    if kind not in _KINDS and array.dtype.name != "bfloat16":
        raise ValueMismatchError(
            f"Input '{card.name}' expects {card.datatype}, got an array of {array.dtype}."
        )
    if target.kind == "b":
        if not np.isin(array, (0, 1)).all():
            raise ValueMismatchError(
                f"Input '{card.name}' expects BOOL (true or false), got "
                f"{_shown(_first(array, ~np.isin(array, (0, 1))))}."
            )
        return array.astype(target)
    if target.kind in "iu":
        return _to_integers(card, array, target)
    wide = array.astype(np.float64)
    with np.errstate(over="ignore"):
        narrow = wide.astype(target)
    lost = np.isfinite(wide) & ~np.isfinite(narrow.astype(np.float64))
    if lost.any():
        raise _out_of_range(card, _first(array, lost))
    return narrow


def _to_integers(card: TensorCard, array: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "biu":
        wide = array.astype(np.float64)
        is_odd = ~np.isfinite(wide) | (wide != np.floor(wide))
        if is_odd.any():
            raise ValueMismatchError(
                f"Input '{card.name}' expects {card.datatype}, got {_shown(_first(array, is_odd))}."
            )
    limits = np.iinfo(target)
    low, high = array.min().item(), array.max().item()
    if low < limits.min or high > limits.max:
        raise _out_of_range(card, low if low < limits.min else high)
    return array.astype(target)


def _out_of_range(card: TensorCard, value: Any) -> ValueMismatchError:
    target = dtypes.BY_NAME[card.datatype].numpy
    if target.kind in "iu":
        limits = np.iinfo(target)
        span = f" from {limits.min} to {limits.max}"
    else:
        span = " within its range"
    return ValueMismatchError(
        f"Input '{card.name}' expects {card.datatype}{span}, got {_shown(value)}."
    )


def _first(array: NDArray[Any], mask: NDArray[Any]) -> Any:
    return array[mask].reshape(-1)[0].item()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _fitted(card: TensorCard, array: NDArray[Any], *, has_batches: bool | None) -> NDArray[Any]:
    """Give an array the axis of batches that it lacks; a single value fits one element."""
    declared = card.shape
    if _matches(array.shape, declared):
        return array
    may_batch = has_batches or (has_batches is None and declared[:1] == (-1,))
    if may_batch and _matches(array.shape, declared[1:]):
        return array[np.newaxis]
    if array.ndim == 0 and math.prod(size for size in declared if size > 0) == 1:
        return array.reshape([1 for _ in declared])
    shape = f"[{', '.join(map(str, declared))}]"
    sample = f" (or {list(declared[1:])} for one row)" if has_batches else ""
    got = list(array.shape) if array.ndim else "a single value"
    raise ValueMismatchError(f"Input '{card.name}' expects the shape {shape}{sample}, got {got}.")


def _matches(shape: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    return len(shape) == len(declared) and all(
        wanted in (-1, size) for size, wanted in zip(shape, declared, strict=True)
    )
