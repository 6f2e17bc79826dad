# SPDX-License-Identifier: Apache-2.0
"""ONNX models served by the real command, over both protocols."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.framework_backends.onnxruntime import onnx_models
from tests.framework_backends.onnxruntime.onnx_models import constant, model, node, tensor
from tests.framework_backends.served import open_client
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


def files(made, settings=None, path="1/model.onnx"):
    """The files of a model; without settings it has no configuration."""
    content = made if isinstance(made, bytes) else made.SerializeToString()
    if settings is None:
        return {path: content}
    return {path: content, "config.pbtxt": f'backend: "onnxruntime"\n{ONE_INSTANCE}{settings}'}


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
        "counter": files(counting(), SEQUENCES),
        "ragged": files(ragged(), RAGGED),
        "external": {**with_external_data(folder), "config.pbtxt": ONE_INSTANCE},
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


@pytest.fixture(params=["http", "grpc"])
def client(server, request):
    with open_client(server, request.param) as client:
        yield client


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


def ask(client, name, x):
    return client.infer(name, {"x": x}).as_numpy("y").tolist()


def test_requests_are_answered(client):
    assert ask(client, "double", row(1, 2)) == [[2, 4]]
    assert ask(client, "double", np.ones((6, 2), np.float32)) == [[2, 2]] * 6


def test_weights_may_lie_beside_the_model(client):
    array = np.arange(12, dtype=np.float32).reshape(6, 2)

    assert ask(client, "external", array) == np.add(array, [10, 20]).tolist()


def test_sequences_have_states(client):
    def send(sequence, value, **flags):
        result = client.infer("counter", {"x": row(value)}, sequence_id=sequence, **flags)
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

    def ask_for(length):
        with open_client(server) as own:
            result = own.infer("ragged", {"x": np.ones((1, length), np.float32)})
            return [result.as_numpy(name).tolist() for name in ("y", "z")]

    def counts():
        (entry,) = server.get("/v2/models/ragged/stats").json["model_stats"]
        return entry["inference_count"], entry["execution_count"]

    before = counts()
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(ask_for, lengths))

    assert answers == [[[[-1] * length], [[length]]] for length in lengths]
    assert np.subtract(counts(), before).tolist() == [2, 1]


WRONG = {
    "not_onnx": (
        b"nonsense",
        "",
        r"onnx runtime error 7: Load model from .*failed:Protobuf parsing",
    ),
    "no_batching": (
        onnx_models.single("Abs", (3,)),
        "max_batch_size: 4",
        "autofill failed for model 'no_batching': model does not support batching",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_model_is_refused_in_the_words_of_triton(server, name):
    *content, expected = WRONG[name]
    server.write(name, files(*content))
    answer = server.load(name)

    assert answer.status == 400
    assert re.search(expected, server.index()[name]["reason"])
