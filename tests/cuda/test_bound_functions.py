# SPDX-License-Identifier: Apache-2.0
"""Bound functions with tensors in GPU memory, whose driver a test plays."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.runtime.cuda import device_array
from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda.device_array import Order
from pytriton.runtime.functions.bound_model import DeviceSide
from pytriton.runtime.pb_utils import dlpack
from pytriton.runtime.pb_utils.gpu_arrays import GpuArray
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.payload import Payload
from pytriton.triton import Triton, TritonConfig
from tests.cuda.fake_driver import FakeDriver
from tests.free_ports import free_ports

FLOAT = np.dtype(np.float32)
LARGE = 1 << 15


@pytest.fixture
def driver(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(cuda_driver, "load", lambda: fake)
    return fake


def gpu_array(driver, array):
    """An input, as a function gets it."""
    with driver.using(0):
        address = driver.allocate(max(1, array.nbytes))
        driver.copy_to_device(address, array.ctypes.data, array.nbytes)
    return GpuArray(address, 0, array.dtype, array.shape, None, Order.COMPLETE)


class Computed:
    """What a library returns: an array on the GPU with one of the two protocols."""

    def __init__(self, driver, array, **changes):
        self._array = gpu_array(driver, array)
        self.shape = array.shape
        self.__cuda_array_interface__ = {**self._array.__cuda_array_interface__, **changes}


class ComputedByDLPack:
    def __init__(self, driver, array):
        self._array = gpu_array(driver, array)
        self.shape = array.shape
        self.streams = []

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return self._array.__dlpack__(stream)


def values(array):
    """What is in an array on the GPU, which the fake has on the host."""
    interface = array.__cuda_array_interface__
    address, _ = interface["data"]
    size = int(np.prod(interface["shape"])) * np.dtype(interface["typestr"]).itemsize
    data = ctypes.string_at(address, size)
    return np.frombuffer(data, interface["typestr"]).reshape(interface["shape"])


def test_rows_of_an_input_share_its_memory(driver):
    array = gpu_array(driver, np.arange(12, dtype=np.float32).reshape(4, 3))
    rows = array[1:3]

    assert (len(array), rows.shape, rows.address - array.address) == (4, (2, 3), 12)
    assert values(rows).tolist() == [[3, 4, 5], [6, 7, 8]]
    assert rows.owner is array
    assert array[4:].shape == (0, 3)
    with pytest.raises(IndexError, match="expected consecutive rows"):
        array[::2]
    with pytest.raises(TypeError, match=r"expected a slice of an array on a GPU, .* got 0"):
        list(array)


def test_input_is_exchanged_by_dlpack(driver):
    array = gpu_array(driver, np.arange(3, dtype=np.float32))
    taken = dlpack.import_tensor(array)

    assert array.__dlpack_device__() == (2, 0)
    assert taken.address == array.address


@pytest.mark.parametrize("wish", [{"copy": True}, {"dl_device": (1, 0)}])
def test_input_is_not_exchanged_as_what_it_is_not(driver, wish):
    array = gpu_array(driver, np.arange(3, dtype=np.float32))

    with pytest.raises(BufferError, match=r"shared, not copied|is on device"):
        array.__dlpack__(**wish)
    assert array.__dlpack__(copy=False, dl_device=(2, 0), max_version=(1, 0)) is not None


@pytest.mark.parametrize("kind", [Computed, ComputedByDLPack])
@pytest.mark.parametrize("count", [4, LARGE])
def test_output_on_the_gpu_is_copied_to_where_the_server_reads(driver, kind, count):
    array = np.arange(count, dtype=np.float32)
    payload = Payload(Arena())
    plain = np.ones(2)
    outputs = DeviceSide({}).outputs({"y": kind(driver, array), "z": plain}, payload)

    assert np.array_equal(outputs["y"], array)
    assert outputs["z"] is plain


class ComputedWithGradients(ComputedByDLPack):
    """A tensor of torch that needs gradients: it refuses both protocols in words of its own."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("Can't get __cuda_array_interface__")

    def __dlpack__(self, stream=None):
        raise BufferError("use tensor.detach()")


def test_output_that_needs_gradients_is_refused_in_the_words_of_its_library(driver):
    output = ComputedWithGradients(driver, np.zeros(4, np.float32))

    with pytest.raises(BufferError, match=r"use tensor\.detach"):
        DeviceSide({}).outputs({"y": output}, Payload(None))


