# SPDX-License-Identifier: Apache-2.0
"""Instances on a GPU, in this process and served; skipped where torch has none."""

from __future__ import annotations

import io
import os
import warnings

import numpy as np
import pytest

from tests.framework_backends.pytorch.torch_models import (
    Instance,
    config,
    files,
    parameters,
    script,
    tensor,
)
from tests.repository_e2e.server_process import starter

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU that torch can use", allow_module_level=True)

pytestmark = pytest.mark.gpu

GPU = "instance_group [{ kind: KIND_GPU gpus: [ 0 ] }]\n"
MODEL = "instance_group [{ kind: KIND_MODEL }]\n"
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def from_gpu(output):
    """The numbers of an output, which has to be on the GPU still."""
    assert output.is_cuda
    return output.cpu().numpy()


def test_torchscript_runs_on_its_device(tmp_path):
    content = script(
        "x", "return x * self.w, torch.full([x.size(0), 1], int(x.is_cuda))", w=torch.ones(3)
    )
    settings = config(["X"], ["Y", tensor("G", "INT64", "1")], GPU)

    answer = Instance(tmp_path, content, settings, kind="GPU").execute({"X": X})

    assert np.array_equal(from_gpu(answer["Y"]), X)
    assert answer["G"].tolist() == [[1], [1]]


def test_model_moves_its_inputs_itself_with_kind_model(tmp_path):
    content = script("x", 'return x.to("cuda:0") * 2')

    model = Instance(tmp_path, content, config(["X"], ["Y"], MODEL), kind="MODEL")
    answer = model.execute({"X": X})

    assert np.array_equal(answer["Y"], 2 * X)


def test_settings_of_gpus_are_taken(tmp_path, capfd):
    extra = GPU + parameters(
        DISABLE_CUDNN="true", ENABLE_CACHE_CLEANING="true", ENABLE_WEIGHT_SHARING="true"
    )

    content = script("x", "return x * 2")
    model = Instance(tmp_path, content, config(["X"], ["Y"], extra), kind="GPU")
    answer = model.execute({"X": X})
    torch.backends.cudnn.enabled = True

    assert np.array_equal(from_gpu(answer["Y"]), 2 * X)
    assert "ENABLE_WEIGHT_SHARING has no effect on cuda:0" in capfd.readouterr().err


def test_file_is_chosen_by_the_compute_capability(tmp_path):
    major, minor = torch.cuda.get_device_capability(0)
    names = f'cc_model_filenames {{ key: "{major}.{minor}" value: "own.pt" }}\n'
    own = {"1/own.pt": script("x", "return x * 5")}

    settings = config(["X"], ["Y"], GPU + names)
    model = Instance(tmp_path, script("x", "return x"), settings, kind="GPU", **own)
    answer = model.execute({"X": X})

    assert np.array_equal(from_gpu(answer["Y"]), 5 * X)


def test_exported_programs_run_on_a_gpu(tmp_path):
    class Double(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.full((3,), 2.0))

        def forward(self, x):
            return x * self.factor

    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(Double(), (torch.zeros(2, 3),)), buffer)
    settings = config(["INPUT__0"], ["OUTPUT__0"], GPU, platform="torch_aoti")

    model = Instance(tmp_path, buffer.getvalue(), settings, "model.pt2", kind="GPU")
    answer = model.execute({"INPUT__0": X})

    assert np.array_equal(from_gpu(answer["OUTPUT__0"]), 2 * X)


@pytest.mark.skipif(not os.environ.get("PYTRITON_TEST_AOTI"), reason="compiles a model")
def test_compiled_programs_run_on_a_gpu(tmp_path):
    class Double(torch.nn.Module):
        def forward(self, x):
            return x * 2

    path = tmp_path / "compiled.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Double(), (torch.zeros(2, 3, device="cuda:0"),))
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    settings = config(["ARGS[0]"], ["RESULT"], GPU, platform="torch_aoti")

    model = Instance(tmp_path, path.read_bytes(), settings, "model.pt2", kind="GPU")
    answer = model.execute({"ARGS[0]": X})

    assert np.array_equal(from_gpu(answer["RESULT"]), 2 * X)


@pytest.mark.e2e
def test_gpu_instances_are_served(tmp_path):
    content = script("x", "return x * (2 if x.is_cuda else 1)")
    group = "instance_group [{ kind: KIND_GPU count: 2 gpus: [ 0 ] }]\n"

    with starter(tmp_path) as start:
        server = start({"m": files(content, config(["X"], ["Y"], group))}).await_ready()
        answers = [server.infer("m", value) for value in (1, 2, 3)]

    assert answers == [[2], [4], [6]]
