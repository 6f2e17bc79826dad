# SPDX-License-Identifier: Apache-2.0
"""Inputs that nobody wrote: random values, made once, and zeros."""

from __future__ import annotations

import string
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.tools.perf.data.settings import DataSettings, fixed_shape
from pytriton.tools.perf.model_description import MeasuredModel, MeasuredTensor

_LETTERS = np.frombuffer((string.ascii_letters + string.digits).encode(), np.uint8)
_INTEGERS = 100  # random integers are below: they are valid as tokens, indices and sizes


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
