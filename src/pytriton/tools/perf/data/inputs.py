# SPDX-License-Identifier: Apache-2.0
"""The inputs of a run, from whatever source was chosen."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.tools.perf.data.files import directory_tensors
from pytriton.tools.perf.data.generated import random_tensors, zero_tensors
from pytriton.tools.perf.data.json_data import DataEntry, read_streams
from pytriton.tools.perf.data.settings import RANDOM, ZERO, DataSettings, InputData
from pytriton.tools.perf.errors import DataError
from pytriton.tools.perf.load.plan import InputSet
from pytriton.tools.perf.model_description import MeasuredModel


def read_inputs(model: MeasuredModel, settings: DataSettings) -> InputData:
    """Make or read the inputs.

    Raises:
        DataError: The data or a shape does not fit the model.
    """
    for name in settings.shapes:
        if name not in {tensor.name for tensor in model.inputs}:
            known = ", ".join(tensor.name for tensor in model.inputs)
            raise DataError(f"--shape {name}: the model has no such input, expected one of {known}")
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
