# SPDX-License-Identifier: Apache-2.0
"""The inputs of a run: made up, recorded, from a directory with a file for each, or from JSON."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import pathlib
import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.tools.perf.data.recorded import is_recording, recorded_inputs
from pytriton.tools.perf.data.settings import (
    RANDOM,
    ZERO,
    DataSettings,
    InputData,
    fits,
    fixed_shape,
)
from pytriton.tools.perf.errors import DataError
from pytriton.tools.perf.load.plan import InputSet
from pytriton.tools.perf.model_description import MeasuredModel, MeasuredTensor

_TIMESTAMP = "timestamp"
# What entries have for servers of other kinds.
_OTHERS = frozenset({"payload", "session_id", "delay", "message_generator", "TORCHSERVE_INPUT"})


def array_of(
    tensor: MeasuredTensor, value: Any, shapes: Mapping[str, tuple[int, ...]], place: str
) -> NDArray[Any]:
    """The array of a tensor, without a batch axis.

    Args:
        tensor: What the model expects.
        value: A value, a list (flat or nested), `{"b64": text}`, or `{"content": list or value}`,
            both with an optional `shape`.
        shapes: Shapes that a person chose for inputs that vary.
        place: File and entry, for errors.

    Raises:
        DataError: It does not fit.
    """
    shape: tuple[int, ...] | None = None
    content = value
    if isinstance(value, dict):
        content, shape = _content(tensor, value, place)
    if isinstance(content, bytes):
        flat = _from_raw(tensor, content, place)
    else:
        flat = _from_values(tensor, content, place)
    found = shape or _nested_shape(tensor, content)
    return flat.reshape(_shape(tensor, found, flat.size, shapes, place))


def _content(
    tensor: MeasuredTensor, value: Mapping[str, Any], place: str
) -> tuple[Any, tuple[int, ...] | None]:
    shape = value.get("shape")
    if shape is not None and not (
        isinstance(shape, list) and all(isinstance(size, int) for size in shape)
    ):
        raise DataError(f"{place}: expected a list of integers as shape, got {shape!r}")
    given = None if shape is None else tuple(shape)
    if "b64" in value:
        try:
            return base64.b64decode(value["b64"], validate=True), given
        except (binascii.Error, TypeError, ValueError) as error:
            raise DataError(
                f"{place}: b64 of input {tensor.name} is not base64: {error}"
            ) from error
    if "content" not in value:
        raise DataError(
            f"{place}: expected content or b64 for input {tensor.name}, got {sorted(value)}"
        )
    content = value["content"]
    if isinstance(content, dict):
        return _content(tensor, {**content, "shape": shape}, place)
    return content, given


def _from_raw(tensor: MeasuredTensor, raw: bytes, place: str) -> NDArray[Any]:
    if tensor.dtype is dtypes.BYTES:
        try:
            elements = dtypes.decode_bytes(raw)
        except ValueError as error:
            raise DataError(
                f"{place}: b64 of input {tensor.name} has to have a 4-byte length before each "
                f"string: {error}"
            ) from error
        return _objects(elements)
    size = tensor.dtype.itemsize
    if len(raw) % size:
        raise DataError(
            f"{place}: b64 of input {tensor.name} has {len(raw)} bytes, expected a multiple of "
            f"{size} for {tensor.dtype.name}"
        )
    return np.frombuffer(raw, tensor.dtype.numpy)


def _from_values(tensor: MeasuredTensor, content: Any, place: str) -> NDArray[Any]:
    values = _flatten(content)
    if tensor.dtype is dtypes.BYTES:
        wrong = next((each for each in values if not isinstance(each, str)), None)
        if wrong is not None:
            raise DataError(f"{place}: expected strings for input {tensor.name}, got {wrong!r}")
        return _objects([each.encode() for each in values])
    wrong = next((each for each in values if not isinstance(each, int | float)), None)
    if wrong is not None:
        raise DataError(f"{place}: expected numbers for input {tensor.name}, got {wrong!r}")
    try:
        array = np.array(values)
        if tensor.dtype.numpy.kind in "iu" and array.size:
            limits = np.iinfo(tensor.dtype.numpy)
            if array.dtype.kind == "f" or array.min() < limits.min or array.max() > limits.max:
                raise DataError(
                    f"{place}: values of input {tensor.name} do not fit {tensor.dtype.name}"
                )
        return np.array(values, tensor.dtype.numpy)
    except (OverflowError, ValueError, TypeError) as error:
        raise DataError(
            f"{place}: values of input {tensor.name} do not fit {tensor.dtype.name}: {error}"
        ) from error


def _objects(elements: list[bytes]) -> NDArray[Any]:
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def _flatten(content: Any) -> list[Any]:
    if not isinstance(content, list):
        return [content]
    flat: list[Any] = []
    for each in content:
        flat.extend(_flatten(each) if isinstance(each, list) else [each])
    return flat


def _nested_shape(tensor: MeasuredTensor, content: Any) -> tuple[int, ...] | None:
    """The shape of nested lists that have as many levels as the tensor; None for flat ones."""
    if len(tensor.shape) < 2:
        return None
    shape = []
    while isinstance(content, list) and content:
        shape.append(len(content))
        content = content[0]
    return tuple(shape) if len(shape) == len(tensor.shape) else None


def _shape(
    tensor: MeasuredTensor,
    given: tuple[int, ...] | None,
    count: int,
    shapes: Mapping[str, tuple[int, ...]],
    place: str,
) -> tuple[int, ...]:
    shape = given
    if shape is None and -1 in tensor.shape:
        shape = shapes.get(tensor.name)
    if shape is None:
        shape = tensor.shape
        known = int(np.prod([size for size in shape if size >= 0]))
        if shape.count(-1) == 1 and known and count % known == 0:
            shape = tuple(count // known if size < 0 else size for size in shape)
        if -1 in shape:
            raise DataError(
                f"{place}: input {tensor.name} has the shape {list(tensor.shape)}, provide its "
                'shape: "shape": [...] beside "content", or --shape'
            )
    if not fits(shape, tensor.shape):
        raise DataError(
            f"{place}: input {tensor.name} has the shape {list(shape)}, expected one that fits "
            f"{list(tensor.shape)}"
        )
    if int(np.prod(shape)) != count:
        raise DataError(
            f"{place}: input {tensor.name} has {count} values, expected {int(np.prod(shape))} for "
            f"the shape {list(shape)}"
        )
    return shape


@dataclasses.dataclass(frozen=True, slots=True)
class DataEntry:
    """One entry: the tensors of a request, without a batch axis.

    Attributes:
        expected: The outputs that a right answer has, if the file says so.
        timestamp_ms: When its request begins, if the file says so.
    """

    tensors: Mapping[str, NDArray[Any]]
    expected: Mapping[str, NDArray[Any]] | None = None
    timestamp_ms: float | None = None


def read_streams(
    model: MeasuredModel, path: pathlib.Path, settings: DataSettings
) -> list[list[DataEntry]]:
    """Read a file.

    Returns:
        Streams of entries; one stream if the file has a plain list.

    Raises:
        DataError: The file cannot be read or does not fit the model.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise DataError(f'{path}: expected an object with a list "data"')
    data = document["data"]
    if not data:
        raise DataError(f'{path}: expected entries in "data", found none')
    streams, numbered = _streams(data, f"{path}: data")
    checks = _validation(document, data, path)
    return [
        [
            _entry(model, each, check, settings, place)
            for each, check, place in zip(stream, wanted, places, strict=True)
        ]
        for stream, wanted, places in zip(streams, checks, numbered, strict=True)
    ]


