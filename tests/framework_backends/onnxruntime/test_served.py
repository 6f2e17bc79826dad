# SPDX-License-Identifier: Apache-2.0
"""ONNX models served by the real command, over both protocols."""

from __future__ import annotations

import base64
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from pytriton.base.dtypes import from_numpy
from tests.framework_backends.onnxruntime import onnx_models
from tests.framework_backends.onnxruntime.onnx_models import TYPES, constant, model, node, tensor
from tests.repository_e2e.server_process import starter

pytestmark = pytest.mark.e2e

ONE_INSTANCE = "instance_group [{ count: 1 kind: KIND_CPU }]\n"
SEQUENCES = """
max_batch_size: 4
input [{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 4 }
  state [{ input_name: "sum" output_name: "next" data_type: TYPE_FP32 dims: [ 1 ]
           initial_state { name: "none" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } }]
}
"""
RAGGED = """
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] },
        { name: "z" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [] } }]
batch_input [{ kind: BATCH_ELEMENT_COUNT target_name: "counts" data_type: TYPE_FP32
               source_input: "x" }]
batch_output [{ kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "y" source_input: "x" }]
dynamic_batching { max_queue_delay_microseconds: 20000000 preferred_batch_size: [ 2 ] }
"""
OPTIONAL = """
input [{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] },
       { name: "scale" data_type: TYPE_FP32 dims: [ 1 ] optional: true }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] }]
"""
DOUBLE = """
max_batch_size: 4
input [{ name: "%s" data_type: %s dims: [ %s ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] }]
"""


def files(made, settings=None, path="1/model.onnx"):
    """The files of a model; without settings it has no configuration."""
    content = made if isinstance(made, bytes) else made.SerializeToString()
    if settings is None:
        return {path: content}
    return {path: content, "config.pbtxt": f'backend: "onnxruntime"\n{ONE_INSTANCE}{settings}'}


def scaling(factor):
    return model(
        [node("Mul", ["x", "factor"], ["y"])],
        [tensor("x", ["n", 2])],
        [tensor("y", ["n", 2])],
        [constant("factor", np.float32(factor))],
    )


def counting():
    return model(
        [node("Add", ["x", "sum"], ["y"]), node("Identity", ["y"], ["next"])],
        [tensor("x", ["n", 1]), tensor("sum", ["n", 1])],
        [tensor("y", ["n", 1]), tensor("next", ["n", 1])],
    )


def ragged():
    return model(
        [node("Neg", ["x"], ["y"]), node("Identity", ["counts"], ["z"])],
        [tensor("x", ["k"]), tensor("counts", ["n"])],
        [tensor("y", ["k"]), tensor("z", ["n"])],
    )


def to_float():
    return model(
        [node("Cast", ["x"], ["y"], to=TYPES["FP32"]), node("Identity", ["x"], ["z"])],
        [tensor("x", ["n"], "BF16")],
        [tensor("y", ["n"]), tensor("z", ["n"], "BF16")],
    )


def with_external_data(folder):
    """The files of a model whose weights are beside it, in a folder of that name."""
    made = model(
        [node("Add", ["x", "w"], ["y"])],
        [tensor("x", ["n", 2])],
        [tensor("y", ["n", 2])],
        [constant("w", np.array([10, 20], np.float32))],
    )
    onnx_models.write(
        made,
        folder / "model.onnx",
        save_as_external_data=True,
        location="weights",
        size_threshold=0,
    )
    return {f"1/model.onnx/{path.name}": path.read_bytes() for path in folder.iterdir()}


