# SPDX-License-Identifier: Apache-2.0
"""The signature of a callable: its inputs, its outputs and how it is called."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import pathlib
import typing
from collections.abc import Callable
from typing import Any

from pytriton.decorators.context import decorated_layers
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.tensor import Tensor
from pytriton.runtime.signatures.annotations import (
    MISSING,
    CannotInferError,
    Record,
    RecordField,
    field_of,
    record_of,
    text_of,
    without_none,
)

OUTPUT_NAME = "output"

_SYNC_STREAMS = (
    collections.abc.Iterator,
    collections.abc.Generator,
    collections.abc.Iterable,
)
_ASYNC_STREAMS = (
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
    collections.abc.AsyncIterable,
)
_NO_NAMES = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_RESULT = "the result"


@dataclasses.dataclass(frozen=True)
class CallArgument:
    """A parameter of a callable: one tensor, or a record of several.

    Args:
        name: name of the parameter.
        fields: its tensors.
        record: the class that has them as fields.
        is_positional: whether it can only be given by its position.
        may_be_none: whether it is None if a request has no field of the record.
        needed: the fields that a request with any of them has to have.
    """

    name: str
    fields: tuple[RecordField, ...]
    record: Record | None = None
    is_positional: bool = False
    may_be_none: bool = False
    needed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class CallableSignature:
    """What a callable takes and returns.

    Args:
        place: name, file and line of the callable, for messages.
        arguments: its parameters.
        results: its outputs.
        record: the class of its result, if that has several tensors.
        is_stream: whether it sends any number of results.
        is_async: whether it is a coroutine function or an async generator.
    """

    place: str
    arguments: tuple[CallArgument, ...]
    results: tuple[RecordField, ...]
    record: Record | None = None
    is_stream: bool = False
    is_async: bool = False

    @property
    def name(self) -> str:
        """The name of the callable without its place: clients need not know paths."""
        return self.place.split(" (")[0]

    @property
    def inputs(self) -> list[Tensor]:
        """The model's inputs."""
        return [
            field.type.tensor(field.name, optional=field.is_optional)
            for argument in self.arguments
            for field in argument.fields
        ]

    @property
    def outputs(self) -> list[Tensor]:
        """The model's outputs."""
        return [field.type.tensor(field.name) for field in self.results]


class SignatureError(PyTritonValidationError):
    """Tensors of a callable cannot be taken from its annotations; the text says what to write."""


def read_signature(
    function: Callable[..., Any], *, needs_inputs: bool = True, needs_outputs: bool = True
) -> CallableSignature:
    """Read the annotations of a callable.

    Args:
        function: a function, a method, or an object with `__call__`.
        needs_inputs: whether the inputs are read.
        needs_outputs: whether the outputs are read.

    Raises:
        SignatureError: An annotation is missing, or is not a tensor.
    """
    if inspect.isclass(function) and not any("__call__" in vars(base) for base in function.__mro__):
        raise SignatureError(f"{function.__name__}: it has no method `__call__`, as a model needs")
    place = place_of(function)
    if next(decorated_layers(function), None) is not None:
        raise SignatureError(
            f"{place}: it has a decorator of pytriton.decorators such as @batch, which calls it in "
            "another way than its annotations say. Give inputs and outputs, or remove the "
            "decorator: an annotated function gets whole batches if max_batch_size is set."
        )
    called = _called(function)
    hints = _hints(called, place)
    arguments: tuple[CallArgument, ...] = ()
    if needs_inputs:
        arguments = tuple(
            _argument(parameter, hints, place) for parameter in _parameters(function, place)
        )
        _check_names(arguments, place)
    returned = hints.get("return", inspect.Parameter.empty)
    is_stream, is_async, element = _kind(called, returned, place, needs_outputs=needs_outputs)
    record, results = _results(element, place) if needs_outputs else (None, ())
    return CallableSignature(place, arguments, results, record, is_stream, is_async)


def place_of(function: Any) -> str:
    """Returns the name of a callable with its file and line, as far as they are known."""
    called = _called(function)
    subject = function if hasattr(function, "__name__") else type(function)
    name = getattr(called, "__qualname__", None) or getattr(subject, "__name__", repr(function))
    code = getattr(inspect.unwrap(called), "__code__", None)
    if code is None:
        return str(name)
    path = pathlib.Path(code.co_filename)
    if path.is_relative_to(pathlib.Path.cwd()):
        path = path.relative_to(pathlib.Path.cwd())
    return f"{name} ({path}, line {code.co_firstlineno})"


def caller_of(function: Any) -> Any:
    """Returns what is called with the inputs; for a class, `__call__` of its objects."""
    return function.__call__.__get__(object()) if inspect.isclass(function) else function


