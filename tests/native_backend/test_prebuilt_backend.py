# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own Python backend, a library in C++ that others compiled, runs models on our server."""

from __future__ import annotations

import os
import shutil
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tests import peers
from tests.native_backend import building
from tests.python_backend_differential import clients
from tests.recorded_suite import running

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.part("peers"),
    pytest.mark.skipif(bool(building.missing()), reason=building.missing()),
]

CONFIG = """backend: "theirs"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU } ]
default_model_filename: "model.py"
"""
# Of a backend that is not called python, this one runs the model.py beside the library.
MODEL = """
import sys
sys.path.append({site!r})
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        self.family = pb_utils.MetricFamily(
            name="theirs_" + self.name, description="Requests", kind=pb_utils.MetricFamily.COUNTER)
        self.counter = self.family.Metric(labels={{"model": self.name}})

    def execute(self, requests):
        self.counter.increment(len(requests))
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "IN")) for each in requests]

    def answer(self, tensor):
        if tensor.as_numpy()[0, 0] < 0:
            raise ValueError("a negative number")
        if self.name == "doubles":
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy() * 2)])
        call = pb_utils.InferenceRequest(
            model_name="doubles", inputs=[tensor], requested_output_names=["OUT"])
        response = call.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        doubled = pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", doubled + 1)])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    theirs = Path(os.environ["PEERS_DIR"], "backends", "python")
    site = next(peers.python().parents[1].glob("lib/python*/site-packages"))
    backend = folder / "backends" / "theirs"
    backend.mkdir(parents=True)
    shutil.copy(theirs / "libtriton_python.so", backend / "libtriton_theirs.so")
    for name in ("triton_python_backend_stub", "triton_python_backend_utils.py"):
        shutil.copy(theirs / name, backend)
    (backend / "model.py").write_text(textwrap.dedent(MODEL).format(site=str(site)))
    with running(
        write_models,
        is_real=False,
        options=(f"--backend-directory={folder / 'backends'}",),
        environment={"LD_LIBRARY_PATH": str(site / "nvidia_pytriton.libs")},
        models=("doubles", "calls"),
    ) as started:
        yield started
    assert started.process.returncode == 0


def write_models(folder: Path) -> None:
    for name in ("doubles", "calls"):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG)


def test_prebuilt_backend_runs_a_model(server):
    array = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    answer = clients.infer_over_http(server, "doubles", {"IN": array})

    assert answer["outputs"] == [["OUT", "FP32", [2, 3], [2, 4, 6, 8, 10, 12]]]


def test_prebuilt_backend_calls_another_model(server):
    answer = clients.infer_over_grpc(server, "calls", {"IN": np.array([[5]], np.float32)})

    assert answer["outputs"] == [["OUT", "FP32", [1, 1], [11]]]


def test_error_of_a_prebuilt_backend_is_answered(server):
    answer = clients.infer_over_http(server, "doubles", {"IN": np.array([[-1]], np.float32)})

    assert answer["status"] == "500"
    assert "a negative number" in answer["error"]


def test_metrics_of_a_prebuilt_backend_are_shown(server):
    clients.infer_over_http(server, "calls", {"IN": np.array([[5]], np.float32)})
    lines = clients.metric_lines(server, "theirs_calls")

    assert "# TYPE theirs_calls counter" in lines
    assert any(line.startswith('theirs_calls{model="calls"}') for line in lines)
