# SPDX-License-Identifier: Apache-2.0
"""Tensors of the in-process API: DLPack both ways, strings, and what becomes an input."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

import tritonserver
from pytriton.base import dtypes
from pytriton.inprocess.tensor import input_tensor, read_place
from tritonserver import DataType, DLDeviceType, MemoryBuffer, MemoryType, Tensor


def test_tensor_from_dlpack_shares_the_memory():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)

    tensor = Tensor.from_dlpack(array)
    array[0, 0] = 41

    assert (tensor.data_type, tuple(tensor.shape), tensor.size) == (DataType.INT16, (2, 3), 12)
    assert tensor.data_ptr == array.ctypes.data
    assert np.from_dlpack(tensor).tolist() == [[41, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.uint64])
def test_array_from_a_tensor_keeps_the_tensor_alive(dtype):
    tensor = Tensor.from_dlpack(np.ones((2, 3), dtype))
    watch = weakref.ref(tensor)
    made = np.from_dlpack(tensor)
    del tensor
    gc.collect()

    assert watch() is not None
    assert (made.dtype, made.tolist()) == (dtype, np.ones((2, 3), dtype).tolist())

    del made
    gc.collect()
    assert watch() is None


def test_array_from_a_tensor_keeps_the_memory_alive():
    class Owner(np.ndarray):
        pass

    array = np.arange(4.0).view(Owner)
    watch = weakref.ref(array)
    made = np.from_dlpack(Tensor.from_dlpack(array))
    del array
    gc.collect()

    assert watch() is not None
    assert made.tolist() == [0, 1, 2, 3]

    del made
    gc.collect()
    assert watch() is None


def test_tensor_exports_to_torch_and_imports_from_it():
    torch = pytest.importorskip("torch")
    source = torch.arange(4, dtype=torch.bfloat16)

    tensor = Tensor.from_dlpack(source)
    back = torch.from_dlpack(tensor)
    source[0] = 7

    assert tensor.data_type is DataType.BF16
    assert tensor.data_ptr == source.data_ptr()
    assert back.dtype is torch.bfloat16
    assert back.tolist() == [7, 1, 2, 3]
    assert torch.from_dlpack(Tensor.from_dlpack(torch.ones(2))).tolist() == [1, 1]


def test_dlpack_takes_the_arguments_of_newer_consumers():
    tensor = Tensor.from_dlpack(np.arange(3, dtype=np.int32))

    copy = np.from_dlpack(_WithArguments(tensor, copy=True, max_version=(1, 0), dl_device=(1, 0)))

    assert copy.tolist() == [0, 1, 2]
    assert copy.ctypes.data != tensor.data_ptr
    assert np.from_dlpack(tensor).ctypes.data == tensor.data_ptr
    with pytest.raises(BufferError, match=r"device \(1, 0\), not on \(2, 0\)"):
        tensor.__dlpack__(dl_device=(2, 0))


class _WithArguments:
    def __init__(self, tensor, **arguments):
        self._tensor = tensor
        self._arguments = arguments

    def __dlpack__(self, **_):
        return self._tensor.__dlpack__(**self._arguments)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


def test_dlpack_refuses_strings_and_streams():
    numbers = Tensor.from_dlpack(np.arange(3))

    with pytest.raises(tritonserver.InvalidArgumentError, match="BYTES"):
        np.from_dlpack(Tensor.from_bytes_array([b"a"]))
    with pytest.raises(tritonserver.UnsupportedError, match="None or 0"):
        numbers.__dlpack__(stream=2)
    with pytest.raises(tritonserver.InvalidArgumentError, match="Only contiguous memory"):
        Tensor.from_dlpack(np.arange(6).reshape(2, 3).T)
    with pytest.raises(tritonserver.InvalidArgumentError, match="DLPack"):
        Tensor.from_dlpack([1, 2])


def test_strings_become_utf8_and_bytes_stay():
    tensor = Tensor.from_string_array([["a", "grün"], [b"\xff\x00", ""]])

    assert (tensor.data_type, tensor.shape) == (DataType.BYTES, (2, 2))
    assert tensor.to_bytes_array().tolist() == [[b"a", "grün".encode()], [b"\xff\x00", b""]]
    texts = Tensor.from_bytes_array(np.array(["x", "yz"])).to_string_array()
    assert texts.dtype.kind == "U"
    assert texts.tolist() == ["x", "yz"]


def test_numbers_are_no_strings():
    with pytest.raises(tritonserver.InvalidArgumentError, match="INT64, not BYTES"):
        Tensor.from_dlpack(np.arange(2)).to_bytes_array()
    with pytest.raises(tritonserver.InvalidArgumentError, match="expected str and bytes"):
        Tensor.from_bytes_array([1, 2])


def test_buffer_at_an_address_keeps_its_owner():
    array = np.arange(3, dtype=np.float32)
    buffer = MemoryBuffer(array.ctypes.data, MemoryType.CPU, 0, array.nbytes, array)
    tensor = Tensor(DataType.FP32, [3], buffer)
    del array, buffer
    gc.collect()

    assert np.asarray(tensor).tolist() == [0, 1, 2]
    assert np.asarray(tensor, dtype=np.int8).tolist() == [0, 1, 2]
    assert MemoryBuffer.from_dlpack(np.zeros(3)).size == 24


def test_shape_may_be_changed():
    tensor = Tensor.from_dlpack(np.arange(4))
    flat = np.from_dlpack(tensor)
    tensor.shape = [2, 2]

    assert flat.shape == (4,)
    assert np.from_dlpack(tensor).shape == (2, 2)


def test_tensor_is_on_the_host_already():
    tensor = Tensor.from_dlpack(np.arange(4))

    assert tensor.to_host() is tensor
    assert tensor.to_device("cpu") is tensor
    assert tensor.to_device((MemoryType.CPU_PINNED, 0)) is tensor
    with pytest.raises(tritonserver.UnsupportedError, match="from CPU to GPU:1"):
        tensor.to_device("gpu:1")


@pytest.mark.parametrize(
    "value, place",
    [
        ("cpu", (MemoryType.CPU, 0)),
        ("gpu:1", (MemoryType.GPU, 1)),
        (MemoryType.GPU, (MemoryType.GPU, 0)),
        ((MemoryType.CPU, 0), (MemoryType.CPU, 0)),
        ((DLDeviceType.kDLCUDA, 2), (MemoryType.GPU, 2)),
    ],
)
def test_memory_is_named_in_several_ways(value, place):
    assert read_place(value) == place


@pytest.mark.parametrize("value", ["tpu", "gpu:x", 3, (MemoryType.CPU, "0"), ()])
def test_other_memory_is_not_supported(value):
    with pytest.raises(tritonserver.InvalidArgumentError, match="not supported"):
        read_place(value)


@pytest.mark.parametrize(
    "value, dtype, shape, data",
    [
        (np.arange(4, dtype=np.int8).reshape(2, 2).T, dtypes.INT8, (2, 2), bytes([0, 2, 1, 3])),
        (np.array([1, 2], ">i2"), dtypes.INT16, (2,), b"\x01\x00\x02\x00"),
        (np.float32(1), dtypes.FP32, (), b"\x00\x00\x80\x3f"),
        (True, dtypes.BOOL, (), b"\x01"),
        ([1, 2], dtypes.INT64, (2,), np.array([1, 2]).tobytes()),
        ([[1.5]], dtypes.FP64, (1, 1), np.array([1.5]).tobytes()),
        (["a", b"b\x00"], dtypes.BYTES, (2,), b"\x01\x00\x00\x00a\x02\x00\x00\x00b\x00"),
        ("a", dtypes.BYTES, (), b"\x01\x00\x00\x00a"),
        (np.array([1, 2], ml_dtypes.bfloat16), dtypes.BF16, (2,), b"\x80\x3f\x00\x40"),
        (np.zeros((0, 3), np.float16), dtypes.FP16, (0, 3), b""),
        (Tensor.from_dlpack(np.array([7], np.uint8)), dtypes.UINT8, (1,), b"\x07"),
    ],
)  # fmt: skip
def test_value_becomes_an_input(value, dtype, shape, data):
    tensor = input_tensor("X", value)

    assert (tensor.dtype, tensor.shape, bytes(tensor.data)) == (dtype, shape, data)


def test_large_array_becomes_an_input_without_a_copy():
    array = np.zeros(1 << 16, np.uint8)
    data = input_tensor("X", array).data
    array[0] = 3

    assert data[0] == 3


@pytest.mark.parametrize(
    "value", [None, {}, object(), np.array([1j]), [[1], [1, 2]], [None], ["\ud800"]]
)
def test_other_values_are_refused(value):
    with pytest.raises(tritonserver.InvalidArgumentError, match="'X'"):
        input_tensor("X", value)