def _streams(data: Sequence[Any], place: str) -> tuple[list[list[Any]], list[list[str]]]:
    """The streams of a list, and the place of each entry."""
    if not any(isinstance(each, list) for each in data):
        return [list(data)], [[f"{place}[{index}]" for index in range(len(data))]]
    streams, places = [], []
    for number, stream in enumerate(data):
        if not isinstance(stream, list) or not stream:
            raise DataError(f"{place}[{number}]: expected a list of entries, as the others are")
        streams.append(stream)
        places.append([f"{place}[{number}][{index}]" for index in range(len(stream))])
    return streams, places


def _validation(
    document: Mapping[str, Any], data: Sequence[Any], path: pathlib.Path
) -> list[list[Any]]:
    """The expected outputs of each entry; None where there are none."""
    wanted = document.get("validation_data")
    streams, _ = _streams(data, f"{path}: data")
    if wanted is None:
        return [[None] * len(stream) for stream in streams]
    if not isinstance(wanted, list):
        raise DataError(f'{path}: expected a list as "validation_data"')
    checks, _ = _streams(wanted, f"{path}: validation_data")
    counts = [len(stream) for stream in streams]
    if counts != [len(stream) for stream in checks]:
        raise DataError(
            f'{path}: "validation_data" has {sum(map(len, checks))} entries, expected '
            f'{sum(counts)}: one for each of "data"'
        )
    return checks


