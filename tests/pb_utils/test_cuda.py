# SPDX-License-Identifier: Apache-2.0
"""Tensors in the memory of a GPU: with a driver that a test plays, and with the real one."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest
from triton_python_backend_utils import Tensor, TritonModelException

from pytriton.runtime.pb_utils import dlpack


class FakeDriver:
    """Takes host memory for that of a GPU, and notes the calls; `failing` gives an error."""

    def __init__(self, failing=""):
        self._failing = failing
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(name)
            if name == "cuMemcpyDtoH_v2":
                destination, source, size = (argument.value for argument in arguments)
                ctypes.memmove(destination, source, size)
            return 719 if name == self._failing else 0

        return call


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
    monkeypatch.setattr(dlpack, "_load_driver", lambda: fake)
    return fake


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int8, ml_dtypes.bfloat16])
def test_tensor_of_a_gpu_is_copied(driver, dtype):
    array = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype)
    tensor = Tensor.from_dlpack("A", gpu_capsule(array))

    assert tensor.is_cpu()
    assert tensor.as_numpy().dtype == array.dtype
    assert tensor.as_numpy().tobytes() == array.tobytes()
    assert not np.shares_memory(tensor.as_numpy(), array)


def test_copy_waits_for_the_gpu_and_leaves_its_context_as_it_was(driver):
    Tensor.from_dlpack("A", gpu_capsule(np.ones(2)))

    assert driver.calls.index("cuCtxSynchronize") < driver.calls.index("cuMemcpyDtoH_v2")
    assert driver.calls[-2:] == ["cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2"]


def test_library_is_told_which_stream_reads(driver):
    source = OnGpu(np.arange(3))

    assert Tensor.from_dlpack("A", source).as_numpy().tolist() == [0, 1, 2]
    assert source.stream == 1


def test_tensor_of_a_gpu_without_elements_needs_no_driver(monkeypatch):
    monkeypatch.setattr(dlpack, "_LIBRARY", "libnone.so.1")

    assert Tensor.from_dlpack("A", gpu_capsule(np.zeros((2, 0)))).shape() == [2, 0]


@pytest.mark.parametrize("step", ["cuInit", "cuMemcpyDtoH_v2", "cuCtxSynchronize"])
def test_failing_driver_is_said(monkeypatch, step):
    monkeypatch.setattr(dlpack, "_load_driver", lambda: FakeDriver(step))
    with pytest.raises(TritonModelException, match=r"CUDA's driver failed at .* with error 719"):
        Tensor.from_dlpack("A", gpu_capsule(np.ones(2)))


def test_missing_driver_is_said(monkeypatch):
    monkeypatch.setattr(dlpack, "_LIBRARY", "libnone.so.1")
    with pytest.raises(TritonModelException, match=r"needs CUDA's driver.*libnone\.so\.1"):
        Tensor.from_dlpack("A", gpu_capsule(np.ones(2)))


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
            copy = dlpack.copy_to_host(place.value, values.nbytes, 0)
        finally:
            driver.cuMemFree_v2(place)
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(0)

    assert copy.view(np.float32).tolist() == values.tolist()