def test_device_of_memory_is_found_in_a_context_that_is_there(driver):
    driver.active = [1]
    with driver.using(1):
        address = driver.allocate(16)
    device_array.device_of(address)

    assert driver.active == [1]


def test_output_may_have_any_step_along_a_dimension_of_one(driver):
    array = np.arange(4, dtype=np.float32).reshape(1, 4)
    row = Computed(driver, array, strides=(40, 4))  # a row of a larger array

    assert np.array_equal(DeviceSide({}).outputs({"y": row}, Payload(None))["y"], array)


@pytest.mark.parametrize("strides", [None, (0, 0)])
def test_output_without_elements_needs_no_copy(driver, strides):
    empty = Computed(driver, np.empty((0, 2), np.float32), strides=strides)

    assert DeviceSide({}).outputs({"y": empty}, Payload(None))["y"].shape == (0, 2)
    assert driver.calls["copy_to_host"] == 0


@pytest.mark.parametrize(
    "changes, text",
    [({"typestr": "<c8"}, "one of Triton's types"), ({"strides": (8,)}, "contiguous")],
)
def test_output_that_cannot_be_sent_is_said(driver, changes, text):
    wrong = Computed(driver, np.zeros(4, np.float32), **changes)

    with pytest.raises(ValueError, match=text):
        DeviceSide({}).outputs({"y": wrong}, Payload(None))


@pytest.mark.parametrize("device", ["cpu", "cuda:", "cuda:x", "cuda:-1", 0, ""])
def test_device_of_a_tensor_is_one_of_cudas(device):
    with pytest.raises(PyTritonValidationError, match='Expected a device like "cuda"'):
        Tensor(shape=(1,), dtype=np.float32, device=device)


def test_strings_have_no_device():
    with pytest.raises(PyTritonValidationError, match="Expected numbers in a tensor on device"):
        Tensor(shape=(1,), dtype=bytes, device="cuda")


@pytest.fixture
def serve():
    ports = free_ports(3)
    servers = []

    def start(function, device="cuda:1", **options):
        names = {"http_port": ports[0], "grpc_port": ports[1], "metrics_port": ports[2]}
        triton = Triton(config=TritonConfig(**names))
        servers.append(triton)
        tensor = {"shape": (-1,), "dtype": np.float32}
        triton.bind(
            "m",
            function,
            inputs=[Tensor(name="x", device=device, **tensor), Tensor(name="h", **tensor)],
            outputs=[Tensor(name="y", **tensor)],
            config=ModelConfig(max_batch_size=8, **options),
        )
        triton.run()
        return ModelClient(f"localhost:{ports[0]}", "m")

    yield start
    for triton in servers:
        triton.stop()


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["batch", "requests", "coroutine"])
def test_function_gets_and_returns_arrays_on_the_gpu(driver, serve, kind):
    def compute(x, h):
        assert isinstance(x, GpuArray)
        assert x.device == 1
        assert isinstance(h, np.ndarray)
        return {"y": Computed(driver, values(x) * 2 + h)}

    @batch
    def whole(x, h):
        return compute(x, h)

    def each(requests):
        return [compute(request["x"], request["h"]) for request in requests]

    async def awaited(requests):
        return each(requests)

    function = {"batch": whole, "requests": each, "coroutine": awaited}[kind]
    row = np.arange(LARGE, dtype=np.float32).reshape(1, -1)
    with serve(function) as client:
        answer = client.infer_batch(x=row, h=np.ones_like(row))

    assert np.array_equal(answer["y"], row * 2 + 1)


@pytest.mark.e2e
def test_failure_of_the_driver_is_an_error_of_the_request_only(driver, serve):
    @batch
    def double(x, h):
        return {"y": Computed(driver, values(x) + h)}

    row = np.ones((1, 4), np.float32)
    with serve(double) as client:
        driver.failing["allocate"] = cuda_driver.OUT_OF_MEMORY
        with pytest.raises(Exception, match=r"could not be copied to GPU 1: .* error 2"):
            client.infer_batch(x=row, h=row)
        driver.failing.clear()

        assert client.infer_batch(x=row, h=row)["y"].tolist() == [[2, 2, 2, 2]]
