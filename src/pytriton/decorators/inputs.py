# SPDX-License-Identifier: Apache-2.0
"""Decorators that complete, pad, shorten or group the inputs of a call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, MutableMapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.decorators.batching import (
    InferenceResult,
    InferenceResults,
    call_with_batch,
    get_inference_request_batch_size,
)
from pytriton.decorators.context import (
    CONTEXT_ATTRIBUTE,
    InferFunc,
    decorated,
    decorated_layers,
    get_model_config,
)
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.model_config.tensor import triton_datatype
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

_SPECIAL_KEYS = (CONTEXT_ATTRIBUTE,)
_TEXT_KINDS = "SU"
_BYTES_KINDS = "OSU"


def fill_optionals(**defaults: NDArray[Any]) -> Callable[[InferFunc], InferFunc]:
    """Add defaults for inputs that a request omits; must be the outermost decorator.

    Args:
        **defaults: arrays by input, without a batch dimension; for a model with batching, each is
            repeated for every row of the request.

    Returns:
        A decorator. When called, the decorated callable raises PyTritonBadParameterError if a
        default is not an array or does not fit the model's input.
    """
    checked: TritonModelConfig | None = None

    def call_with_defaults(
        wrapped: InferFunc, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        nonlocal checked
        model_config = get_model_config(wrapped, instance)
        if checked is not model_config:
            _check_defaults(defaults, {spec.name: spec for spec in model_config.inputs or ()})
            checked = model_config
        if len(args) != 1:
            raise PyTritonRuntimeError(
                "The @fill_optionals decorator expected a list of requests as only positional "
                f"argument, got {len(args)} arguments: it must be the outermost decorator."
            )
        for request in args[0]:
            _fill(request, defaults, batching=model_config.batching)
        return wrapped(*args, **kwargs)

    return lambda infer_func: decorated(infer_func, call_with_defaults)


def _fill(
    request: MutableMapping[str, NDArray[Any]], defaults: dict[str, NDArray[Any]], *, batching: bool
) -> None:
    missing = [name for name in defaults if name not in request]
    if not missing:
        return
    rows = get_inference_request_batch_size(request) if batching else 0
    for name in missing:
        default = defaults[name]
        request[name] = np.repeat(default[np.newaxis], rows, axis=0) if batching else default


def _check_defaults(defaults: dict[str, Any], inputs: dict[str, TensorSpec]) -> None:
    unknown = [name for name in defaults if name not in inputs]
    if unknown:
        raise PyTritonBadParameterError(
            f"Could not find the inputs {', '.join(unknown)}; the model has {', '.join(inputs)}"
        )
    _refuse(
        [
            f"{name}={default!r}"
            for name, default in defaults.items()
            if not isinstance(default, np.ndarray)
        ],
        "they are not NumPy arrays",
    )
    _refuse(
        [
            f"{name}: dtype={default.dtype} expected_dtype={inputs[name].dtype}"
            for name, default in defaults.items()
            if dtypes.from_numpy(default.dtype) is not triton_datatype(inputs[name].dtype)
        ],
        "they have different than input signature dtypes",
    )
    _refuse(
        [
            f"{name}: shape={default.shape} expected_shape={inputs[name].shape}"
            for name, default in defaults.items()
            if not _has_shape(default, inputs[name].shape)
        ],
        "they have different than input signature shapes",
    )


def _refuse(defaults: list[str], reason: str) -> None:
    if defaults:
        raise PyTritonBadParameterError(f"Could not use {', '.join(defaults)} defaults as {reason}")


def _has_shape(tensor: NDArray[Any], shape: tuple[int, ...]) -> bool:
    return tensor.ndim == len(shape) and all(
        expected in (-1, size) for size, expected in zip(tensor.shape, shape, strict=True)
    )


def pad_batch(infer_func: InferFunc) -> InferFunc:
    """Repeat the last row until the batch has one of the preferred sizes or the largest one.

    Args:
        infer_func: callable that takes keyword arguments. Its outputs are not shortened: inside of
            `batch`, it has to return as many rows as the batch had before the padding.

    Returns:
        The decorated callable. When called, it raises IndexError if the batch is too large.
    """
    return decorated(infer_func, _call_with_padding)


def _call_with_padding(
    wrapped: InferFunc, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    model_config = get_model_config(wrapped, instance)
    preferred = (model_config.batcher and model_config.batcher.preferred_batch_size) or ()
    rows = get_inference_request_batch_size(kwargs)
    sizes = [size for size in (*preferred, model_config.max_batch_size) if size >= rows]
    if not sizes:
        raise IndexError(
            f"Expected a batch of at most {model_config.max_batch_size} rows, got {rows}"
        )
    missing = min(sizes) - rows
    if missing:
        kwargs = {
            name: np.concatenate([tensor, np.repeat(tensor[-1:], missing, axis=0)])
            for name, tensor in kwargs.items()
        }
    return wrapped(*args, **kwargs)


def first_value(
    *keys: str, squeeze_single_values: bool = True, strict: bool = True
) -> Callable[[InferFunc], InferFunc]:
    """Pass the first row of an input instead of all its rows.

    Args:
        *keys: inputs to shorten; inputs that are missing in a request are ignored.
        squeeze_single_values: whether a row with one element becomes a scalar.
        strict: whether all rows have to be equal.

    Returns:
        A decorator, for callables that take keyword arguments or a list of requests. When called,
        the decorated callable raises PyTritonRuntimeError if the model has no batching, or if
        `strict` is set and rows differ.

    Raises:
        PyTritonBadParameterError: A key cannot be an input.
    """
    special = [key for key in keys if key in _SPECIAL_KEYS]
    if special:
        raise PyTritonBadParameterError(
            f"The keys {', '.join(special)} are not allowed as keys for @first_value wrapper. "
            f"The set of not allowed keys are {', '.join(_SPECIAL_KEYS)}"
        )

    def shorten(inputs: MutableMapping[str, Any]) -> None:
        for key in keys:
            if key in inputs:
                if strict:
                    _check_rows_are_equal(key, inputs[key])
                inputs[key] = _first_row(inputs[key], squeeze=squeeze_single_values)

    def call_with_first_values(
        wrapped: InferFunc, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not get_model_config(wrapped, instance).batching:
            raise PyTritonRuntimeError(
                "The @first_value decorator can only be used with models that support batching."
            )
        for inputs in [kwargs] if kwargs else args[0]:
            shorten(inputs)
        return wrapped(*args, **kwargs)

    return lambda infer_func: decorated(infer_func, call_with_first_values)


def _check_rows_are_equal(key: str, tensor: NDArray[Any]) -> None:
    if not np.all(tensor[1:] == tensor[:1]):
        raise PyTritonRuntimeError(
            f"The values on the {key!r} input are not equal. To proceed, either disable strict "
            "mode in @first_value wrapper or ensure that the values always are consistent. "
            f"The current values of {key!r} are {tensor!r}."
        )


def _first_row(tensor: NDArray[Any], *, squeeze: bool) -> Any:
    row = tensor[0]
    if squeeze and isinstance(row, np.ndarray) and row.size == 1:
        return row.reshape(-1)[0]
    return row


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
