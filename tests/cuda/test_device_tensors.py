# SPDX-License-Identifier: Apache-2.0
"""Requests whose tensors are in GPU memory of clients, as the process of a model sees them."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from pytriton.base.dtypes import FP32
from pytriton.base.errors import UnavailableError
from pytriton.base.messages import DevicePlace, DeviceUse, DeviceWish
from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda.device_array import DeviceArray, Order
from pytriton.runtime.cuda.exports import Exports
from pytriton.runtime.cuda.regions import OpenRegions
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.tensor import DeviceTensor, Tensor
from pytriton.runtime.python_backend.batch_run import BatchRegistry, BatchRun
from pytriton.runtime.python_backend.device_tensors import DeviceTensors
from pytriton.runtime.python_backend.execution import make_requests
from pytriton.runtime.transport.frames import Execute
from pytriton.runtime.transport.payload import Payload, Received
from pytriton.runtime.transport.refs import TensorRef
from tests.cuda.fake_driver import FakeDriver, FakeMachine
from tests.cuda.test_open_regions import SIZE, Scene


def test_first_request_with_gpu_memory_is_told_once():
    scene = Scene()
    told = []
    tensors = DeviceTensors(
        keeps_on_device=True, regions=scene.regions, on_first_use=lambda: told.append("used")
    )
    ref = TensorRef("x", FP32.number, (SIZE // 4,), 0, SIZE)
    for _ in range(2):
        (tensor,) = tensors.column(ref, {0: DeviceUse({"x": scene.place()}, {})}, [1])

    assert told == ["used"]
    assert not tensor.is_cpu()


class LentScene:
    """The process of a model that is lent memory of another, some of which it cannot open."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr("pytriton.runtime.cuda.regions.observers", [])
        self.driver = FakeDriver(FakeMachine())
        with self.driver.using(0):
            address = self.driver.allocate(SIZE)
            self.handle = self.driver.export_memory(address)
        self.ended = []
        self.tensors = DeviceTensors(
            keeps_on_device=True,
            regions=OpenRegions(lambda: self.driver, self.ended.append),
            exports=Exports(lambda: self.driver),
            post=lambda notes: self.ended.extend(notes.leases),
        )

    def use(self, lease, *, is_known=True):
        gpu = bytes(16) if is_known else b"?" * 16
        place = DevicePlace("of instance 'a'", 1, self.handle, 0, SIZE, 0, SIZE, gpu, lease)
        return DeviceUse({"x": place}, {})


def test_inputs_that_come_after_one_that_cannot_be_opened_are_given_back(monkeypatch):
    scene = LentScene(monkeypatch)
    uses = {0: scene.use(1), 1: scene.use(2, is_known=False), 2: scene.use(3)}
    ref = TensorRef("x", FP32.number, (3 * SIZE // 4,), 0, 3 * SIZE)
    frame = Execute(1, [SIZE // 4] * 3, [ref], devices=uses)
    runs = BatchRegistry(
        None, None, ["y"], is_decoupled=False, is_batching=True, device=scene.tensors
    )

    with pytest.raises(UnavailableError, match="cannot be opened"):
        make_requests(Received(frame, bytearray(), 0, {}), BatchRun(runs, frame, 0), runs)
    gc.collect()
    assert set(scene.ended) == {1, 2, 3}


def test_outputs_that_could_not_be_sent_are_given_up(monkeypatch):
    scene = LentScene(monkeypatch)
    monkeypatch.setattr(cuda_driver, "load", lambda: scene.driver)
    with scene.driver.using(0):
        address = scene.driver.allocate(SIZE)
    array = DeviceArray(address, 0, FP32.numpy, (1, SIZE // 4), object(), Order.COMPLETE)
    tensor = DeviceTensor.of_device("y", array)
    text = Tensor("z", np.array([["no"]], object))
    frame = Execute(1, [1], [], device_wishes={0: DeviceWish()})
    runs = BatchRegistry(
        None, None, ["y", "z"], is_decoupled=False, is_batching=True, device=scene.tensors
    )
    run = BatchRun(runs, frame, 0)
    response = run.placed(0, InferenceResponse([tensor, text]))
    monkeypatch.setattr(Payload, "add", fail_for_memory)

    with pytest.raises(UnavailableError, match="no room"):
        run._make_item(0, response, None, True, Payload(None))
    assert len(scene.tensors._exports) == 0


def fail_for_memory(*_):
    raise UnavailableError("there is no room")
