# SPDX-License-Identifier: Apache-2.0
"""The declaration of a model's input or output."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from pytriton.base import dtypes
from pytriton.exceptions import PyTritonValidationError


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An input or output of a model.

    Args:
        shape: dimensions without the batch dimension; -1 is a dimension of any size.
        dtype: type of the elements: a numpy dtype, its type, or a name such as "float32". bytes,
            str and object declare tensors of byte strings.
        name: name of the tensor; by default INPUT_n or OUTPUT_n with its position, counted from 1.
        optional: whether a request may leave the tensor out; inputs only.
        device: a GPU, such as "cuda" or "cuda:1": the function gets this input in its memory, as an
            array that torch, cupy and jax take by DLPack or `__cuda_array_interface__`. A model
            with such a tensor, be it an output, may return arrays that are on a GPU.

    Raises:
        PyTritonValidationError: if the protocol has no type for the dtype, or the shape is not a
            sequence of positive sizes and -1, or the device is none of CUDA's, or the tensor has
            strings and a device.
    """

    shape: tuple[int, ...]
    dtype: Any
    name: str | None = None
    optional: bool | None = False
    device: str | None = None

    def __post_init__(self) -> None:
        if self.device is not None:
            cuda_device(self.device)
            if triton_datatype(self.dtype) is dtypes.BYTES:
                raise PyTritonValidationError(
                    f"Expected numbers in a tensor on device {self.device!r}, got {self.dtype!r}"
                )
        # A frozen dataclass can be changed in this way only.
        object.__setattr__(self, "dtype", _scalar_type(self.dtype))
        object.__setattr__(self, "shape", _dimensions(self.shape))


def cuda_device(device: Any) -> int:
    """Returns the number of a GPU.

    Raises:
        PyTritonValidationError: if it is not "cuda" or "cuda:N".
    """
    kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if kind != "cuda" or (device != "cuda" and not (number.isascii() and number.isdecimal())):
        raise PyTritonValidationError(f'Expected a device like "cuda" or "cuda:1", got {device!r}')
    return int(number or 0)


def triton_datatype(dtype: Any) -> dtypes.DataType:
    """Returns the protocol's type of a user's dtype.

    Args:
        dtype: anything that `numpy.dtype` accepts, or "bfloat16".

    Returns:
        A row of the table of datatypes.

    Raises:
        PyTritonValidationError: if the protocol has no such type.
    """
    datatype = None
    if dtype == "bfloat16":
        return dtypes.BF16
    if dtype is not None:  # for numpy, None means float64
        try:
            datatype = dtypes.from_numpy(np.dtype(dtype))
        except TypeError as error:
            raise _unsupported(dtype) from error
    if datatype is None:
        raise _unsupported(dtype)
    return datatype


def _scalar_type(dtype: Any) -> type[Any]:
    datatype = triton_datatype(dtype)
    numpy_dtype = np.dtype(dtype) if datatype is dtypes.BYTES else datatype.numpy
    scalar_type: type[Any] = numpy_dtype.type
    return scalar_type


def _unsupported(dtype: object) -> PyTritonValidationError:
    return PyTritonValidationError(
        "Expected a bool, integer, float, bytes, str or object dtype that Triton has a type for, "
        f"got {dtype!r}"
    )


def _dimensions(shape: Iterable[int]) -> tuple[int, ...]:
    try:
        dimensions = tuple(operator.index(size) for size in shape)
    except TypeError as error:
        raise PyTritonValidationError(
            f"Expected a shape that is a sequence of integers, got {shape!r}"
        ) from error
    if any(size < 1 and size != -1 for size in dimensions):
        raise PyTritonValidationError(
            f"Expected dimensions that are positive or -1, got shape {dimensions}"
        )
    return dimensions
