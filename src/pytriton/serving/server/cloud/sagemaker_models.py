# SPDX-License-Identifier: Apache-2.0
"""The endpoints with which SageMaker loads, lists and unloads the models of a multi-model endpoint.

Their contract is Amazon's "Custom Containers Contract for Multi-Model Endpoints".
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from pytriton.base.errors import ErrorCode, InvalidArgumentError, NotFoundError, ServerError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.http.api import HttpApi
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.reader import HttpRequest
    from pytriton.serving.server.http.routes import Route

logger = logging.getLogger(__name__)

OUT_OF_MEMORY = 507  # SageMaker then unloads other models and tries again
# What frameworks write if memory is short. Triton looks for these texts.
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
            wanted = read_load_request(self._api.settings_body(request))
            loading = self._engine.register_model(wanted.model_name, wanted.url)
            return self._answer(connection, loading)

        def respond(found: dict[str, str]) -> None:
            models = [_document(name, url) for name, url in found.items()]
            connection.respond(200, (orjson.dumps({"models": models}),))

        return self._api.respond_when_known(connection, self._engine.registered_models(), respond)

    def model(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        """Describe a model, or unload it."""
        if request.head.method == b"DELETE":
            return self._answer(connection, self._engine.unregister_model(route.model))

        def respond(found: dict[str, str]) -> None:
            if route.model not in found:
                raise NotFoundError(f"Request for unknown model: '{route.model}' is not found")
            document = _document(route.model, found[route.model])
            connection.respond(200, (orjson.dumps(document),))

        return self._api.respond_when_known(connection, self._engine.registered_models(), respond)

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

        return self._api.run_task(connection, run())


def _document(name: str, url: str) -> dict[str, str]:
    return {"modelName": name, "modelUrl": url}
