# SPDX-License-Identifier: Apache-2.0
"""Decorators that join a list of requests into arrays, and split the results into a list."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import GeneratorType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base.device_copies import is_on_gpu
from pytriton.decorators.context import InferFunc, decorated, decorated_layers, get_model_config
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.proxy.telemetry import get_telemetry_tracer, traced_span

InputNames = list[str]
InferenceRequest = Mapping[str, NDArray[Any]]
InferenceRequests = Sequence[InferenceRequest]
InferenceResult = dict[str, NDArray[Any]]
InferenceResults = list[InferenceResult]

_BATCH_SPAN_NAME = "pytriton-batch-decorator-span"
_NO_SPANS: AbstractContextManager[None] = contextlib.nullcontext()


def get_inference_request_batch_size(inference_request: InferenceRequest) -> int:
    """Return the number of rows of a request.

    Args:
        inference_request: inputs by name.

    Returns:
        The size of the first input's first dimension; 1 for a request without inputs.
    """
    for tensor in inference_request.values():
        rows: int = tensor.shape[0]
        return rows
    return 1


def convert_output(
    outputs: Any,
    wrapped: InferFunc | None = None,
    instance: Any = None,
    model_config: TritonModelConfig | None = None,
) -> InferenceResult:
    """Convert the result of a callable to outputs by name.

    Args:
        outputs: arrays by name, or a list or tuple of arrays in the order of the model's outputs.
        wrapped: callable that returned them, to find its model; not needed with `model_config`.
        instance: object that the callable belongs to, or None.
        model_config: configuration of the model.

    Returns:
        The arrays by name.

    Raises:
        PyTritonValidationError: The outputs have another type, or their number is not that of the
            model's outputs.
    """
    if isinstance(outputs, dict):
        return outputs
    if not isinstance(outputs, (list, tuple)):
        hint = " Is a return statement missing?" if outputs is None else ""
        raise PyTritonValidationError(f"Unsupported output type {type(outputs)}.{hint}")
    if model_config is None:
        if wrapped is None:
            raise PyTritonValidationError("Expected the callable or its model config, got neither")
        model_config = get_model_config(wrapped, instance)
    names = [spec.name for spec in model_config.outputs or ()]
    if len(names) != len(outputs):
        raise PyTritonValidationError(
            "Outputs length different than config outputs length: "
            f"expected {len(names)} ({', '.join(names)}), got {len(outputs)}"
        )
    return dict(zip(names, outputs, strict=True))


def batch(infer_func: InferFunc) -> InferFunc:
    """Call with the inputs of all requests, joined along the batch dimension, as keyword arguments.

    The callable returns its outputs by name, or as a list in the order of the model's outputs. The
    rows are then split by request. A generator yields such outputs for each response.

    Args:
        infer_func: callable that takes an array for each input; it must not be asynchronous.

    Returns:
        The decorated callable. When called, it raises PyTritonValidationError if requests have
        different inputs or the result has an unsupported form, and ValueError if the number of
        rows of an output is not that of the batch.
    """
    return decorated(infer_func, call_with_batch)


def call_with_batch(
    wrapped: InferFunc, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Implements `batch`; other decorators use this function to recognise it."""
    requests, *rest = args
    kwargs.update(_joined(requests))
    sizes = [get_inference_request_batch_size(request) for request in requests]
    with _spans(requests):
        outputs = wrapped(*rest, **kwargs)
    if isinstance(outputs, GeneratorType):
        return _split_each(outputs, wrapped, instance, sizes)
    return _split(outputs, wrapped, instance, sizes)


def _joined(requests: InferenceRequests) -> dict[str, NDArray[Any]]:
    first = requests[0]
    if len(requests) == 1:
        return dict(first.items())
    names = first.keys()
    for request in requests:
        if request.keys() != names:
            raise PyTritonValidationError(
                "Cannot batch requests with different set of inputs keys: "
                f"expected {sorted(names)}, got {sorted(request.keys())}"
            )
    return {name: np.concatenate([request[name] for request in requests]) for name in names}


def _spans(requests: InferenceRequests) -> AbstractContextManager[Any]:
    if get_telemetry_tracer() is None:
        return _NO_SPANS
    stack = contextlib.ExitStack()
    for request in requests:
        stack.enter_context(traced_span(request, _BATCH_SPAN_NAME))
    return stack


