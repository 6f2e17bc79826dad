# SPDX-License-Identifier: Apache-2.0
"""Exchanges tensors with other libraries by DLPack; the memory is shared, also that of a GPU.

numpy supports DLPack too, but neither bfloat16, GPUs nor capsules, and its capsules keep the array
alive, while ours keep the `Tensor` alive. So this module knows the C structures of the standard.

What is exported is a structure of numpy with other contents: libraries release it by numpy's C
function. They may do so while an exception is raised, which a function of Python would replace.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.base.errors import ServerError
from pytriton.runtime.cuda.device_array import DeviceArray, Order
from pytriton.runtime.pb_utils.failures import TritonModelException

CPU_DEVICE = (1, 0)
_GPU = 2
_HOST = frozenset({1, 3})  # normal and pinned memory
LEGACY_STREAM = 1  # the GPU stream that synchronises with all others
_UNUSED_NAME = b"dltensor"
_USED_NAME = b"used_dltensor"

# The type codes of the standard by numpy's kind of dtype; numpy has no bfloat16.
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_BFLOAT = 4
_DATATYPES = {
    (_CODES[row.numpy.kind], row.itemsize * 8): row
    for row in dtypes.BY_NUMBER.values()
    if row not in (dtypes.BYTES, dtypes.BF16)
} | {(_BFLOAT, 16): dtypes.BF16}
# Code and bits by numpy's dtype. Not bfloat16, whose package is imported only where it is used.
_TYPE_CODES = {row.numpy: code for code, row in _DATATYPES.items() if row is not dtypes.BF16}


# `DLManagedTensor`: data, device (type and number), number of dimensions, datatype (code, bits and
# lanes), addresses of shape and strides, offset of the data; then a pointer for the producer, and
# the function to call when the memory is no longer needed. They are packed and unpacked together:
# one field of a structure of ctypes takes as long.
_MANAGED = struct.Struct("@PiiiBBHPPQPP")


# All but the last two fields, which are numpy's in what is exported.
_TENSOR = struct.Struct("@PiiiBBHPPQ")
_TensorMemory = ctypes.c_char * _TENSOR.size


@functools.cache
def _shape_layout(ndim: int) -> struct.Struct:
    return struct.Struct(f"@{ndim}q")


class _Foreign(NamedTuple):
    """The fields of an imported `DLManagedTensor`."""

    data: int
    device_type: int
    device_id: int
    ndim: int
    code: int
    bits: int
    lanes: int
    shape: int
    strides: int
    byte_offset: int
    context: int
    deleter: int


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # it may take the GIL

# Capsules are passed by address: a destructor must not change the reference count of its object.
_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_rename_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)

# The import of a tensor renames its capsule, which keeps the address of the name.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_USED_NAME))


class _Carrier(np.ndarray[Any, np.dtype[np.uint8]]):
    """The array that numpy exports, and keeps alive; its attribute is what we export."""

    kept: tuple[Any, ...]


def device_of(array: NDArray[Any] | DeviceArray) -> tuple[int, int]:
    """Returns the device in the form of the standard."""
    return (_GPU, array.device) if isinstance(array, DeviceArray) else CPU_DEVICE


def check_shared(
    device: tuple[int, int], wanted: tuple[int, int] | None, *, copy: bool | None
) -> None:
    """Refuse what a consumer wants of a tensor in GPU memory, which is shared as it is.

    Raises:
        BufferError: It wants a copy, or the tensor on another device.
    """
    if copy:
        raise BufferError("a tensor in GPU memory is shared, not copied")
    if wanted is not None and tuple(wanted) != device:
        raise BufferError(f"the tensor is on device {device}, not on {wanted}")


def export_capsule(owner: object, array: NDArray[Any] | DeviceArray) -> Any:
    """Returns a capsule of the array's memory; `owner` lives until the consumer releases it.

    Raises:
        TritonModelException: The array contains strings.
    """
    kind = _TYPE_CODES.get(array.dtype)
    if kind is None:
        if array.dtype.kind in "OS":
            raise TritonModelException("DLPack does not have support for string tensors.")
        kind = (_BFLOAT, 16)  # all others are in the table
    address_of_data, device = (
        (array.address, (_GPU, array.device))
        if isinstance(array, DeviceArray)
        else (array.ctypes.data, CPU_DEVICE)
    )
    ndim = len(array.shape)
    shape = (ctypes.c_int64 * ndim)(*array.shape)
    carrier = _Carrier(0, np.uint8)
    carrier.kept = (shape, array, owner)
    capsule = carrier.__dlpack__()
    _TENSOR.pack_into(
        _TensorMemory.from_address(_capsule_pointer(id(capsule), _UNUSED_NAME)),
        0,
        address_of_data,
        *device,
        ndim,
        *kind,
        1,  # lanes
        ctypes.addressof(shape),
        0,  # no strides: it is contiguous
        0,
    )
    return capsule


def import_array(source: Any) -> NDArray[Any]:
    """Like `import_tensor`, but GPU memory is copied to the host, which needs CUDA's driver.

    Raises:
        TritonModelException: `source` is not a DLPack tensor, or has an unsupported kind, or the
            driver failed.
    """
    array = import_tensor(source)
    if not isinstance(array, DeviceArray):
        return array
    try:
        return array.copy()
    except ServerError as error:
        raise TritonModelException(error.message) from error


def import_tensor(source: Any) -> NDArray[Any] | DeviceArray:
    """Returns an array on the memory of another library's tensor, which it keeps alive.

    Work that the library has submitted for the tensor is done before what the default stream of its
    GPU does from now on, unless `source` is a capsule.

    Raises:
        TritonModelException: `source` is not a DLPack tensor, or has an unsupported kind.
    """
    order = Order.UNKNOWN  # a capsule does not say on which stream it is computed
    if type(source).__name__ != "PyCapsule":
        source = _capsule_of(source)
        order = Order.DEFAULT
    capsule = id(source)
    if not _capsule_is_valid(capsule, _UNUSED_NAME):
        raise TritonModelException(
            "A DLPack capsule can be used only once; expected one that nobody used, with the name"
            f" 'dltensor', got {source!r}"
        )
    address = _capsule_pointer(capsule, _UNUSED_NAME)
    tensor = _Foreign._make(_MANAGED.unpack(ctypes.string_at(address, _MANAGED.size)))
    dtype = _checked_dtype(tensor)
    shape = _checked_shape(tensor)
    _rename_capsule(capsule, _USED_NAME)
    array = _array_over(_ForeignMemory(address, tensor.deleter), tensor, dtype, shape)
    if isinstance(array, DeviceArray):
        array.order = order
    return array


class _ForeignMemory:
    """The memory of an imported tensor; tells its library when the last array on it is gone."""

    def __init__(self, address: int, deleter: int) -> None:
        self._address = address
        self._deleter = deleter  # 0: there is none
        self.__array_interface__: dict[str, Any] = {}

    # It may be called at the end of the interpreter, when this module is already cleared.
    def __del__(self, as_function: Callable[..., Any] = _DELETER) -> None:
        if self._deleter:
            as_function(self._deleter)(self._address)


def _capsule_of(source: Any) -> Any:
    """Returns the capsule of an object that implements the protocol."""
    if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__`"
            f" and `__dlpack_device__` attributes, got {type(source)}"
        )
    device_type = int(source.__dlpack_device__()[0])
    _check_device(device_type)
    return source.__dlpack__(stream=LEGACY_STREAM) if device_type == _GPU else source.__dlpack__()


def _check_device(device_type: int) -> None:
    if device_type != _GPU and device_type not in _HOST:
        raise TritonModelException(
            f"DLDevice type {device_type} is not support by Python backend. Expected host memory"
            " (1 or 3) or that of a CUDA device (2)."
        )


def _checked_dtype(tensor: _Foreign) -> dtypes.DataType:
    _check_device(tensor.device_type)
    dtype = _DATATYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise TritonModelException(
            "Expected a DLPack tensor of one of the protocol's datatypes, got type code"
            f" {tensor.code} with {tensor.bits} bits and {tensor.lanes} lanes."
        )
    return dtype


def _checked_shape(tensor: _Foreign) -> tuple[int, ...]:
    layout = _shape_layout(tensor.ndim)
    shape = layout.unpack(ctypes.string_at(tensor.shape, layout.size))
    if tensor.strides and 0 not in shape:
        strides = layout.unpack(ctypes.string_at(tensor.strides, layout.size))
        expected = 1
        for axis in reversed(range(tensor.ndim)):
            if shape[axis] != 1 and strides[axis] != expected:
                raise TritonModelException(
                    "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are"
                    " stored in C-Order are supported."
                )
            expected *= shape[axis]
    return shape


def _array_over(
    memory: _ForeignMemory, tensor: _Foreign, dtype: dtypes.DataType, shape: tuple[int, ...]
) -> NDArray[Any] | DeviceArray:
    if not prod(shape):
        return np.empty(shape, dtype.numpy)
    if tensor.device_type == _GPU:
        address = tensor.data + tensor.byte_offset
        return DeviceArray(address, tensor.device_id, dtype.numpy, shape, memory)
    raw = np.dtype("<u2") if dtype is dtypes.BF16 else dtype.numpy
    memory.__array_interface__ = {
        "version": 3,
        "shape": shape,
        "typestr": raw.str,
        "data": (tensor.data + tensor.byte_offset, False),
    }
    return np.asarray(memory).view(dtype.numpy)
