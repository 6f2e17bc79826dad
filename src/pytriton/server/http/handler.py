# SPDX-License-Identifier: Apache-2.0
"""What the connections of one port share, and hand their requests to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.server.http.connection import READ_BYTES, HttpConnection
from pytriton.server.http.reader import HttpRequest, RequestHead, private_memory
from pytriton.server.http.watch import IdleWatch, ProgressWatch

if TYPE_CHECKING:
    import asyncio

    from pytriton.server.http.exchange import Exchange
    from pytriton.server.options.server_options import Limits


class HttpHandler:
    """See `RequestHandler`: the base of what answers requests."""

    def __init__(self, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self.limits = limits
        self.loop = loop
        self.connections: set[HttpConnection] = set()
        self.read_buffer = memoryview(bytearray(READ_BYTES))  # parsed before the next read
        self.known_heads: dict[bytes, RequestHead] = {}
        self.watch = ProgressWatch(loop)
        self.idle_watch = IdleWatch(loop, self.connections, limits.http_idle_timeout_s)

    def make_connection(self) -> HttpConnection:
        """The protocol object for a new client."""
        return HttpConnection(self)

    def body_memory(self, head: RequestHead) -> memoryview:
        """Where the body of a large request is to be read to; not touched before it arrives."""
        return private_memory(head.content_length)

    def handle(self, connection: HttpConnection, request: HttpRequest) -> Exchange | None:
        """Answer on the connection, now or later; later means to return what is at work."""
        raise NotImplementedError
