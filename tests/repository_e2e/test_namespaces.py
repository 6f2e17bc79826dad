# SPDX-License-Identifier: Apache-2.0
"""Models of the same name in two repositories, and clients that say which one they mean."""

from __future__ import annotations

import json
from urllib.parse import quote

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.e2e.http_client import call
from tests.repository_e2e.model_files import code, model

CALL = """
call = pb_utils.InferenceRequest(model_name="same", requested_output_names=["Y"],
                                 inputs=[pb_utils.Tensor("X", x)])
y = pb_utils.get_output_tensor_by_name(call.exec(), "Y").as_numpy()
"""
ROUNDS = 60  # enough for the server to learn how the requests look


@pytest.fixture(scope="module")
def server(start_module_server):
    first = {"same": model(code("y = x + 1")), "caller": model(code(CALL))}
    second = {"same": model(code("y = x + 2")), "other_caller": model(code(CALL))}
    flags = ["--model-namespacing=true", "--model-control-mode=explicit", "--load-model=*"]
    return start_module_server(first, second, flags=flags).await_ready()


@pytest.fixture(scope="module")
def identifiers(server):
    return [f"{server.folder / f'models{number}'}::same" for number in range(2)]


def infer_over_http(server, name: str, values: list[float]) -> list[float]:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    path = f"/v2/models/{quote(name, safe='')}/infer"
    document = call(server.http_port, path, json.dumps({"inputs": [tensor]}).encode()).json
    assert document["model_name"] == "same"
    return document["outputs"][0]["data"]


def infer_over_grpc(client, name: str, values: np.ndarray) -> np.ndarray:
    tensor = triton_grpc.InferInput("X", [1, len(values)], "FP32")
    tensor.set_data_from_numpy(values.reshape(1, -1))
    return client.infer(name, [tensor]).as_numpy("Y")[0]


def test_identifiers_reach_both_models_over_http(server, identifiers):
    for number in range(ROUNDS):
        for added, name in enumerate(identifiers, start=1):
            assert infer_over_http(server, name, [number]) == [number + added]


def test_identifiers_reach_both_models_over_grpc(server, identifiers):
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        for number in range(ROUNDS):
            for added, name in enumerate(identifiers, start=1):
                values = np.array([number], np.float32)
                assert infer_over_grpc(client, name, values) == [number + added]


@pytest.mark.parametrize("count", [100_000, 4_000_000])
def test_large_requests_reach_both_models(server, identifiers, count):
    values = np.arange(count, dtype=np.float32) % 1000
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        for added, name in enumerate(identifiers, start=1):
            assert np.array_equal(infer_over_grpc(client, name, values), values + added)
    for added, name in enumerate(identifiers, start=1):
        some = values[:100_000]
        assert infer_over_http(server, name, some.tolist()) == (some + added).tolist()
