# SPDX-License-Identifier: Apache-2.0
"""Reads the inputs of `pytriton infer`, and makes arrays of them that fit a model's inputs.

They are given as `name=value`, in files, in JSON documents or on standard input.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.base.request_words import suggestion
from pytriton.client.kserve.errors import AskError
from pytriton.client.kserve.records import NamedArray, Parameter
from pytriton.tools.commands.model_cards import ModelCard, TensorCard

_KINDS = {"b": "booleans", "i": "integers", "u": "integers", "f": "numbers"}

_STDIN = "-"
_RAW = frozenset({"BYTES", "UINT8"})  # inputs that may have the bytes of a file


class ValueMismatchError(AskError):
    """A value does not fit the input that it is for."""


def tensor_of(card: TensorCard, value: Any, *, has_batches: bool | None) -> NamedArray:
    """Make the tensor for an input.

    Args:
        card: the input, with the axis of batches in its shape.
        value: an array, or what JSON gives: numbers, booleans, texts, bytes, nested lists of them.
        has_batches: whether the first axis is the batch; None if the configuration is not known.

    Raises:
        ValueMismatchError: The value does not fit.
    """
    if card.datatype not in dtypes.BY_NAME:
        raise ValueMismatchError(f"Input '{card.name}' has the unknown datatype {card.datatype}.")
    array = _of_bytes(card, value) if card.datatype == "BYTES" else _of_numbers(card, value)
    return NamedArray(card.name, card.datatype, _fitted(card, array, has_batches=has_batches))


def _of_bytes(card: TensorCard, value: Any) -> NDArray[Any]:
    if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
        elements = dtypes.array_to_bytes_elements(value)
        return dtypes.bytes_elements_to_array(elements, value.shape)
    array = _object_array(card, value)
    elements = []
    for each in array.reshape(-1).tolist():
        if not isinstance(each, str | bytes):
            raise ValueMismatchError(
                f"Input '{card.name}' expects text (BYTES), got {_shown(each)}."
            )
        elements.append(each.encode() if isinstance(each, str) else each)
    return dtypes.bytes_elements_to_array(elements, array.shape)


def _object_array(card: TensorCard, value: Any) -> NDArray[Any]:
    """Returns an array of the objects in nested lists, whose lengths must agree."""
    shape: list[int] = []
    level = [value]
    while level and all(isinstance(each, list) for each in level):
        lengths = {len(each) for each in level}
        if len(lengths) > 1:
            raise ValueMismatchError(
                f"Input '{card.name}' expects lists of one length, got lengths "
                f"{', '.join(map(str, sorted(lengths)))}."
            )
        shape.append(lengths.pop())
        level = [element for each in level for element in each]
    if any(isinstance(each, list) for each in level):
        raise ValueMismatchError(f"Input '{card.name}' expects lists that are equally deep.")
    return dtypes.bytes_elements_to_array(level, tuple(shape))


def _of_numbers(card: TensorCard, value: Any) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        array = value
    else:
        objects = _object_array(card, value)
        for each in objects.reshape(-1).tolist():
            if not isinstance(each, bool | int | float):
                raise ValueMismatchError(
                    f"Input '{card.name}' expects {card.datatype}, got {_shown(each)}."
                )
        try:
            array = np.asarray(value if objects.size else objects.astype(float))
        except OverflowError:
            array = objects
    if array.dtype.kind == "O" and array.size:  # integers beyond 64 bits
        raise _out_of_range(card, max(array.reshape(-1).tolist(), key=abs))
    return _converted(card, array)


def _converted(card: TensorCard, array: NDArray[Any]) -> NDArray[Any]:
    """Convert numbers, but only where no value changes beyond rounding."""
    target = dtypes.BY_NAME[card.datatype].numpy
    if array.dtype == target or not array.size:
        return array.astype(target)
    kind = array.dtype.kind
    if kind not in _KINDS and array.dtype.name != "bfloat16":
        raise ValueMismatchError(
            f"Input '{card.name}' expects {card.datatype}, got an array of {array.dtype}."
        )
    if target.kind == "b":
        if not np.isin(array, (0, 1)).all():
            raise ValueMismatchError(
                f"Input '{card.name}' expects BOOL (true or false), got "
                f"{_shown(_first(array, ~np.isin(array, (0, 1))))}."
            )
        return array.astype(target)
    if target.kind in "iu":
        return _to_integers(card, array, target)
    wide = array.astype(np.float64)
    with np.errstate(over="ignore"):
        narrow = wide.astype(target)
    lost = np.isfinite(wide) & ~np.isfinite(narrow.astype(np.float64))
    if lost.any():
        raise _out_of_range(card, _first(array, lost))
    return narrow


def _to_integers(card: TensorCard, array: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "biu":
        wide = array.astype(np.float64)
        is_odd = ~np.isfinite(wide) | (wide != np.floor(wide))
        if is_odd.any():
            raise ValueMismatchError(
                f"Input '{card.name}' expects {card.datatype}, got {_shown(_first(array, is_odd))}."
            )
    limits = np.iinfo(target)
    low, high = array.min().item(), array.max().item()
    if low < limits.min or high > limits.max:
        raise _out_of_range(card, low if low < limits.min else high)
    return array.astype(target)


def _out_of_range(card: TensorCard, value: Any) -> ValueMismatchError:
    target = dtypes.BY_NAME[card.datatype].numpy
    if target.kind in "iu":
        limits = np.iinfo(target)
        span = f" from {limits.min} to {limits.max}"
    else:
        span = " within its range"
    return ValueMismatchError(
        f"Input '{card.name}' expects {card.datatype}{span}, got {_shown(value)}."
    )


def _first(array: NDArray[Any], mask: NDArray[Any]) -> Any:
    return array[mask].reshape(-1)[0].item()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _fitted(card: TensorCard, array: NDArray[Any], *, has_batches: bool | None) -> NDArray[Any]:
    """Give an array the axis of batches that it lacks; a single value fits one element."""
    declared = card.shape
    if _matches(array.shape, declared):
        return array
    may_batch = has_batches or (has_batches is None and declared[:1] == (-1,))
    if may_batch and _matches(array.shape, declared[1:]):
        return array[np.newaxis]
    if array.ndim == 0 and math.prod(size for size in declared if size > 0) == 1:
        return array.reshape([1 for _ in declared])
    shape = f"[{', '.join(map(str, declared))}]"
    sample = f" (or {list(declared[1:])} for one row)" if has_batches else ""
    got = list(array.shape) if array.ndim else "a single value"
    raise ValueMismatchError(f"Input '{card.name}' expects the shape {shape}{sample}, got {got}.")


def _matches(shape: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    return len(shape) == len(declared) and all(
        wanted in (-1, size) for size, wanted in zip(shape, declared, strict=True)
    )


@dataclasses.dataclass(slots=True)
class Given:
    """What a person gave for a request; values by input."""

    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    outputs: list[str] = dataclasses.field(default_factory=list)
    parameters: dict[str, Parameter] = dataclasses.field(default_factory=dict)
    request_id: str = ""


def read_stdin() -> bytes:
    """Returns all of standard input."""
    return sys.stdin.buffer.read()


def read_pairs(
    pairs: Iterable[str], card: ModelCard, stdin: Callable[[], bytes] = read_stdin
) -> dict[str, Any]:
    """Read `name=value` arguments; a model with one input also takes a bare value.

    Raises:
        AskError: A name is not an input, or a value cannot be read.
    """
    inputs = {tensor.name: tensor for tensor in card.inputs or ()}
    required = [tensor for tensor in inputs.values() if not tensor.is_optional] or [
        *inputs.values()
    ]
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or (name not in inputs and len(required) == 1 and not name.isidentifier()):
            if len(required) != 1:
                raise AskError(f"Expected name=value, got '{pair}'. {inputs_text(card)}")
            name, text = required[0].name, pair
        tensor = _input(card, name)
        if name in values:
            raise AskError(f"Input '{name}' is given twice.")
        values[name] = parse_value(tensor, text, stdin)
    return values


def _input(card: ModelCard, name: str) -> TensorCard:
    for tensor in card.inputs or ():
        if tensor.name == name:
            return tensor
    meant = suggestion(name, [tensor.name for tensor in card.inputs or ()]) or "."
    raise AskError(f"{card.name} has no input '{name}'{meant} {inputs_text(card)}")


def inputs_text(card: ModelCard) -> str:
    """Returns a sentence with the inputs of a model."""
    if not card.inputs:
        return f"{card.name} has no inputs."
    return f"Its inputs are {', '.join(map(str, card.inputs))}."


def parse_value(tensor: TensorCard, text: str, stdin: Callable[[], bytes]) -> Any:
    """Read the value of one input as a person typed it.

    Raises:
        AskError: It cannot be read.
    """
    if text == _STDIN:
        return _value_of_bytes(tensor, stdin(), "standard input")
    if text.startswith("@@"):
        text = text[1:]
    elif text.startswith("@"):
        return value_of_file(tensor, pathlib.Path(text[1:]))
    if tensor.datatype == "BYTES" and not text.startswith(("[", '"')):
        return text
    return _value_of_json(tensor, text, f"'{text}'" if len(text) < 60 else f"'{text[:57]}...'")


def _value_of_json(tensor: TensorCard, text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        if tensor.datatype == "BYTES":
            return text
        example = "true" if tensor.datatype == "BOOL" else "1 or [1, 2, 3]"
        raise ValueMismatchError(
            f"Input '{tensor.name}' expects {tensor.datatype} as JSON, such as {example}, "
            f"got {what}."
        ) from error


def _value_of_bytes(tensor: TensorCard, data: bytes, what: str) -> Any:
    if tensor.datatype == "BYTES":
        return data
    return _value_of_json(tensor, data.decode(errors="replace"), what)


def value_of_file(tensor: TensorCard, path: pathlib.Path) -> Any:
    """Read the value of one input from a file; its name says what is in it.

    Raises:
        AskError: It cannot be read.
    """
    if path.suffix in (".npy", ".npz"):
        loaded = load_arrays(path)
        if isinstance(loaded, np.ndarray):
            return loaded
        if tensor.name in loaded or len(loaded) == 1:
            return loaded.get(tensor.name, next(iter(loaded.values())))
        raise AskError(
            f"{path} has the arrays {', '.join(loaded)}, expected one with the name {tensor.name}."
        )
    data = read_file(path)
    if path.suffix == ".json":
        return _value_of_json(tensor, data.decode(errors="replace"), f"the text of {path}")
    if tensor.datatype not in _RAW:
        raise ValueMismatchError(
            f"Input '{tensor.name}' is {tensor.datatype}: expected a .npy, .npz or .json file, "
            f"got {path}."
        )
    return data if tensor.datatype == "BYTES" else np.frombuffer(data, np.uint8)


def read_file(path: pathlib.Path) -> bytes:
    """Read a file.

    Raises:
        AskError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise AskError(f"{path} cannot be read: {error.strerror}.") from error


