# SPDX-License-Identifier: Apache-2.0
"""Models of the PyTorch backend served by the real command, over both protocols."""

from __future__ import annotations

import io
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from pytriton.base.dtypes import from_numpy
from tests.e2e.waiting import eventually
from tests.framework_backends.pytorch.torch_models import (
    config,
    files,
    parameters,
    script,
    tensor,
)
from tests.repository_e2e.model_files import write_model
from tests.repository_e2e.server_process import starter

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

STRINGS = "reshape { shape: [] }"
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
SEQUENCES = """
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  state [{ input_name: "S__1" output_name: "S__1" data_type: TYPE_FP32 dims: [ 1 ]
           initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } }]
}
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


def scaling(factor):
    return script("x", f"return x * {factor}")


def repository():
    threads = parameters(INTRA_OP_THREAD_COUNT="3", INTER_OP_THREAD_COUNT="1")
    text = [tensor(name, "STRING", "1", STRINGS) for name in ("S", "T")]
    uncompiled = parameters(TORCH_COMPILE_OPTIONAL_PARAMETERS='{\\"disable\\": true}')
    return {
        "add": files(script("x, y", "return x + y, x - y"), ADD),
        "text": files(
            script("s: List[str]", "return [each + '!' for each in s]"),
            config(text[:1], text[1:], threads),
        ),
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
        "counter": files(
            script("x, s", "return s + x, s + x"), config(["X__0"], ["Y__0"], SEQUENCES)
        ),
        "changing": files(scaling(1), config(["X"], ["Y"])),
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


class Client:
    """Asks a server over one of the protocols."""

    def __init__(self, library, port):
        self._library = library
        self._client = library.InferenceServerClient(f"127.0.0.1:{port}")

    def infer(self, name, arrays, **settings):
        tensors = []
        for key, array in arrays.items():
            each = self._library.InferInput(key, array.shape, from_numpy(array.dtype).name)
            each.set_data_from_numpy(array)
            tensors.append(each)
        return self._client.infer(name, tensors, **settings)

    def close(self):
        self._client.close()


@pytest.fixture(params=["http", "grpc"])
def client(server, request):
    library, port = triton_http, server.http_port
    if request.param == "grpc":
        library, port = triton_grpc, server.grpc_port
    made = Client(library, port)
    yield made
    made.close()


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


def test_large_tensors_are_answered(client):
    x = np.random.default_rng(1).random((2, 200_000), np.float32)

    answer = client.infer("add", {"x": x, "y": x})

    assert np.array_equal(answer.as_numpy("sum__0"), x + x)
    assert not answer.as_numpy("difference__1").any()


def test_requests_are_batched_on_two_instances(server):
    def executions():
        return server.get("/v2/models/add/stats").json["model_stats"][0]["execution_count"]

    def ask(number):
        x = row(number, 1)
        client = Client(triton_http, server.http_port)
        try:
            return [
                client.infer("add", {"x": x, "y": x}).as_numpy("sum__0")[0, 0] for _ in range(20)
            ]
        finally:
            client.close()

    before = executions()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))

    assert answers == [[2 * number] * 20 for number in range(8)]
    assert executions() - before < 160


def test_wrong_shapes_are_torchs_errors(client):
    with pytest.raises(InferenceServerException) as raised:
        client.infer("add", {"x": row(1, 2, 3), "y": row(3, 4)})

    assert "PyTorch execute failure: " in raised.value.message()
    assert "The size of tensor a (3) must match the size of tensor b (2)" in raised.value.message()


def test_strings_are_answered_to_their_own_requests(client):
    strings = np.array([["a"], ["b\0c"], ["ü"]], object)

    answer = client.infer("text", {"S": strings})

    assert answer.as_numpy("T").tolist() == [[b"a!"], [b"b\0c!"], ["ü!".encode()]]


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


def test_states_are_kept_between_requests(client):
    answers = [
        client.infer(
            "counter",
            {"X__0": row(value)},
            sequence_id=7,
            sequence_start=value == 1,
            sequence_end=value == 3,
        )
        .as_numpy("Y__0")
        .tolist()
        for value in (1, 2, 3)
    ]

    assert answers == [[[1]], [[3]], [[6]]]


def test_missing_auto_complete_is_warned_of(server):
    text = "skipping model configuration auto-complete for 'add': not supported for pytorch backend"

    assert eventually(lambda: text in server.output)


@pytest.mark.parametrize(
    "name, model_files, text",
    [
        (
            "bad",
            files(b"nothing", config(["X"], ["Y"])),
            "failed to load model 'bad': PytorchStreamReader failed reading zip archive",
        ),
        (
            "missing",
            {"1/other": "", "config.pbtxt": config(["X"], ["Y"], platform="")},
            "unable to find '",
        ),
        (
            "bare",
            {"1/model.pt": ""},
            "model configuration must contain at least one input, none were specified.",
        ),
    ],
)
def test_wrong_models_are_refused_in_words(server, name, model_files, text):
    write_model(server.repository / name, model_files)

    answer = server.load(name)

    assert answer.status != 200
    assert text in answer.error
    assert "Traceback" not in answer.error


def test_model_is_replaced_under_load(server):
    stop = threading.Event()
    seen = []

    def ask():
        client = Client(triton_http, server.http_port)
        try:
            while not stop.is_set():
                seen.append(client.infer("changing", {"X": row(1)}).as_numpy("Y")[0, 0])
        finally:
            client.close()

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            server.write("changing", {"1/model.pt": scaling(2)})
            assert server.load("changing").status == 200
            answer = server.infer("changing", 1)
        finally:
            stop.set()
        for each in asking:
            each.result()

    assert answer == [2]
    assert set(seen) <= {1, 2}
