# SPDX-License-Identifier: Apache-2.0
"""What `bind` needs of an annotated callable: instances that take requests, tensors, settings."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pytriton.decorators.declaration import ModelDeclaration, declaration_of
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.runtime.signatures.calls import InferFunc, inference_callable
from pytriton.runtime.signatures.records import MISSING, Field, Record
from pytriton.runtime.signatures.signature import (
    Argument,
    Signature,
    SignatureError,
    caller_of,
    place_of,
    read_signature,
)
from pytriton.runtime.signatures.values import Form, ValueType

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class ServedModel(NamedTuple):
    """The arguments of `bind` that annotations and a declaration say."""

    infer_funcs: list[InferFunc]
    inputs: list[Tensor]
    outputs: list[Tensor]
    config: ModelConfig
    examples: dict[str, Any]  # values for inputs, as JSON has them


def served_model(
    infer_func: Callable[..., Any] | Sequence[Callable[..., Any]],
    inputs: Sequence[Tensor] | None = None,
    outputs: Sequence[Tensor] | None = None,
    config: ModelConfig | None = None,
    instances: int | None = None,
) -> ServedModel:
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
    examples = _examples(signature)
    return ServedModel(callables, signature.inputs, signature.outputs, settings, examples)


def described_model(
    function: Callable[..., Any],
    inputs: Sequence[Tensor] | None = None,
    outputs: Sequence[Tensor] | None = None,
    config: ModelConfig | None = None,
) -> ServedModel:
    """Like `served_model`, for instances elsewhere: no object is made, and there is no callable."""
    signature = _signature(function, inputs, outputs)
    declaration = declaration_of(function) or ModelDeclaration()
    settings = _settings(signature, config or declaration.model_config())
    return ServedModel([], signature.inputs, signature.outputs, settings, _examples(signature))


def _common_signature(
    candidates: Sequence[Callable[..., Any]],
    inputs: Sequence[Tensor] | None,
    outputs: Sequence[Tensor] | None,
) -> Signature:
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
) -> Signature:
    signature = read_signature(function, needs_inputs=inputs is None, needs_outputs=outputs is None)
    if inputs is not None:
        arguments = _given_arguments(function, inputs, signature.place)
        signature = dataclasses.replace(signature, arguments=arguments)
    if outputs is not None:
        results = tuple(
            Field(tensor.name or f"OUTPUT_{number}", _array_type(tensor))
            for number, tensor in enumerate(outputs, 1)
        )
        record = _GivenOutputs("outputs", dict, results, is_mapping=True)
        signature = dataclasses.replace(signature, results=results, record=record)
    return signature


def _given_arguments(function: Any, inputs: Sequence[Tensor], place: str) -> tuple[Argument, ...]:
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
        field = Field(name, _array_type(tensor), bool(tensor.optional), default)
        arguments.append(Argument(name, (field,)))
    return tuple(arguments)


def _array_type(tensor: Tensor) -> ValueType:
    return ValueType(tensor.dtype, tuple(tensor.shape), Form.ARRAY)


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


def _settings(signature: Signature, config: ModelConfig) -> ModelConfig:
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


def _examples(signature: Signature) -> dict[str, Any]:
    """Returns values that the function certainly takes: defaults, and the first of choices."""
    examples: dict[str, Any] = {}
    for field in (field for argument in signature.arguments for field in argument.fields):
        if field.type.choices is not None:
            first = next(iter(field.type.choices))
            examples[field.name] = [first] if field.type.shape else first
        elif _is_json(field.default):
            examples[field.name] = field.default
    return examples


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