def _entry(
    model: MeasuredModel, entry: Any, check: Any, settings: DataSettings, place: str
) -> DataEntry:
    if not isinstance(entry, dict):
        raise DataError(f"{place}: expected an object with inputs, got {type(entry).__name__}")
    for name in _OTHERS & entry.keys():
        raise DataError(
            f"{place}: {name} belongs to other kinds of services; expected inputs of {model.name}"
        )
    inputs = {tensor.name: tensor for tensor in model.inputs}
    values = {name: value for name, value in entry.items() if name != _TIMESTAMP or name in inputs}
    tensors = _arrays(inputs, values, settings, place, "input")
    missing = [
        name for name, tensor in inputs.items() if name not in tensors and not tensor.is_optional
    ]
    if missing:
        raise DataError(f"{place}: expected a value for input {missing[0]}, found none")
    expected = None
    if check is not None:
        if not isinstance(check, dict):
            raise DataError(f"{place}: expected an object with outputs in validation_data")
        outputs = {tensor.name: tensor for tensor in model.outputs}
        where = place.replace(": data", ": validation_data")
        expected = _arrays(outputs, check, settings, where, "output")
    return DataEntry(tensors, expected, _timestamp(entry, inputs, place))


def _arrays(
    known: Mapping[str, MeasuredTensor],
    values: Mapping[str, Any],
    settings: DataSettings,
    place: str,
    kind: str,
) -> dict[str, NDArray[Any]]:
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        raise DataError(
            f"{place}: the model has no {kind} {unknown[0]}, expected one of "
            f"{', '.join(known) or 'none'}"
        )
    return {
        name: array_of(known[name], value, settings.shapes, place) for name, value in values.items()
    }


def _timestamp(
    entry: Mapping[str, Any], inputs: Mapping[str, MeasuredTensor], place: str
) -> float | None:
    if _TIMESTAMP in inputs or _TIMESTAMP not in entry:
        return None
    value = entry[_TIMESTAMP]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise DataError(f"{place}: expected milliseconds as timestamp, got {value!r}")
    return float(value)


_LETTERS = np.frombuffer((string.ascii_letters + string.digits).encode(), np.uint8)
_INTEGERS = 100  # random integers are below: they are valid as tokens, indices and sizes


