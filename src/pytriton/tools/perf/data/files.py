# SPDX-License-Identifier: Apache-2.0
"""Inputs from a directory: a file for each input, named like it."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.tools.perf.data.settings import DataSettings, fixed_shape
from pytriton.tools.perf.errors import DataError
from pytriton.tools.perf.model_description import MeasuredModel, MeasuredTensor


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
        arrays[tensor.name] = _read(path, tensor, shape)
    return arrays


def _read(path: pathlib.Path, tensor: MeasuredTensor, shape: tuple[int, ...]) -> NDArray[Any]:
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
