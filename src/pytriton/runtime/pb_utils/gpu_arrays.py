# SPDX-License-Identifier: Apache-2.0
"""Arrays in GPU memory as other libraries take them, and those of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base.dtypes import from_numpy
from pytriton.runtime.cuda.device_array import (
    DeviceArray,
    Order,
    device_of,
    order_for_stream,
    wait_for_device,
)
from pytriton.runtime.pb_utils import dlpack

_INTERFACE_VERSION = 3


class GpuArray(DeviceArray):
    """An array in GPU memory, for `torch.as_tensor`, `cupy.asarray` and `from_dlpack`.

    It has `shape`, `dtype`, `nbytes` and rows, and keeps its memory as long as something refers to
    it. `copy()` returns it as an array of numpy.
    """

    __slots__ = ()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.kind not in "biuf":
            raise AttributeError(f"{self.dtype} has no type there: use DLPack")
        wait_for_device(self)
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address if self.nbytes else 0, False),
            "version": _INTERFACE_VERSION,
            "strides": None,
            "stream": None,  # nobody needs to wait
        }

    @classmethod
    def over(cls, array: DeviceArray) -> GpuArray:
        """Returns the same array in this form."""
        return cls(array.address, array.device, array.dtype, array.shape, array.owner, array.order)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.device_of(self)

    def __dlpack__(
        self,
        stream: Any = None,
        *,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        dlpack.check_shared(self.__dlpack_device__(), dl_device, copy=copy)
        order_for_stream(self, stream)
        return dlpack.export_capsule(self, self)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> GpuArray:
        """Returns consecutive rows, in the same memory."""
        if not isinstance(rows, slice):  # `for` and `list` ask for rows by number, too
            raise TypeError(f"expected a slice of an array on a GPU, such as array[:8], got {rows}")
        start, stop, step = rows.indices(self.shape[0])
        if step != 1:
            raise IndexError(f"expected consecutive rows of an array on a GPU, got {rows}")
        shape = (max(0, stop - start), *self.shape[1:])
        row_bytes = prod(self.shape[1:]) * self.itemsize
        address = self.address + start * row_bytes
        return GpuArray(address, self.device, self.dtype, shape, self, self.order)


def complete_array(
    address: int, device: int, dtype: np.dtype[Any], shape: tuple[int, ...], owner: object
) -> GpuArray:
    """Returns an array whose bytes are there; `owner` keeps its memory."""
    return GpuArray(address, device, dtype, shape, owner, Order.COMPLETE)


def wait_for(array: GpuArray) -> None:
    """Wait until the bytes of an array are there."""
    wait_for_device(array)


def import_array(value: Any) -> GpuArray | NDArray[Any]:
    """Returns an array on the memory of a value that is on a GPU, or of numpy if it is empty.

    Raises:
        ValueError: Its elements are not one after the other, or have a type that cannot be sent.
        TritonModelException: The same, or the library of the value has refused it.
    """
    if not hasattr(value, "__dlpack__"):
        return _from_cuda(value)
    array = dlpack.import_tensor(value)
    return GpuArray.over(array) if isinstance(array, DeviceArray) else array


def _from_cuda(value: Any) -> GpuArray | NDArray[Any]:
    """Returns the same for a value that has only `__cuda_array_interface__`."""
    interface = value.__cuda_array_interface__
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    if from_numpy(dtype) is None or dtype.kind not in "biuf":
        raise ValueError(f"expected an array of one of Triton's types on the GPU, got {dtype}")
    if not prod(shape):
        return np.empty(shape, dtype)
    strides = interface.get("strides")
    if strides is not None and not _is_contiguous(shape, strides, dtype.itemsize):
        raise ValueError("expected an array on the GPU that is contiguous, in C order")
    address = interface["data"][0]
    return GpuArray(address, device_of(address), dtype, shape, value, Order.UNKNOWN)


def _is_contiguous(shape: tuple[int, ...], strides: Sequence[int], itemsize: int) -> bool:
    expected = itemsize
    for size, step in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and step != expected:  # no step is taken along a dimension of one
            return False
        expected *= size
    return True
