# SPDX-License-Identifier: Apache-2.0
"""What SageMaker asks, and what is answered."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pytriton.serving.server.http.columns import LEARNED_AFTER
from tests.server.cloud_fakes import answered, request, sagemaker, status_of
from tests.server.http_models import ask, error, floats, infer_body

BINARY = b"application/vnd.sagemaker-triton.binary+json;json-header-size="
BINARY_OUTPUT = [{"name": "y", "parameters": {"binary_data": True}}]


def invoke(*headers: bytes, body: bytes = b"") -> bytes:
    return request(b"POST", b"/invocations", *headers, body=body)


def test_ping_is_whether_the_server_is_ready():
    service = sagemaker()
    assert status_of(service, request(b"GET", b"/ping")) == 200

    service.engine.begin_exit()
    assert status_of(service, request(b"GET", b"/ping")) == 400


def test_ping_may_be_whether_the_server_lives():
    service = sagemaker(ping_mode="live")
    service.engine.begin_exit()

    assert status_of(service, request(b"GET", b"/ping")) == 200


def test_invocation_is_an_inference_of_the_default_model():
    answer = answered(sagemaker(), invoke(body=infer_body(1, 2)), floats(2, 4))

    assert answer.headers[b"Content-Type"] == b"application/json"
    assert json.loads(answer.body)["outputs"][0]["data"] == [2.0, 4.0]


def test_invocation_may_be_a_generation():
    service = sagemaker(inference_type="generate")
    answer = answered(service, invoke(body=b'{"x": [[1]]}'), floats(2))

    assert json.loads(answer.body)["y"] == 2.0


def test_default_model_that_nobody_named_is_unknown():
    answer = ask(sagemaker("unspecified"), invoke(body=infer_body(1)))

    assert answer.status == 404
    assert error(answer) == "Request for unknown model: 'unspecified' is not found"


def test_binary_tensors_come_and_go_with_the_length_in_the_content_type():
    answer = answered(sagemaker(), binary_invocation(), floats(2))

    content_type = answer.headers[b"Content-Type"]
    assert content_type.startswith(BINARY)
    assert b"Inference-Header-Content-Length" not in answer.headers
    length = int(content_type[len(BINARY) :])
    assert json.loads(answer.body[:length])["outputs"][0]["name"] == "y"
    assert answer.body[length:] == np.array([2], np.float32).tobytes()


def binary_invocation() -> bytes:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32"}
    tensor["parameters"] = {"binary_data_size": 4}
    text = json.dumps({"inputs": [tensor], "outputs": BINARY_OUTPUT}).encode()
    return invoke(b"Content-Type: " + BINARY + str(len(text)).encode(), body=text + bytes(4))


def test_answers_of_requests_that_repeat_have_the_length_in_the_content_type():
    service = sagemaker()
    types = set()
    for number in range(LEARNED_AFTER + 3):
        client = service.connect()
        client.send(binary_invocation())
        service.double.answer(floats(2), index=number)
        (answer,) = client.answers()
        types.add(answer.headers[b"Content-Type"])

    assert len(types) == 1
    assert types.pop().startswith(BINARY)


def test_response_is_never_compressed():
    data = invoke(b"Accept-Encoding: gzip", body=infer_body(1, outputs=BINARY_OUTPUT))
    answer = answered(sagemaker(), data, floats(2))

    assert b"Content-Encoding" not in answer.headers
    assert answer.headers[b"Content-Type"].startswith(BINARY)


@pytest.mark.parametrize(
    "method, path, status",
    [
        (b"POST", b"/ping", 405),
        (b"GET", b"/invocations", 405),
        (b"GET", b"/ping/", 404),
        (b"GET", b"/Ping", 404),
        (b"GET", b"//ping", 404),
        (b"GET", b"/v2", 404),
        (b"GET", b"/v2/health/ready", 404),
        (b"POST", b"/v2/models/double/infer", 404),
        (b"GET", b"/metrics", 404),
    ],
)
def test_nothing_else_is_served(method, path, status):
    assert status_of(sagemaker(), request(method, path)) == status
