# SPDX-License-Identifier: Apache-2.0
"""The names of classes reach the clients that ask for classes, over every way to infer."""

from __future__ import annotations

import json

import msgspec
import pytest

from pytriton.base.protos import service_pb2
from tests.server.grpc_fakes import GrpcClient, infer_request
from tests.server.http_fakes import post
from tests.server.http_models import INFER, Service, floats, infer_body

LABELS = {"y": ("cat", "dog")}


def name_classes(model) -> None:
    model.spec = msgspec.structs.replace(model.spec, labels=LABELS)


def classified_request(model: str) -> bytes:
    request = service_pb2.ModelInferRequest.FromString(infer_request(model))
    request.outputs.add(name="y").parameters["classification"].int64_param = 1
    return request.SerializeToString()


def test_http_names_the_classes():
    service = Service()
    name_classes(service.engine.lookup("double"))
    client = service.connect()
    outputs = [{"name": "y", "parameters": {"classification": 3}}]
    client.send(post(infer_body(1, 2, 3, outputs=outputs), INFER))
    service.double.answer(floats(0, 2, 1))

    (answer,) = client.answers()
    (output,) = json.loads(answer.body)["outputs"]
    assert output["data"] == ["2.000000:1:dog", "1.000000:2", "0.000000:0:cat"]


@pytest.mark.parametrize(
    "method,model,response_class",
    [
        ("ModelInfer", "coupled", service_pb2.ModelInferResponse),
        ("ModelStreamInfer", "stream", service_pb2.ModelStreamInferResponse),
    ],
)
def test_grpc_names_the_classes(method, model, response_class):
    client = GrpcClient()
    name_classes(client.engine.loaded[model])
    stream = client.call(method, classified_request(model))
    client.engine.answer()
    client.run()

    (message,) = client.response(stream).messages
    response = response_class.FromString(message)
    response = getattr(response, "infer_response", response)
    assert response.raw_output_contents[0][4:] == b"1.000000:0:cat"
