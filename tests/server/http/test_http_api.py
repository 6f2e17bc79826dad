# SPDX-License-Identifier: Apache-2.0
"""The HTTP endpoints over a real engine: answers, errors, authorisation, limits."""

from __future__ import annotations

import gzip
import json
import logging
import zlib

import pytest

from pytriton.base.errors import InternalError, UnsupportedError
from pytriton.base.messages import InferTensor
from tests.server.http_fakes import get, post
from tests.server.http_models import INFER, Service, ask, error, floats, infer_body


@pytest.fixture
def service():
    return Service()


# Documents and health


def test_health_has_a_status_and_no_body(service):
    for path in (b"/v2/health/live", b"/v2/health/ready", b"/v2/models/double/ready"):
        answer = ask(service, get(path))

        assert (answer.status, answer.body) == (200, b"")


def test_health_of_a_server_that_exits_is_unavailable(service):
    service.engine.refuse()

    for path in (b"/v2/health/live", b"/v2/health/ready"):
        answer = ask(service, get(path))

        assert answer.status == 503
        assert error(answer) == "Server exiting"


@pytest.mark.parametrize(
    "path,key,value",
    [
        (b"/v2", "name", "triton"),
        (b"/v2/models/double", "versions", ["1"]),
        (b"/v2/models/double/versions/1", "versions", ["1"]),
    ],
)
def test_document_is_json(service, path, key, value):
    answer = ask(service, get(path))

    assert answer.status == 200
    assert answer.headers[b"Content-Type"] == b"application/json"
    assert json.loads(answer.body)[key] == value


def test_statistics_of_one_and_of_all_models(service):
    one = json.loads(ask(service, get(b"/v2/models/double/stats")).body)
    every = json.loads(ask(service, get(b"/v2/models/stats")).body)

    assert [model["name"] for model in one["model_stats"]] == ["double"]
    assert [model["name"] for model in every["model_stats"]] == ["double", "stream"]


@pytest.mark.parametrize(
    "request_bytes,status,text",
    [
        (get(b"/"), 404, "Not Found"),
        (get(b"/v2/models/none"), 404, "Request for unknown model: 'none' is not found"),
        (get(b"/v2/models/none/ready"), 400, "Model version not ready"),
        (get(b"/v2/models/none/stats"), 400, "requested model 'none' is not available"),
        (
            get(b"/v2/models/double/versions/9"),
            404,
            "Request for unknown model: 'double' version 9 is not found",
        ),
        (
            post(b"", b"/v2/models/none/infer"),
            404,
            "Request for unknown model: 'none' is not found",
        ),
        (post(b"", b"/v2/health/live"), 405, "Method Not Allowed"),
        (get(INFER), 405, "Method Not Allowed"),
        (b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", 404, "Not Found"),
        (b"OPTIONS /v2 HTTP/1.1\r\nHost: h\r\n\r\n", 405, "Method Not Allowed"),
        (b"TRACE /v2 HTTP/1.1\r\nHost: h\r\n\r\n", 405, "Method Not Allowed"),
    ],
)
def test_error_has_a_status_and_a_text(service, request_bytes, status, text):
    answer = ask(service, request_bytes)

    assert answer.status == status
    assert error(answer) == text
    if status == 405:
        assert answer.headers[b"Allow"] in (b"GET, HEAD", b"POST")


@pytest.mark.parametrize(
    "path",
    [
        b"/v2/systemsharedmemory",
        b"/v2/systemsharedmemory/region/status",
        b"/v2/systemsharedmemory/region//status",
        b"/v2/systemsharedmemory/x/r/status",
        b"/v2/logging/",
        b"/v2/sharedmemory/status",
    ],
)
def test_path_that_triton_does_not_have_is_not_found(service, path):
    assert ask(service, get(path)).status == 404


def test_model_name_that_is_not_utf8_comes_back_as_it_was_sent(service):
    answer = ask(service, get(b"/v2/models/%ff%0d%0a"))

    assert answer.status == 404
    assert b"\xff\\r\\n" in answer.body


# Inference


def test_infer_goes_to_the_model_and_back(service):
    client = service.connect()
    client.send(post(infer_body(1, 2, id="seven"), INFER))
    service.double.answer(floats(2, 4))

    (answer,) = client.answers()
    assert json.loads(answer.body) == {
        "id": "seven",
        "model_name": "double",
        "model_version": "1",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [2.0, 4.0]}],
    }


