# SPDX-License-Identifier: Apache-2.0
"""Restricted APIs: every route, every state of the token, every way around the path."""

from __future__ import annotations

import socket

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from pytriton.model_config import Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from tests.e2e.conftest import new_ports
from tests.e2e.http_client import call, json_body
from tests.e2e.waiting import DEADLINE_S

HEADER = "triton-access-token"
TOKEN = "a secret of the test"
BODY = json_body({"x": np.ones((1, 1), np.float32)})

# Path, the API that it belongs to, and the body of a request to it; None is a GET.
ROUTES = [
    ("/v2/health/live", "health", None),
    ("/v2/health/ready", "health", None),
    ("/v2/models/Model/ready", "health", None),
    ("/v2/models/Model/versions/1/ready", "health", None),
    ("/v2", "metadata", None),
    ("/v2/models/Model", "metadata", None),
    ("/v2/models/Model/versions/1", "metadata", None),
    ("/v2/models/Model/config", "model-config", None),
    ("/v2/models/Model/versions/1/config", "model-config", None),
    ("/v2/models/stats", "statistics", None),
    ("/v2/models/Model/stats", "statistics", None),
    ("/v2/models/Model/versions/1/stats", "statistics", None),
    ("/v2/models/Model/infer", "inference", BODY),
    ("/v2/models/Model/versions/1/infer", "inference", BODY),
]
APIS = sorted({api for _, api, _ in ROUTES})


def serve(restricted):
    ports = new_ports()
    security = TritonSecurityConfig(access_token=TOKEN, restricted_endpoints=restricted)
    triton = Triton(config=TritonConfig(**ports), security_config=security)
    tensor = {"dtype": np.float32, "shape": (1,)}
    triton.bind(
        "Model",
        lambda requests: [{"y": request["x"]} for request in requests],
        [Tensor(name="x", **tensor)],
        [Tensor(name="y", **tensor)],
    )
    return triton, ports["http_port"]


@pytest.fixture(scope="module")
def open_port():
    """Nothing is restricted."""
    triton, port = serve([])
    with triton:
        yield port


@pytest.fixture(scope="module")
def closed_port():
    """Everything is restricted."""
    triton, port = serve(APIS)
    with triton:
        yield port


@pytest.fixture(scope="module")
def default_port():
    """What is restricted unless the user says otherwise."""
    triton, port = serve(None)
    with triton:
        yield port


@pytest.mark.parametrize("path, api, body", ROUTES)
def test_restricted_route_asks_for_its_token(closed_port, path, api, body):
    refused = [
        call(closed_port, path, body, headers)
        for headers in (
            {},
            {HEADER: ""},
            {HEADER: "wrong"},
            {HEADER: TOKEN + "x"},
            {HEADER: TOKEN[:-1]},
            {HEADER: TOKEN.upper()},
            {"authorization": TOKEN},
            {f"triton-grpc-protocol-{HEADER}": TOKEN},
        )
    ]

    assert {answer.status for answer in refused} == {403}
    assert {answer.error for answer in refused} == {
        f"This API is restricted, expecting header '{HEADER}'"
    }
    assert call(closed_port, path, body, {HEADER: TOKEN}).status == 200
    assert call(closed_port, path, body, {HEADER.upper(): TOKEN}).status == 200


@pytest.mark.parametrize("path, api, body", ROUTES)
def test_open_route_asks_for_nothing(open_port, path, api, body):
    assert call(open_port, path, body).status == 200
    assert call(open_port, path, body, {HEADER: "whatever"}).status == 200


@pytest.mark.parametrize("path, api, body", ROUTES)
def test_only_statistics_of_these_are_restricted_by_default(default_port, path, api, body):
    assert call(default_port, path, body).status == (403 if api == "statistics" else 200)


def test_token_is_looked_at_in_every_request_of_a_connection(closed_port):
    with_token = f"GET /v2 HTTP/1.1\r\nHost: x\r\n{HEADER}: {TOKEN}\r\n\r\n"
    without = "GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
    last = "GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", closed_port), timeout=DEADLINE_S) as client:
        client.sendall((with_token + without + with_token + last).encode())
        answer = b"".join(iter(lambda: client.recv(65536), b""))

    statuses = [part.split(b" ", 1)[0] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"403", b"200", b"403"]


def test_group_of_the_configuration_counts_beside_the_default_ones(run_triton):
    triton = run_triton(
        http_restricted_api="inference,trace:key=value",
        grpc_restricted_protocol="inference,trace:key=value",
    )
    config, token = triton._config, triton.get_access_token()
    infer, trace, statistics = "/v2/models/Model/infer", "/v2/trace/setting", "/v2/models/stats"

    def status(path, **headers):
        return call(config.http_port, path, BODY if path == infer else None, headers).status

    assert (status(infer), status(infer, key="value")) == (403, 404)  # there is no such model
    assert (status(trace), status(trace, **{HEADER: token})) == (403, 403)
    assert status(trace, key="value") == 200
    assert (status(statistics), status(statistics, **{HEADER: token})) == (403, 200)
    with tritonclient.grpc.InferenceServerClient(f"localhost:{config.grpc_port}") as client:
        with pytest.raises(
            InferenceServerException, match="expecting header 'triton-grpc-protocol-key'"
        ):
            client.get_trace_settings()
        assert client.get_trace_settings(headers={"triton-grpc-protocol-key": "value"}).settings