def _called(function: Any) -> Any:
    """Returns the function that has the annotations."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    kind: Any = function if inspect.isclass(function) else type(function)
    return kind.__call__


def _hints(called: Any, place: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(called, include_extras=True)
    except NameError as error:
        raise SignatureError(
            f"{place}: the annotation {error.name!r} is not known in its module. Import it there, "
            "and not only for type checkers."
        ) from error
    except Exception as error:  # an annotation is evaluated, and may be any expression
        raise SignatureError(
            f"{place}: its annotations cannot be read ({type(error).__name__}: {error})"
        ) from error


def _parameters(function: Any, place: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(caller_of(function)).parameters.values())
    except (TypeError, ValueError) as error:
        raise SignatureError(f"{place}: its parameters are not known ({error})") from error
    if isinstance(function, functools.partial):  # what it gives by name is given already
        parameters = [each for each in parameters if each.name not in function.keywords]
    return parameters


def _argument(parameter: inspect.Parameter, hints: dict[str, Any], place: str) -> CallArgument:
    name = parameter.name
    if parameter.kind in _NO_NAMES:
        raise SignatureError(
            f"{place}: `{parameter}` does not say which inputs there are. Write one parameter for "
            "each input, or give inputs."
        )
    annotation = hints.get(name, inspect.Parameter.empty)
    default = parameter.default  # `MISSING` if it has none
    is_positional = parameter.kind is parameter.POSITIONAL_ONLY
    try:
        bare, may_be_none = without_none(annotation)
        record = record_of(bare)
        if record is not None:
            return _record_argument(name, record, default, is_positional, may_be_none)
        return CallArgument(name, (field_of(name, annotation, default),), None, is_positional)
    except CannotInferError as error:
        raise _error(place, f"parameter `{name}`", error) from None


def _record_argument(
    name: str, record: Record, default: Any, is_positional: bool, may_be_none: bool
) -> CallArgument:
    """Returns a parameter whose fields are inputs; its default has their defaults."""
    if default is None or (may_be_none and default is MISSING):
        needed = tuple(each.name for each in record.fields if not each.is_optional)
        fields = tuple(dataclasses.replace(each, is_optional=True) for each in record.fields)
        return CallArgument(name, fields, record, is_positional, may_be_none=True, needed=needed)
    if default is not MISSING:
        record = record.with_defaults(default)
    return CallArgument(name, record.fields, record, is_positional)


def _check_names(arguments: tuple[CallArgument, ...], place: str) -> None:
    names = [field.name for argument in arguments for field in argument.fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SignatureError(
            f"{place}: the input {', '.join(twice)} is there twice. Rename a parameter or a field."
        )


def _kind(called: Any, returned: Any, place: str, *, needs_outputs: bool) -> tuple[bool, bool, Any]:
    """Returns whether it is a stream, whether it is asynchronous, and the type of its results."""
    is_async = inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)
    yields = inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called)
    origin = typing.get_origin(returned) or returned
    streams = origin in _SYNC_STREAMS or origin in _ASYNC_STREAMS
    if yields and not streams and needs_outputs and returned is not inspect.Parameter.empty:
        kind = "AsyncIterator" if is_async else "Iterator"
        raise SignatureError(
            f"{place}: it yields its results, but is annotated with {text_of(returned)}. "
            f"Write `-> {kind}[{text_of(returned)}]`."
        )
    if not streams:
        return yields, is_async, returned
    if inspect.iscoroutinefunction(called):
        raise SignatureError(
            f"{place}: it returns a stream after an await. Yield its results, or write `def` "
            "instead of `async def`."
        )
    is_async = is_async or origin in _ASYNC_STREAMS
    element = (*typing.get_args(returned), inspect.Parameter.empty)[0]
    return True, is_async, element


def _results(annotation: Any, place: str) -> tuple[Record | None, tuple[RecordField, ...]]:
    try:
        bare, may_be_none = without_none(annotation)
        record = record_of(bare, is_result=True)
        field = None if record is not None else field_of(OUTPUT_NAME, annotation, MISSING)
    except CannotInferError as error:
        raise _error(place, _RESULT, error) from None
    fields = (field,) if record is None else record.fields
    may_be_none = may_be_none or any(
        each is not None and each.is_optional and each.default is None for each in fields
    )
    if may_be_none:
        raise SignatureError(
            f"{place}: {_RESULT} may be None. An output always has a value: write a type "
            "without None."
        )
    return record, tuple(each for each in fields if each is not None)


def _error(place: str, what: str, error: CannotInferError) -> SignatureError:
    if error.problem.endswith("no type annotation") and what == _RESULT:
        return SignatureError(
            f"{place}: {what} {error.problem}. Write `-> float` or another type: {error.advice}."
        )
    return SignatureError(f"{place}: {what} {error.problem}. Instead, {error.advice}.")
