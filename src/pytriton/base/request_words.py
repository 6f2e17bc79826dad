# SPDX-License-Identifier: Apache-2.0
"""Says in everyday words what is wrong with a request for an annotated function. Pure.

Users of such functions know Python's values and the names of parameters, not datatypes. Models
whose tensors are configured keep Triton's words, which clients and tests compare. All texts are
bounded, and so is the work for them, because clients choose the names and values.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError, ServerError

if TYPE_CHECKING:
    from pytriton.base.dtypes import DataType
    from pytriton.base.model_spec import ModelSpec, ModelTensor

_MAX_SHOWN = 40  # characters of a value or a name
_MAX_NAME = 64  # longer names are no misspellings; a comparison takes quadratic time
_MAX_COMPARED = 32  # names: all of them take 0.3 ms
_MAX_DEPTH = 8  # of lists in lists
_WORDS = {
    "BYTES": ("a text", "texts"),
    "BOOL": ("true or false", "booleans"),
    "INT": ("a whole number", "whole numbers"),
    "UINT": ("a whole number of at least 0", "whole numbers of at least 0"),
}
_NUMBER = ("a number", "numbers")


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Returns the known name that was probably meant; empty if there is none."""
    if not 0 < len(name) <= _MAX_NAME:
        return ""
    near = [each for each in known if abs(len(each) - len(name)) <= 3]
    # Those with the same beginning first, as not all may be compared.
    near.sort(key=lambda each: each[:2].lower() != name[:2].lower())
    lowered = {each.lower(): each for each in reversed(near[:_MAX_COMPARED])}
    found = difflib.get_close_matches(name.lower(), lowered, n=1)
    return lowered[found[0]] if found else ""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns the end of a sentence that suggests a known name; empty if none is near."""
    near = nearest_name(name, known)
    return f", did you mean '{near}'?" if near else ""


def expected_words(tensor: ModelTensor) -> str:
    """Returns what one request has for an input, such as "a list of 3 numbers"."""
    one, many = _element_words(tensor.dtype)
    dims = tensor.dims
    if dims in ((), (1,)):
        return one
    words = many
    for size in reversed(dims[1:]):
        words = f"lists of {_counted(size, words)}"
    return f"a list of {_counted(dims[0], words)}"


def _counted(size: int, words: str) -> str:
    return words if size < 0 else f"{size} {words}"


def _element_words(dtype: DataType) -> tuple[str, str]:
    return _WORDS.get(dtype.name.rstrip("0123456789"), _NUMBER)


def stream_route(model: str) -> str:
    """Returns where the answers of a model can be had that may be any number."""
    return f"model '{model}' streams its answers: ask /v2/models/{model}/generate_stream"


def came_words(value: Any) -> str:
    """Returns what a value of a JSON document is, such as "the text 'Ada'"."""
    if isinstance(value, str):
        return f"the text {quoted(value)}"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return f"the number {_short(repr(value))}"
    if isinstance(value, list):
        return _list_words(value)
    return "an object" if isinstance(value, dict) else type(value).__name__


def _list_words(values: list[Any]) -> str:
    if not values:
        return "an empty list"
    if len(values) == 1:
        return f"a list with {came_words(values[0])}" if type(values[0]) is not list else "a list"
    kinds = {_plural(value) for value in values[:_MAX_COMPARED]}
    return f"a list of {len(values)} {kinds.pop() if len(kinds) == 1 else 'values'}"


def _plural(value: Any) -> str:
    if isinstance(value, bool):
        return "booleans"
    if isinstance(value, int | float):
        return "numbers"
    names: dict[type, str] = {str: "texts", list: "lists", dict: "objects"}
    return names.get(type(value), "values")


def quoted(text: str) -> str:
    """Returns a text in quotation marks, cut if it is long; others than ASCII stay readable."""
    return f"'{_short(text.encode('utf-8', 'backslashreplace').decode())}'"


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


# Refusals: each is a whole sentence that names the input, what was expected and what came.


def unknown_input(name: str, spec: ModelSpec) -> InvalidArgumentError:
    """Returns the error for a name that no input has."""
    hint = suggestion(name, spec.inputs) or "."
    return InvalidArgumentError(
        f"model '{spec.name}' has no input {quoted(name)}{hint} Its inputs are: "
        f"{', '.join(spec.inputs) or 'none'}"
    )


def missing_inputs(names: Sequence[str], given: Iterable[str], spec: ModelSpec) -> ServerError:
    """Returns the error for inputs that a request has to have."""
    needed = " and ".join(f"'{name}' ({expected_words(spec.inputs[name])})" for name in names)
    got = ", ".join(quoted(name) for name in list(given)[:_MAX_COMPARED]) or "none"
    noun = "input" if len(names) == 1 else "inputs"
    return InvalidArgumentError(f"model '{spec.name}' needs the {noun} {needed}, got {got}")


def wrong_value(tensor: ModelTensor, value: Any, spec: ModelSpec) -> InvalidArgumentError:
    """Returns the error for a value of a JSON document that an input cannot have."""
    return wrong_input(tensor, _misfit(tensor, value) or came_words(value), spec)


def wrong_tensor(
    tensor: ModelTensor, dtype: DataType, shape: Sequence[int], spec: ModelSpec
) -> InvalidArgumentError:
    """Returns the error for a tensor of another datatype or shape than its input."""
    if dtype is tensor.dtype:
        came = f"the shape {shape_text(shape)} instead of {shape_text(tensor.shape)}"
    else:
        came = f"{_element_words(dtype)[1]} ({dtype.name} instead of {tensor.dtype.name})"
    return wrong_input(tensor, came, spec)


def wrong_count(
    tensor: ModelTensor, values: list[Any], shape: Sequence[int], spec: ModelSpec
) -> InvalidArgumentError | None:
    """Returns the error for values that are not as many as their shape says; None if they are."""
    count = _element_count(values, _MAX_DEPTH)
    if count == prod(shape):
        return None
    noun = "value" if count == 1 else "values"
    return wrong_input(tensor, f"{count} {noun} for the shape {shape_text(shape)}", spec)


def _element_count(values: list[Any], depth: int) -> int:
    return sum(
        _element_count(each, depth - 1) if isinstance(each, list) and depth else 1
        for each in values
    )


def no_json(error: ServerError) -> InvalidArgumentError:
    """Returns the error for a body that cannot be parsed."""
    reason = error.message.removeprefix("failed to parse the request JSON buffer: ")
    return InvalidArgumentError(f"the body is no JSON: {reason}")


def wrong_input(tensor: ModelTensor, came: str, spec: ModelSpec) -> InvalidArgumentError:
    """Returns the error for what came for an input."""
    return InvalidArgumentError(
        f"input '{tensor.name}' of model '{spec.name}': expected {expected_words(tensor)}"
        f"{' for each row' if spec.max_batch_size else ''}, got {came}"
    )


def shape_text(shape: Iterable[int]) -> str:
    """Returns a shape as Triton's messages have it."""
    return f"[{','.join(map(str, shape))}]"