def directory_tensors(
    model: MeasuredModel, directory: pathlib.Path, settings: DataSettings
) -> dict[str, NDArray[Any]]:
    """The tensors of one request.

    A file has the raw values of a tensor, or a line for each of its strings.

    Raises:
        DataError: A file is missing or has another size than the tensor.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in model.inputs:
        path = directory / tensor.name
        if not path.is_file():
            if tensor.is_optional:
                continue
            raise DataError(
                f"expected the file {path} with the values of input {tensor.name}, found none"
            )
        shape = fixed_shape(tensor, settings.shapes)
        arrays[tensor.name] = _read_file(path, tensor, shape)
    return arrays


def _read_file(path: pathlib.Path, tensor: MeasuredTensor, shape: tuple[int, ...]) -> NDArray[Any]:
    count = int(np.prod(shape))
    if tensor.dtype is dtypes.BYTES:
        lines = path.read_bytes().splitlines()
        if len(lines) != count:
            raise DataError(
                f"{path} has {len(lines)} lines, expected {count}: a line for each string of input "
                f"{tensor.name} with shape {list(shape)}"
            )
        array = np.empty(count, np.object_)
        array[:] = lines
        return array.reshape(shape)
    raw = path.read_bytes()
    expected = count * tensor.dtype.itemsize
    if len(raw) != expected:
        raise DataError(
            f"{path} has {len(raw)} bytes, expected {expected} for input {tensor.name}: "
            f"{tensor.dtype.name} with shape {list(shape)}"
        )
    return np.frombuffer(raw, tensor.dtype.numpy).reshape(shape)


def random_tensors(model: MeasuredModel, settings: DataSettings) -> dict[str, NDArray[Any]]:
    """An array of random values for each input that is not optional, without a batch axis."""
    generator = np.random.default_rng(settings.seed)
    return {
        tensor.name: _random(tensor, fixed_shape(tensor, settings.shapes), settings, generator)
        for tensor in model.inputs
        if not tensor.is_optional
    }


def zero_tensors(model: MeasuredModel, settings: DataSettings) -> dict[str, NDArray[Any]]:
    """An array of zeros or of empty strings for each input that is not optional."""
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in model.inputs:
        if tensor.is_optional:
            continue
        shape = fixed_shape(tensor, settings.shapes)
        if tensor.dtype is dtypes.BYTES:
            text = (settings.string_data or "").encode()
            arrays[tensor.name] = np.full(shape, text, np.object_)
        else:
            arrays[tensor.name] = np.zeros(shape, tensor.dtype.numpy)
    return arrays


def _random(
    tensor: MeasuredTensor,
    shape: tuple[int, ...],
    settings: DataSettings,
    generator: np.random.Generator,
) -> NDArray[Any]:
    if tensor.dtype is dtypes.BYTES:
        return _strings(shape, settings, generator)
    if tensor.dtype is dtypes.BOOL:
        return generator.integers(0, 2, shape).astype(np.bool_)
    if tensor.dtype.numpy.kind in "iu":
        return generator.integers(0, _INTEGERS, shape).astype(tensor.dtype.numpy)
    return generator.random(shape).astype(tensor.dtype.numpy)


def _strings(
    shape: tuple[int, ...], settings: DataSettings, generator: np.random.Generator
) -> NDArray[Any]:
    count = int(np.prod(shape))
    array = np.empty(count, np.object_)
    for index in range(count):
        if settings.string_data is not None:
            array[index] = settings.string_data.encode()
        else:
            letters = generator.integers(0, len(_LETTERS), settings.string_length)
            array[index] = _LETTERS[letters].tobytes()
    return array.reshape(shape)


def read_inputs(model: MeasuredModel, settings: DataSettings) -> InputData:
    """Make or read the inputs.

    Raises:
        DataError: The data or a shape does not fit the model.
    """
    for name in settings.shapes:
        if name not in {tensor.name for tensor in model.inputs}:
            known = ", ".join(tensor.name for tensor in model.inputs)
            raise DataError(f"--shape {name}: the model has no such input, expected one of {known}")
    recordings = [each for each in settings.sources if _is_recording(each)]
    if recordings:
        if len(settings.sources) > 1:
            raise DataError("a recording cannot be joined with other input data")
        return recorded_inputs(pathlib.Path(recordings[0]), model.name)
    streams = [stream for source in settings.sources for stream in _read(model, source, settings)]
    times = [entry.timestamp_ms for stream in streams for entry in stream]
    given = [time for time in times if time is not None]
    if given and len(given) != len(times):
        raise DataError("expected a timestamp in every entry of the input data, or in none")
    return InputData(
        tuple(tuple(_input_set(model, entry, settings) for entry in stream) for stream in streams),
        tuple(given),
        any(source not in {RANDOM, ZERO} for source in settings.sources),
    )


def _is_recording(source: str) -> bool:
    path = pathlib.Path(source)
    try:
        return source not in {RANDOM, ZERO} and path.is_file() and is_recording(path)
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror}") from error


def _read(model: MeasuredModel, source: str, settings: DataSettings) -> list[list[DataEntry]]:
    if source == RANDOM:
        return [[DataEntry(random_tensors(model, settings))]]
    if source == ZERO:
        return [[DataEntry(zero_tensors(model, settings))]]
    path = pathlib.Path(source)
    if path.is_dir():
        return [[DataEntry(directory_tensors(model, path, settings))]]
    return read_streams(model, path, settings)


def _input_set(model: MeasuredModel, entry: DataEntry, settings: DataSettings) -> InputSet:
    inputs = {tensor.name for tensor in model.inputs if not tensor.is_shape_tensor}
    outputs = {tensor.name for tensor in model.outputs}
    expected = entry.expected
    return InputSet(
        tensors=_batched(model, entry.tensors, inputs, settings.batch_size),
        datatypes={
            tensor.name: tensor.dtype.name
            for tensor in model.inputs
            if tensor.name in entry.tensors
        },
        expected=None
        if expected is None
        else _batched(model, expected, outputs, settings.batch_size),
    )


def _batched(
    model: MeasuredModel,
    tensors: Mapping[str, NDArray[Any]],
    with_batch: set[str],
    batch_size: int,
) -> dict[str, NDArray[Any]]:
    if model.max_batch_size == 0:
        return dict(tensors)
    return {
        name: np.repeat(array[np.newaxis], batch_size, axis=0) if name in with_batch else array
        for name, array in tensors.items()
    }
