# SPDX-License-Identifier: Apache-2.0
"""Memory that tensors view: an address, its size, and the object that keeps it alive."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.inprocess.enums import DLDeviceType, MemoryType
from pytriton.inprocess.errors import InvalidArgumentError, UnsupportedError
from pytriton.runtime.pb_utils import dlpack
from pytriton.runtime.pb_utils.failures import TritonModelException

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytriton.base.dtypes import Buffer

Place = tuple[MemoryType, int]  # the kind of memory, and the number of the device

_KINDS = {
    DLDeviceType.kDLCPU: MemoryType.CPU,
    DLDeviceType.kDLCUDAHost: MemoryType.CPU_PINNED,
    DLDeviceType.kDLCUDA: MemoryType.GPU,
}
_SUPPORTED = "expected 'cpu', 'gpu' or 'gpu:<number>', a MemoryType, or a tuple of one and a number"


class MemoryBuffer:
    """A piece of memory, which lives as long as this object.

    Args:
        data_ptr: Its address.
        memory_type: The kind of memory.
        memory_type_id: The number of the device.
        size: The number of bytes.
        owner: Any object that keeps the memory alive.
    """

    __slots__ = ("_data", "_data_ptr", "memory_type", "memory_type_id", "owner", "size")

    def __init__(
        self, data_ptr: int, memory_type: MemoryType, memory_type_id: int, size: int, owner: Any
    ) -> None:
        self._data_ptr: int | None = data_ptr
        self._data: Buffer | None = None
        self.memory_type: MemoryType = memory_type
        self.memory_type_id: int = memory_type_id
        self.size: int = size
        self.owner: Any = owner

    @classmethod
    def over(cls, data: Buffer) -> MemoryBuffer:
        """Make a view of a buffer in host memory; its address is found when somebody asks."""
        self = cls.__new__(cls)
        self._data_ptr = None
        self._data = data
        self.memory_type = MemoryType.CPU
        self.memory_type_id = 0
        self.size = len(data)
        self.owner = data
        return self

    @classmethod
    def from_dlpack(cls, owner: Any) -> MemoryBuffer:
        """Make a view of another library's tensor; memory of a GPU is copied to the host.

        Raises:
            InvalidArgumentError: It is no contiguous tensor of a datatype of the protocol.
        """
        return cls.over(array_bytes(import_array(owner)))

    @property
    def data_ptr(self) -> int:
        """The address."""
        if self._data_ptr is None:
            assert self._data is not None, "a buffer has an address or data"
            self._data_ptr = np.frombuffer(self._data, np.uint8).ctypes.data if self.size else 0
        return self._data_ptr

    def data(self) -> Buffer:
        """Returns the bytes, without a copy.

        Raises:
            UnsupportedError: They are in memory of a GPU.
        """
        if self._data is None:
            if self.memory_type is MemoryType.GPU:
                raise UnsupportedError(
                    "a tensor in memory of a GPU must be given as an object with __dlpack__"
                )
            array: Any = (ctypes.c_ubyte * self.size).from_address(self.data_ptr)
            array.keeps_alive = self.owner  # as long as a view of the array lives
            self._data = memoryview(array).cast("B") if self.size else b""
        return self._data

    def __repr__(self) -> str:
        return (
            f"MemoryBuffer(data_ptr={self.data_ptr}, memory_type={self.memory_type!r}, "
            f"memory_type_id={self.memory_type_id}, size={self.size}, owner={type(self.owner)})"
        )


def array_bytes(array: NDArray[Any]) -> Buffer:
    """Returns the bytes of a contiguous array without a copy."""
    if not array.size:
        return b""
    return array.reshape(-1).view(np.uint8).data


def import_array(source: Any) -> NDArray[Any]:
    """Returns an array on the memory of another library's tensor, which it keeps alive.

    Raises:
        InvalidArgumentError: It is no contiguous tensor of a datatype of the protocol.
    """
    try:
        return dlpack.import_array(source)
    except TritonModelException as error:
        text = str(error)
        if "not contiguous" in text:
            text = f"Only contiguous memory is supported. {text}"
        raise InvalidArgumentError(text) from None


def read_place(value: Any) -> Place:
    """Read the memory that a caller wants, in one of the forms that `output_memory_type` takes.

    Raises:
        InvalidArgumentError: It is none of them.
    """
    kind, number = value if isinstance(value, tuple) and len(value) == 2 else (value, 0)
    if isinstance(value, str):
        name, _, digits = value.lower().partition(":")
        kind = {"cpu": MemoryType.CPU, "gpu": MemoryType.GPU}.get(name)
        number = int(digits) if digits.isdecimal() else 0 if not digits else None
    if isinstance(kind, DLDeviceType):
        kind = _KINDS.get(kind)
    if not isinstance(kind, MemoryType) or not isinstance(number, int):
        raise InvalidArgumentError(f"Memory type {value!r} not supported: {_SUPPORTED}")
    return kind, number
