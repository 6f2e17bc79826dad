# SPDX-License-Identifier: Apache-2.0
"""Inputs of bound functions in GPU memory, and outputs that are there.

A model whose `Tensor`s name a device gets these inputs as `GpuArray`: any library takes them by
`__cuda_array_interface__` or DLPack, without a copy. Outputs may be arrays of any library on a GPU;
they are copied straight to where the server reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.device_values import is_on_gpu
from pytriton.base.lazy_module import LazyModule
from pytriton.runtime.cuda.device_array import DeviceArray, copy_to_device, write_to_host
from pytriton.runtime.transport.arena import block_bytes
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pytriton.runtime.pb_utils import gpu_arrays
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.refs import TensorRef
else:  # most models have no tensors on a GPU
    gpu_arrays = LazyModule("pytriton.runtime.pb_utils.gpu_arrays")


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
        return gpu_arrays.GpuArray.over(there)

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
        array = gpu_arrays.import_array(value)
        if not isinstance(array, DeviceArray):
            return array
        arena = payload.arena
        if arena is None or array.nbytes <= INLINE_TENSOR_BYTES:
            return array.copy()
        # Nothing else refers to this memory, so it is sent by reference.
        memory = block_bytes(arena.allocate(array.nbytes))[: array.nbytes]
        write_to_host((array,), memory.data)
        return memory.view(array.dtype).reshape(array.shape)
