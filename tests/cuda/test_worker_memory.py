# SPDX-License-Identifier: Apache-2.0
"""Real workers whose model uses a library that stands for CUDA's driver."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.cuda.fake_library import library_folder, needs_compiler
from tests.python_backend.worker_rig import DEADLINE_S, WorkerRig, ZygoteRig

pytestmark = needs_compiler
LARGE = 1 << 18

MODEL = """
import ctypes
from pytriton.runtime.cuda.device_array import DeviceArray
from pytriton.runtime.pb_utils import dlpack

class OnDevice:
    '''A tensor of a library, in memory of a device.'''
    def __init__(self, array):
        self.array = array
    def __dlpack_device__(self):
        return 2, 0
    def __dlpack__(self, *, stream=None):
        return dlpack.export_capsule(self, self.array)

class TritonPythonModel:
    def initialize(self, args):
        self.library = None
        if {at_start}:
            self.load()

    def load(self):
        self.library = library = ctypes.CDLL({path!r})
        library.fake_cuda_registered_bytes.restype = ctypes.c_size_t
        library.fake_cuda_is_registered.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        self.context = ctypes.c_void_p()
        assert library.cuInit(0) == 0
        assert library.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0) == 0
        assert library.cuCtxPushCurrent_v2(self.context) == 0

    def to_device(self, array):
        place = ctypes.c_uint64()
        size = ctypes.c_size_t(array.nbytes)
        assert self.library.cuMemAlloc_v2(ctypes.byref(place), size) == 0
        source = ctypes.c_void_p(array.ctypes.data)
        assert self.library.cuMemcpyHtoD_v2(place, source, size) == 0
        return DeviceArray(place.value, 0, array.dtype, array.shape, self)

    def execute(self, requests):
        if self.library is None:
            self.load()
        return [self.answer(request) for request in requests]

    {answer}

    def finalize(self):
        pass
"""
# Says whether the input is in registered memory, and how much is.
FACTS = """
    def answer(self, request):
        x = request.inputs()[0].as_numpy()
        facts = [self.library.fake_cuda_is_registered(x.ctypes.data, x.nbytes),
                 self.library.fake_cuda_registered_bytes(),
                 self.library.fake_cuda_count(b"cuMemHostRegister_v2"),
                 self.library.fake_cuda_count(b"cuMemHostUnregister")]
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([facts]))])
"""
# Returns its input from the device.
IDENTITY = """
    def answer(self, request):
        x = self.to_device(request.inputs()[0].as_numpy())
        output = pb_utils.Tensor.from_dlpack("y", OnDevice(x))
        assert not output.is_cpu()
        return pb_utils.InferenceResponse([output])
"""


@pytest.fixture(scope="module")
def zygote():
    zygote = ZygoteRig()
    yield zygote
    zygote.close()


@pytest.fixture
def worker_of(zygote, tmp_path):
    rigs = []

    def start(answer, *, at_start=True, **options):
        path = str(library_folder() / "libcuda.so.1")
        source = MODEL.format(path=path, at_start=at_start, answer=answer.strip())
        options["environment"] = {"CUDA_VISIBLE_DEVICES": "0"}
        rig = WorkerRig(zygote, tmp_path / f"{len(rigs)}", source, **options)
        rigs.append(rig)
        return rig.start()

    yield start
    for rig in rigs:
        rig.close()


def large(rows=1, fill=1.0):
    return {"x": np.full((rows, LARGE), fill, np.float32)}


def facts_when(worker, condition):
    """The facts of the first batch that fulfils a condition."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        (answer,) = worker.run(large())
        facts = answer["y"][0].tolist()
        if condition(facts):
            return facts
    raise AssertionError(facts)


def is_registered(facts):
    """Whether the input is in the only memory that is registered now, beside no waiting."""
    return facts[0] and facts[2] - facts[3] == 1


def hear_releases(worker):
    """Wait until the worker has released all memory of the server."""
    end = time.monotonic() + DEADLINE_S
    while worker.channel.tracker.lent_count and time.monotonic() < end:
        worker.channel.receive()


@pytest.mark.parametrize("at_start", [True, False])
def test_input_of_a_model_that_uses_cuda_is_in_registered_memory(worker_of, at_start):
    worker = worker_of(FACTS, at_start=at_start)

    facts = facts_when(worker, is_registered)
    assert facts[1] >= LARGE * 4
    assert worker.finish() == 0


def test_memory_that_the_server_drops_is_unregistered(worker_of):
    worker = worker_of(FACTS)
    before = facts_when(worker, is_registered)
    hear_releases(worker)
    worker.channel.trim(0.0)

    after = facts_when(worker, lambda facts: is_registered(facts) and facts[3] > before[3])
    assert after[1] >> 20 == before[1] >> 20
    assert worker.finish() == 0


def test_server_gets_its_memory_back(worker_of):
    worker = worker_of(FACTS)
    facts_when(worker, is_registered)
    hear_releases(worker)

    assert worker.channel.tracker.lent_count == 0
    assert worker.finish() == 0


@pytest.mark.parametrize("columns", [4, LARGE])
@pytest.mark.parametrize("rows", [1, 3])
def test_output_on_the_device_reaches_the_server(worker_of, columns, rows):
    worker = worker_of(IDENTITY)
    requests = [
        {"x": np.arange(columns, dtype=np.float32)[None] + number} for number in range(rows)
    ]
    answers = worker.run(*requests)

    for request, answer in zip(requests, answers, strict=True):
        assert np.array_equal(answer["y"], request["x"])
    assert worker.finish() == 0


def test_output_that_the_driver_cannot_copy_is_an_error_of_its_batch(worker_of):
    worker = worker_of(
        IDENTITY.replace("x = self", "self.break_some(request); x = self")
        + """
    def break_some(self, request):
        fails = request.inputs()[0].as_numpy()[0, 0] == 7
        self.library.fake_cuda_fail(b"cuMemcpyDtoH_v2", 719 if fails else 0)
    """
    )

    (failed,) = worker.run(large(fill=7))
    assert "could not be copied" in failed
    assert "719" in failed
    (answer,) = worker.run(large(fill=3))
    assert (answer["y"] == 3).all()
    assert worker.finish() == 0


def test_dead_driver_ends_registration_and_not_the_model(worker_of):
    fails = 'self.library.fake_cuda_fail(b"cuMemHostRegister_v2", 719); x = '
    # Not at the start: what comes with the first request would be registered before that fails.
    worker = worker_of(FACTS.replace("x = ", fails, 1), at_start=False)

    for _ in range(20):
        (answer,) = worker.run(large())
        assert answer["y"][0, 0] == 0
    assert worker.finish() == 0
