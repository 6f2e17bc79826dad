# SPDX-License-Identifier: Apache-2.0
"""Inputs of bound functions in GPU memory, and outputs that are there.

A model whose `Tensor`s name a device gets these inputs as `GpuArray`: any library takes them by
`__cuda_array_interface__` or DLPack, without a copy. Outputs may be arrays of any library on a GPU;
they are copied straight to where the server reads them.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.device_values import is_on_gpu
from pytriton.base.dtypes import from_numpy
from pytriton.base.lazy_module import LazyModule
from pytriton.runtime.cuda.device_array import (
    DeviceArray,
    Order,
    copy_to_device,
    device_of,
    order_for_stream,
    write_to_host,
)
from pytriton.runtime.transport.arena import block_bytes
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pytriton.runtime.pb_utils import dlpack
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.refs import TensorRef
else:  # most models have no tensors on a GPU
    dlpack = LazyModule("pytriton.runtime.pb_utils.dlpack")

_INTERFACE_VERSION = 3


class GpuArray(DeviceArray):
    """An input in GPU memory, complete, for `torch.as_tensor`, `cupy.asarray` and `from_dlpack`.

    It has `shape`, `dtype`, `nbytes` and rows, and keeps its memory as long as something refers to
    it. `copy()` returns it as an array of numpy.
    """

    __slots__ = ()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.kind not in "biuf":
            raise AttributeError(f"{self.dtype} has no type there: use DLPack")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address if self.nbytes else 0, False),
            "version": _INTERFACE_VERSION,
            "strides": None,
            "stream": None,  # nobody needs to wait
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.device_of(self)

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        order_for_stream(self, stream)
        return dlpack.export_capsule(self, self)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> GpuArray:
        """Returns consecutive rows, in the same memory."""
        start, stop, step = rows.indices(self.shape[0])
        if step != 1:
            raise IndexError(f"expected consecutive rows of an array on a GPU, got {rows}")
        shape = (max(0, stop - start), *self.shape[1:])
        row_bytes = prod(self.shape[1:]) * self.itemsize
        address = self.address + start * row_bytes
        return GpuArray(address, self.device, self.dtype, shape, self, self.order)


class DeviceSide:
    """How one model's tensors get to GPUs and back; `inputs` are the devices by name."""

    def __init__(self, inputs: Mapping[str, int]) -> None:
        self._inputs = inputs

    def input(self, received: Received, ref: TensorRef) -> Any:
        """Returns an input of a batch, on its device if it has one.

        Raises:
            ServerError: It cannot be copied there.
        """
        array = received.array(ref)
        device = self._inputs.get(ref.name)
        if device is None:
            return array
        there = copy_to_device(array, device)
        return GpuArray(
            there.address, device, array.dtype, array.shape, there.owner, Order.COMPLETE
        )

    def outputs(self, outputs: Mapping[str, Any], payload: Payload) -> dict[str, Any]:
        """Returns outputs with those on the host that are on a GPU.

        Raises:
            ServerError: One cannot be copied, or is of no kind that can be sent.
        """
        return {
            name: self._to_host(value, payload)
            if not isinstance(value, np.ndarray) and is_on_gpu(value)
            else value
            for name, value in outputs.items()
        }

    def _to_host(self, value: Any, payload: Payload) -> NDArray[Any]:
        array = dlpack.import_tensor(value) if hasattr(value, "__dlpack__") else _from_cuda(value)
        if not isinstance(array, DeviceArray):
            return array
        arena = payload.arena
        if arena is None or array.nbytes <= INLINE_TENSOR_BYTES:
            return array.copy()
        # Nothing else refers to this memory, so it is sent by reference.
        memory = block_bytes(arena.allocate(array.nbytes))[: array.nbytes]
        write_to_host((array,), memory.data)
        return memory.view(array.dtype).reshape(array.shape)


def _from_cuda(value: Any) -> DeviceArray | NDArray[Any]:
    """Returns an array on the memory of one that has only `__cuda_array_interface__`.

    Raises:
        ValueError: Its elements are not one after the other, or have a type that cannot be sent.
    """
    interface = value.__cuda_array_interface__
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    if from_numpy(dtype) is None or dtype.kind not in "biuf":
        raise ValueError(f"expected an array of one of Triton's types on the GPU, got {dtype}")
    strides = interface.get("strides")
    if strides is not None and tuple(strides) != _strides(shape, dtype.itemsize):
        raise ValueError("expected an array on the GPU that is contiguous, in C order")
    if not prod(shape):
        return np.empty(shape, dtype)
    address = interface["data"][0]
    return DeviceArray(address, device_of(address), dtype, shape, value, Order.UNKNOWN)


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = []
    step = itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
