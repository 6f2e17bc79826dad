# SPDX-License-Identifier: Apache-2.0
"""A port for the requests of a cloud provider, which the HTTP port's own endpoints answer.

A cloud route has no rights of its own: it becomes a target in the table of HTTP endpoints, or an
endpoint that is authorised as these are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from pytriton.base.errors import ServerError
from pytriton.serving.server.api.refusals import Refusal
from pytriton.serving.server.api.status import HTTP_STATUS
from pytriton.serving.server.http.handler import HttpHandler
from pytriton.serving.server.http.http1_connection import Http1Connection
from pytriton.serving.server.http.http2_stream import Http2Stream
from pytriton.serving.server.http.infer import respond_server_error
from pytriton.serving.server.http.request import HttpRequest, RequestHead
from pytriton.serving.server.http.routes import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytriton.serving.server.access.decisions import Client
    from pytriton.serving.server.api.origins import OriginPolicy
    from pytriton.serving.server.http.api import HttpApi
    from pytriton.serving.server.http.connection import HttpConnection, HttpRefusal
    from pytriton.serving.server.http.handler import HttpExchange

    Handle = Callable[[HttpConnection, HttpRequest, Route], HttpExchange | None]

_HEADER_LENGTH = b"inference-header-content-length"
# The provider may have asked for a compressed response, and not its client. So there is none.
_ACCEPT_ENCODING = b"accept-encoding"


class HttpTarget(NamedTuple):
    """A request for an endpoint of the HTTP port."""

    method: bytes
    target: bytes


# A route is to an endpoint that only the provider has.
Translation = HttpTarget | Route | Refusal

NOT_FOUND = Refusal(404, "Not Found")


def infer_target(model: str, inference_type: str = "infer") -> bytes:
    """Returns the target for inferences of a model."""
    name = quote(model, safe="", errors="surrogateescape")
    return f"/v2/models/{name}/{inference_type}".encode()


def binary_type(provider: bytes) -> re.Pattern[bytes]:
    """Returns the pattern of the Content-Type of requests with binary tensors.

    Its parameter is the length of the JSON in front of the tensors. Other parameters may follow.
    """
    name = rb"application/vnd\.%b-triton\.binary\+json" % re.escape(provider)
    return re.compile(name + rb"\s*;\s*json-header-size\s*=\s*(-?\d+|[^;\s]*)", re.IGNORECASE)


def http_head(head: RequestHead, to: HttpTarget, binary: re.Pattern[bytes]) -> RequestHead:
    """Returns the head of the same request to the HTTP port, with its header for the length."""
    headers = {name: value for name, value in head.headers.items() if name != _ACCEPT_ENCODING}
    found = binary.match(headers.get(b"content-type", b""))
    if found is not None:
        headers[_HEADER_LENGTH] = found[1]
    return msgspec.structs.replace(
        head, method=to.method, target=to.target, headers=headers, grant=None
    )


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
        origins: Whose requests this port answers.
        routes: The provider's routes.
        binary: The pattern of the Content-Type of requests with binary tensors.
        own: The endpoints that only the provider has, by name.
        connection: The class of connections.
        stream: The class of the streams of connections of HTTP/2.
    """

    def __init__(
        self,
        api: HttpApi,
        origins: OriginPolicy,
        routes: CloudRoutes,
        binary: re.Pattern[bytes],
        own: Mapping[str, Handle],
        connection: type[Http1Connection] = Http1Connection,
        stream: type[Http2Stream] = Http2Stream,
    ) -> None:
        super().__init__(api.limits, api.loop, origins, api.request_memory)
        if api.authorization.access is not None:
            api.authorization.access.on_changed.append(self.forget_heads)
        self.unread = api.unread
        self._api = api
        self._routes = routes
        self._binary = binary
        self._own = own
        self.connection_class = connection
        self.stream_class = stream

    def body_memory(self, head: RequestHead, client: Client) -> memoryview:
        """Allocate memory for a large body, that of its model if possible."""
        try:
            found = self._find(head)
        except ServerError:  # the request gets the error when it is complete
            return super().body_memory(head, client)
        if isinstance(found, RequestHead):
            return self._api.body_memory(found, client)
        return super().body_memory(head, client)

    def route_refusal(self, head: RequestHead, client: Client) -> tuple[int, str] | None:
        """Returns why a request may have no large body; None if it may."""
        try:
            found = self._find(head)
        except ServerError as error:
            return HTTP_STATUS[error.code], error.message
        if isinstance(found, RequestHead):
            return self._api.route_refusal(found, client)
        return super().route_refusal(head, client) if isinstance(found, Route) else found[:2]

    def on_unread(self, head: RequestHead, status: int, message: str) -> HttpRefusal:
        """Note a request for a model that was refused before its body was read to its end."""
        try:
            found = self._find(head)
        except ServerError:  # it is for no model
            return super().on_unread(head, status, message)
        if isinstance(found, RequestHead):
            return self._api.on_unread(found, status, message)
        return super().on_unread(head, status, message)

    def handle(self, connection: HttpConnection, request: HttpRequest) -> HttpExchange | None:
        """Answer a request now, or return the exchange that will answer it."""
        if self.answer_preflight(connection, request.head):
            return None
        try:
            found = self._find(request.head)
            if isinstance(found, RequestHead):
                return self._api.handle(connection, HttpRequest(found, request.body))
            if not isinstance(found, Route):
                connection.respond_error(*found)
            elif self._api.admits(connection, request.head, found):
                return self._own[found.endpoint.handler](connection, request, found)
        except ServerError as error:
            respond_server_error(connection, error)
        return None

    def _find(self, head: RequestHead) -> RequestHead | Route | Refusal:
        """Returns the head of the same request to the HTTP port, or what there is instead."""
        found = head.translated
        if found is None:
            to = self._routes.translate(head)
            found = http_head(head, to, self._binary) if isinstance(to, HttpTarget) else to
            if self._routes.is_fixed:
                head.translated = found
        return found
