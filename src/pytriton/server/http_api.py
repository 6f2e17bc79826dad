# SPDX-License-Identifier: Apache-2.0
"""The HTTP endpoints: each takes a request to the engine or answers from what it knows.

Every request passes `handle`, the only place that routes, authorises and checks the method, in this order.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pytriton.errors import InternalError, ServerError, UnsupportedError
from pytriton.server import documents
from pytriton.server.authorization import Authorization, Protocol
from pytriton.server.http_connection import READ_BYTES, HttpConnection, private_memory
from pytriton.server.http_infer import (
    HeaderForwarding,
    InferExchange,
    respond_server_error,
)
from pytriton.server.http_routes import Route, Router
from pytriton.server.status import HTTP_RESTRICTED

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.engine.engine import Engine
    from pytriton.server.http_connection import Exchange, HttpRequest, RequestHead
    from pytriton.server.options import ServerOptions

logger = logging.getLogger(__name__)

_TEXT_TYPE = b"text/plain"
_PROGRESS_CHECK_S = 1.0

Handler = "Callable[[HttpConnection, HttpRequest, Route], Exchange | None]"


class HttpApi:
    """Answers the requests of all HTTP connections."""

    def __init__(
        self, engine: Engine, options: ServerOptions, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.limits = options.limits
        self.connections: set[HttpConnection] = set()
        self.read_buffer = bytearray(READ_BYTES)
        self.known_heads: dict[bytes, RequestHead] = {}
        self._engine = engine
        self._loop = loop
        self._server_id = options.id
        self._router = Router()
        self._authorization = Authorization(options.http_restricted, Protocol.HTTP)
        self._forwarding = HeaderForwarding(options.http_header_forward_pattern)
        self._watched: set[HttpConnection] = set()
        self._handlers: dict[str, Callable[..., Exchange | None]] = {
            "live": self._live,
            "ready": self._ready,
            "server_metadata": self._server_metadata,
            "model_metadata": self._model_metadata,
            "model_ready": self._model_ready,
            "model_config": self._model_config,
            "model_statistics": self._model_statistics,
            "all_statistics": self._model_statistics,
            "infer": self._infer,
        }

    def make_connection(self) -> HttpConnection:
        """The protocol object for a new client."""
        return HttpConnection(self, self._loop)

    def body_memory(self, head: RequestHead) -> memoryview:
        """Memory for a large body: of the model it is for, so that it need not be copied there."""
        route = self._router.resolve(head.target)
        if route is not None and route.endpoint.handler == "infer":
            model = self._engine.find(route.model, route.version)
            if model is not None and model.body_memory is not None:
                announced = head.headers.get(b"inference-header-content-length", b"0")
                header_bytes = int(announced) if announced.isdigit() else 0
                memory = model.body_memory(head.content_length, header_bytes)
                if memory is not None:
                    return memory
        return private_memory(head.content_length)

    def handle(self, connection: HttpConnection, request: HttpRequest) -> Exchange | None:
        """Answer a request, now or through the exchange that is returned."""
        route = self._router.resolve(request.head.target)
        if route is None or route.endpoint.handler not in self._handlers:
            connection.respond_error(404, "Not Found")
            return None
        endpoint = route.endpoint
        refusal = self._authorization.refusal(endpoint.api, request.head.headers.get)
        if refusal is not None:
            connection.respond_error(HTTP_RESTRICTED, refusal)
        elif request.head.method not in endpoint.methods:
            connection.respond_error(405, "Method Not Allowed")
        else:
            try:
                return self._handlers[endpoint.handler](connection, request, route)
            except ServerError as error:
                respond_server_error(connection, error)
            except Exception as error:
                logger.exception("request failed: %s", ascii(request.head.target))
                respond_server_error(connection, InternalError(f"{type(error).__name__}: {error}"))
        return None

    # Slow clients: one timer for all of them, and none while every client keeps up.

    def watch(self, connection: HttpConnection) -> None:
        """Look after a connection until its client has caught up."""
        if not self._watched:
            self._loop.call_later(_PROGRESS_CHECK_S, self._check_progress)
        self._watched.add(connection)

    def _check_progress(self) -> None:
        now = self._loop.time()
        self._watched = {
            connection for connection in self._watched if connection.check_progress(now)
        }
        if self._watched:
            self._loop.call_later(_PROGRESS_CHECK_S, self._check_progress)

    # Endpoints

    def _live(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        connection.respond(200, (), _TEXT_TYPE)

    def _ready(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        connection.respond(200 if self._engine.is_ready() else 400, (), _TEXT_TYPE)

    def _server_metadata(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> None:
        connection.respond(200, (documents.server_metadata(self._server_id),))

    def _model_metadata(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> None:
        model = self._engine.lookup(route.model, route.version)
        versions = (
            [model.spec.version] if route.version else self._engine.ready_versions(route.model)
        )
        connection.respond(200, (documents.model_metadata(model.spec, versions),))

    def _model_ready(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        if self._engine.is_model_ready(route.model, route.version):
            connection.respond(200, (), _TEXT_TYPE)
        else:
            connection.respond_error(400, "Model version not ready")

    def _model_config(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        model = self._engine.lookup(route.model, route.version)
        connection.respond(200, (model.config_json,))

    def _model_statistics(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> None:
        models = self._engine.models_with_statistics(route.model, route.version)
        connection.respond(200, (documents.model_statistics(models),))

    def _infer(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> Exchange | None:
        model = self._engine.lookup(route.model, route.version)
        if model.spec.decoupled:
            raise UnsupportedError(
                "HTTP end point doesn't support models with decoupled transaction policy"
            )
        exchange = InferExchange(
            self._engine, model, connection, request.head.headers.get(b"accept-encoding")
        )
        exchange.submit(request, self.limits, self._forwarding)
        return exchange
