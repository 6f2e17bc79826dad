# SPDX-License-Identifier: Apache-2.0
"""What Vertex AI asks, and what is answered."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.serving.server.cloud.vertex_ai import check_vertex_ai
from pytriton.serving.server.options.endpoints import EndpointOptions, VertexAiOptions
from tests.server.cloud_fakes import (
    HEALTH,
    PREDICT,
    REDIRECT,
    VERTEX_AI,
    answered,
    request,
    status_of,
    vertex_ai,
)
from tests.server.http_models import ask, error, floats, infer_body

BINARY = b"Content-Type: application/vnd.vertex-ai-triton.binary+json;json-header-size="
TENSOR = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}


def predict(*headers: bytes, body: bytes = b"") -> bytes:
    return request(b"POST", PREDICT, *headers, body=body)


def test_prediction_is_an_inference_of_the_default_model():
    answer = answered(vertex_ai(), predict(body=infer_body(1, 2)), floats(2, 4))

    assert answer.status == 200
    assert json.loads(answer.body)["outputs"][0]["data"] == [2.0, 4.0]


def test_only_model_is_the_default_one():
    service = vertex_ai(None)
    del service.engine._bound["stream"]
    answer = answered(service, predict(body=infer_body(1)), floats(2))

    assert json.loads(answer.body)["model_name"] == "double"


def test_default_model_is_needed_beside_another_model():
    answer = ask(vertex_ai(None), predict(body=infer_body(1)))

    assert answer.status == 400
    assert error(answer) == (
        "Expect the model repository contains only a single model if default model is not specified"
    )


def test_large_prediction_without_a_default_model_is_refused():
    assert status_of(vertex_ai(None), predict(body=bytes(100_000))) == 400


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_health_is_that_of_the_server(method):
    service = vertex_ai()
    assert status_of(service, request(method, HEALTH)) == 200

    service.engine.refuse()
    assert status_of(service, request(method, HEALTH)) == 503


def test_routes_may_be_the_same():
    options = VertexAiOptions(predict_route="/", health_route="/", default_model="double")
    service = vertex_ai()
    service.cloud._routes = type(service.cloud._routes)(options, list)

    assert status_of(service, request(b"GET", b"/")) == 200
    assert status_of(service, request(b"POST", b"/", body=infer_body(1))) == 0
    assert len(service.double.inferences) == 1


@pytest.mark.parametrize(
    "method, path, status",
    [
        (b"POST", HEALTH, 405),
        (b"GET", PREDICT, 405),
        (b"PUT", PREDICT, 405),
        (b"POST", b"/predict/", 404),
        (b"POST", b"//predict", 404),
        (b"POST", b"/%70redict", 404),
        (b"GET", b"/HEALTH", 404),
        (b"GET", b"/v2/health/live", 404),
        (b"POST", b"/v2/models/double/infer", 404),
        (b"GET", b"/metrics", 404),
        (b"GET", b"/", 404),
    ],
)
def test_nothing_else_is_served(method, path, status):
    assert status_of(vertex_ai(), request(method, path)) == status


def test_query_is_ignored():
    assert status_of(vertex_ai(), request(b"GET", HEALTH + b"?x=1")) == 200


# Binary tensors


@pytest.mark.parametrize("spell", [bytes, bytes.title, lambda line: line.replace(b";", b" ; ")])
@pytest.mark.parametrize("after", [b"", b" ", b"; charset=utf-8"])
def test_content_type_has_the_length_of_the_json(spell, after):
    service = vertex_ai()
    text = json.dumps({"inputs": [TENSOR]}).encode()
    data = np.array([1, 2], np.float32).tobytes()
    line = spell(BINARY) + str(len(text)).encode() + after
    answer = answered(service, predict(line, body=text + data), floats(2, 4))

    assert bytes(service.double.inferences[0].request.inputs["x"].data) == data
    assert answer.status == 200


def test_binary_outputs_are_as_on_the_http_port():
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    answer = answered(vertex_ai(), predict(body=infer_body(1, outputs=outputs)), floats(2))

    assert answer.headers[b"Content-Type"] == b"application/octet-stream"
    length = int(answer.headers[b"Inference-Header-Content-Length"])
    assert answer.body[length:] == np.array([2], np.float32).tobytes()


@pytest.mark.parametrize(
    "length, text",
    [
        (b"-5", "inference header size should be in range (0, 3), got: -5"),
        (b"4", "inference header size should be in range (0, 3), got: 4"),
        (b"x", "Unable to parse Inference-Header-Content-Length, got: x"),
        (b"", "Unable to parse Inference-Header-Content-Length, got: "),
    ],
)
def test_wrong_length_is_refused(length, text):
    answer = ask(vertex_ai(), predict(BINARY + length, body=b"abc"))

    assert (answer.status, error(answer)) == (400, text)


def test_response_is_never_compressed():
    data = predict(b"Accept-Encoding: gzip", body=infer_body(1))

    assert b"Content-Encoding" not in answered(vertex_ai(), data, floats(2)).headers


# The header to other endpoints


@pytest.mark.parametrize(
    "target, status",
    [
        (b"v2", 200),
        (b"v2/health/live", 200),
        (b"v2/health/ready", 200),
        (b"v2/models/double", 200),
        (b"v2/models/double/versions/1/config", 200),
        (b"v2/models/stats", 200),
        (b"v2/repository/index", 200),
        (b"v2/trace/setting", 200),
        (b"v2/models/none", 404),
        (b"v2/models/none/infer", 404),
    ],
)
def test_header_leads_to_other_endpoints(target, status):
    assert ask(vertex_ai(), predict(REDIRECT + target)).status == status


def test_header_leads_to_inferences_of_other_models():
    service = vertex_ai("stream")
    data = predict(REDIRECT + b"v2/models/double/infer", body=infer_body(1))

    assert answered(service, data, floats(2)).status == 200


def test_settings_are_read_without_a_body_and_changed_with_one():
    service = vertex_ai()
    line = REDIRECT + b"v2/trace/setting"
    changed = ask(service, predict(line, body=b'{"trace_rate":"7"}'))
    answer = ask(service, predict(line))

    assert changed.status == 200
    assert json.loads(answer.body)["trace_rate"] == "7"


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"DELETE"])
def test_header_needs_post(method):
    line = REDIRECT + b"v2/health/live"

    assert status_of(vertex_ai(), request(method, PREDICT, line)) == 405


@pytest.mark.parametrize(
    "target",
    [
        b"",
        b"/v2",
        b"//v2/health/live",
        b"V2",
        b"v2/",
        b"v2//health/live",
        b"v2/./health/live",
        b"v2/x/../health/live",
        b"v2/health/live?x=1",
        b"v2/health/live#x",
        b"%762/health/live",
        b"v2/%68ealth/live",
        b"v2/health%2flive",
        b"v2\\health\\live",
        b"v2/health/live;x",
        b"v2/health/live, v2",
        b"http://h/v2/health/live",
        b"predict",
        b"health",
        b"/metrics",
        b"metrics/",
        b"v2/../metrics",
    ],
)
def test_detour_in_the_header_is_refused(target):
    assert status_of(vertex_ai(), predict(REDIRECT + target)) == 404


def test_header_is_for_predictions_only():
    line = REDIRECT + b"v2/models/stats"

    assert status_of(vertex_ai(), request(b"POST", b"/other", line)) == 404
    assert ask(vertex_ai(), request(b"GET", HEALTH, line)).body == b""


def test_header_leads_to_metrics():
    service = vertex_ai()
    service.client.metrics_page = lambda: b"# HELP\n"
    answer = ask(service, predict(REDIRECT + b"metrics"))

    assert (answer.status, answer.body) == (200, b"# HELP\n")


def test_metrics_that_are_off_are_off_here_too():
    service = vertex_ai(metrics=EndpointOptions(port=0, allow=False))

    assert status_of(service, predict(REDIRECT + b"metrics")) == 404


# The start


@pytest.mark.parametrize(
    "options, models, text",
    [
        (VertexAiOptions(), ["m"], "AIP_PREDICT_ROUTE is not defined for Vertex AI endpoint"),
        (
            VertexAiOptions(predict_route="/p"),
            None,
            "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint",
        ),
        (
            VERTEX_AI,
            ["a", "b"],
            (
                "Expect the model repository contains only a single model if default model is not "
                "specified"
            ),
        ),
        (
            VertexAiOptions(predict_route="/p", health_route="/h", default_model="m"),
            ["a"],
            "Expect the default model 'm' is loaded",
        ),
    ],
)
def test_start_needs_routes_and_a_default_model(options, models, text):
    with pytest.raises(InvalidArgumentError) as caught:
        check_vertex_ai(options, models)

    assert caught.value.message == (f"failed to start Vertex AI service: Invalid argument - {text}")


def test_default_model_is_the_only_one_at_the_start():
    assert check_vertex_ai(VERTEX_AI, ["m"]).default_model == "m"


def test_default_model_is_open_while_models_are_bound():
    assert check_vertex_ai(VERTEX_AI, None).default_model is None
