# SPDX-License-Identifier: Apache-2.0
"""Modules in Python, chosen by `runtime: "model.py"`, in this process."""

from __future__ import annotations

import io
import types

import numpy as np
import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.pytorch import library
from pytriton.runtime.framework_backends.pytorch.configuration import TensorEntry
from pytriton.runtime.framework_backends.pytorch.model import find_module_class
from pytriton.testing import Request
from tests.framework_backends.pytorch.torch_models import (
    Instance,
    config,
    loaded,
    parameters,
    script,
    tensor,
)

torch = pytest.importorskip("torch")

X = np.array([[1, 2, 3]], np.float32)
UNCOMPILED = parameters(TORCH_COMPILE_OPTIONAL_PARAMETERS='{\\"disable\\": true}')
RUNTIME = 'runtime: "model.py"\n'
CODE = """
import torch
from torch.nn import Linear, ReLU

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.act = ReLU()

    def forward(self, a, b):
        assert torch.is_inference_mode_enabled() and not self.training
        return self.act(a * self.scale), a - b
"""
BARE = """
import torch

class Net(torch.nn.Module):
    def forward(self, a, b):
        return a, b
"""


@pytest.fixture(autouse=True)
def _threads_of_this_process(monkeypatch):
    """Numbers of threads hold for the whole process, and one of them can be set only once."""
    monkeypatch.setattr(library, "set_threads", lambda *_: None)


def settings(inputs=("A", "B"), outputs=("Y", "Z"), extra=UNCOMPILED, **more):
    return config(inputs, outputs, RUNTIME + extra, **more)


def weights(**values):
    buffer = io.BytesIO()
    torch.save({name: torch.tensor(value) for name, value in values.items()}, buffer)
    return buffer.getvalue()


def test_module_gets_inputs_in_the_order_of_the_configuration(tmp_path):
    with loaded(tmp_path, CODE, settings(("B", "A")), "model.py") as model:
        batch = [Request({"A": X, "B": -2 * X}), Request({"A": -X, "B": X})]
        answers = [each for (each,) in model.execute_batch(batch)]

    assert [each["Y"].tolist() for each in answers] == [[[0, 0, 0]], [[1, 2, 3]]]
    assert [each["Z"].tolist() for each in answers] == [[[-3, -6, -9]], [[2, 4, 6]]]


@pytest.mark.parametrize("shares", ["false", "true"])
def test_weights_are_beside_the_code(tmp_path, shares):
    more = UNCOMPILED + parameters(ENABLE_WEIGHT_SHARING=shares)
    files = {"1/model.pt": weights(scale=[10.0])}

    with loaded(tmp_path, CODE, settings(extra=more), "model.py", **files) as model:
        answer = model.execute({"A": X, "B": X})

    assert answer["Y"].tolist() == [[10, 20, 30]]


def test_module_imports_the_files_beside_it(tmp_path):
    code = "import weights\n" + CODE.replace("* self.scale", "* weights.FACTOR")
    files = {"1/weights.py": "FACTOR = 7\n"}

    with loaded(tmp_path, code, settings(), "model.py", **files) as model:
        answer = model.execute({"A": X, "B": X})

    assert answer["Y"].tolist() == [[7, 14, 21]]


def test_missing_weights_are_logged(tmp_path):
    with loaded(tmp_path, CODE, settings(), "model.py") as model:
        lines = [line.message for line in model.logs]

    assert any("there are no weights in" in line for line in lines)
    assert "Torch parallelism settings for 'm': NUM_THREADS = 1; NUM_INTEROP_THREADS = 1; " in lines
    assert "'torch.compile' optional parameter(s) for 'm': {'disable': True}" in lines


def test_torchscript_is_run_like_a_module(tmp_path):
    content = script("a, b", "return a - b")

    with loaded(tmp_path, content, settings(outputs=("Y",), extra="")) as model:
        answer = model.execute({"A": X, "B": X})
        lines = [line.message for line in model.logs]

    assert answer["Y"].tolist() == [[0, 0, 0]]
    assert "Loading 'm' as TorchScript" in lines


def test_own_backend_of_torch_compile_is_used(tmp_path, monkeypatch):
    # If other tests of this process used a GPU, torch still has it, but would not find it.
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    more = parameters(TORCH_COMPILE_OPTIONAL_PARAMETERS='{\\"backend\\": \\"eager\\"}')

    with loaded(tmp_path, CODE, settings(extra=more), "model.py") as model:
        answer = model.execute({"A": X, "B": X})

    assert answer["Y"].tolist() == [[1, 2, 3]]


def test_model_chooses_its_device_for_kind_model(tmp_path):
    model = Instance(tmp_path, CODE, settings(), "model.py", kind="MODEL")

    assert model.execute({"A": X, "B": X})["Y"].tolist() == [[1, 2, 3]]
    with pytest.raises(InternalError, match="Cannot determine model device"):
        Instance(tmp_path, BARE, settings(), "model.py", kind="MODEL")


def test_gpu_that_torch_cannot_use_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)

    with pytest.raises(InvalidArgumentError, match=r"expected GPU 0 .* can use 0 GPUs"):
        Instance(tmp_path, CODE, settings(), "model.py", kind="GPU")


@pytest.mark.parametrize(
    "code, text",
    [
        ("x = 1", "Cannot find a subclass of torch.nn.Module in "),
        (
            CODE.replace("return ", "return 1, "),
            (
                "PyTorch execute failure: expected a tensor, or a tuple or list of tensors from the"
                " model, got int"
            ),
        ),
        (CODE.replace("return ", "return torch.ones(2, 2), 1, "), "PyTorch execute failure: "),
        (
            CODE.replace(", a - b", ""),
            "The output Z in the model configuration refers to an output",
        ),
    ],
)
def test_modules_that_cannot_be_served_are_errors(tmp_path, code, text):
    with (
        pytest.raises((InternalError, InvalidArgumentError)) as raised,
        loaded(tmp_path, code, settings(), "model.py") as model,
    ):
        model.execute({"A": X, "B": X})

    assert str(raised.value).startswith(text)


def test_strings_are_refused(tmp_path):
    with (
        pytest.raises(InternalError, match="unsupported datatype TYPE_STRING for input 'A'"),
        loaded(tmp_path, CODE, settings((tensor("A", "STRING"), "B")), "model.py"),
    ):
        pass


class OnGpu(torch.Tensor):
    """A tensor that says so."""

    is_cuda = True


def test_output_that_stays_on_a_gpu_does_not_change_with_what_the_model_keeps():
    converter = library.TensorConverter(torch, None, [TensorEntry("Y", "TYPE_FP32")])
    converter.keeps_on_gpu = True
    buffer = torch.ones(2, 3).T.as_subclass(OnGpu)
    output = converter.outputs([buffer], {"Y": 0}, ["Y"])["Y"]
    buffer += 1

    assert (output == 1).all()
    assert output.is_contiguous()


def made(**members):
    source = types.ModuleType("source")
    for name, value in members.items():
        setattr(source, name, value)
    return source


def test_classes_of_the_file_come_before_imported_ones():
    own = type("Zoo", (torch.nn.Module,), {"__module__": "source"})
    other = type("Other", (torch.nn.Module,), {"__module__": "elsewhere"})
    linear, base = torch.nn.Linear, torch.nn.Module

    def find(**members):
        return find_module_class(made(**members), base)

    assert find(Linear=linear, Other=other, Zoo=own) is own
    assert find(Linear=linear, Other=other) is other
    assert find(Linear=linear, Module=base) is linear
    assert find(Module=base, number=1) is None
