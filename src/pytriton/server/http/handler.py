# SPDX-License-Identifier: Apache-2.0
"""What HTTP connections hand their requests to, and what answers a request later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.server.http.connection import READ_BYTES, HttpConnection
from pytriton.server.http.reader import HttpRequest, RequestHead, private_memory
from pytriton.server.http.watch import ProgressWatch

if TYPE_CHECKING:
    import asyncio

    from pytriton.server.options.server_options import Limits


class Exchange:
    """What answers a request later."""

    __slots__ = ()

    def abandon(self) -> None:
        """The client is gone."""

    def pause(self) -> None:
        """The client takes what was written slower than it comes."""

    def resume(self) -> None:
        """The client caught up."""


class HttpHandler:
    """What answers the requests of one port, and what its connections share."""

    def __init__(self, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self.limits = limits
        self.loop = loop
        self.connections: set[HttpConnection] = set()
        self.read_buffer = memoryview(bytearray(READ_BYTES))  # parsed before the next read
        self.known_heads: dict[bytes, RequestHead] = {}
        self.watch = ProgressWatch(loop)

    def make_connection(self) -> HttpConnection:
        """The protocol object for a new client."""
        return HttpConnection(self)

    def body_memory(self, head: RequestHead) -> memoryview:
        """Where the body of a large request is to be read to; not touched before it arrives."""
        return private_memory(head.content_length)

    def handle(self, connection: HttpConnection, request: HttpRequest) -> Exchange | None:
        """Answer on the connection, now or later; later means to return what is at work."""
        raise NotImplementedError
