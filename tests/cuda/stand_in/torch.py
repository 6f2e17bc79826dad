# SPDX-License-Identifier: Apache-2.0
"""The part of torch that models of benchmarks/gpu.py use, where `libcuda.c` stands for the driver.

"GPU memory" is shared memory there, so numpy computes on it. It is found as `torch` by processes
that have this folder in PYTHONPATH, which no test has.
"""

from __future__ import annotations

import ctypes

import numpy as np

from pytriton.runtime.cuda.device_array import DeviceMemory, Order, usable_driver
from pytriton.runtime.pb_utils.gpu_arrays import GpuArray, import_array


class Tensor:
    """An array of numpy, or one in the memory of the GPU."""

    def __init__(self, array):
        self._array = array

    @property
    def is_cuda(self):
        return isinstance(self._array, GpuArray)

    @property
    def shape(self):
        return self._array.shape

    def numpy(self):
        if self.is_cuda:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        return self._array

    def cuda(self):
        return self if self.is_cuda else _on_gpu(self._array)

    def cpu(self):
        return Tensor(self._numbers().copy()) if self.is_cuda else self

    def to(self, device, *, non_blocking=False):
        return self.cuda() if device.startswith("cuda") else self.cpu()

    def sum(self):
        return self._computed(self._numbers().sum(dtype=np.float64).astype(np.float32))

    def item(self):
        return self._numbers().item()

    def __mul__(self, other):
        return self._computed(self._numbers() * np.float32(other))

    def __matmul__(self, other):
        return self._computed(self._numbers() @ other._numbers())

    def __dlpack_device__(self):
        return (2, self._array.device) if self.is_cuda else (1, 0)

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def _numbers(self):
        """An array of numpy on the same memory."""
        array = self._array
        if not self.is_cuda:
            return array
        memory = (ctypes.c_char * array.nbytes).from_address(array.address)
        return np.frombuffer(memory, array.dtype).reshape(array.shape)

    def _computed(self, numbers):
        return _on_gpu(numbers) if self.is_cuda else Tensor(numbers)


def _on_gpu(numbers):
    memory = DeviceMemory(usable_driver(), 0, max(1, numbers.nbytes))
    place = (memory.address, 0, numbers.dtype, numbers.shape)
    tensor = Tensor(GpuArray(*place, memory, Order.COMPLETE))
    tensor._numbers()[...] = numbers
    return tensor


def as_tensor(array):
    return Tensor(array)


def from_dlpack(source):
    return Tensor(import_array(source))


def full(shape, value, *, device):
    return Tensor(np.full(shape, value, np.float32)).to(device)


def rand(*shape, device):
    return Tensor(np.random.default_rng(0).random(shape, np.float32)).to(device)
