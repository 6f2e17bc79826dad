# SPDX-License-Identifier: Apache-2.0
"""Flaws of other servers in who may ask them, by which way, and what they tell of secrets."""

from __future__ import annotations

import itertools
import json

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pytriton.serving.server.http import routes
from pytriton.serving.server.operations.table import OPERATIONS
from tests.e2e.http2_client import Http2Session
from tests.e2e.http_client import call
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.model_files import model
from tests.security.hostile import (
    GRPC_TOKEN,
    HTTP_TOKEN,
    MIB,
    POSTS,
    SECRET,
    X,
    grpc_error,
    grpc_request,
    head,
    listening,
    raw_answer,
    status_of,
)

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
BODY = json.dumps({"inputs": [X]}).encode()
GETS = (
    "/v2", "/v2/health/live", "/v2/health/ready", "/v2/logging", "/v2/trace/setting",
    "/v2/models/stats", "/v2/models/echo", "/v2/models/echo/config", "/v2/models/echo/ready",
    "/v2/models/echo/stats", "/v2/models/echo/trace/setting", "/v2/systemsharedmemory/status",
    "/v2/systemsharedmemory/region/r/status", "/v2/cudasharedmemory/status", "/v1/models",
    "/v2/recording", "/v2/recording/fetch", "/v2/recording/stop",
)  # fmt: skip
PATHS = [*GETS, *(path.replace("count", "echo") for path in POSTS)]
WRONG_TOKENS = (
    (),
    ("token:",),
    ("token: wrong",),
    (f"token: {SECRET.upper()}",),
    (f"token: {SECRET}x",),
    (f"x-token: {SECRET}",),
    (f"triton-grpc-protocol-token: {SECRET}",),
    (f"token: {SECRET}", "token: wrong"),
)
REDIRECT = "X-Vertex-Ai-Triton-Redirect"


def test_cve_2026_24206_list_of_paths_has_every_endpoint():
    found = [routes.resolve(path.encode()) for path in PATHS if path.startswith("/v2")]
    known = {route.endpoint.handler for route in found}

    assert known == routes.INFERENCES | {each.name for each in OPERATIONS if each.http is not None}


@pytest.mark.parametrize("path", PATHS)
def test_cve_2026_24206_no_endpoint_is_open_without_the_secret(guarded, path):
    """Every method and every state of the secret. Mended by 6b0539b92, a5b45da57 and b58e983ec."""
    for method, lines in itertools.product(METHODS, WRONG_TOKENS):
        request = head(path, *lines, f"Content-Length: {len(BODY)}", method=method) + BODY
        answer = raw_answer(guarded.http_port, request)

        assert status_of(answer) in {401, 403, 405}, (method, lines, answer)
        assert b"outputs" not in answer
    opened = call(
        guarded.http_port,
        path,
        json.dumps(POSTS[path]).encode() if path in POSTS else None,
        {**HTTP_TOKEN, "Authorization": f"Bearer {SECRET}"},
    )
    # Recordings need the token of the page, which this server has told nobody.
    assert (opened.status in {401, 403}) == path.startswith("/v2/recording")


@pytest.mark.parametrize(
    "path, headers",
    [("/predict", {}), *(("/predict", {REDIRECT: path[1:]}) for path in PATHS), ("/health", {}),
     ("/predict", {REDIRECT: "metrics"}), ("/predict", {REDIRECT: "/v2"}),
     ("/predict", {REDIRECT: "x/../v2"})],
    ids=str,
)  # fmt: skip
def test_cve_2026_24206_port_of_vertex_ai_asks_for_the_secret(guarded, path, headers):
    """Also CVE-2026-24207."""
    answers = [
        call(guarded.vertex_ai_port, path, body, {**headers, **wrong}, method=method)
        for (method, body), wrong in itertools.product(
            [("POST", BODY), ("GET", None)], ({}, {"token": "wrong"}, {"token": ""})
        )
    ]

    assert {answer.status for answer in answers} <= {400, 401, 403, 404, 405}
    assert not [answer for answer in answers if b"outputs" in answer.body]