def repository(folder):
    return {
        "double": files(onnx_models.doubling()),
        "text": files(onnx_models.single("Identity", ("n", "m"), "STRING"), "max_batch_size: 8\n"),
        "optional": files(onnx_models.overridable(), OPTIONAL),
        "counter": files(counting(), SEQUENCES),
        "ragged": files(ragged(), RAGGED),
        "external": {**with_external_data(folder), "config.pbtxt": ONE_INSTANCE},
        "scalar": files(onnx_models.single("Neg", ()), ""),
        "bf16": files(to_float(), ""),
        "changing": files(scaling(1), 'platform: "onnxruntime_onnx"'),
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx")
    models = repository(folder / "external")
    flags = [
        "--model-control-mode=explicit",
        "--backend-config=onnxruntime,default-max-batch-size=6",
        *(f"--load-model={name}" for name in models),
    ]
    with starter(folder) as start:
        yield start(models, flags=flags).await_ready()


class Client:
    """Asks a server over one of the protocols."""

    def __init__(self, library, port):
        self._library = library
        self._client = library.InferenceServerClient(f"127.0.0.1:{port}")

    def infer(self, name, outputs=None, inputs=None, **arrays):
        tensors = []
        for key, array in arrays.items():
            each = self._library.InferInput(key, array.shape, from_numpy(array.dtype).name)
            each.set_data_from_numpy(array)
            tensors.append(each)
        settings = inputs or {}
        if outputs is not None:
            settings["outputs"] = [self._library.InferRequestedOutput(each) for each in outputs]
        return self._client.infer(name, tensors, **settings)

    def ask(self, name, **arrays):
        return self.infer(name, **arrays).as_numpy("y")

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


def config_of(server, name):
    return server.get(f"/v2/models/{name}/config").json


def test_model_without_configuration_is_completed(server):
    config = config_of(server, "double")

    assert (config["backend"], config["platform"]) == ("onnxruntime", "onnxruntime_onnx")
    assert config["default_model_filename"] == "model.onnx"
    assert config["max_batch_size"] == 6
    assert config["dynamic_batching"]["preferred_batch_size"] == [6]
    assert [(each["name"], each["dims"]) for each in config["input"]] == [("x", [2])]
    assert [(each["name"], each["dims"]) for each in config["output"]] == [("y", [2])]
    (group,) = config["instance_group"]
    assert (group["kind"], group["count"]) == ("KIND_CPU", 2)


def test_requests_are_answered(client):
    assert client.ask("double", x=row(1, 2)).tolist() == [[2, 4]]
    assert client.ask("double", x=np.ones((6, 2), np.float32)).tolist() == [[2, 2]] * 6


def test_both_instances_answer_many_clients(server):
    def ask(number):
        own = Client(triton_http, server.http_port)
        try:
            return [own.ask("double", x=row(number, i)).tolist() for i in range(20)]
        finally:
            own.close()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))

    assert answers == [[[[2 * number, 2 * i]] for i in range(20)] for number in range(8)]
    assert {f"double_{index}" for index in range(2)} <= {
        title.split()[-1] for title in server.worker_titles()
    }


def test_weights_may_lie_beside_the_model(client):
    array = np.arange(12, dtype=np.float32).reshape(6, 2)

    assert client.ask("external", x=array).tolist() == np.add(array, [10, 20]).tolist()


def test_strings_keep_nul_and_every_character(client):
    array = np.array([[b"a\0b", "grüße".encode(), b""]], object)

    assert client.ask("text", x=array).tolist() == array.tolist()


def test_string_that_is_not_utf_8_fails_alone(server, client):
    with pytest.raises(InferenceServerException) as caught:
        client.ask("text", x=np.array([[b"a", b"\xff"]], object))

    assert caught.value.message() == (
        "expected UTF-8 in input 'x', because strings of ONNX Runtime have to be; element 1 is not"
    )
    assert client.ask("text", x=np.array([[b"a"]], object)).tolist() == [[b"a"]]


def test_optional_input_may_be_missing(client):
    x = np.array([1, 2], np.float32)

    assert client.ask("optional", x=x).tolist() == [3, 6]
    assert client.ask("optional", x=x, scale=np.array([5], np.float32)).tolist() == [5, 10]


def test_scalar_has_one_dimension(server, client):
    config = config_of(server, "scalar")

    assert (config["max_batch_size"], config["input"][0]["dims"]) == (0, [1])
    assert client.ask("scalar", x=np.array([3], np.float32)).tolist() == [-3]


def test_vector_of_a_batch_has_one_column_of_bfloat16(server, client):
    config = config_of(server, "bf16")
    result = client.infer("bf16", x=np.array([[-1.5], [2.5]], ml_dtypes.bfloat16))

    assert config["input"][0]["reshape"] == {"shape": []}
    assert result.as_numpy("y").tolist() == [[-1.5], [2.5]]
    assert result.as_numpy("z").tolist() == [[-1.5], [2.5]]


def test_only_wanted_outputs_are_sent(client):
    result = client.infer("bf16", outputs=["y"], x=np.array([[1]], ml_dtypes.bfloat16))

    assert result.as_numpy("y").tolist() == [[1]]
    assert result.as_numpy("z") is None


def test_sequences_have_states(client):
    def send(sequence, value, **flags):
        result = client.infer("counter", inputs={"sequence_id": sequence, **flags}, x=row(value))
        assert result.as_numpy("next") is None
        return result.as_numpy("y").item()

    answers = [
        send(1, 5, sequence_start=True),
        send(2, 100, sequence_start=True),
        send(1, 6),
        send(2, 1, sequence_end=True),
        send(1, 7, sequence_end=True),
    ]

    assert answers == [5, 100, 11, 101, 18]


