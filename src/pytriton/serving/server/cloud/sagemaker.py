# SPDX-License-Identifier: Apache-2.0
"""The routes of SageMaker: for its health check, for inferences, and for models that it manages.

The contract of the latter is Amazon's "Custom Containers Contract for Multi-Model Endpoints".
"""

from __future__ import annotations

import logging
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
import orjson

from pytriton.base.errors import (
    ErrorCode,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ServerError,
)
from pytriton.serving.server.access.decisions import Scope, sees_all, visible
from pytriton.serving.server.api.local_client import LocalClient
from pytriton.serving.server.cloud.api import (
    NOT_FOUND,
    HttpTarget,
    binary_type,
    infer_target,
)
from pytriton.serving.server.http.connection import JSON_TYPE, HttpConnection, body_headers
from pytriton.serving.server.http.http1_connection import Http1Connection
from pytriton.serving.server.http.http2_stream import Http2Stream
from pytriton.serving.server.http.routes import HttpEndpoint, Route, request_path

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.cloud.api import Translation
    from pytriton.serving.server.http.api import HttpApi
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.request import HttpRequest, RequestHead
    from pytriton.serving.server.options.endpoints import SageMakerOptions

logger = logging.getLogger(__name__)

OUT_OF_MEMORY = 507  # SageMaker then unloads other models and tries again
# Messages of frameworks if memory is short; Triton looks for the same texts.
_MEMORY_TEXTS = (
    "out of memory",
    "outofmemory",
    "cuda_out_of_memory",
    "memoryerror",
    "failed to allocate memory",
    "cublas_status_alloc_failed",
    "cublas_status_not_initialized",
    "cudnn_status_not_initialized",
    "cnmem_status_out_of_memory",
    "dst tensor is not initialized",
    "src tensor is not initialized",
    "no space left on device",
)
_STATUS = {
    ErrorCode.ALREADY_EXISTS: 409,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.UNAVAILABLE: 503,
}
BINARY_TYPE = binary_type(b"sagemaker")
_RESPONSE_TYPE = b"application/vnd.sagemaker-triton.binary+json;json-header-size="
_MODELS = b"/models/"
_MODEL = HttpEndpoint("model", "model-repository", frozenset({b"GET", b"HEAD", b"DELETE"}))
_METHODS = frozenset({b"GET", b"HEAD", b"POST"})
_ALL_MODELS = Route(HttpEndpoint("models", "model-repository", _METHODS, Scope.FILTERED))
# The folder of a new model may be any, whatever its name is.
_NEW_MODEL = Route(HttpEndpoint("models", "model-repository", _METHODS, Scope.ALL))
_UNLOADS_STEPS = (
    "the models of its steps may be unloaded with a model: this needs the right to all models"
)
_HEADER_LENGTH = b"Inference-Header-Content-Length: "


def is_out_of_memory(text: str) -> bool:
    """Returns whether the text of an error says that memory is short."""
    lower = text.lower()
    return any(each in lower for each in _MEMORY_TEXTS)


class SageMakerLoadRequest(msgspec.Struct):
    """The body of a request to load a model; other members are ignored."""

    model_name: str
    url: str


