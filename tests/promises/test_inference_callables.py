# SPDX-License-Identifier: Apache-2.0
"""Inference callables: decorators served as the page stacks them, parameters, and tracing off."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
from opentelemetry import trace

from pytriton.client import ModelClient
from pytriton.decorators import (
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    triton_context,
)
from pytriton.model_config import Tensor
from tests.e2e import http_client

pytestmark = pytest.mark.e2e

ROWS = {"dtype": np.float32, "shape": (-1,)}
X, Y = Tensor(name="x", **ROWS), Tensor(name="y", **ROWS)
SCALAR = {"dtype": np.float32, "shape": (1,)}


@fill_optionals(temperature=np.array([0.5], np.float32))
@group_by_keys
@batch
@group_by_values("temperature")
@first_value("temperature")
@triton_context
def stacked(triton_context, x, temperature, extra=None):
    assert triton_context.model_config.max_batch_size == 8
    assert isinstance(temperature, np.float32)
    return {"y": x * temperature + (0 if extra is None else extra)}


def test_stack_of_decorators_is_served(host):
    optional = [
        Tensor(name="temperature", optional=True, **SCALAR),
        Tensor(name="extra", optional=True, **SCALAR),
    ]
    name = host.bind(stacked, [X, *optional], max_batch_size=8)
    rows = np.array([[2.0], [4.0]], np.float32)

    assert host.infer(name, x=rows)["y"].tolist() == [[1.0], [2.0]]
    answer = host.infer(name, x=rows, temperature=np.array([[1.0], [2.0]], np.float32))
    assert answer["y"].tolist() == [[2.0], [8.0]]
    answer = host.infer(name, x=rows, extra=np.array([[1.0], [2.0]], np.float32))
    assert answer["y"].tolist() == [[2.0], [4.0]]


def test_function_around_the_stack_sees_every_call(host):
    sizes = []

    def counted(infer):
        @functools.wraps(infer)
        def wrapper(requests):
            sizes.append(len(requests))
            return infer(requests)

        return wrapper

    name = host.bind(counted(batch(lambda x: [x * 2])))

    assert host.infer(name, x=np.ones((1, 1), np.float32))["y"].tolist() == [[2.0]]
    assert sizes == [1]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_parameters_and_forwarded_headers_arrive_together(run_triton, ports, protocol):
    def infer(requests):
        return [
            {
                "add": (a + b) / float(request.parameters["header_divisor"]),
                "sub": (a - b) * float(request.parameters["parameter_multiplier"]),
            }
            for request in requests
            for a, b in [request.values()]
        ]

    pattern = {f"{protocol}_header_forward_pattern": "header.*"}
    triton = run_triton(**ports, **pattern)
    outputs = [Tensor(name="add", **ROWS), Tensor(name="sub", **ROWS)]
    triton.bind("Model", infer, [Tensor(**ROWS), Tensor(**ROWS)], outputs)
    ones = np.ones((2, 1), np.float32)
    with ModelClient(f"{protocol}://localhost:{ports[f'{protocol}_port']}", "Model") as client:
        answer = client.infer_batch(
            ones * 5, ones, parameters={"parameter_multiplier": 2}, headers={"header_divisor": 3}
        )

    assert answer["add"].tolist() == [[2.0], [2.0]]
    assert answer["sub"].tolist() == [[8.0], [8.0]]


def test_model_without_inputs_takes_its_data_from_where_a_parameter_says(host):
    @batch
    def double(data):
        return {"y": data * 2}

    def download(requests):
        for request in requests:
            request["data"] = np.array([[float(request.parameters["custom_url"])]], np.float32)
        return double(requests)

    name = host.bind(download, [])
    body = json.dumps({"inputs": [], "parameters": {"custom_url": "21"}}).encode()

    answer = http_client.call(host.port, f"/v2/models/{name}/infer", body)

    assert answer.json["outputs"][0]["data"] == [42.0]


def test_spans_are_harmless_without_tracing_and_generate_takes_scalars(host):
    tracer = trace.get_tracer(__name__)

    def passthrough(requests):
        responses = []
        for request in requests:
            with request.traced_span("get-data"):
                flags = request.data["error"]
            with (
                trace.use_span(request.span, end_on_exit=False),
                tracer.start_as_current_span("append"),
            ):
                responses.append({"sleep": request.data["sleep"], "error": flags})
        return responses

    tensors = [
        Tensor(name="sleep", **SCALAR),
        Tensor(name="error", dtype=np.bool_, shape=(1,)),
    ]
    name = host.bind(passthrough, tensors, tensors, max_batch_size=128)
    answer = http_client.call(
        host.port, f"/v2/models/{name}/generate", b'{"sleep": 0.25, "error": false}'
    )

    assert answer.status == 200
    assert (answer.json["sleep"], answer.json["error"]) == (0.25, False)