@pytest.mark.parametrize("lengths", [(3, 1), (2, 2)], ids=["ragged", "equal"])
def test_requests_share_a_batch(server, lengths):
    """The model waits for the second request, then runs at once."""

    def ask(length):
        own = Client(triton_http, server.http_port)
        try:
            result = own.infer("ragged", x=np.ones((1, length), np.float32))
            return [result.as_numpy(name).tolist() for name in ("y", "z")]
        finally:
            own.close()

    def counts():
        (entry,) = server.get("/v2/models/ragged/stats").json["model_stats"]
        return entry["inference_count"], entry["execution_count"]

    before = counts()
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(ask, lengths))

    assert answers == [[[[-1] * length], [[length]]] for length in lengths]
    assert np.subtract(counts(), before).tolist() == [2, 1]


def test_model_is_reloaded_under_load(server):
    stop, answers = threading.Event(), []

    def ask():
        own = Client(triton_http, server.http_port)
        while not stop.is_set():
            answers.append(own.ask("changing", x=row(1, 2)).tolist())
        own.close()

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(ask) for _ in range(2)]
        server.write("changing", files(scaling(7)))
        answer = server.load("changing")
        stop.set()
        for each in running:
            each.result()

    assert answer.status == 200
    assert {str(each) for each in answers} <= {"[[1.0, 2.0]]", "[[7.0, 14.0]]"}
    own = Client(triton_http, server.http_port)
    assert own.ask("changing", x=row(1, 2)).tolist() == [[7, 14]]
    own.close()


def test_file_may_come_with_the_load(server, client):
    content = base64.b64encode(scaling(9).SerializeToString()).decode()
    config = '{"backend": "onnxruntime", "instance_group": [{"count": 1, "kind": "KIND_CPU"}]}'
    answer = server.load("sent", config=config, **{"file:1/model.onnx": content})

    assert answer.status == 200
    assert client.ask("sent", x=row(1, 2)).tolist() == [[9, 18]]


def test_failed_run_fails_the_request_in_the_words_of_onnx_runtime(server, client):
    server.write(
        "picky",
        files(
            model(
                [node("Reshape", ["x", "shape"], ["y"])],
                [tensor("x", [None])],
                [tensor("y", [2, 3])],
                [constant("shape", np.array([2, 3]))],
            ),
            'input [{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }]'
            'output [{ name: "y" data_type: TYPE_FP32 dims: [ 2, 3 ] }]',
        ),
    )
    assert server.load("picky").status == 200

    with pytest.raises(
        InferenceServerException, match=r"^(\[.*\] )?onnx runtime error 1: Non-zero"
    ):
        client.ask("picky", x=np.ones(5, np.float32))


SEQUENCE_OUTPUT = model(
    [node("SequenceConstruct", ["x"], ["y"])],
    [tensor("x", [1])],
    [onnx_models.helper.make_tensor_sequence_value_info("y", TYPES["FP32"], None)],
)
WRONG = {
    "not_onnx": (
        files(b"nonsense", ""),
        r"onnx runtime error 7: Load model from .*/not_onnx/1/model.onnx failed:Protobuf parsing",
    ),
    "no_file": (
        files(b"", 'default_model_filename: "other.onnx"'),
        r"unable to find '.*/no_file/1/other.onnx' for model instance 'no_file'",
    ),
    "no_batching": (
        files(onnx_models.single("Abs", (3,)), "max_batch_size: 4"),
        "autofill failed for model 'no_batching': model does not support batching",
    ),
    "not_a_tensor": (
        files(SEQUENCE_OUTPUT, ""),
        "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'y', expected 'ONNX_TYPE_TENSOR'.",
    ),
    "wrong_name": (
        files(onnx_models.doubling(), DOUBLE % ("q", "TYPE_FP32", "2")),
        "unexpected inference input 'q', allowed inputs are: x",
    ),
    "wrong_type": (
        files(onnx_models.doubling(), DOUBLE % ("x", "TYPE_INT32", "2")),
        "expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32",
    ),
    "wrong_dims": (
        files(onnx_models.doubling(), DOUBLE % ("x", "TYPE_FP32", "2, 3")),
        "followed by the explicit tensor shape, making complete shape [-1,2,3])",
    ),
    "wrong_mode": (
        files(
            onnx_models.doubling(),
            'parameters { key: "execution_mode" value { string_value: "x" } }',
        ),
        "failed to convert 'x' to integral number",
    ),
    "no_accelerator": (
        files(
            onnx_models.doubling(),
            "optimization { execution_accelerators {"
            ' cpu_execution_accelerator: [{ name: "x" }] } }',
        ),
        "unknown Execution Accelerator 'x' is requested",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_model_is_refused_in_the_words_of_triton(server, name):
    content, expected = WRONG[name]
    server.write(name, content)
    answer = server.load(name)
    reason = server.index()[name]["reason"]

    assert answer.status == 400
    assert expected in reason or re.search(expected, reason)
