# SPDX-License-Identifier: Apache-2.0
"""Tensors in the memory of a GPU: with a driver that a test plays, and with the real one."""

from __future__ import annotations

import ctypes
import sys

import ml_dtypes
import numpy as np
import pytest
from triton_python_backend_utils import Tensor, TritonModelException

from pytriton.base.errors import InternalError
from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda.device_array import DeviceArray
from pytriton.runtime.pb_utils import dlpack
from pytriton.runtime.python_backend.answers import add_batch_output, add_tensor
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.payload import Payload
from tests.cuda.fake_driver import FakeDriver


def gpu_capsule(array, device_type=2):
    """A capsule of host memory that says that it is a GPU's."""
    capsule = Tensor("A", array).to_dlpack()
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    ctypes.c_int32.from_address(get_pointer(capsule, b"dltensor") + 8).value = device_type
    return capsule


class OnGpu:
    """As a library's tensor on a GPU is."""

    def __init__(self, array):
        self._array = array
        self.stream = None

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream=None):
        self.stream = stream
        return gpu_capsule(self._array)


@pytest.fixture
def driver(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(cuda_driver, "load", lambda: fake)
    return fake


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int8, ml_dtypes.bfloat16])
def test_tensor_of_a_gpu_stays_there(driver, dtype):
    array = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype)
    tensor = Tensor.from_dlpack("A", gpu_capsule(array))

    assert not tensor.is_cpu()
    assert tensor.shape() == [2, 3]
    assert tensor.triton_dtype() == Tensor("A", array).triton_dtype()
    assert tensor.__dlpack_device__() == (2, 0)
    assert driver.calls == {}
    with pytest.raises(
        TritonModelException, match="stored in GPU and cannot be converted to NumPy"
    ):
        tensor.as_numpy()


def test_tensor_of_a_gpu_is_exported_as_it_is(driver):
    array = np.arange(6, dtype=np.float32)
    tensor = Tensor.from_dlpack("A", gpu_capsule(array))
    again = Tensor.from_dlpack("B", tensor)

    assert not again.is_cpu()
    assert again.to_wire()[2].address == array.ctypes.data
    assert driver.calls["synchronize"] == 1
    assert Tensor.from_dlpack("C", again.to_dlpack()).to_wire()[2].address == array.ctypes.data
    with pytest.raises(BufferError, match="not copied"):
        tensor.__dlpack__(copy=True)
    with pytest.raises(BufferError, match=r"on device \(2, 0\)"):
        tensor.__dlpack__(dl_device=(1, 0))


def test_tensor_of_a_gpu_gets_another_name_without_a_capsule(driver):
    tensor = Tensor.from_dlpack("A", OnGpu(np.arange(4)))
    renamed = Tensor.from_dlpack("B", tensor)

    assert (renamed.name(), renamed.is_cpu()) == ("B", False)
    assert renamed.to_wire()[2] is tensor.to_wire()[2]


def test_tensor_of_a_gpu_keeps_what_it_is_made_from(driver):
    array = np.arange(6, dtype=np.float32)
    source = Tensor("A", array)
    before = sys.getrefcount(array)
    tensor = Tensor.from_dlpack("A", gpu_capsule(array))
    during = sys.getrefcount(array)
    del tensor

    assert during > before
    assert sys.getrefcount(array) == before
    del source


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int8, ml_dtypes.bfloat16])
def test_copy_of_a_gpu_array_has_its_bytes(driver, dtype):
    array = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype)
    copy = dlpack.import_array(gpu_capsule(array))

    assert copy.dtype == array.dtype
    assert copy.tobytes() == array.tobytes()
    assert not np.shares_memory(copy, array)


def test_copy_waits_for_the_gpu(driver):
    dlpack.import_array(gpu_capsule(np.ones(2)))
    names = [entry[0] for entry in driver.log]

    assert names == ["using", "synchronize", "copy_to_host"]


def test_library_is_told_which_stream_reads(driver):
    source = OnGpu(np.arange(3))

    assert Tensor.from_dlpack("A", source).shape() == [3]
    assert source.stream == 1


def test_consumer_that_names_its_stream_is_ordered_without_a_wait(driver):
    tensor = Tensor.from_dlpack("A", OnGpu(np.arange(3)))
    for stream in (None, 1, 2, -1):
        tensor.__dlpack__(stream)

    assert driver.calls == {}
    tensor.__dlpack__(4711)
    assert [entry for entry in driver.log if entry[0] != "using"] == [("order_after_default", 4711)]