def _split_each(
    responses: Generator[Any, Any, Any], wrapped: InferFunc, instance: Any, sizes: list[int]
) -> Iterator[InferenceResults]:
    with contextlib.closing(responses):
        for outputs in responses:
            yield _split(outputs, wrapped, instance, sizes)


def _split(outputs: Any, wrapped: InferFunc, instance: Any, sizes: list[int]) -> InferenceResults:
    named = convert_output(outputs, wrapped, instance)
    _check_rows(named, sum(sizes))
    if len(sizes) == 1:
        return [named]
    ends = list(itertools.accumulate(sizes))
    return [
        {name: tensor[end - size : end] for name, tensor in named.items()}
        for size, end in zip(sizes, ends, strict=True)
    ]


def _check_rows(outputs: InferenceResult, rows: int) -> None:
    expected = (rows,)
    tensor: Any  # whatever a function returns
    for name, tensor in outputs.items():
        if not isinstance(tensor, np.ndarray) and not is_on_gpu(tensor):
            raise ValueError(
                "Not all values returned by model callable are numpy arrays: "
                f"output `{name}` is {type(tensor)}."
            )
        if tuple(tensor.shape[:1]) != expected:
            shapes = ", ".join(f"{name}: {tensor.shape}" for name, tensor in outputs.items())
            raise ValueError(
                f"Received output tensors with different batch sizes: {shapes}. "
                f"Expected batch size: {rows}."
            )


def whole_batch_callable(
    infer_func: InferFunc, model_config: TritonModelConfig | None = None
) -> Callable[[dict[str, NDArray[Any]], int], InferenceResult] | None:
    """Return a shortcut into a callable for a host that already has the batch as whole arrays.

    It does the same as `batch` without joining and splitting. It opens no spans, so batches with
    traced requests do not use it.

    Args:
        infer_func: a function, a bound method, or an object with a decorated `__call__`.
        model_config: configuration of the model; by default it is taken from the context.

    Returns:
        A callable that takes the whole inputs and the number of rows and returns the whole outputs;
        None if `batch` is not the outermost decorator or does not wrap a plain function.
    """
    call, wrapped, instance = next(decorated_layers(infer_func), (None, None, None))
    if call is not call_with_batch or wrapped is None or not _is_plain(wrapped):
        return None
    plain_function: InferFunc = wrapped

    def call_with_whole_batch(inputs: dict[str, NDArray[Any]], rows: int) -> InferenceResult:
        outputs = convert_output(plain_function(**inputs), plain_function, instance, model_config)
        _check_rows(outputs, rows)
        return outputs

    return call_with_whole_batch


def _is_plain(function: InferFunc) -> bool:
    kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    call = getattr(function, "__call__", None)  # noqa: B004  for callable objects
    return not any(is_kind(function) or is_kind(call) for is_kind in kinds)


def sample(infer_func: InferFunc) -> InferFunc:
    """Call with the inputs of the first request as keyword arguments; for models without batching.

    Args:
        infer_func: callable that takes an array for each input and returns its outputs by name, or
            as a list in the order of the model's outputs.

    Returns:
        The decorated callable. When called, it raises PyTritonValidationError if the result has an
        unsupported form.
    """
    return decorated(infer_func, call_with_sample)


def call_with_sample(
    wrapped: InferFunc, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> InferenceResults:
    requests, *rest = args
    kwargs.update(requests[0].items())
    return [convert_output(wrapped(*rest, **kwargs), wrapped, instance)]


def group_by_keys(infer_func: InferFunc) -> InferFunc:
    """Call once for each set of requests with the same inputs; must be outside of `batch`.

    Args:
        infer_func: callable that takes a list of requests and returns a list of responses.

    Returns:
        The decorated callable.
    """
    return decorated(infer_func, _call_for_each_set_of_keys)


def _call_for_each_set_of_keys(
    wrapped: InferFunc, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    requests, *rest = args
    positions: dict[tuple[str, ...], list[int]] = {}
    for position, request in enumerate(requests):
        positions.setdefault(tuple(sorted(request.keys())), []).append(position)
    results: list[Any] = [None] * len(requests)
    for _, group in sorted(positions.items()):
        group_results = wrapped([requests[position] for position in group], *rest, **kwargs)
        for position, result in zip(group, group_results, strict=True):
            results[position] = result
    return results
