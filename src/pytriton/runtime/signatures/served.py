# SPDX-License-Identifier: Apache-2.0
"""What `bind` needs of an annotated callable: instances that take requests, tensors, settings.

Requests become arguments of the callable, its results become responses.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytriton.base.errors import InputValueError
from pytriton.base.user_frames import with_check, with_user_function
from pytriton.decorators.batching import batch, get_inference_request_batch_size
from pytriton.decorators.declaration import ModelDeclaration, declaration_of
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.runtime.signatures.annotations import MISSING, Record, RecordField
from pytriton.runtime.signatures.signature import (
    CallableSignature,
    CallArgument,
    SignatureError,
    caller_of,
    place_of,
    read_signature,
)
from pytriton.runtime.signatures.values import ValueForm, ValueType

Arrays = Mapping[str, NDArray[Any]]
InferFunc = Callable[..., Any]
CallArguments = tuple[list[Any], dict[str, Any]]  # by position and by name
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def inference_callable(
    function: Callable[..., Any], signature: CallableSignature, *, batched: bool
) -> InferFunc:
    """Make a callable that takes a list of requests, as `bind` expects it.

    Args:
        function: the annotated callable.
        signature: its signature.
        batched: whether all arrays have one more axis, and requests are joined along it.

    Returns:
        A function, generator function, coroutine function or async generator function.
    """
    call = _AnnotatedCall(function, signature, batched=batched)
    if batched and not signature.is_stream:
        return with_check(with_user_function(_batched(call, signature), function), call.arguments)
    make = {
        (False, False): _plain,
        (False, True): _coroutine,
        (True, False): _generator,
        (True, True): _async_generator,
    }[signature.is_stream, signature.is_async]
    return with_user_function(make(call), function)


class _AnnotatedCall:
    """Converts arguments and results of one function."""

    def __init__(
        self, function: Callable[..., Any], signature: CallableSignature, *, batched: bool
    ) -> None:
        self._function = function
        self._signature = signature
        self._batched = batched

    def rows(self, inputs: Arrays) -> int | None:
        """Returns the number of rows; None without batching."""
        return get_inference_request_batch_size(inputs) if self._batched else None

    def __call__(self, inputs: Arrays) -> Any:
        """Calls the function with the inputs of a request or a batch."""
        return self.call(self.arguments(inputs))

    def call(self, arguments: CallArguments) -> Any:
        """Calls the function with what `arguments` has made."""
        positional, named = arguments
        return self._function(*positional, **named)

    def arguments(self, inputs: Arrays) -> CallArguments:
        """Returns what the function gets for the inputs of a request or a batch.

        Raises:
            InputValueError: A value is not one that the function takes.
        """
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
        return positional, named

    def _object(
        self, argument: CallArgument, record: Record, inputs: Arrays, rows: int | None
    ) -> Any:
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
        if rows is None or record.make_batch is None:
            return record.make(**given)
        self._check_rows(record, inputs, rows)
        return record.make_batch(**given)

    def _check_rows(self, record: Record, inputs: Arrays, rows: int) -> None:
        """Raise InputValueError if the class of the record does not take the values of a row."""
        fields = [field for field in record.fields if field.name in inputs]
        for row in range(rows):
            values = {
                field.name: field.type.from_array(inputs[field.name][row], batched=False)
                for field in fields
            }
            try:
                record.make(**values)
            except InputValueError as error:
                raise InputValueError(f"row {row}: {error}" if rows > 1 else str(error)) from None

    def _value(self, field: RecordField, inputs: Arrays, rows: int | None) -> Any:
        """Returns what the function gets for an input; `MISSING` if it gets nothing."""
        array = inputs.get(field.name)
        if array is None:
            return MISSING if field.default is MISSING else _default(field, rows)
        try:
            return field.type.from_array(array, batched=self._batched)
        except ValueError as error:
            where = self._row_of(field, array)
            raise InputValueError(f"{where}input `{field.name}`: {error}") from None

    def _row_of(self, field: RecordField, array: NDArray[Any]) -> str:
        """Returns which row has a wrong value, as the beginning of a message."""
        if self._batched and len(array) > 1:
            for row in range(len(array)):
                try:
                    field.type.from_array(array[row : row + 1], batched=True)
                except ValueError:  # noqa: PERF203  the first one is the last
                    return f"row {row}: "
        return ""

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

    def _output(self, field: RecordField, value: Any, rows: int | None) -> NDArray[Any]:
        try:
            return field.type.to_array(value, rows)
        except ValueError as error:
            raise ValueError(
                f"{self._signature.name} returned for output `{field.name}`: {error}"
            ) from error.__cause__


def _default(field: RecordField, rows: int | None) -> Any:
    """Returns what a function gets for an input that a request leaves out."""
    default = field.default if field.factory is None else field.factory()
    if rows is None or default is None:
        return default
    if isinstance(default, np.ndarray):
        default = default.tolist()  # texts are not taken from arrays inside of lists
    array = field.type.to_array([default], 1)
    return field.type.from_array(np.repeat(array, rows, axis=0), batched=True)


def _plain(call: _AnnotatedCall) -> InferFunc:
    def infer(requests: Sequence[Arrays]) -> list[dict[str, NDArray[Any]]]:
        return [call.outputs(call(requests[0]), None)]

    return infer


def _coroutine(call: _AnnotatedCall) -> InferFunc:
    async def infer(requests: Sequence[Arrays]) -> list[dict[str, NDArray[Any]]]:
        return [call.outputs(await call(requests[0]), None)]

    return infer


def _generator(call: _AnnotatedCall) -> InferFunc:
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


def _async_generator(call: _AnnotatedCall) -> InferFunc:
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


def _batched(call: _AnnotatedCall, signature: CallableSignature) -> InferFunc:
    has_optional = any(
        field.is_optional for argument in signature.arguments for field in argument.fields
    )
    if not has_optional and not signature.is_async:

        def infer_whole(**inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
            return call.outputs(call(inputs), call.rows(inputs))

        return batch(infer_whole)  # the server may pass whole batches then, without splitting them

    def prepared(requests: Sequence[Arrays]) -> list[tuple[_Batch, CallArguments]]:
        # All are read before one is called: after a wrong value, the others are called again.
        return [(joined, call.arguments(joined.inputs)) for joined in _batches(requests)]

    def infer(requests: Sequence[Arrays]) -> list[dict[str, NDArray[Any]]]:
        results: list[dict[str, NDArray[Any]]] = [{}] * len(requests)
        for joined, arguments in prepared(requests):
            joined.keep(call.outputs(call.call(arguments), call.rows(joined.inputs)), results)
        return results

    async def infer_async(requests: Sequence[Arrays]) -> list[dict[str, NDArray[Any]]]:
        results: list[dict[str, NDArray[Any]]] = [{}] * len(requests)
        for joined, arguments in prepared(requests):
            outputs = call.outputs(await call.call(arguments), call.rows(joined.inputs))
            joined.keep(outputs, results)
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


class AnnotatedModel(NamedTuple):
    """The arguments of `bind` that annotations and a declaration say."""

    infer_funcs: list[InferFunc]
    inputs: list[Tensor]
    outputs: list[Tensor]
    config: ModelConfig
    examples: dict[str, Any]  # values for inputs, as JSON has them
    nullable: tuple[str, ...]  # inputs that are None without a value


def served_model(
    infer_func: Callable[..., Any] | Sequence[Callable[..., Any]],
    inputs: Sequence[Tensor] | None = None,
    outputs: Sequence[Tensor] | None = None,
    config: ModelConfig | None = None,
    instances: int | None = None,
) -> AnnotatedModel:
    """Make a model of annotated callables.

    Args:
        infer_func: a function, an object or a class with `__call__`; or a list of such objects,
            each an instance of the model.
        inputs: the inputs, which are then passed as arrays; by default the annotations say them.
        outputs: the outputs; by default the annotations say them.
        config: settings of the model; default are those that it declares.
        instances: number of instances; default is the number that it declares.

    Returns:
        What `bind` needs. The objects of a class are made here.

    Raises:
        SignatureError: Annotations are missing or wrong, or objects differ in them.
        PyTritonValidationError: The class cannot be constructed without arguments.
    """
    candidates: list[Any]
    candidates = list(infer_func) if isinstance(infer_func, list | tuple) else [infer_func]
    if not candidates or not all(callable(candidate) for candidate in candidates):
        raise PyTritonValidationError(
            f"infer_func has to be a callable or a list or tuple of callables, got {infer_func!r}"
        )
    signature = _common_signature(candidates, inputs, outputs)
    declaration = declaration_of(candidates[0]) or ModelDeclaration()
    settings = _settings(signature, config or declaration.model_config())
    is_list = isinstance(infer_func, list | tuple)
    count = instances or (1 if is_list else declaration.local_instances)
    callables = [
        inference_callable(instance, signature, batched=settings.batching)
        for candidate in candidates
        for instance in instances_of(candidate, count)
    ]
    return _annotated_model(callables, signature, settings)


def described_model(
    function: Callable[..., Any],
    inputs: Sequence[Tensor] | None = None,
    outputs: Sequence[Tensor] | None = None,
    config: ModelConfig | None = None,
) -> AnnotatedModel:
    """Like `served_model`, for instances elsewhere: no object is made, and there is no callable."""
    signature = _signature(function, inputs, outputs)
    declaration = declaration_of(function) or ModelDeclaration()
    settings = _settings(signature, config or declaration.model_config())
    return _annotated_model([], signature, settings)


def _annotated_model(
    callables: list[InferFunc], signature: CallableSignature, settings: ModelConfig
) -> AnnotatedModel:
    fields = [field for argument in signature.arguments for field in argument.fields]
    nullable = tuple(each.name for each in fields if each.is_optional and each.default is None)
    return AnnotatedModel(
        callables, signature.inputs, signature.outputs, settings, _examples(signature), nullable
    )


def _common_signature(
    candidates: Sequence[Callable[..., Any]],
    inputs: Sequence[Tensor] | None,
    outputs: Sequence[Tensor] | None,
) -> CallableSignature:
    signatures = [_signature(candidate, inputs, outputs) for candidate in candidates]
    signature = signatures[0]
    for other in signatures[1:]:
        if (other.inputs, other.outputs, other.is_stream, other.is_async) != (
            signature.inputs, signature.outputs, signature.is_stream, signature.is_async,
        ):  # fmt: skip
            raise SignatureError(
                f"Expected instances with the same inputs and outputs, got {signature.place} and "
                f"{other.place}"
            )
    return signature


def _signature(
    function: Any, inputs: Sequence[Tensor] | None, outputs: Sequence[Tensor] | None
) -> CallableSignature:
    signature = read_signature(function, needs_inputs=inputs is None, needs_outputs=outputs is None)
    if inputs is not None:
        arguments = _given_arguments(function, inputs, signature.place)
        signature = dataclasses.replace(signature, arguments=arguments)
    if outputs is not None:
        results = tuple(
            RecordField(tensor.name or f"OUTPUT_{number}", _array_type(tensor))
            for number, tensor in enumerate(outputs, 1)
        )
        record = _GivenOutputs("outputs", dict, results, is_mapping=True)
        signature = dataclasses.replace(signature, results=results, record=record)
    return signature


def _given_arguments(
    function: Any, inputs: Sequence[Tensor], place: str
) -> tuple[CallArgument, ...]:
    """Returns the arguments for inputs that were given: their arrays, by name."""
    parameters = list(inspect.signature(caller_of(function)).parameters.values())
    by_name = {each.name: each for each in parameters if each.kind in _BY_NAME}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    arguments = []
    for number, tensor in enumerate(inputs):
        unnamed = list(by_name)[number] if number < len(by_name) else f"INPUT_{number + 1}"
        name = tensor.name or unnamed
        if name not in by_name and not takes_any:
            raise SignatureError(
                f"{place}: expected a parameter for the input `{name}`, got the parameters "
                f"{', '.join(by_name) or 'none'}"
            )
        default = by_name[name].default if name in by_name else MISSING
        field = RecordField(name, _array_type(tensor), bool(tensor.optional), default)
        arguments.append(CallArgument(name, (field,)))
    return tuple(arguments)


def _array_type(tensor: Tensor) -> ValueType:
    return ValueType(tensor.dtype, tuple(tensor.shape), ValueForm.ARRAY)


class _GivenOutputs(Record):
    """Outputs that were given: a function returns them by name, in order, or a single one."""

    def values_of(self, value: Any) -> dict[str, Any]:
        names = [field.name for field in self.fields]
        if isinstance(value, dict):
            return super().values_of(value)
        values = list(value) if isinstance(value, list | tuple) else [value]
        if len(values) != len(names):
            raise ValueError(
                f"expected {len(names)} outputs ({', '.join(names)}), got {len(values)}"
            )
        return dict(zip(names, values, strict=True))


def _settings(signature: CallableSignature, config: ModelConfig) -> ModelConfig:
    """Returns the settings; a generator sends any number of responses."""
    if not signature.is_stream:
        return config
    optional = [field for each in signature.arguments for field in each.fields if field.is_optional]
    if config.batching and optional:
        names = ", ".join(field.name for field in optional)
        raise SignatureError(
            f"{signature.place}: a generator that works on batches cannot have optional inputs, "
            f"got {names}: requests with different inputs cannot share one. Leave max_batch_size "
            "out, or the defaults."
        )
    return dataclasses.replace(config, decoupled=True)


def _examples(signature: CallableSignature) -> dict[str, Any]:
    """Returns values that the function certainly takes: defaults, and the first of choices."""
    examples: dict[str, Any] = {}
    for field in (field for argument in signature.arguments for field in argument.fields):
        choices = field.type.choices
        if choices is not None:
            by_default = [sent for sent, value in choices.items() if _is_same(value, field.default)]
            chosen = by_default[0] if by_default else next(iter(choices))
            examples[field.name] = [chosen] if field.type.shape else chosen
        elif _is_json(field.default):
            examples[field.name] = field.default
    return examples


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _is_json(value: Any) -> bool:
    """Whether a value can be sent as it is; infinity cannot, and neither can bytes."""
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool | int | str)


def instances_of(candidate: Any, count: int) -> list[Any]:
    """Make the objects of a class; a function stands for all its instances.

    Raises:
        PyTritonValidationError: The class cannot be constructed without arguments.
    """
    if not inspect.isclass(candidate):
        return [candidate] * count
    try:
        inspect.signature(candidate).bind()
    except TypeError as error:
        raise PyTritonValidationError(
            f"{place_of(candidate)}: expected a class that is constructed without arguments, got "
            f"{candidate.__name__}{inspect.signature(candidate)}: {error}. Give defaults, or bind "
            "an object."
        ) from None
    return [candidate() for _ in range(count)]
