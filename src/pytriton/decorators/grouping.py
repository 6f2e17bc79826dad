# SPDX-License-Identifier: Apache-2.0
"""A decorator that splits a batch into parts with equal values, and a padder for its results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.decorators.batching import InferenceResult, InferenceResults, call_with_batch
from pytriton.decorators.wrapping import InferFunc, decorated, decorated_layers
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError

_TEXT_KINDS = "SU"
_BYTES_KINDS = "OSU"


def group_by_values(
    *keys: str, pad_fn: Callable[[InferenceResults], Sequence[InferenceResult]] | None = None
) -> Callable[[InferFunc], InferFunc]:
    """Call once for each part of the batch whose rows have equal values in the given inputs.

    Args:
        *keys: inputs to compare.
        pad_fn: pads the results of the parts to one shape, such as `ConstantPadder`.

    Returns:
        A decorator, for use inside of `batch`. When called, the decorated callable raises
        PyTritonRuntimeError if the decorator is outside of `batch`, an input is missing, or the
        results of the parts have different shapes.

    Raises:
        PyTritonBadParameterError: No input was given.
    """
    if not keys:
        raise PyTritonBadParameterError("Expected inputs to group by, got none")

    def call_for_each_value(
        wrapped: InferFunc, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> InferenceResult:
        if any(call is call_with_batch for call, _, _ in decorated_layers(wrapped)):
            raise PyTritonRuntimeError(
                "The @group_by_values decorator must be used after the @batch decorator."
            )
        parts = _rows_by_value(keys, kwargs)
        results: Sequence[InferenceResult] = [
            wrapped(*args, **{name: tensor[rows] for name, tensor in kwargs.items()})
            for rows in parts
        ]
        return _joined_again(parts, results if pad_fn is None else pad_fn(list(results)))

    return lambda infer_func: decorated(infer_func, call_for_each_value)


def _rows_by_value(keys: Sequence[str], inputs: dict[str, NDArray[Any]]) -> list[list[int]]:
    """Returns the positions of the rows of each value, in the order of the values."""
    missing = [key for key in keys if key not in inputs]
    if missing:
        raise PyTritonRuntimeError(
            f"The @group_by_values decorator expected the inputs {', '.join(keys)}, "
            f"got {', '.join(inputs)}"
        )
    rows_by_value: dict[tuple[Any, ...], list[int]] = {}
    columns = (_comparable_rows(inputs[key]) for key in keys)
    for row, value in enumerate(zip(*columns, strict=True)):
        rows_by_value.setdefault(value, []).append(row)
    return [rows for _, rows in sorted(rows_by_value.items(), key=lambda item: item[0])]


def _comparable_rows(tensor: NDArray[Any]) -> Iterable[Hashable]:
    if tensor.ndim == 1:
        values: list[Hashable] = tensor.tolist()
        return values
    if tensor.dtype.kind in _BYTES_KINDS:
        return [dtypes.encode_bytes(dtypes.array_to_bytes_elements(row)) for row in tensor]
    return [row.tobytes() for row in tensor]


def _joined_again(parts: list[list[int]], results: Sequence[InferenceResult]) -> InferenceResult:
    batch_size = sum(len(rows) for rows in parts)
    outputs: InferenceResult = {}
    for name in dict.fromkeys(name for result in results for name in result):
        tensors = {index: result[name] for index, result in enumerate(results) if name in result}
        first = next(iter(tensors.values()))
        # The dtype must be wide enough for the strings of all parts.
        kinds = {tensor.dtype.kind for tensor in tensors.values()}
        texts = first.dtype.kind in _TEXT_KINDS and len(kinds) == 1
        dtype = np.result_type(*tensors.values()) if texts else first.dtype
        output = np.zeros((batch_size, *first.shape[1:]), dtype=dtype)
        for index, tensor in tensors.items():
            _scatter(name, output, parts[index], tensor)
        outputs[name] = output
    return outputs


def _scatter(name: str, output: NDArray[Any], rows: list[int], tensor: NDArray[Any]) -> None:
    # A result with a single row applies to all rows of its part.
    if tensor.shape[1:] != output.shape[1:] or tensor.shape[0] not in (1, len(rows)):
        raise PyTritonRuntimeError(
            f"Expected output `{name}` of shape {(len(rows), *output.shape[1:])}, "
            f"got {tensor.shape}; use pad_fn if the shapes of groups differ"
        )
    output[rows] = tensor


class ConstantPadder:
    """Pads the results of several calls at the end of each dimension to their largest shape.

    Args:
        pad_value: value to pad numbers with; byte strings are padded with empty ones.
    """

    def __init__(self, pad_value: float = 0) -> None:
        self.pad_value = pad_value

    def __call__(self, batches_list: Sequence[InferenceResult]) -> InferenceResults:
        """Pad results.

        Args:
            batches_list: outputs by name, for each call.

        Returns:
            The same with equal shapes apart from the batch dimension.

        Raises:
            PyTritonRuntimeError: The arrays of an output differ in dtype or number of dimensions.
        """
        padded: InferenceResults = [{} for _ in batches_list]
        for name in dict.fromkeys(name for result in batches_list for name in result):
            tensors = [result[name] for result in batches_list if name in result]
            shape, dtype = _common_shape(name, tensors), _common_dtype(name, tensors)
            for result, target in zip(batches_list, padded, strict=True):
                if name in result:
                    target[name] = self._padded(result[name], shape, dtype)
        return padded

    def _padded(
        self, tensor: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        fill = b"" if dtype.kind in _BYTES_KINDS else self.pad_value
        padded = np.full((tensor.shape[0], *shape), fill, dtype=dtype)
        padded[tuple(slice(size) for size in tensor.shape)] = tensor
        return padded


def _common_shape(name: str, tensors: list[NDArray[Any]]) -> tuple[int, ...]:
    if len({tensor.ndim for tensor in tensors}) > 1:
        shapes = ", ".join(str(tensor.shape) for tensor in tensors)
        raise PyTritonRuntimeError(
            f"Expected arrays of `{name}` with the same number of dimensions, got {shapes}"
        )
    return tuple(max(sizes) for sizes in zip(*(t.shape[1:] for t in tensors), strict=True))


def _common_dtype(name: str, tensors: list[NDArray[Any]]) -> np.dtype[Any]:
    found = list(dict.fromkeys(tensor.dtype for tensor in tensors))
    kinds = {dtype.kind for dtype in found}
    if len(found) > 1 and not (len(kinds) == 1 and kinds <= set(_TEXT_KINDS)):
        raise PyTritonRuntimeError(
            "All input arrays for given input name must have the same dtype: "
            f"`{name}` has {', '.join(str(dtype) for dtype in found)}"
        )
    return np.result_type(*found)