@pytest.mark.parametrize(
    "path",
    [
        "/ping",
        "/invocations",
        "/models",
        "/models/echo",
        "/models/echo/invoke",
        "/v2",
        "/v2/models/echo/infer",
    ],
)
def test_cve_2026_24206_port_of_sagemaker_asks_for_the_secret(guarded, path):
    answers = [
        call(guarded.sagemaker_port, path, body, wrong, method=method)
        for method, body, wrong in itertools.product(
            ("GET", "POST", "DELETE"), (BODY, b""), ({}, {"token": "wrong"})
        )
    ]

    assert {answer.status for answer in answers} <= {403, 404, 405}
    assert not [answer for answer in answers if b"outputs" in answer.body]


SPELLINGS = (
    "//v2/models/stats", "/v2//models/stats", "/v2/./models/stats", "/v2/x/../models/stats",
    "/v2/models/stats/", "/V2/models/stats", "/v2/models/%73tats", "/v2%2Fmodels%2Fstats",
    "/v2/models/stats?token=1", "/v2/models/stats;x", "/v2/models/stats%00",
    "/v2/models/stats#x", "http://127.0.0.1/v2/models/stats", "http://x@y/v2/models/stats",
    "/v2\\models\\stats", "*", "/%2e%2e/v2/models/stats", "/invocations/../v2/models/stats",
    "v2/models/stats", "/v2/models/stats\t",
)  # fmt: skip


@pytest.mark.parametrize("port", ["http_port", "sagemaker_port", "vertex_ai_port"])
@pytest.mark.parametrize("path", SPELLINGS)
def test_cve_2026_24207_no_spelling_of_a_path_is_a_way_around(guarded, port, path):
    answers = [
        raw_answer(getattr(guarded, port), head(path, *lines, method=method))
        for method, lines in itertools.product(
            ("GET", "POST"), ((), ("X-Original-URL: /v2",), ("X-HTTP-Method-Override: GET",))
        )
    ]

    assert {status_of(answer) for answer in answers} <= {0, 400, 403, 404, 405}
    assert not [answer for answer in answers if b"model_stats" in answer]


@pytest.mark.parametrize("port", ["http_port", "sagemaker_port", "vertex_ai_port"])
def test_cve_2026_24207_http2_is_no_way_around(guarded, port):
    tokens = (
        {},
        {"token": "wrong"},
        {"Token": SECRET},
        {":token": SECRET},
        {"cookie": f"token={SECRET}"},
        {"x-original-url": "/v2"},
        {"host": "other"},
    )
    with Http2Session(getattr(guarded, port), is_polite=False) as session:
        sent = {
            session.begin(path, headers=token, method=method): (path, token, method)
            for path, token, method in itertools.product(
                (*PATHS, *SPELLINGS), tokens, ("GET", "POST", "get", "CONNECT")
            )
        }
        session.await_all()

    assert not session.is_closed
    assert set(session.answers) | set(session.resets) == set(sent)
    for stream_id, answer in session.answers.items():
        assert answer.status in {400, 401, 403, 404, 405, 501}, (sent[stream_id], answer)
        assert b"model_stats" not in answer.body
        assert b"outputs" not in answer.body


SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]


@pytest.mark.parametrize("method", list(SERVICE.methods), ids=lambda method: method.name)
def test_cve_2026_24206_no_method_is_open_without_the_secret(guarded_stub, method):
    call_method = getattr(guarded_stub, method.name)
    request = getattr(service_pb2, method.input_type.name)()
    if method.name in ("ModelInfer", "ModelStreamInfer"):
        request = grpc_request()
    for metadata in (
        [],
        [("triton-grpc-protocol-token", "")],
        [("triton-grpc-protocol-token", "wrong")],
        [("token", SECRET)],
        [("triton-grpc-protocol-token", SECRET), ("triton-grpc-protocol-token", "wrong")],
        [("triton-grpc-protocol-token", "wrong"), ("triton-grpc-protocol-token", SECRET)],
    ):
        if method.name == "ModelStreamInfer":
            with pytest.raises(grpc.RpcError) as caught:
                list(call_method(iter([request]), metadata=metadata, timeout=DEADLINE_S))
            error = caught.value
        else:
            error = grpc_error(call_method, request, metadata=metadata)

        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "restricted" in error.details()
    assert guarded_stub.ModelInfer(grpc_request(), metadata=GRPC_TOKEN).model_name == "echo"


