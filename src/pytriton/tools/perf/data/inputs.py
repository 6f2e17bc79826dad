# SPDX-License-Identifier: Apache-2.0
"""The inputs of a run: made up, recorded, from a directory with a file for each, or from JSON."""

from __future__ import annotations

import pathlib
import string
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.tools.perf.data.json_data import DataEntry, read_streams
from pytriton.tools.perf.data.recorded import is_recording, recorded_inputs
from pytriton.tools.perf.data.settings import RANDOM, ZERO, DataSettings, InputData, fixed_shape
from pytriton.tools.perf.errors import DataError
from pytriton.tools.perf.load.plan import InputSet
from pytriton.tools.perf.model_description import MeasuredModel, MeasuredTensor

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
