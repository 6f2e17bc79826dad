# SPDX-License-Identifier: Apache-2.0
"""Named tensors: the inputs and outputs of models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.runtime.cuda.device_array import DeviceArray, order_for_stream, wait_for_device
from pytriton.runtime.pb_utils import dlpack
from pytriton.runtime.pb_utils.arguments import text
from pytriton.runtime.pb_utils.failures import TritonModelException

# By dtype object, so that usual arrays need one lookup. Others (big-endian, 'S5', bfloat16) miss.
_USUAL: dict[np.dtype[Any], dtypes.DataType] = {
    row.numpy: row for row in dtypes.BY_NUMBER.values() if row is not dtypes.BF16
}


class Tensor:
    """A tensor with a name: an input that `execute` got, or an output that it made.

    Arrays with dtype `object` or `bytes_` become BYTES tensors. In addition to numpy's own types,
    arrays of `ml_dtypes.bfloat16` are accepted, as BF16.

    Args:
        name: The name of the input or output in the model's configuration.
        array: The data; copied only if it is not contiguous.

    Raises:
        TypeError: `name` is not a string, or `array` is not a numpy array.
        TritonModelException: The name is empty, or the protocol has no such dtype.
    """

    __slots__ = ("__weakref__", "_array", "_name")

    def __init__(self, name: str, array: NDArray[Any]) -> None:
        if type(name) is not str or not name.isascii():
            name = text(name, "name")
        if not isinstance(array, np.ndarray):
            raise TypeError(f"a Tensor is made from a numpy.ndarray, got {type(array)}")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if array.dtype not in _USUAL:
            array = _supported(array)
        if not array.flags.c_contiguous:
            array = array.copy(order="C")
        self._name = name
        self._array = array

    @classmethod
    def from_array(cls, name: str, array: NDArray[Any]) -> Tensor:
        """Make a tensor without checks: the array is contiguous and has a supported dtype."""
        self = cls.__new__(cls)
        self._name = name
        self._array = array
        return self

    @classmethod
    def of_arrays(cls, name: str, arrays: Iterable[NDArray[Any]]) -> list[Tensor]:
        """Make tensors of one name like `from_array`, in less than half of the time."""
        make = cls.__new__
        tensors = []
        for array in arrays:
            self = make(cls)
            self._name = name
            self._array = array
            tensors.append(self)
        return tensors

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """Make a tensor that shares the memory of another library's tensor, also that of a GPU.

        If it is an output, its bytes are copied when the response is sent: until then the model
        must not change them.

        Args:
            name: The name of the tensor.
            tensor: An object with `__dlpack__` and `__dlpack_device__`, or a DLPack capsule, which
                is consumed.

        Raises:
            TritonModelException: The name is empty; the object is neither; its elements are not in
                C order or have a type that the protocol lacks; or its device is not supported.
        """
        name = text(name, "name")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if isinstance(tensor, DeviceTensor) and (found := tensor.to_wire()[2]).nbytes:
            # One of ours, for example an input: it needs no capsule.
            order_for_stream(found, dlpack.LEGACY_STREAM)
            return DeviceTensor.of_device(name, found)
        array = dlpack.import_tensor(tensor)
        if isinstance(array, DeviceArray):
            return DeviceTensor.of_device(name, array)
        return Tensor.from_array(name, array)

    def name(self) -> str:
        """Returns the tensor's name."""
        return self._name

    def shape(self) -> list[int]:
        """Returns the dimensions, including the batch dimension."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """Returns the datatype's number in a model's configuration, for example 11 for FP32."""
        return self._datatype().number

    def is_cpu(self) -> bool:
        """Returns whether the data is in host memory, not in that of a GPU."""
        return True

    def as_numpy(self) -> NDArray[Any]:
        """Returns the data: the same writable array each time, valid as long as it is referenced.

        BYTES tensors of requests are object arrays of `bytes`. BF16 tensors are arrays of
        `ml_dtypes.bfloat16`, with which numpy can calculate (Triton raises an error here).

        Raises:
            TritonModelException: The data is in the memory of a GPU.
        """
        return self._array

    def to_wire(self) -> tuple[dtypes.DataType, tuple[int, ...], Any]:
        """Returns datatype, shape and contiguous data; BYTES elements are bytes or str.

        The data is an array of numpy, or a `DeviceArray`.
        """
        array = self._array
        dtype = _USUAL.get(array.dtype) or self._datatype()
        if dtype is dtypes.BYTES and array.dtype.kind == "O":
            array = _with_texts(array)
        return dtype, array.shape, array

    def to_dlpack(self) -> Any:
        """Returns a DLPack capsule of the same memory, which keeps this tensor alive.

        Raises:
            TritonModelException: It is a BYTES tensor, which DLPack does not support.
        """
        return dlpack.export_capsule(self, self._array)

    def __dlpack__(
        self,
        stream: Any = None,
        *,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        device = self.__dlpack_device__()
        if dl_device is not None and tuple(dl_device) != device:
            raise BufferError(f"the tensor is on device {device}, not on {dl_device}")
        if copy:
            return Tensor.from_array(self._name, self._array.copy()).to_dlpack()
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.device_of(self._array)

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, {self._datatype().name}, shape={self.shape()})"

    def _datatype(self) -> dtypes.DataType:
        dtype = dtypes.from_numpy(self._array.dtype)
        assert dtype is not None, f"{self._array.dtype} was let in"
        return dtype


class DeviceTensor(Tensor):
    """A tensor in the memory of a GPU, which is not copied before somebody needs it elsewhere.

    Attributes:
        was_made: Whether this process has ever had one. Where not, nobody has to look for them.
    """

    __slots__ = ()

    was_made: ClassVar[bool] = False

    @classmethod
    def of_device(cls, name: str, array: DeviceArray) -> DeviceTensor:
        DeviceTensor.was_made = True
        self = cls.__new__(cls)
        self._name = name
        self._array = array  # type: ignore[assignment]  # it has what the base uses of an array
        return self

    def is_cpu(self) -> bool:
        return False

    def as_numpy(self) -> NDArray[Any]:
        raise TritonModelException(
            "Tensor is stored in GPU and cannot be converted to NumPy. Use to_dlpack() instead."
        )

    def to_wire(self) -> tuple[dtypes.DataType, tuple[int, ...], Any]:
        array = self._array  # of texts, what stands for those that a client has in its memory
        return _USUAL.get(array.dtype) or self._datatype(), array.shape, array

    def to_dlpack(self) -> Any:
        # Nobody says on which stream the capsule is used.
        wait_for_device(self._array)  # type: ignore[arg-type]  # see above
        return super().to_dlpack()

    def __dlpack__(
        self,
        stream: Any = None,
        *,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        dlpack.check_shared(self.__dlpack_device__(), dl_device, copy=copy)
        order_for_stream(self._array, stream)  # type: ignore[arg-type]  # see above
        return super().to_dlpack()


def _supported(array: NDArray[Any]) -> NDArray[Any]:
    """Convert to native byte order; TritonModelException if the dtype is not supported."""
    dtype = dtypes.from_numpy(array.dtype)
    if dtype is None or array.dtype.kind == "U":
        raise TritonModelException("NumPy dtype is not supported.")
    return array if dtype is dtypes.BYTES else array.astype(dtype.numpy, copy=False)


def _with_texts(array: NDArray[Any]) -> NDArray[Any]:
    """Returns an object array with all other elements converted to strings; itself if none."""
    elements = array.ravel().tolist()
    if all(isinstance(element, bytes | str) for element in elements):
        return array
    return dtypes.bytes_elements_to_array(
        [
            element if isinstance(element, bytes) else str(element).encode("utf-8")
            for element in elements
        ],
        array.shape,
    )
