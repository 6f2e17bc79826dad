# SPDX-License-Identifier: Apache-2.0
"""README and quick start: bind a function, ask it with curl's JSON and with the client."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tests.e2e import http_client

pytestmark = pytest.mark.e2e

ROWS = {"dtype": np.float32, "shape": (-1,)}
WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)


@batch
def linear(**inputs):
    (rows,) = inputs.values()
    return [rows @ WEIGHTS]


@pytest.fixture
def port(host):
    host.bind(linear, [Tensor(**ROWS)], [Tensor(**ROWS)], name="Linear", max_batch_size=128)
    return host.port


def test_model_is_bound_before_the_server_runs_and_asked_by_the_client(ports):
    @batch
    def negate(data):
        return [data * np.array([[-1]], dtype=np.float32)]

    triton = Triton(config=TritonConfig(**ports))
    triton.bind(
        "Linear",
        negate,
        inputs=[Tensor(name="data", **ROWS)],
        outputs=[Tensor(name="result", **ROWS)],
    )
    triton.run()
    client = ModelClient(f"localhost:{ports['http_port']}", "Linear")
    answer = client.infer_sample(data=np.array([1, 2], dtype=np.float32))
    client.close()
    triton.stop()

    assert list(answer) == ["result"]
    assert answer["result"].dtype == np.float32
    assert answer["result"].tolist() == [-1.0, -2.0]


def test_json_with_id_parameters_and_nested_data_is_answered(port):
    tensor = {
        "name": "INPUT_1",
        "shape": [1, 2],
        "datatype": "FP32",
        "parameters": {},
        "data": [[1.0, 2.0]],
    }
    body = json.dumps({"id": "0", "inputs": [tensor]}).encode()
    headers = {"Content-Type": "application/json"}

    answer = http_client.call(port, "/v2/models/Linear/infer", body, headers)

    assert answer.status == 200
    assert answer.json["id"] == "0"
    (output,) = answer.json["outputs"]
    assert (output["name"], output["data"]) == ("OUTPUT_1", [6.0, 9.0, 12.0])


def test_client_sends_as_many_rows_as_the_model_takes(port):
    rows = np.random.default_rng(0).random((128, 2), dtype=np.float32)

    with ModelClient(f"localhost:{port}", "Linear") as client:
        answer = client.infer_batch(rows)

    np.testing.assert_allclose(answer["OUTPUT_1"], rows @ WEIGHTS, rtol=1e-5)


def test_byte_inputs_of_one_element_and_of_any_number(host):
    @batch
    def measure(text, words):
        return [np.array([[len(t[0]), *map(len, w)] for t, w in zip(text, words, strict=True)])]

    name = host.bind(
        measure,
        [
            Tensor(name="text", dtype=bytes, shape=(1,)),
            Tensor(name="words", dtype=bytes, shape=(-1,)),
        ],
        [Tensor(**ROWS)],
    )
    answer = host.infer(
        name, text=np.array([[b"abc"]], dtype=object), words=np.array([[b"", b"de"]], dtype=object)
    )

    assert answer["OUTPUT_1"].tolist() == [[3.0, 0.0, 2.0]]


def test_several_models_use_methods_of_one_object(host):
    class Two:
        @batch
        def double(self, x):
            return [x * 2]

        @batch
        def triple(self, x):
            return {"y": x * 3}

    two = Two()
    doubled, tripled = host.bind(two.double), host.bind(two.triple)
    one = np.ones((1, 1), np.float32)

    assert host.infer(doubled, x=one)["y"].tolist() == [[2.0]]
    assert host.infer(tripled, x=one)["y"].tolist() == [[3.0]]


def test_model_config_defaults_reach_the_server(host):
    config = host.get(f"/v2/models/{host.bind(linear)}/config").json

    assert config["max_batch_size"] == ModelConfig().max_batch_size == 4
    assert "dynamic_batching" in config
    (group,) = config["instance_group"]
    assert (group["kind"], group["count"]) == ("KIND_CPU", 1)
