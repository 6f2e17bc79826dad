# SPDX-License-Identifier: Apache-2.0
"""Tensors of ONNX models on a GPU: what is bound to a session that a test plays."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pytriton.base.errors import InternalError
from pytriton.runtime.framework_backends.onnxruntime.session import Session
from pytriton.runtime.pb_utils.gpu_arrays import complete_array


class Value:
    def data_ptr(self):
        return 4096

    def shape(self):
        return [2, 3]


class FakeSession:
    """Notes what is bound, in order."""

    def __init__(self):
        self.calls = []
        self.error = None

    def io_binding(self):
        return self

    def bind_input(self, *arguments):
        self.calls.append(("bind_input", *arguments))

    def bind_cpu_input(self, name, array):
        self.calls.append(("bind_cpu_input", name, array.flags.c_contiguous))

    def bind_output(self, *arguments):
        self.calls.append(("bind_output", *arguments))

    def run_with_iobinding(self, binding, options):
        self.calls.append(("run", options))
        if self.error is not None:
            raise self.error

    def synchronize_outputs(self):
        self.calls.append(("synchronize_outputs",))

    def get_outputs(self):
        return [Value()]


def signature(*types):
    outputs = {"y": SimpleNamespace(data_type="TYPE_FP32")}
    return SimpleNamespace(outputs=outputs, data_types=set(types) or {"TYPE_FP32"})


def test_inputs_are_bound_where_they_are_and_outputs_stay_on_the_gpu():
    fake = FakeSession()
    there = complete_array(512, 1, np.dtype(np.float32), (2, 3), None)
    inputs = {"a": there, "b": np.zeros((3, 2), np.float32).T}
    (y,) = Session(fake, signature(), "options").run_on_gpu(["y"], inputs, 1)

    assert fake.calls == [
        ("bind_input", "a", "cuda", 1, np.float32, (2, 3), 512),
        ("bind_cpu_input", "b", True),
        ("bind_output", "y", "cuda", 1),
        ("run", "options"),
        ("synchronize_outputs",),
    ]
    assert (y.address, y.device, y.shape, y.dtype) == (4096, 1, (2, 3), np.float32)
    assert isinstance(y.owner, Value)


def test_failed_run_is_an_error_of_the_request():
    fake = FakeSession()
    fake.error = RuntimeError("out of memory")

    with pytest.raises(InternalError, match=r"onnx runtime error .*out of memory"):
        Session(fake, signature(), None).run_on_gpu(["y"], {}, 0)


@pytest.mark.parametrize(
    "kind, expected", [("TYPE_FP16", True), ("TYPE_STRING", False), ("TYPE_BF16", False)]
)
def test_only_types_that_can_be_bound_stay_on_the_gpu(kind, expected):
    assert Session(None, signature("TYPE_FP32", kind), None).takes_gpu_arrays is expected