def test_infer_in_binary_form_says_where_the_bytes_begin(service):
    client = service.connect()
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "shape": [1, 1],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": 4},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    length = b"Inference-Header-Content-Length: %d" % len(header)
    client.send(post(header + b"\0\0\x80\x3f", INFER, length))
    service.double.answer(floats(2))

    (answer,) = client.answers()
    size = int(answer.headers[b"Inference-Header-Content-Length"])
    assert answer.headers[b"Content-Type"] == b"application/octet-stream"
    assert answer.body[size:] == floats(2).data
    assert json.loads(answer.body[:size])["outputs"][0]["parameters"] == {"binary_data_size": 4}


def test_error_of_a_model_is_answered(service):
    client = service.connect()
    client.send(post(infer_body(1), INFER) * 2)
    service.double.fail(InternalError("it broke"))
    client.loop.run()
    service.double.answer(floats(2), index=1)

    assert client.statuses() == [500, 200]
    assert error(client.answers()[0]) == "it broke"


def test_response_that_cannot_be_written_is_answered_and_logged(service, caplog):
    client = service.connect()
    client.send(post(infer_body(1), INFER))
    with caplog.at_level(logging.ERROR):
        service.double.answer(InferTensor("y", floats().dtype, (1, 1), None))

    (answer,) = client.answers()
    assert answer.status == 500
    assert error(answer) == "unexpected error in the server, its log says more"
    assert "it delivered a response" in caplog.text


def test_model_that_ends_without_a_response_is_an_error(service):
    client = service.connect()
    client.send(post(infer_body(1), INFER))
    service.double.answer()

    assert error(client.answers()[0]) == "expected a single response, got 0"


def test_client_that_leaves_cancels_what_it_asked_for(service):
    client = service.connect()
    client.send(post(infer_body(1), INFER))
    request = service.double.inferences[0]
    client.reset()
    service.double.answer(floats(2))

    assert service.double.cancelled == [request]
    assert client.received == b""


def test_decoupled_model_is_not_for_plain_infer(service):
    answer = ask(service, post(b"{}", b"/v2/models/stream/infer"))

    assert answer.status == 501
    assert error(answer) == (
        "HTTP end point doesn't support models with decoupled transaction policy"
    )


def test_plain_infer_of_a_function_that_streams_names_the_right_route(service):
    service.annotate("stream")
    answer = ask(service, post(b"{}", b"/v2/models/stream/infer"))

    assert answer.status == 501
    assert error(answer) == (
        "HTTP end point doesn't support models with decoupled transaction policy: model 'stream' "
        "streams its answers: ask /v2/models/stream/generate_stream"
    )


# Compression


@pytest.mark.parametrize("encoding,pack", [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_compression_goes_both_ways(service, encoding, pack):
    client = service.connect()
    headers = (b"Content-Encoding: " + encoding, b"Accept-Encoding: " + encoding)
    client.send(post(pack(infer_body(1)), INFER, *headers))
    service.double.answer(floats(2))

    (answer,) = client.answers()
    assert answer.headers[b"Content-Encoding"] == encoding
    assert json.loads(zlib.decompress(answer.body, 47))["outputs"][0]["data"] == [2.0]


def test_unknown_compression_is_refused_with_what_is_known(service):
    answer = ask(service, post(b"x", INFER, b"Content-Encoding: br"))

    assert answer.status == 501
    assert answer.headers[b"Accept-Encoding"] == b"gzip, deflate"


def test_model_that_does_not_support_compression_says_nothing_about_encodings(service):
    client = service.connect()
    client.send(post(infer_body(1.0), INFER))
    service.double.fail(UnsupportedError("compression of this video is not supported"))

    (answer,) = client.answers()
    assert answer.status == 501
    assert b"Accept-Encoding" not in answer.headers


def test_compression_named_twice_is_an_unknown_one(service):
    lines = (b"Content-Encoding: gzip", b"Content-Encoding: identity")
    assert ask(service, post(gzip.compress(infer_body(1)), INFER, *lines)).status == 501
