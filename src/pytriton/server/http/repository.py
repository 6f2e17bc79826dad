# SPDX-License-Identifier: Apache-2.0
"""The HTTP endpoints that list, load and unload models."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from pytriton.server.api import documents
from pytriton.wire.compression import decompress
from pytriton.wire.repository import check_repository, read_index, read_load, read_unload

if TYPE_CHECKING:
    from pytriton.dtypes import Buffer
    from pytriton.server.api.repository_service import RepositoryService
    from pytriton.server.http.connection import HttpConnection
    from pytriton.server.http.exchange import Exchange
    from pytriton.server.http.reader import HttpRequest
    from pytriton.server.http.routes import Route

ServeLater = Callable[["HttpConnection", Coroutine[Any, Any, None]], "Exchange"]


class RepositoryEndpoints:
    """Reads requests, and answers when what they ask for is done."""

    def __init__(
        self, service: RepositoryService, max_body_bytes: int, serve_later: ServeLater
    ) -> None:
        self._service = service
        self._max_body_bytes = max_body_bytes
        self._serve_later = serve_later

    def index(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        """List the models."""
        check_repository(route.repository)
        entries = self._service.index(ready=read_index(self._body(request)))
        connection.respond(200, (documents.repository_index(entries),))

    def load(self, connection: HttpConnection, request: HttpRequest, route: Route) -> Exchange:
        """Load a model."""
        check_repository(route.repository)
        loading = self._service.load(route.model, read_load(self._body(request)))
        return self._serve_later(connection, _respond_after(loading, connection))

    def unload(self, connection: HttpConnection, request: HttpRequest, route: Route) -> Exchange:
        """Unload a model."""
        check_repository(route.repository)
        unload_dependents = read_unload(self._body(request))
        unloading = self._service.unload(route.model, unload_dependents=unload_dependents)
        return self._serve_later(connection, _respond_after(unloading, connection))

    def _body(self, request: HttpRequest) -> Buffer:
        encoding = request.head.headers.get(b"content-encoding")
        body: Buffer = request.body
        if encoding is None or not body:
            return body
        return decompress(body, encoding.decode("latin-1"), self._max_body_bytes)


async def _respond_after(work: Coroutine[Any, Any, None], connection: HttpConnection) -> None:
    await work
    connection.respond(200)
