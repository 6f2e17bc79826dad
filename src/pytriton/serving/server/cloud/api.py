# SPDX-License-Identifier: Apache-2.0
"""A port for the requests of a cloud provider, which the HTTP port's own endpoints answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from pytriton.base.errors import ServerError
from pytriton.serving.server.cloud.translation import HttpTarget, OwnTarget, http_head
from pytriton.serving.server.http.connection import HttpConnection
from pytriton.serving.server.http.handler import HttpHandler
from pytriton.serving.server.http.infer import respond_server_error
from pytriton.serving.server.http.reader import HttpRequest, RequestHead

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytriton.serving.server.cloud.translation import CloudRefusal, Translation
    from pytriton.serving.server.http.api import HttpApi
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.routes import Route

    Handle = Callable[[HttpConnection, HttpRequest, Route], HttpExchange | None]


class CloudRoutes(Protocol):
    """The routes of a cloud provider."""

    @property
    def is_fixed(self) -> bool:
        """Whether equal requests are translated equally for ever."""

    def translate(self, head: RequestHead) -> Translation:
        """Returns what a request asks for; raises ServerError if that cannot be known."""


class CloudApi(HttpHandler):
    """Answers the requests of one cloud provider.

    Args:
        api: The endpoints of the HTTP port.
        address: The address that this port listens on.
        routes: The provider's routes.
        binary: The pattern of the Content-Type of requests with binary tensors.
        own: The endpoints that only the provider has, by name.
        connection: The class of connections.
    """

    def __init__(
        self,
        api: HttpApi,
        address: str,
        routes: CloudRoutes,
        binary: re.Pattern[bytes],
        own: Mapping[str, Handle],
        connection: type[HttpConnection] = HttpConnection,
    ) -> None:
        super().__init__(api.limits, api.loop, address)
        self._api = api
        self._routes = routes
        self._binary = binary
        self._own = own
        self.connection_class = connection

    def body_memory(self, head: RequestHead) -> memoryview:
        """Allocate memory for a large body, that of its model if possible."""
        try:
            found = self._find(head)
        except ServerError:  # the request gets the error when it is complete
            return super().body_memory(head)
        if isinstance(found, RequestHead):
            return self._api.body_memory(found)
        return super().body_memory(head)

    def handle(self, connection: HttpConnection, request: HttpRequest) -> HttpExchange | None:
        """Answer a request now, or return the exchange that will answer it."""
        try:
            found = self._find(request.head)
            if isinstance(found, RequestHead):
                return self._api.handle(connection, HttpRequest(found, request.body))
            if not isinstance(found, OwnTarget):
                connection.respond_error(*found)
            elif self._api.admits(connection, request.head, found.route.endpoint):
                handle = self._own[found.route.endpoint.handler]
                return handle(connection, request, found.route)
        except ServerError as error:
            respond_server_error(connection, error)
        return None

    def _find(self, head: RequestHead) -> RequestHead | OwnTarget | CloudRefusal:
        """Returns the head of the same request to the HTTP port, or what there is instead."""
        found: RequestHead | OwnTarget | CloudRefusal | None = head.resolved
        if found is None:
            to = self._routes.translate(head)
            found = http_head(head, to, self._binary) if isinstance(to, HttpTarget) else to
            if self._routes.is_fixed:
                head.resolved = found
        return found
