# SPDX-License-Identifier: Apache-2.0
"""Functions that SageMaker and Vertex AI ask for."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import TRITON_ACCESS_HEADER, Triton, TritonConfig
from tests.e2e.conftest import new_ports
from tests.e2e.http_client import call
from tests.free_ports import free_ports

BODY = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'


@batch
def double(x):
    return {"y": 2 * x}


def bind(triton, name):
    tensors = {"inputs": [Tensor(name="x", dtype=np.float32, shape=(-1,))]}
    tensors["outputs"] = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
    triton.bind(name, double, **tensors, config=ModelConfig(max_batch_size=8))


def outputs(answer):
    assert answer.status == 200, answer.body
    return answer.json["outputs"][0]["data"]


@pytest.fixture(params=[0, 2], ids=["one process", "front ends"])
def settings(request):
    return {"frontend_processes": request.param}


def test_function_is_served_to_vertex_ai_alone(settings, monkeypatch):
    (port,) = free_ports(1)
    monkeypatch.setenv("AIP_MODE", "PREDICTION")
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/v1/endpoints/1/deployedModels/2:predict")
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/health")
    config = TritonConfig(
        allow_vertex_ai=True,
        vertex_ai_port=port,
        allow_metrics=False,
        **settings,
    )
    with Triton(config=config) as triton:
        bind(triton, "Double")
        triton.run()

        predict = "/v1/endpoints/1/deployedModels/2:predict"
        assert call(port, "/health").status == 200
        assert outputs(call(port, predict, BODY)) == [2.0, 4.0]
        bind(triton, "Other")
        assert call(port, predict, BODY).error.startswith("Expect the model repository contains")
        redirect = {"X-Vertex-Ai-Triton-Redirect": "v2/models/Other/infer"}
        assert outputs(call(port, predict, BODY, redirect)) == [2.0, 4.0]


def test_function_is_served_to_sagemaker_and_to_others(settings, monkeypatch):
    (port,) = free_ports(1)
    monkeypatch.setenv("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "Double")
    ports = new_ports()
    config = TritonConfig(allow_sagemaker=True, sagemaker_port=port, **ports, **settings)
    with Triton(config=config) as triton:
        bind(triton, "Double")
        triton.run()

        assert call(port, "/ping").status == 200
        assert outputs(call(port, "/invocations", BODY)) == [2.0, 4.0]
        assert outputs(call(port, "/models/Double/invoke", BODY)) == [2.0, 4.0]
        load = b'{"model_name":"m","url":"/tmp"}'
        assert call(port, "/models", load).status == 403  # as for every bound server
        token = {TRITON_ACCESS_HEADER: triton.get_access_token()}
        assert call(port, "/models", load, token).error == "this server has no model repositories"
        assert outputs(call(ports["http_port"], "/v2/models/Double/infer", BODY)) == [2.0, 4.0]