@pytest.mark.parametrize(
    "path",
    ["//inference.GRPCInferenceService/ServerMetadata",
     "/inference.GRPCInferenceService//ServerMetadata",
     "/inference.GRPCInferenceService/./ServerMetadata",
     "/INFERENCE.GRPCInferenceService/ServerMetadata",
     "/inference.GRPCInferenceService/servermetadata",
     "/inference.GRPCInferenceService/ServerMetadata/",
     "/inference.GRPCInferenceService/ServerMetadata?x",
     "/inference.GRPCInferenceService%2fServerMetadata"],
)  # fmt: skip
def test_cve_2026_24207_no_spelling_of_a_method_is_a_way_around(guarded, path):
    with grpc.insecure_channel(f"127.0.0.1:{guarded.grpc_port}") as channel:
        ask = channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        error = grpc_error(ask, b"")

    assert error.code() in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE}


def test_server_fix_a550e3cd0_secrets_are_in_no_log_and_no_answer(guarded, guarded_stub):
    texts = []
    for token in (HTTP_TOKEN, {"token": SECRET + "-wrong"}, {"Authorization": f"Bearer {SECRET}"}):
        for path in PATHS:
            answer = call(guarded.http_port, path, BODY if path in POSTS else None, token)
            texts.append(answer.body.decode() + str(answer.headers))
    guarded_stub.ModelInfer(grpc_request(), metadata=GRPC_TOKEN)
    grpc_error(guarded_stub.ModelInfer, grpc_request(), metadata=[(GRPC_TOKEN[0][0], SECRET[:-1])])
    texts.append(call(guarded.metrics_port, "/metrics").body.decode())
    texts.append(call(guarded.metrics_port, "/").body.decode())
    last = json.dumps({"inputs": [X], "id": "the-last-one"}).encode()
    call(guarded.http_port, "/v2/models/echo/infer", last, HTTP_TOKEN)
    assert eventually(lambda: "the-last-one" in guarded.stdout)

    assert "token" in guarded.stdout  # the options at the start name what is restricted
    assert SECRET[:-1] not in guarded.output
    assert not [text for text in texts if SECRET[:-1] in text]


def test_shadowmq_processes_listen_on_no_other_port(guarded):
    """Also CVE-2024-50050, CVE-2024-2912 and CVE-2026-26220: nobody reaches a worker."""
    call(guarded.http_port, "/v2/models/echo/infer", BODY, HTTP_TOKEN)
    ports = {*guarded.ports, guarded.sagemaker_port, guarded.vertex_ai_port}

    assert {port for _, port in listening(guarded)} == ports


# What a server does unless it is told otherwise


@pytest.fixture(scope="module")
def plain(start_module_server):
    return start_module_server({"echo": model()}, ()).await_ready()


def test_default_limit_of_bodies_is_64_mib(plain):
    path = "/v2/models/echo/infer"
    refused = raw_answer(plain.http_port, head(path, f"Content-Length: {64 * MIB + 1}"))
    text = refused.partition(b"\r\n\r\n")[2]

    assert status_of(refused) == 400
    assert b"--http-max-input-size" in text


def test_default_is_no_shared_memory_of_clients(plain):
    body = {"key": "/x", "byte_size": 1}
    answer = plain.post("/v2/systemsharedmemory/region/r/register", body)
    with grpc.insecure_channel(f"127.0.0.1:{plain.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.SystemSharedMemoryRegisterRequest(name="r", key="/x", byte_size=1)
        error = grpc_error(stub.SystemSharedMemoryRegister, request)

    assert answer.status == 501
    assert answer.error.startswith("Client shared memory is disabled")
    assert error.details() == answer.error


def test_default_is_no_control_of_models(plain):
    answers = [plain.load("echo"), plain.unload("echo")]

    assert {answer.status for answer in answers} == {503}
    assert all("explicit" in answer.error for answer in answers)


def test_default_address_with_control_of_models_is_warned_of(start_module_server):
    flags = ("--model-control-mode=explicit", "--http-address=0.0.0.0", "--grpc-address=0.0.0.0")
    server = start_module_server({}, flags).await_ports()

    warning = "may load models, and a model is code: restrict it with"
    assert server.stderr.count(warning) == 2
