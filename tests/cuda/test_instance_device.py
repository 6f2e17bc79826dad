# SPDX-License-Identifier: Apache-2.0
"""The GPU of an instance is current before its model runs."""

from __future__ import annotations

import sys

import pytest

from pytriton.runtime.cuda import driver
from pytriton.runtime.python_backend import model_backend
from tests.cuda import gpu_server
from tests.cuda.fake_driver import FakeDriver
from tests.cuda.fake_library import library_folder, needs_compiler
from tests.repository_e2e.model_files import config, model
from tests.repository_e2e.server_process import starter

# Answers with the device that was current in `initialize`, that is now, and that of its arguments;
# -1 if none is current, for which CUDA takes device 0.
CURRENT = """
import ctypes
import numpy as np
import triton_python_backend_utils as pb_utils

def current():
    device = ctypes.c_int(-1)
    library = ctypes.CDLL("libcuda.so.1")
    library.cuInit(0)
    library.cuCtxGetDevice(ctypes.byref(device))
    return device.value

class TritonPythonModel:
    def initialize(self, args):
        self._first = current()
        self._own = int(args["model_instance_device_id"])

    {execute}(self, requests):
        y = np.array([[self._first, current(), self._own]], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]) for _ in requests]
"""
PLAIN = CURRENT.replace("{execute}", "def execute")
COROUTINE = CURRENT.replace("{execute}", "async def execute")


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({}, -1),
        ({"model_instance_kind": "CPU", "model_instance_device_id": "0"}, -1),
        ({"model_instance_kind": "GPU", "model_instance_device_id": "0"}, 0),
        ({"model_instance_kind": "GPU", "model_instance_device_id": "3"}, 3),
        ({"model_instance_kind": "GPU"}, 0),
        ({"model_instance_kind": "MODEL", "model_instance_device_id": "0"}, -1),
    ],
)
def test_device_of_an_instance_is_that_of_its_arguments(arguments, expected):
    assert model_backend.device_of_instance(arguments) == expected


@pytest.mark.parametrize("device", [-1, 0])
def test_device_that_is_the_default_costs_nothing(monkeypatch, device):
    fake = FakeDriver(active=())
    monkeypatch.setattr(driver, "load", lambda: fake)
    model_backend.make_current(device)

    assert fake.calls == {}


def test_other_device_is_made_current(monkeypatch):
    fake = FakeDriver(active=())
    monkeypatch.setattr(driver, "load", lambda: fake)
    model_backend.make_current(2)

    assert fake.active == [2]
    assert fake.log == [("make_current", 2)]


def test_driver_that_cannot_is_logged_and_the_model_goes_on(monkeypatch, caplog):
    fake = FakeDriver(active=())
    fake.failing["make_current"] = driver.OUT_OF_MEMORY
    monkeypatch.setattr(driver, "load", lambda: fake)
    model_backend.make_current(1)

    assert "GPU 1 cannot be made current" in caplog.text


def test_missing_driver_is_logged_and_the_model_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(driver, "LIBRARY", "libnone.so.1")
    monkeypatch.setattr(driver, "_initialized", [])
    model_backend.make_current(1)

    assert "GPU 1 cannot be made current" in caplog.text


@needs_compiler
@pytest.mark.e2e
def test_each_instance_of_a_model_has_its_own_device(tmp_path):
    group = "instance_group [{ kind: KIND_GPU gpus: [%s] }]"
    repository = {
        "zero": model(PLAIN, config(group % 0)),
        "one": model(PLAIN, config(group % 1)),
        "async": model(COROUTINE, config(group % 1)),
        "host": model(PLAIN, config("instance_group [{ kind: KIND_CPU }]")),
    }
    environment = {"LD_LIBRARY_PATH": str(library_folder()), "FAKE_CUDA_DEVICES": "2"}
    with starter(tmp_path) as start:
        command = (sys.executable, gpu_server.__file__)
        environment["CUDA_VISIBLE_DEVICES"] = "0,1"
        server = start(repository, environment=environment, command=command).await_ready()
        answers = {name: server.infer(name, 0) for name in repository}

    assert answers["zero"] == [-1, -1, 0]
    assert answers["one"] == [1, 1, 1]
    assert answers["async"] == [1, 1, 1]
    assert answers["host"] == [-1, -1, 0]
