# SPDX-License-Identifier: Apache-2.0
"""Named tensors, as a model gets them and gives them back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton import dtypes
from pytriton.pb_utils import dlpack
from pytriton.pb_utils.arguments import text
from pytriton.pb_utils.failures import TritonModelException

# By dtype object: one lookup for the usual arrays. Others (big-endian, 'S5', bfloat16) miss it.
_USUAL: dict[np.dtype[Any], dtypes.DataType] = {
    row.numpy: row for row in dtypes.BY_NUMBER.values() if row is not dtypes.BF16
}


class Tensor:
    """A tensor with a name: an input that `execute` got, or an output it made.

    Arrays with dtype `object` or `bytes_` become BYTES tensors. Beside numpy's own types, arrays
    of `ml_dtypes.bfloat16` are taken as BF16.

    Args:
        name: of the input or output in the model's configuration.
        array: its data; copied only where it is not contiguous.

    Raises:
        TypeError: `name` is no string, or `array` is no numpy array.
        TritonModelException: the name is empty, or the protocol has no such dtype.
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
        """A tensor of an array that is known to be fine: contiguous, with a dtype of ours."""
        self = cls.__new__(cls)
        self._name = name
        self._array = array
        return self

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """A tensor that shares the memory of another library's; that of a GPU is copied.

        Args:
            name: of the tensor.
            tensor: an object with `__dlpack__` and `__dlpack_device__`, or a DLPack capsule,
                which is used up.

        Raises:
            TritonModelException: the name is empty; the object is neither; its elements are not in
                C order or of a type that the protocol has not; or it is on an unknown device.
        """
        name = text(name, "name")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        return Tensor.from_array(name, dlpack.import_array(tensor))

    def name(self) -> str:
        """The tensor's name."""
        return self._name

    def shape(self) -> list[int]:
        """Its dimensions, the batch dimension included."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """The number of its datatype in a model's configuration, for example 11 for FP32."""
        return self._datatype().number

    def is_cpu(self) -> bool:
        """Whether the data is in host memory: always so, for inputs and for outputs."""
        return True

    def as_numpy(self) -> NDArray[Any]:
        """The data: the same writable array each time, valid for as long as it is referenced.

        BYTES tensors of requests are object arrays of `bytes`. BF16 tensors are arrays of
        `ml_dtypes.bfloat16`, with which numpy calculates (Triton raises here).
        """
        return self._array

    def to_wire(self) -> tuple[dtypes.DataType, tuple[int, ...], NDArray[Any]]:
        """Datatype, shape and contiguous data; elements of a BYTES tensor are bytes or str."""
        array = self._array
        dtype = _USUAL.get(array.dtype) or self._datatype()
        if dtype is dtypes.BYTES and array.dtype.kind == "O":
            array = _with_texts(array)
        return dtype, array.shape, array

    def to_dlpack(self) -> Any:
        """A DLPack capsule of the same memory, which keeps this tensor alive.

        Raises:
            TritonModelException: BYTES tensors have no place in DLPack.
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
        if dl_device is not None and tuple(dl_device) != dlpack.CPU_DEVICE:
            raise BufferError(f"the tensor is on device {dlpack.CPU_DEVICE}, not on {dl_device}")
        if copy:
            return Tensor.from_array(self._name, self._array.copy()).to_dlpack()
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU_DEVICE

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, {self._datatype().name}, shape={self.shape()})"

    def _datatype(self) -> dtypes.DataType:
        dtype = dtypes.from_numpy(self._array.dtype)
        assert dtype is not None, f"{self._array.dtype} was let in"
        return dtype


def _supported(array: NDArray[Any]) -> NDArray[Any]:
    """An unusual array in the machine's byte order; TritonModelException where we have no type."""
    dtype = dtypes.from_numpy(array.dtype)
    if dtype is None or array.dtype.kind == "U":
        raise TritonModelException("NumPy dtype is not supported.")
    return array if dtype is dtypes.BYTES else array.astype(dtype.numpy, copy=False)


def _with_texts(array: NDArray[Any]) -> NDArray[Any]:
    """An object array with anything but texts turned into texts; itself if it has only those."""
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
