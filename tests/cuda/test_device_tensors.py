# SPDX-License-Identifier: Apache-2.0
"""Requests whose tensors are in GPU memory of clients, as the process of a model sees them."""

from __future__ import annotations

from pytriton.base.dtypes import FP32
from pytriton.base.messages import DeviceUse
from pytriton.runtime.python_backend.device_tensors import DeviceTensors
from pytriton.runtime.transport.refs import TensorRef
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
