# SPDX-License-Identifier: Apache-2.0
"""The metrics port: `/metrics` in Prometheus' text format, nothing on any other path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.server.http_connection import READ_BYTES, HttpConnection, private_memory
from pytriton.server.metrics import MetricsPage

if TYPE_CHECKING:
    import asyncio

    from pytriton.engine.engine import Engine
    from pytriton.server.http_connection import HttpRequest, RequestHead
    from pytriton.server.options import ServerOptions

_CONTENT_TYPE = b"text/plain; charset=utf-8"


class MetricsApi:
    """Answers scrapes."""

    def __init__(
        self, engine: Engine, options: ServerOptions, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.limits = options.limits
        self.connections: set[HttpConnection] = set()
        self.read_buffer = bytearray(READ_BYTES)
        self.known_heads: dict[bytes, RequestHead] = {}
        self._engine = engine
        self._loop = loop
        self._page = MetricsPage(options.metrics_options)
        self._page.start()

    def make_connection(self) -> HttpConnection:
        """The protocol object for a new client."""
        return HttpConnection(self, self._loop)

    def body_memory(self, head: RequestHead) -> memoryview:
        """Memory for a large body, which no scrape has."""
        return private_memory(head.content_length)

    def handle(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Answer a scrape."""
        if request.head.method not in (b"GET", b"HEAD"):
            connection.respond_error(405, "Method Not Allowed")
            return
        path = request.head.target.partition(b"?")[0]
        if path in (b"/metrics", b"/metrics/"):
            page = self._page.render(list(self._engine.models()))
            connection.respond(200, (page,), _CONTENT_TYPE)
        else:
            connection.respond(200, (), _CONTENT_TYPE)

    def watch(self, connection: HttpConnection) -> None:
        """Scrapers are few and trusted: a slow one is cut off when it is next looked at."""
        self._loop.call_later(self.limits.header_timeout_s, self._check, connection)

    def _check(self, connection: HttpConnection) -> None:
        if connection.check_progress(self._loop.time()):
            self.watch(connection)
