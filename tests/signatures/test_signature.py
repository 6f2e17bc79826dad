# SPDX-License-Identifier: Apache-2.0
"""The inputs, outputs and kind of whole callables, and the errors that name their places."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.runtime.signatures.signature import SignatureError, place_of, read_signature

if TYPE_CHECKING:
    from decimal import Decimal

HERE = str(pathlib.Path(__file__).relative_to(pathlib.Path.cwd()))


@dataclasses.dataclass
class Box:
    left: float
    label: str = "none"
    tags: list[str] = dataclasses.field(default_factory=lambda: ["a"])


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Options(TypedDict, total=False):
    top: int


class Broken(TypedDict):
    value: complex


class Doubler:
    def __call__(self, x: float) -> float:
        return 2 * x

    def triple(self, x: float) -> float:
        return 3 * x


def described(tensors):
    return [(tensor.name, tensor.dtype, tensor.shape, tensor.optional) for tensor in tensors]


def test_parameters_are_inputs_and_the_result_is_an_output():
    def add(a: float, b: int = 2, c: str | None = None) -> list[float]: ...

    signature = read_signature(add)

    assert described(signature.inputs) == [
        ("a", np.float64, (1,), False),
        ("b", np.int64, (1,), True),
        ("c", np.bytes_, (1,), True),
    ]
    assert described(signature.outputs) == [("output", np.float64, (-1,), False)]
    assert [argument.fields[0].default for argument in signature.arguments[1:]] == [2, None]
    assert not signature.is_stream
    assert not signature.is_async


def test_fields_of_classes_are_tensors():
    def look(box: Box, options: Options) -> Point: ...

    signature = read_signature(look)

    assert [(each.name, each.optional) for each in signature.inputs] == [
        ("left", False), ("label", True), ("tags", True), ("top", True),
    ]  # fmt: skip
    assert [each.name for each in signature.outputs] == ["x", "y"]


def sync_stream(n: int) -> Iterator[str]:
    yield str(n)


def generator(n: int) -> Generator[str, None, None]:
    yield str(n)


async def async_stream(n: int) -> AsyncIterator[str]:
    yield str(n)


async def coroutine(n: int) -> str:
    return str(n)


def returns_iterator(n: int) -> Iterator[str]:
    return iter([str(n)])


def returns_async_iterator(n: int) -> AsyncIterator[str]:
    return async_stream(n)


@pytest.mark.parametrize(
    "function, is_stream, is_async",
    [
        (sync_stream, True, False),
        (generator, True, False),
        (async_stream, True, True),
        (coroutine, False, True),
        (returns_iterator, True, False),
        (returns_async_iterator, True, True),
    ],
)
def test_kind_of_callable_is_known(function, is_stream, is_async):
    signature = read_signature(function)

    assert (signature.is_stream, signature.is_async) == (is_stream, is_async)
    assert described(signature.outputs) == [("output", np.bytes_, (1,), False)]


@pytest.mark.parametrize(
    "function",
    [Doubler, Doubler(), Doubler().triple, functools.partial(Doubler().triple)],
    ids=["class", "object", "method", "partial"],
)
def test_objects_are_read_like_functions(function):
    signature = read_signature(function)

    assert [each.name for each in signature.inputs] == ["x"]


def test_what_a_partial_gives_is_no_input():
    def scaled(x: float, factor: float) -> float: ...

    signature = read_signature(functools.partial(scaled, factor=2.0))

    assert [each.name for each in signature.inputs] == ["x"]


def no_annotation(a, b: float) -> float: ...


def bare_array(a: np.ndarray) -> float: ...


def no_result(a: float): ...


def none_result(a: float) -> None: ...


def maybe_result(a: float) -> float | None: ...


def yields_text(a: float) -> str:
    yield "a"


def many(*values: float) -> float: ...


def named(**values: float) -> float: ...


def twice(left: float, box: Box) -> float: ...


def broken(value: Broken) -> float: ...


def unknown(value: Decimal) -> float: ...


def mapping(a: float) -> dict[str, np.ndarray]: ...


@batch
def decorated(a: Annotated[np.ndarray, np.float32, (1,)]) -> float: ...


@pytest.mark.parametrize(
    "function, problem",
    [
        (no_annotation, "parameter `a` has no type annotation. Instead, use float, int, bool"),
        (bare_array, "parameter `a` is an array without dtype and shape. Instead, write `Ann"),
        (no_result, "the result has no type annotation. Write `-> float`"),
        (none_result, "the result is None"),
        (maybe_result, "the result may be None"),
        (yields_text, "annotated with str. Write `-> Iterator[str]`"),
        (many, "`*values: 'float'` does not say which inputs there are"),
        (named, "`**values: 'float'` does not say which inputs there are"),
        (twice, "the input left is there twice. Rename a parameter or a field"),
        (broken, "parameter `value` is Broken, whose field `value` is complex"),
        (unknown, "the annotation 'Decimal' is not known in its module. Import it there"),
        (mapping, "the result is dict[str, np.ndarray], which does not say the names"),
        (decorated, "it has a decorator of pytriton.decorators such as @batch"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_error_names_the_place_the_problem_and_what_to_write(function, problem):
    with pytest.raises(SignatureError) as error:
        read_signature(function)

    line = function.__code__.co_firstlineno
    assert str(error.value).startswith(f"{function.__name__} ({HERE}, line {line}): ")
    assert problem in str(error.value)


def test_class_that_cannot_be_called_is_refused():
    with pytest.raises(SignatureError, match="Box: it has no method `__call__`"):
        read_signature(Box)


def test_built_in_function_is_refused():
    with pytest.raises(SignatureError, match="len"):
        read_signature(len)


def test_place_of_an_object_is_that_of_its_call():
    assert place_of(Doubler()).startswith(f"Doubler.__call__ ({HERE}, line ")


def test_any_result_is_fine_where_outputs_are_given():
    def anything(a: float) -> Any: ...

    assert read_signature(anything, needs_outputs=False).outputs == []
