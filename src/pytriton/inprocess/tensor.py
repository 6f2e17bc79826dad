# SPDX-License-Identifier: Apache-2.0
"""Tensors of the in-process API, the memory that they view, and the inputs made of other arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.base.messages import InferTensor
from pytriton.inprocess.enums import DataType, DLDeviceType, MemoryType
from pytriton.inprocess.errors import InvalidArgumentError, UnsupportedError
from pytriton.runtime.pb_utils import dlpack
from pytriton.runtime.pb_utils.failures import TritonModelException

if TYPE_CHECKING:
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


# Up to this size a copy is cheaper than a view, and the caller may change the array at once.
_SMALL_BYTES = 4 << 10
_TYPES = {row: DataType(number) for number, row in dtypes.BY_NUMBER.items()}
_USUAL = {
    row.numpy: row for row in _TYPES if row not in (dtypes.BF16, dtypes.BYTES)
}  # others (big-endian, strings, bfloat16) take the longer way


@dataclass
class Tensor:
    """A tensor.

    Attributes:
        data_type: The datatype of its elements.
        shape: Its dimensions. It may be changed; arrays that were made before keep theirs.
        memory_buffer: The memory of its elements.
    """

    data_type: DataType
    shape: Sequence[int]
    memory_buffer: MemoryBuffer

    # Making tensors

    @staticmethod
    def from_dlpack(obj: Any) -> Tensor:
        """Make a tensor of another library's tensor, without a copy if it is in host memory.

        Raises:
            InvalidArgumentError: Its elements are not contiguous, or have no datatype of the
                protocol.
        """
        array = import_array(obj)
        dtype = dtypes.from_numpy(array.dtype)
        assert dtype is not None, "such a tensor is refused before"
        return Tensor(_TYPES[dtype], array.shape, MemoryBuffer.over(array_bytes(array)))

    @staticmethod
    def from_bytes_array(array: Any) -> Tensor:
        """Make a BYTES tensor of a list or an array of `bytes` and `str`, which becomes UTF-8.

        Raises:
            InvalidArgumentError: An element is neither.
        """
        return _public(_strings("", np.asarray(array, dtype=object)))

    @staticmethod
    def from_string_array(array: Any) -> Tensor:
        """Make a BYTES tensor of a list or an array of `str`; the same as `from_bytes_array`."""
        return Tensor.from_bytes_array(array)

    # Memory

    @property
    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.memory_buffer.data_ptr

    @property
    def memory_type(self) -> MemoryType:
        """The kind of memory that the elements are in."""
        return self.memory_buffer.memory_type

    @property
    def memory_type_id(self) -> int:
        """The number of the device that the elements are on."""
        return self.memory_buffer.memory_type_id

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.memory_buffer.size

    def to_host(self) -> Tensor:
        """Returns this tensor if it is in host memory; raises UnsupportedError if not."""
        return self.to_device(MemoryType.CPU)

    def to_device(self, device: Any) -> Tensor:
        """Returns this tensor if it is in the memory of that device.

        Args:
            device: As `InferenceRequest.output_memory_type`.

        Raises:
            InvalidArgumentError: That is no device.
            UnsupportedError: It is in other memory. `torch.from_dlpack(tensor).to(...)` or the like
                copies it there.
        """
        wanted = read_place(device)
        kind = self.memory_type
        is_there = (kind, self.memory_type_id) == wanted
        if is_there or (kind is not MemoryType.GPU and wanted[0] is not MemoryType.GPU):
            return self
        raise UnsupportedError(
            f"Conversion from {kind.name} to {wanted[0].name}:{wanted[1]} is not supported: "
            "expected the memory that the tensor is in, or a library that copies it by DLPack"
        )

    # Reading

    def to_numpy(self) -> NDArray[Any]:
        """Returns an array on the same memory; of a BYTES tensor an object array of `bytes`."""
        if self.data_type is DataType.BYTES:
            return self.to_bytes_array()
        dtype = dtypes.BY_NUMBER[self.data_type].numpy
        shape = tuple(self.shape)
        if not self.size:
            return np.empty(shape, dtype)
        array: NDArray[Any] = np.ndarray(shape, dtype, self.memory_buffer.data())
        return array

    def to_bytes_array(self) -> NDArray[np.object_]:
        """Returns the elements of a BYTES tensor, as an object array of `bytes` of its shape.

        Raises:
            InvalidArgumentError: It has another datatype.
        """
        if self.data_type is not DataType.BYTES:
            raise InvalidArgumentError(
                f"Tensor has data type {self.data_type.name}, not {DataType.BYTES.name}"
            )
        elements = dtypes.decode_bytes(self.memory_buffer.data())
        return dtypes.bytes_elements_to_array(elements, tuple(self.shape))

    def to_string_array(self) -> NDArray[np.str_]:
        """Returns the elements of a BYTES tensor, read as UTF-8, as an array of `str_`.

        Raises:
            InvalidArgumentError: It has another datatype.
        """
        elements = self.to_bytes_array()
        texts = [element.decode() for element in elements.ravel()]
        return np.array(texts, dtype=np.str_).reshape(elements.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.to_numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if self.data_type is DataType.BYTES:
            raise InvalidArgumentError("DLPack does not support Triton's data type BYTES")
        if stream not in {None, 0}:
            raise UnsupportedError(
                f"DLPack stream must be None or 0 for a tensor in host memory, got {stream!r}"
            )
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(
                f"the tensor is on device {self.__dlpack_device__()}, not on {dl_device}"
            )
        array = self.to_numpy()
        if copy or not array.flags.writeable:  # the capsule cannot say that it is read-only
            array = array.copy()
        return dlpack.export_capsule(self, array)  # numpy's capsules keep only the array alive

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.memory_type is MemoryType.GPU:
            return DLDeviceType.kDLCUDA.value, self.memory_type_id
        return dlpack.CPU_DEVICE


def output_tensor(output: InferTensor) -> Tensor:
    """Returns an output of a model, as a view of the memory that it came in."""
    return Tensor(_TYPES[output.dtype], output.shape, MemoryBuffer.over(output.data))


def input_tensor(name: str, value: Any) -> InferTensor:
    """Make the input of a request.

    Raises:
        InvalidArgumentError: The value is no tensor, or its datatype is none of the protocol's.
    """
    if isinstance(value, Tensor):
        dtype = dtypes.BY_NUMBER.get(value.data_type)
        if dtype is None:
            raise InvalidArgumentError(f"input '{name}' has no valid datatype: {value.data_type!r}")
        return InferTensor(name, dtype, tuple(value.shape), value.memory_buffer.data())
    if isinstance(value, np.ndarray):
        return _from_array(name, value)
    if isinstance(value, bool | int | float | str | bytes | list | tuple | np.generic):
        return _from_array(name, _array_of(name, value))
    if hasattr(value, "__dlpack__"):
        return _from_array(name, import_array(value))
    raise InvalidArgumentError(
        f"Input type {type(value)} not supported for '{name}': expected a Tensor, a numpy array or "
        "scalar, a list, or an object with __dlpack__"
    )


def _array_of(name: str, value: Any) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidArgumentError(f"input '{name}' is no array: {error}") from None
    # numpy drops zero bytes at the end of `bytes`, and lengthens the others to the longest.
    return np.asarray(value, dtype=object) if array.dtype.kind in "SU" else array


def _from_array(name: str, array: NDArray[Any]) -> InferTensor:
    dtype = _USUAL.get(array.dtype)
    if dtype is None:
        dtype = dtypes.from_numpy(array.dtype)
        if dtype is None:
            raise InvalidArgumentError(
                f"input '{name}' has dtype {array.dtype}, which is no datatype of the protocol"
            )
        if dtype is dtypes.BYTES:
            return _strings(name, array)
        array = array.astype(dtype.numpy, copy=False)
    if array.nbytes <= _SMALL_BYTES:
        return InferTensor(name, dtype, array.shape, array.tobytes())
    return InferTensor(name, dtype, array.shape, array_bytes(np.ascontiguousarray(array)))


def _strings(name: str, array: NDArray[Any]) -> InferTensor:
    if array.dtype.kind == "O":
        for element in array.flat:
            if not isinstance(element, str | bytes):
                raise InvalidArgumentError(
                    f"expected str and bytes as elements of input '{name}', got {type(element)}"
                )
    try:
        elements = dtypes.array_to_bytes_elements(array)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"input '{name}' has a str that is not UTF-8: {error}") from None
    return InferTensor(name, dtypes.BYTES, array.shape, dtypes.encode_bytes(elements))


def _public(tensor: InferTensor) -> Tensor:
    return Tensor(DataType.BYTES, tensor.shape, MemoryBuffer.over(tensor.data))