def load_arrays(path: pathlib.Path) -> Any:
    """Load an array, or with `.npz` a dictionary of arrays; never pickled objects.

    Raises:
        AskError: It cannot be read.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise AskError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise AskError(f"{path} is not an array of numpy: {error}.") from error


def read_npy(arguments: Iterable[str], card: ModelCard) -> dict[str, Any]:
    """Read `--npy name=file.npy` and `--npy file.npz`.

    Raises:
        AskError: A file cannot be read, or does not fit.
    """
    values: dict[str, Any] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if equals:
            values[name] = value_of_file(_input(card, name), pathlib.Path(path))
            continue
        loaded = load_arrays(pathlib.Path(argument))
        if isinstance(loaded, np.ndarray):
            if len(card.inputs or ()) != 1:
                raise AskError(
                    f"Expected --npy name=FILE or a .npz file, got {argument}. {inputs_text(card)}"
                )
            loaded = {(card.inputs or ())[0].name: loaded}
        for each in loaded:
            _input(card, each)
        values.update(loaded)
    return values


def read_json(argument: str, card: ModelCard, stdin: Callable[[], bytes] = read_stdin) -> Given:
    """Read `--json`: a file, `-`, or the text itself; a KServe request or an object of values.

    Raises:
        AskError: It is no such document.
    """
    if argument == _STDIN:
        text, what = stdin().decode(errors="replace"), "standard input"
    elif argument.lstrip().startswith(("{", "[")):
        text, what = argument, "the text"
    else:
        path = pathlib.Path(argument.removeprefix("@"))
        text, what = read_file(path).decode(errors="replace"), str(path)
    try:
        document = json.loads(text)
    except ValueError as error:
        raise AskError(f"{what[0].upper()}{what[1:]} is not JSON: {error}.") from error
    if not isinstance(document, dict):
        raise AskError(f"Expected an object of values by name, got {type(document).__name__}.")
    if isinstance(document.get("inputs"), list):
        return _of_kserve(document, card)
    for name in document:
        _input(card, name)
    return Given(values=document)


def _of_kserve(document: Mapping[str, Any], card: ModelCard) -> Given:
    given = Given(request_id=str(document.get("id", "")))
    try:
        for entry in document["inputs"]:
            _input(card, entry["name"])
            data = entry["data"]
            is_flat = isinstance(data, list) and not any(isinstance(each, list) for each in data)
            given.values[entry["name"]] = _reshaped(data, entry["shape"]) if is_flat else data
        given.outputs = [entry["name"] for entry in document.get("outputs", ())]
        given.parameters = dict(document.get("parameters", {}))
    except (KeyError, TypeError, ValueError) as error:
        raise AskError(
            f"Expected a request of KServe, whose inputs have name, shape, datatype and data: "
            f"{error}."
        ) from error
    return given


def _reshaped(data: list[Any], shape: list[int]) -> Any:
    array = np.empty(len(data), dtype=object)
    array[:] = data
    return array.reshape(shape).tolist()


def parse_parameters(pairs: Iterable[str]) -> dict[str, Parameter]:
    """Read `--parameter name=value`: true, false and numbers as in JSON, anything else is text.

    Raises:
        AskError: One has no name.
    """
    parameters: dict[str, Parameter] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals):
            raise AskError(f"Expected a parameter as name=value, got '{pair}'.")
        parameters[name] = scalar(text)
    return parameters


def scalar(text: str) -> Parameter:
    """Returns a boolean or a number if the text is one in JSON, and the text otherwise."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | bool | int | float) else text
