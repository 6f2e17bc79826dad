# SPDX-License-Identifier: Apache-2.0
"""Calls an annotated function: requests become its arguments, its results become responses."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base.errors import InputValueError
from pytriton.decorators.batching import batch, get_inference_request_batch_size
from pytriton.runtime.signatures.records import MISSING, Field, Record
from pytriton.runtime.signatures.signature import Argument, Signature

Arrays = Mapping[str, NDArray[Any]]
InferFunc = Callable[..., Any]


def inference_callable(
    function: Callable[..., Any], signature: Signature, *, batched: bool
) -> InferFunc:
    """Make a callable that takes a list of requests, as `bind` expects it.

    Args:
        function: the annotated callable.
        signature: its signature.
        batched: whether all arrays have one more axis, and requests are joined along it.

    Returns:
        A function, generator function, coroutine function or async generator function.
    """
    call = _Call(function, signature, batched=batched)
    if batched and not signature.is_stream:
        return _batched(call, signature)
    make = {
        (False, False): _plain,
        (False, True): _coroutine,
        (True, False): _generator,
        (True, True): _async_generator,
    }[signature.is_stream, signature.is_async]
    return make(call)


class _Call:
    """Converts arguments and results of one function."""

    def __init__(
        self, function: Callable[..., Any], signature: Signature, *, batched: bool
    ) -> None:
        self._function = function
        self._signature = signature
        self._batched = batched

    def rows(self, inputs: Arrays) -> int | None:
        """Returns the number of rows; None without batching."""
        return get_inference_request_batch_size(inputs) if self._batched else None

    def __call__(self, inputs: Arrays) -> Any:
        """Calls the function with the inputs of a request or a batch."""
        rows = self.rows(inputs)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for argument in self._signature.arguments:
            if argument.record is None:
                value = self._value(argument.fields[0], inputs, rows)
                if value is MISSING:
                    continue
            else:
                value = self._object(argument, argument.record, inputs, rows)
            if argument.is_positional:
                positional.append(value)
            else:
                named[argument.name] = value
        return self._function(*positional, **named)

    def _object(self, argument: Argument, record: Record, inputs: Arrays, rows: int | None) -> Any:
        """Returns an object of a class with fields; None if it may be and no field is given."""
        if argument.may_be_none and not any(field.name in inputs for field in argument.fields):
            return None
        values = {field.name: self._value(field, inputs, rows) for field in argument.fields}
        given = {name: each for name, each in values.items() if each is not MISSING}
        missing = [name for name in argument.needed if name not in given]
        if missing:
            raise InputValueError(
                f"expected the inputs {', '.join(missing)}, too, as there are {', '.join(given)}"
            )
        return self._make(record)(**given)

    def _make(self, record: Record) -> Callable[..., Any]:
        return (record.make_batch if self._batched else None) or record.make

    def _value(self, field: Field, inputs: Arrays, rows: int | None) -> Any:
        """Returns what the function gets for an input; `MISSING` if it gets nothing."""
        array = inputs.get(field.name)
        if array is None:
            return MISSING if field.default is MISSING else _default(field, rows)
        try:
            return field.type.from_array(array, batched=self._batched)
        except ValueError as error:
            raise InputValueError(f"input `{field.name}`: {error}") from None

    def outputs(self, result: Any, rows: int | None) -> dict[str, NDArray[Any]]:
        """Converts a result of the function.

        Raises:
            ValueError: It is not of the declared type.
        """
        signature = self._signature
        try:
            if signature.record is not None:
                values = signature.record.values_of(result)
            else:
                values = {signature.results[0].name: result}
        except ValueError as error:
            raise ValueError(f"{signature.name} returned: {error}") from None
        return {
            field.name: self._output(field, values[field.name], rows) for field in signature.results
        }

    def _output(self, field: Field, value: Any, rows: int | None) -> NDArray[Any]:
        try:
            return field.type.to_array(value, rows)
        except ValueError as error:
            raise ValueError(
                f"{self._signature.name} returned for output `{field.name}`: {error}"
            ) from error.__cause__


def _default(field: Field, rows: int | None) -> Any:
    """Returns what a function gets for an input that a request leaves out."""
    default = field.default if field.factory is None else field.factory()
    if rows is None or default is None:
        return default
    if isinstance(default, np.ndarray):
        default = default.tolist()  # texts are not taken from arrays inside of lists
    array = field.type.to_array([default], 1)
    return field.type.from_array(np.repeat(array, rows, axis=0), batched=True)


def _plain(call: _Call) -> InferFunc:
    def infer(requests: Sequence[Arrays]) -> list[dict[str, NDArray[Any]]]:
        return [call.outputs(call(requests[0]), None)]

    return infer


def _coroutine(call: _Call) -> InferFunc:
    async def infer(requests: Sequence[Arrays]) -> list[dict[str, NDArray[Any]]]:
        return [call.outputs(await call(requests[0]), None)]

    return infer


def _generator(call: _Call) -> InferFunc:
    def infer(requests: Sequence[Arrays]) -> Iterator[list[dict[str, NDArray[Any]]]]:
        joined = _Batch.of(range(len(requests)), requests)
        rows = call.rows(joined.inputs)
        results = call(joined.inputs)
        with contextlib.ExitStack() as ending:
            if hasattr(results, "close"):
                ending.callback(results.close)
            for result in results:
                yield joined.split(call.outputs(result, rows))

    return infer


def _async_generator(call: _Call) -> InferFunc:
    async def infer(requests: Sequence[Arrays]) -> AsyncIterator[list[dict[str, NDArray[Any]]]]:
        joined = _Batch.of(range(len(requests)), requests)
        rows = call.rows(joined.inputs)
        results = call(joined.inputs)
        try:
            async for result in results:
                yield joined.split(call.outputs(result, rows))
        finally:
            if hasattr(results, "aclose"):
                await results.aclose()

    return infer


def _batched(call: _Call, signature: Signature) -> InferFunc:
    has_optional = any(
        field.is_optional for argument in signature.arguments for field in argument.fields
    )
    if not has_optional and not signature.is_async:

        def infer_whole(**inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
            return call.outputs(call(inputs), call.rows(inputs))

        return batch(infer_whole)  # the server may pass whole batches then, without splitting them

    def infer(requests: Sequence[Arrays]) -> list[dict[str, NDArray[Any]]]:
        results: list[dict[str, NDArray[Any]]] = [{}] * len(requests)
        for joined in _batches(requests):
            joined.keep(call.outputs(call(joined.inputs), call.rows(joined.inputs)), results)
        return results

    async def infer_async(requests: Sequence[Arrays]) -> list[dict[str, NDArray[Any]]]:
        results: list[dict[str, NDArray[Any]]] = [{}] * len(requests)
        for joined in _batches(requests):
            joined.keep(call.outputs(await call(joined.inputs), call.rows(joined.inputs)), results)
        return results

    return infer_async if signature.is_async else infer


@dataclasses.dataclass(frozen=True)
class _Batch:
    """Requests with the same inputs, joined along the first axis."""

    positions: Sequence[int]
    sizes: Sequence[int]
    inputs: Arrays

    @classmethod
    def of(cls, positions: Sequence[int], requests: Sequence[Arrays]) -> _Batch:
        if len(requests) == 1:
            return cls(positions, (1,), requests[0])
        inputs = {
            name: np.concatenate([request[name] for request in requests]) for name in requests[0]
        }
        return cls(positions, [get_inference_request_batch_size(each) for each in requests], inputs)

    def split(self, outputs: dict[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
        """Returns the rows of each request."""
        if len(self.sizes) == 1:
            return [outputs]
        ends = itertools.accumulate(self.sizes)
        return [
            {name: array[end - size : end] for name, array in outputs.items()}
            for size, end in zip(self.sizes, ends, strict=True)
        ]

    def keep(
        self, outputs: dict[str, NDArray[Any]], results: list[dict[str, NDArray[Any]]]
    ) -> None:
        """Puts the rows of each request at its position."""
        for position, part in zip(self.positions, self.split(outputs), strict=True):
            results[position] = part


def _batches(requests: Sequence[Arrays]) -> list[_Batch]:
    """Joins requests that have the same optional inputs."""
    positions: dict[frozenset[str], list[int]] = {}
    for position, request in enumerate(requests):
        positions.setdefault(frozenset(request), []).append(position)
    return [_Batch.of(group, [requests[at] for at in group]) for group in positions.values()]