def read_load_request(body: Any) -> SageMakerLoadRequest:
    """Parse the body of a request to load a model."""
    try:
        return msgspec.json.decode(body, type=SageMakerLoadRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(
            f"expected JSON with the texts model_name and url, got a body that is not that: {error}"
        ) from None


class SageMakerModels:
    """Loads, lists and unloads models for SageMaker."""

    def __init__(self, api: HttpApi, engine: EngineClient) -> None:
        self._api = api
        self._engine = engine

    def models(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        """List all models, or load one."""
        if request.head.method == b"POST":
            wanted = read_load_request(self._api.service.bodies.settings(request))
            loading = self._engine.ask(
                LocalClient.register_model, name=wanted.model_name, url=wanted.url
            )
            return self._answer(connection, loading)

        grant = request.head.grant

        def respond(found: dict[str, str]) -> None:
            models = [_document(*each) for each in visible(grant, found.items(), itemgetter(0))]
            connection.respond(200, (orjson.dumps({"models": models}),))

        return self._api.management.respond_when_known(
            connection, self._engine.ask(LocalClient.registered_models), respond
        )

    def model(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        """Describe a model, or unload it."""
        if request.head.method == b"DELETE":
            if not sees_all(request.head.grant):  # models of its steps are unloaded, too
                raise PermissionDeniedError(_UNLOADS_STEPS)
            return self._answer(
                connection, self._engine.ask(LocalClient.unregister_model, name=route.model)
            )

        def respond(found: dict[str, str]) -> None:
            if route.model not in found:
                raise NotFoundError(f"Request for unknown model: '{route.model}' is not found")
            document = _document(route.model, found[route.model])
            connection.respond(200, (orjson.dumps(document),))

        return self._api.management.respond_when_known(
            connection, self._engine.ask(LocalClient.registered_models), respond
        )

    def _answer(self, connection: HttpConnection, work: Coroutine[Any, Any, None]) -> HttpExchange:
        async def run() -> None:
            try:
                await work
            except ServerError as error:
                is_memory = is_out_of_memory(error.message)
                status = OUT_OF_MEMORY if is_memory else _STATUS.get(error.code, 400)
                connection.respond_error(status, error.message)
            else:
                connection.respond(200)

        return self._api.management.run_task(connection, run())


def _document(name: str, url: str) -> dict[str, str]:
    return {"modelName": name, "modelUrl": url}


class SageMakerRoutes:
    """The routes of SageMaker's contract with a container."""

    is_fixed = True

    def __init__(self, options: SageMakerOptions) -> None:
        self._ping = f"/v2/health/{options.ping_mode}".encode()
        self._invocations = infer_target(options.default_model, options.inference_type)
        self._inference_type = options.inference_type.encode()

    def translate(self, head: RequestHead) -> Translation:
        """Returns what a request asks for."""
        path = request_path(head.target)
        if path == b"/ping":
            return HttpTarget(head.method, self._ping)
        if path == b"/invocations":
            return HttpTarget(head.method, self._invocations)
        if path is not None and (path + b"/").startswith(_MODELS):
            return self._of_models(head, *path[len(_MODELS) :].partition(b"/"))
        return NOT_FOUND

    def _of_models(
        self, head: RequestHead, name: bytes, slash: bytes, action: bytes
    ) -> Translation:
        if not (name or slash):
            return _NEW_MODEL if head.method == b"POST" else _ALL_MODELS
        if name and not slash:
            return Route(_MODEL, unquote(name, errors="surrogateescape"))
        if name and action == b"invoke":
            # The name is SageMaker's. What its client wrote, which a header has, is for the log.
            return HttpTarget(head.method, b"/v2/models/%b/%b" % (name, self._inference_type))
        return NOT_FOUND


class SageMakerAnswers(HttpConnection):
    """Answers for SageMaker, which passes no headers to clients but the Content-Type."""

    def respond(
        self,
        status: int,
        parts: Sequence[Buffer] = (),
        content_type: bytes = JSON_TYPE,
        headers: bytes = b"",
    ) -> None:
        """See `HttpConnection`; the length of the JSON before binary tensors is in the type."""
        if headers.startswith(_HEADER_LENGTH):
            line, _, headers = headers.partition(b"\r\n")
            content_type = _RESPONSE_TYPE + line[len(_HEADER_LENGTH) :]
        super().respond(status, parts, content_type, headers)

    def respond_small(
        self, json_length: int | None, body: bytes, encoding: str = "identity"
    ) -> None:
        """See `HttpConnection`; an answer with binary tensors needs the other way."""
        if json_length is None:
            super().respond_small(json_length, body, encoding)
        else:
            self.respond(200, (body,), *body_headers(json_length, encoding))

    def respond_error(self, status: int, message: str, headers: bytes = b"") -> None:
        """See `HttpConnection`; a model that SageMaker manages may tell that memory is short."""
        request = self._current
        if request is not None and request.head.target.startswith(_MODELS):
            status = OUT_OF_MEMORY if is_out_of_memory(message) else status
        super().respond_error(status, message, headers)


class SageMakerConnection(SageMakerAnswers, Http1Connection):
    """A connection of SageMaker."""


class SageMakerStream(SageMakerAnswers, Http2Stream):
    """A stream of a connection of SageMaker."""
