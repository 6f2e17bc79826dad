# SPDX-License-Identifier: Apache-2.0
"""Tensors of the in-process API, and what other libraries' arrays become when they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.base.messages import InferTensor
from pytriton.inprocess.enums import DataType, DLDeviceType, MemoryType
from pytriton.inprocess.errors import InvalidArgumentError, UnsupportedError
from pytriton.inprocess.memory import MemoryBuffer, array_bytes, import_array, read_place
from pytriton.runtime.pb_utils import dlpack

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
