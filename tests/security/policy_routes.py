# SPDX-License-Identifier: Apache-2.0
"""Every route and method of every port of a server with a policy, and how to ask for each."""

from __future__ import annotations

import dataclasses
import enum
import http.client
import json
from collections.abc import Iterable, Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from pytriton.serving.server.http.routes import HttpEndpoint
from tests.e2e.waiting import DEADLINE_S
from tests.security.hostile import POSTS, X, grpc_request

SECRET_MODEL = "echo"
SERVICE = "/inference.GRPCInferenceService/"
POLICY = """
max_failures_per_minute = 0

[principals.everything]
apis = ["*"]

[principals.nothing]
apis = []

[principals.others]
apis = ["*"]
models = ["other-*"]

[[oidc]]
issuer = "https://accounts.example.com"
audience = "pytriton"
jwks_file = "jwks.json"
principals = { "admin@example.com" = "everything", "alice@example.com" = "others" }
"""


class Answers(enum.Enum):
    """Who gets an answer from a route."""

    OPEN = "everybody: it is a file, or leads nowhere"
    HEALTH = "everybody without a credential that is wrong"
    MODEL = "those with a right to its group and its model"
    ALL = "those with a right to its group and all models"
    FILTERED = "those with a right to its group, without models that they have no right to"
    NONE = "those with a right to its group"


@dataclasses.dataclass(frozen=True)
class HttpRoute:
    port: str  # http, metrics, sagemaker or vertex_ai
    method: str
    path: str
    answers: Answers
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        extra = "".join(value for _, value in self.headers)
        return f"{self.port} {self.method} {self.path} {extra}".strip()


def _post(path: str, answers: Answers, document: Any = None, port: str = "http") -> HttpRoute:
    body = json.dumps(POSTS.get(path, {}) if document is None else document).encode()
    return HttpRoute(port, "POST", path, answers, body)


def _get(path: str, answers: Answers, port: str = "http") -> HttpRoute:
    return HttpRoute(port, "GET", path, answers)


