# SPDX-License-Identifier: Apache-2.0
"""Decorators that complete, pad or shorten the inputs of a call."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.decorators.batching import get_inference_request_batch_size
from pytriton.decorators.context import CONTEXT_ATTRIBUTE, get_model_config
from pytriton.decorators.wrapping import InferFunc, decorated
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.model_config.tensor import triton_datatype
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

_SPECIAL_KEYS = (CONTEXT_ATTRIBUTE,)


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