def _misfit(tensor: ModelTensor, value: Any) -> str:
    """Returns which element of a value is the problem; empty if it is all of it."""
    if not isinstance(value, list):
        return "" if type(value) is not int else _range_words(tensor.dtype, value)
    if len(value) == 1 and not isinstance(value[0], list):
        return ""
    place, element = _first_misfit(tensor.dtype, value, _MAX_DEPTH)
    if place:
        came = _misfit(tensor, element) or came_words(element)
        return f"{came_words(value)} whose element at position {place} is {came}"
    lengths = {len(each) if isinstance(each, list) else -1 for each in value}
    return f"{came_words(value)} of different lengths" if len(lengths) > 1 else ""


def _first_misfit(dtype: DataType, values: list[Any], depth: int) -> tuple[str, Any]:
    """Returns where the first element is that is no value of a datatype; an empty place: none."""
    for position, element in enumerate(values):
        if isinstance(element, list):
            inner, found = _first_misfit(dtype, element, depth - 1) if depth else ("", None)
            if inner:
                return f"{position}, {inner}", found
        elif not _is_element(dtype, element):
            return str(position), element
    return "", None


def _range_words(dtype: DataType, value: int) -> str:
    limits = _limits(dtype)
    if limits is None or limits[0] <= value <= limits[1]:
        return ""
    return f"{came_words(value)}, which is not from {limits[0]} to {limits[1]}"


def _limits(dtype: DataType) -> tuple[int, int] | None:
    """Returns the least and the greatest number; None if it has no integers."""
    bits = 8 * dtype.itemsize
    if dtype.name.startswith("UINT"):
        return 0, 2**bits - 1
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype.name.startswith("INT") else None


def _is_element(dtype: DataType, value: Any) -> bool:
    kind = type(value)
    if dtype is dtypes.BYTES:
        return kind is str
    if dtype is dtypes.BOOL:
        return kind is bool
    limits = _limits(dtype)
    if limits is None:
        return kind is int or kind is float
    return kind is int and bool(limits[0] <= value <= limits[1])
