# SPDX-License-Identifier: Apache-2.0
"""Arrays in the memory of a GPU, which somebody else owns, and how they get to the host.

Their bytes may still be computed. `Order` says what has to be waited for before they are read.
"""

from __future__ import annotations

import ctypes
import enum
import logging
import os
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.errors import InternalError
from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda.driver import CudaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pytriton.runtime.cuda.driver import Driver

logger = logging.getLogger(__name__)
_Byte = ctypes.c_char
# Streams in the words of DLPack: nobody names one, or one that is ordered with the default stream.
_ORDERED_STREAMS = frozenset({None, 0, 1, 2})
_NO_ORDER = -1  # the consumer does not want to be ordered


class Order(enum.Enum):
    """When the bytes of an array are there.

    COMPLETE: they are. DEFAULT: for all that the default stream of its device does from now on.
    UNKNOWN: after all work of the device that was submitted, as nobody has said on which stream.
    """

    COMPLETE = enum.auto()
    DEFAULT = enum.auto()
    UNKNOWN = enum.auto()


class DeviceArray:
    """A contiguous array in the memory of a GPU. It has what tensors need of numpy's arrays.

    Attributes:
        owner: What keeps the memory alive.
        order: When its bytes are there.
    """

    __slots__ = ("address", "device", "dtype", "order", "owner", "shape")

    def __init__(
        self,
        address: int,
        device: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        owner: object,
        order: Order = Order.UNKNOWN,
    ) -> None:
        self.address = address
        self.device = device
        self.dtype = dtype
        self.shape = shape
        self.owner = owner
        self.order = order

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def copy(self) -> NDArray[Any]:
        """Returns a copy in memory of the host.

        Raises:
            InternalError: The driver failed, or there is none.
        """
        copy = np.empty(self.nbytes, np.uint8)
        write_to_host((self,), copy.data)
        return copy.view(self.dtype).reshape(self.shape)

    def tobytes(self) -> bytes:
        """Returns the bytes, like numpy's arrays; see `copy`."""
        return self.copy().tobytes()

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype} shape={self.shape} device={self.device}>"


def write_to_host(arrays: Sequence[DeviceArray | NDArray[Any]], memory: memoryview) -> None:
    """Write the bytes of arrays one after the other, whichever memory they are in.

    What the GPU was asked for until now is done before, as an array may be one of its results.

    Raises:
        InternalError: The driver failed, or there is none.
    """
    address = ctypes.addressof(_Byte.from_buffer(memory)) if len(memory) else 0
    at = 0
    for array in arrays:
        size = array.nbytes
        if not isinstance(array, DeviceArray):
            memory[at : at + size] = array.reshape(-1).view(np.uint8).data
        elif size:
            _copy_to_host(address + at, array)
        at += size


def wait_for_device(array: DeviceArray) -> None:
    """Wait until the bytes of an array are there.

    Raises:
        InternalError: The driver failed, or there is none.
    """
    if array.order is Order.COMPLETE:
        return
    driver = usable_driver()
    try:
        with driver.using(array.device):
            if array.order is Order.DEFAULT:
                driver.synchronize_default()
            else:
                driver.synchronize()
    except CudaError as error:
        raise InternalError(f"A tensor in GPU memory cannot be used: {error}") from error
    array.order = Order.COMPLETE


def order_for_stream(array: DeviceArray, stream: Any) -> None:
    """Let a stream, in the words of DLPack, see the bytes of an array; waits only if it has to.

    Raises:
        InternalError: The driver failed, or there is none.
    """
    if array.order is Order.COMPLETE or stream == _NO_ORDER:
        return
    if array.order is Order.UNKNOWN:
        wait_for_device(array)
        return
    if stream in _ORDERED_STREAMS:
        return
    driver = usable_driver()
    try:
        with driver.using(array.device):
            driver.order_after_default(stream)
    except CudaError as error:
        raise InternalError(f"A tensor in GPU memory cannot be used: {error}") from error


def _copy_to_host(target: int, array: DeviceArray) -> None:
    driver = usable_driver()
    try:
        with driver.using(array.device):
            if array.order is Order.UNKNOWN:
                driver.synchronize()
            # In order with the default stream.
            driver.copy_to_host(target, array.address, array.nbytes)
    except CudaError as error:
        raise InternalError(f"A tensor in GPU memory could not be copied: {error}") from error


class DeviceMemory:
    """Memory of a device that is ours; freed when nothing refers to it any more."""

    __slots__ = ("_driver", "_process", "address", "device")

    def __init__(self, driver: Driver, device: int, size: int) -> None:
        self._driver = driver
        self._process = os.getpid()
        self.device = device
        self.address = 0  # until it is allocated
        driver.retain_context(device)  # it would end with the context
        try:
            with driver.using(device):
                self.address = driver.allocate(size)
        except BaseException:
            driver.release_context(device)
            raise

    def __del__(self) -> None:
        if not self.address or self._process != os.getpid():  # the driver is dead after a fork
            return
        try:
            try:
                with self._driver.using(self.device):
                    self._driver.free(self.address)  # waits for the GPU, which may still read it
            finally:
                self._driver.release_context(self.device)
        except CudaError as error:
            logger.warning("memory of GPU %d cannot be freed: %s", self.device, error)


def gather(arrays: Sequence[DeviceArray | NDArray[Any]], device: int) -> DeviceArray:
    """Returns arrays one after the other as one of a device, along their first dimension.

    They differ in that dimension only. All is there when this returns.

    Raises:
        InternalError: The driver failed, or has no memory, or there is none.
    """
    first = arrays[0]
    shape = first.shape
    if len(arrays) > 1:
        shape = (sum(array.shape[0] for array in arrays), *first.shape[1:])
    driver = usable_driver()
    try:
        memory = DeviceMemory(driver, device, max(1, sum(array.nbytes for array in arrays)))
        with driver.using(device):
            at = memory.address
            for array in arrays:
                if not isinstance(array, DeviceArray):
                    driver.copy_to_device(at, array.ctypes.data, array.nbytes)
                elif array.nbytes:
                    wait_for_device(array)
                    driver.copy_on_device(at, array.address, array.nbytes)
                at += array.nbytes
            driver.synchronize_default()
    except CudaError as error:
        raise InternalError(f"Tensors could not be copied to GPU {device}: {error}") from error
    return DeviceArray(memory.address, device, first.dtype, shape, memory, Order.COMPLETE)


def copy_to_device(array: DeviceArray | NDArray[Any], device: int) -> DeviceArray:
    """Returns a copy on a device, from the host or from another device; see `gather`."""
    return gather((array,), device)


def device_of(address: int) -> int:
    """Returns the device whose memory an address is in.

    Raises:
        InternalError: It is in that of none, or the driver failed, or there is none.
    """
    driver = usable_driver()
    try:
        # A context that is there: one of device 0 might have to be made for this alone.
        with driver.using((driver.active_devices() or [0])[0]):
            return driver.device_of(address)
    except CudaError as error:
        raise InternalError(f"A tensor in GPU memory cannot be used: {error}") from error


def usable_driver() -> Driver:
    """Returns the driver, loaded and initialised.

    Raises:
        InternalError: There is none, or it cannot be used.
    """
    try:
        return cuda_driver.load()
    except OSError as error:
        raise InternalError(
            f"A tensor in GPU memory needs CUDA's driver to be copied, but {error}"
        ) from error
    except CudaError as error:
        raise InternalError(f"A tensor in GPU memory cannot be used: {error}") from error