def test_consumer_of_a_capsule_waits_for_the_stream_of_the_tensor(driver):
    tensor = Tensor.from_dlpack("A", OnGpu(np.arange(3)))
    tensor.to_dlpack()
    tensor.to_dlpack()

    assert [entry[0] for entry in driver.log] == ["using", "synchronize_default"]


def test_tensor_of_a_capsule_waits_for_the_device_once(driver):
    tensor = Tensor.from_dlpack("A", gpu_capsule(np.arange(3)))
    tensor.__dlpack__(4711)
    tensor.__dlpack__(4711)

    assert [entry[0] for entry in driver.log] == ["using", "synchronize"]


def test_copy_of_a_tensor_that_named_its_stream_waits_for_that_only(driver):
    dlpack.import_array(OnGpu(np.ones(2)))

    assert [entry[0] for entry in driver.log] == ["using", "copy_to_host"]


@pytest.mark.parametrize("step", ["using", "order_after_default"])
def test_failing_order_of_streams_is_said(driver, step):
    tensor = Tensor.from_dlpack("A", OnGpu(np.ones(2)))
    driver.failing[step] = 719
    with pytest.raises(InternalError, match=r"cannot be used: .* with error 719"):
        tensor.__dlpack__(4711)


def test_tensor_of_a_gpu_without_elements_needs_no_driver(monkeypatch):
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libnone.so.1")

    assert Tensor.from_dlpack("A", gpu_capsule(np.zeros((2, 0)))).as_numpy().shape == (2, 0)


@pytest.mark.parametrize("step", ["using", "copy_to_host", "synchronize"])
def test_failing_driver_is_said(driver, step):
    driver.failing[step] = 719
    with pytest.raises(TritonModelException, match=r"CUDA's driver failed at .* with error 719"):
        dlpack.import_array(gpu_capsule(np.ones(2)))


def test_missing_driver_is_said(monkeypatch):
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libnone.so.1")
    with pytest.raises(TritonModelException, match=r"needs CUDA's driver.*libnone\.so\.1"):
        dlpack.import_array(gpu_capsule(np.ones(2)))


def test_outputs_in_both_memories_go_into_one_tensor(driver):
    parts = [np.full((2, 1 << 14), number, np.float32) for number in range(3)]
    tensors = [Tensor("A", parts[0]), Tensor.from_dlpack("A", gpu_capsule(parts[1]))]
    tensors.append(Tensor("A", parts[2]))
    payload = Payload(Arena())
    ref = add_batch_output(payload, tensors, 6)
    (block,) = payload.blocks

    assert ref.shape == (6, 1 << 14)
    assert block.view()[: ref.size].tobytes() == np.concatenate(parts).tobytes()
    assert payload.lent_ids == []


def test_failed_copy_leaves_no_block_in_the_message(driver):
    driver.failing["copy_to_host"] = 719
    payload = Payload(arena := Arena())
    with pytest.raises(InternalError, match="could not be copied"):
        add_tensor(payload, Tensor.from_dlpack("A", gpu_capsule(np.ones(1 << 14))))

    assert payload.blocks == []
    arena.check_integrity([])


def real_driver():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        pytest.skip("there is no driver of CUDA's")
    if driver.cuInit(0):
        pytest.skip("there is no GPU")
    return driver


@pytest.mark.gpu
def test_real_gpu_gives_what_was_put_there():
    driver = real_driver()
    values = np.arange(1000, dtype=np.float32)
    context, place = ctypes.c_void_p(), ctypes.c_uint64()
    size = ctypes.c_size_t(values.nbytes)
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    try:
        assert driver.cuCtxPushCurrent_v2(context) == 0
        assert driver.cuMemAlloc_v2(ctypes.byref(place), size) == 0
        try:
            data = ctypes.c_void_p(values.ctypes.data)
            assert driver.cuMemcpyHtoD_v2(place, data, size) == 0
            array = DeviceArray(place.value, 0, values.dtype, values.shape, None)
            copy = array.copy()
        finally:
            driver.cuMemFree_v2(place)
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(0)

    assert copy.tolist() == values.tolist()