_INFER = {"inputs": [X]}
KSERVE = [
    _get("/v2", Answers.NONE),
    _get("/v2/health/live", Answers.HEALTH),
    _get("/v2/health/ready", Answers.HEALTH),
    _get("/v2/models/stats", Answers.FILTERED),
    _get("/v2/models/echo", Answers.MODEL),
    _get("/v2/models/echo/versions/1", Answers.MODEL),
    _get("/v2/models/echo/ready", Answers.MODEL),
    _get("/v2/models/echo/config", Answers.MODEL),
    _get("/v2/models/echo/stats", Answers.MODEL),
    _get("/v2/models/%65cho", Answers.MODEL),
    _post("/v2/models/echo/infer", Answers.MODEL, _INFER),
    _post("/v2/models/echo/versions/1/infer", Answers.MODEL, _INFER),
    _post("/v2/models/echo/generate", Answers.MODEL, {"X": [1]}),
    _post("/v2/models/echo/generate_stream", Answers.MODEL, {"X": [1]}),
    _get("/v2/models/echo/trace/setting", Answers.MODEL),
    _post("/v2/models/echo/trace/setting", Answers.MODEL, {}),
    _get("/v2/trace/setting", Answers.ALL),
    _post("/v2/trace/setting", Answers.ALL, {}),
    _get("/v2/logging", Answers.NONE),
    _post("/v2/logging", Answers.NONE, {}),
    _post("/v2/repository/index", Answers.FILTERED, {}),
    _post("/v2/repository/models/echo/load", Answers.MODEL, {}),
    _post("/v2/repository/models/echo/unload", Answers.MODEL, {}),
    _get("/v2/recording", Answers.ALL),
    _post("/v2/recording/fetch", Answers.ALL, {}),
    _post("/v2/recording/stop", Answers.ALL, {}),
    *(
        route
        for kind in ("system", "cuda")
        for route in (
            _get(f"/v2/{kind}sharedmemory/status", Answers.NONE),
            _get(f"/v2/{kind}sharedmemory/region/r/status", Answers.NONE),
            _post(f"/v2/{kind}sharedmemory/region/r/register", Answers.NONE),
            _post(f"/v2/{kind}sharedmemory/region/r/unregister", Answers.NONE),
            _post(f"/v2/{kind}sharedmemory/unregister", Answers.NONE, {}),
        )
    ),
]
_CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
OPENAI = [
    _get("/v1/models", Answers.FILTERED),
    _get("/v1/models/chat", Answers.MODEL),
    _post("/v1/chat/completions", Answers.MODEL, _CHAT),
    _post("/v1/completions", Answers.MODEL, {"model": "chat", "prompt": "hi"}),
    _post("/v1/embeddings", Answers.MODEL, {"model": "chat", "input": "hi"}),
    _post("/v1/files", Answers.NONE, {}),
    *(_get(path, Answers.HEALTH) for path in ("/health", "/health/ready", "/ping")),
    _get("/version", Answers.NONE),
]
LANDING = [
    _get("/", Answers.NONE),
    _get("/docs", Answers.OPEN),
    _get("/openapi.json", Answers.FILTERED),
    _get("/landing/models", Answers.FILTERED),
    _get("/landing/page.css", Answers.OPEN),
    _get("/nothing/here", Answers.OPEN),
    HttpRoute("http", "GET", "/", Answers.OPEN, None, (("accept", "text/html"),)),
    HttpRoute("http", "GET", "/ecko", Answers.OPEN, None, (("accept", "text/html"),)),
]
_PAGE_DATA = ("server", "models", "now", "samples", "cluster", "failures", "failures/inputs")
METRICS = [
    _get("/metrics", Answers.ALL, "metrics"),
    _get("/metrics/", Answers.ALL, "metrics"),
    _get("/anything", Answers.ALL, "metrics"),
    _get("/", Answers.OPEN, "metrics"),
    _get("/page/page.css", Answers.OPEN, "metrics"),
    _get("/openapi.json", Answers.ALL, "metrics"),
    *(
        _get(f"/page/api/{name}", Answers.ALL, "metrics")
        for name in (*_PAGE_DATA, "log", "settings")
    ),
    _post("/page/api/failures/inputs", Answers.ALL, {}, "metrics"),
    _get("/page/api/v2/models/echo", Answers.ALL, "metrics"),
    _get("/page/api/v2/models/echo/config", Answers.ALL, "metrics"),
    _get("/page/api/v2/models/echo/stats", Answers.ALL, "metrics"),
    _post("/page/api/v2/models/echo/infer", Answers.ALL, _INFER, "metrics"),
    _post("/page/api/v2/models/echo/generate", Answers.ALL, {"X": [1]}, "metrics"),
    _post("/page/api/v2/models/echo/generate_stream", Answers.ALL, {"X": [1]}, "metrics"),
    _post("/page/api/v2/repository/models/echo/load", Answers.ALL, {}, "metrics"),
    _post("/page/api/v2/repository/models/echo/unload", Answers.ALL, {}, "metrics"),
]
SAGEMAKER = [
    _get("/ping", Answers.HEALTH, "sagemaker"),
    _post("/invocations", Answers.MODEL, _INFER, "sagemaker"),
    _get("/models", Answers.FILTERED, "sagemaker"),
    _post("/models", Answers.MODEL, {"model_name": "echo", "url": "/none"}, "sagemaker"),
    _get("/models/echo", Answers.MODEL, "sagemaker"),
    HttpRoute("sagemaker", "DELETE", "/models/echo", Answers.MODEL),
    _post("/models/echo/invoke", Answers.MODEL, _INFER, "sagemaker"),
]
REDIRECT = "x-vertex-ai-triton-redirect"
VERTEX_AI = [
    _get("/health", Answers.HEALTH, "vertex_ai"),
    _post("/predict", Answers.MODEL, _INFER, "vertex_ai"),
    HttpRoute("vertex_ai", "POST", "/predict", Answers.ALL, b"", ((REDIRECT, "metrics"),)),
    *(
        dataclasses.replace(
            route,
            port="vertex_ai",
            method="POST",
            path="/predict",
            body=route.body or b"",
            headers=((REDIRECT, route.path.removeprefix("/")),),
        )
        for route in KSERVE
        # Vertex AI sends POST, which is for what others GET as well; escapes are refused.
        if "%" not in route.path
    ),
]
ROUTES = [*KSERVE, *OPENAI, *LANDING, *METRICS, *SAGEMAKER, *VERTEX_AI]


