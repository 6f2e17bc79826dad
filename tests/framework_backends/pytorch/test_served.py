# SPDX-License-Identifier: Apache-2.0
"""Models of the PyTorch backend served by the real command, over both protocols."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.waiting import eventually
from tests.framework_backends.pytorch.torch_models import (
    config,
    files,
    parameters,
    script,
)
from tests.framework_backends.served import open_client
from tests.repository_e2e.model_files import write_model
from tests.repository_e2e.server_process import starter

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

# Nothing in it names the backend: the file does.
ADD = """
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] },
       { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "sum__0" data_type: TYPE_FP32 dims: [ -1 ] },
        { name: "difference__1" data_type: TYPE_FP32 dims: [ -1 ] }]
instance_group [{ count: 2 kind: KIND_CPU }]
dynamic_batching { max_queue_delay_microseconds: 2000 }
"""
MODULE = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x * torch.get_num_threads()
"""


def exported():
    class Double(torch.nn.Module):
        def forward(self, x):
            return x * 2

    rows = torch.export.Dim("rows", min=1, max=64)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            Double(), (torch.zeros(3, 2),), dynamic_shapes={"x": {0: rows}}
        )
        torch.export.save(program, buffer)
    return buffer.getvalue()


def repository():
    uncompiled = parameters(TORCH_COMPILE_OPTIONAL_PARAMETERS='{\\"disable\\": true}')
    return {
        "add": files(script("x, y", "return x + y, x - y"), ADD),
        "exported": files(
            exported(),
            config(["ARGS[0]"], ["RESULT"], platform="torch_aoti"),
            "model.pt2",
        ),
        "module": files(
            MODULE,
            config(["X"], ["Y"], f'runtime: "model.py"\n{uncompiled}', platform=""),
            "model.py",
        ),
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    models = repository()
    flags = [
        "--model-control-mode=explicit",
        "--log-verbose=1",
        *(f"--load-model={name}" for name in models),
    ]
    with starter(tmp_path_factory.mktemp("pytorch")) as start:
        yield start(models, flags=flags).await_ready()


@pytest.fixture(params=["http", "grpc"])
def client(server, request):
    with open_client(server, request.param) as client:
        yield client


def row(*values):
    return np.array([values], np.float32)


def test_backend_is_guessed_from_the_file(server):
    document = server.get("/v2/models/add/config").json

    assert document["backend"] == "pytorch"
    assert document["platform"] == "pytorch_libtorch"
    assert document["instance_group"][0]["count"] == 2


def test_torchscript_answers(client):
    answer = client.infer("add", {"x": row(1, 2), "y": row(3, 4)})

    assert answer.as_numpy("sum__0").tolist() == [[4, 6]]
    assert answer.as_numpy("difference__1").tolist() == [[-2, -2]]


def test_exported_programs_are_served(client):
    answer = client.infer("exported", {"ARGS[0]": np.ones((5, 2), np.float32)})

    assert answer.as_numpy("RESULT").tolist() == [[2, 2]] * 5
    with pytest.raises(InferenceServerException, match=r"PyTorch execute failure: Guard failed"):
        client.infer("exported", {"ARGS[0]": np.ones((5, 3), np.float32)})


def test_modules_in_python_run_with_one_thread(server, client):
    answer = client.infer("module", {"X": row(5)})

    assert answer.as_numpy("Y").tolist() == [[1 * 5]]
    document = server.get("/v2/models/module/config").json
    assert document["runtime"] == "model.py"
    assert document["default_model_filename"] == ""
    expected = "Torch parallelism settings for 'module': NUM_THREADS = 1;"
    assert eventually(lambda: expected in server.output)


def test_missing_auto_complete_is_warned_of(server):
    text = "skipping model configuration auto-complete for 'add': not supported for pytorch backend"

    assert eventually(lambda: text in server.output)


def test_wrong_model_is_refused_in_words(server):
    write_model(server.repository / "bad", files(b"nothing", config(["X"], ["Y"])))
    answer = server.load("bad")

    assert answer.status != 200
    expected = "failed to load model 'bad': PytorchStreamReader failed reading zip archive"
    assert expected in answer.error
    assert "Traceback" not in answer.error