def endpoints_in(module: Any) -> list[HttpEndpoint]:
    """Every endpoint that the tables of a module have."""
    found: list[HttpEndpoint] = []

    def look(value: Any) -> None:
        if isinstance(value, HttpEndpoint):
            found.append(value)
        elif isinstance(value, Mapping):
            for each in value.values():
                look(each)
        elif isinstance(value, list | tuple):
            for each in value:
                look(each)

    for value in vars(module).values():
        look(value)
    return found


class KeptConnections:
    """One kept connection to each port, over which requests are sent."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self._ports = ports
        self._open: dict[str, http.client.HTTPConnection] = {}

    def ask(self, route: HttpRoute, headers: Mapping[str, str]) -> tuple[int, bytes, str]:
        """The status, the body, and what the server says of credentials."""
        connection = self._open.get(route.port)
        if connection is None:
            connection = http.client.HTTPConnection(
                "127.0.0.1", self._ports[route.port], timeout=DEADLINE_S
            )
            self._open[route.port] = connection
        given = {**dict(route.headers), **headers}
        connection.request(route.method, route.path, route.body, given)
        answer = connection.getresponse()
        body = answer.read()
        if answer.will_close:
            connection.close()
            del self._open[route.port]
        return answer.status, body, answer.getheader("WWW-Authenticate") or ""

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()


# gRPC


@dataclasses.dataclass(frozen=True)
class GrpcRoute:
    path: str
    answers: Answers
    message: bytes = b""
    is_endless: bool = False


def _named(method: str, answers: Answers, **members: Any) -> GrpcRoute:
    request = getattr(service_pb2, f"{method}Request")(**members)
    return GrpcRoute(SERVICE + method, answers, request.SerializeToString())


_REFLECTION = b"\x3a\x01*"  # list_services
CALLS = [
    _named("ServerLive", Answers.HEALTH),
    _named("ServerReady", Answers.HEALTH),
    GrpcRoute("/grpc.health.v1.Health/Check", Answers.HEALTH),
    GrpcRoute("/grpc.health.v1.Health/Watch", Answers.HEALTH, is_endless=True),
    GrpcRoute(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Answers.NONE, _REFLECTION
    ),
    GrpcRoute(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Answers.NONE, _REFLECTION
    ),
    _named("ModelReady", Answers.MODEL, name="echo"),
    _named("ServerMetadata", Answers.NONE),
    _named("ModelMetadata", Answers.MODEL, name="echo"),
    _named("ModelConfig", Answers.MODEL, name="echo"),
    _named("ModelStatistics", Answers.MODEL, name="echo"),
    _named("ModelStatistics", Answers.FILTERED),
    _named("TraceSetting", Answers.MODEL, model_name="echo"),
    _named("TraceSetting", Answers.ALL),
    _named("LogSettings", Answers.NONE),
    _named("RepositoryIndex", Answers.FILTERED),
    _named("RepositoryModelLoad", Answers.MODEL, model_name="echo"),
    _named("RepositoryModelUnload", Answers.MODEL, model_name="echo"),
    *(
        _named(f"{kind}SharedMemory{action}", Answers.NONE, name="r")
        for kind in ("System", "Cuda")
        for action in ("Status", "Register", "Unregister")
    ),
    GrpcRoute(SERVICE + "ModelInfer", Answers.MODEL, grpc_request().SerializeToString()),
    GrpcRoute(SERVICE + "ModelStreamInfer", Answers.MODEL, grpc_request().SerializeToString()),
]


def start_call(
    channel: grpc.Channel, route: GrpcRoute, metadata: Mapping[str, str]
) -> Iterable[bytes]:
    """Begin a call; its responses come when they are asked for."""
    method = channel.stream_stream(
        route.path, request_serializer=bytes, response_deserializer=bytes
    )
    return method(iter([route.message]), metadata=tuple(metadata.items()), timeout=DEADLINE_S)


def end_call(route: GrpcRoute, responses: Any) -> tuple[grpc.StatusCode, bytes]:
    """The status and all messages of a call; of one without an end, the first message."""
    messages = []
    try:
        for message in responses:
            messages.append(message)
            if route.is_endless:
                responses.cancel()
                return grpc.StatusCode.OK, message
    except grpc.RpcError as error:
        return error.code(), b"".join(messages)
    return grpc.StatusCode.OK, b"".join(messages)
