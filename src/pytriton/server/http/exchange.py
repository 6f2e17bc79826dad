# SPDX-License-Identifier: Apache-2.0
"""What a connection and those who answer its requests know of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

    from pytriton.server.http.reader import HttpRequest, RequestHead
    from pytriton.server.http.watch import IdleWatch, ProgressWatch
    from pytriton.server.options.server_options import Limits

ConnectionT = TypeVar("ConnectionT")


class Exchange:
    """What answers a request later."""

    __slots__ = ()

    def abandon(self) -> None:
        """The client is gone."""

    def pause(self) -> None:
        """The client takes what was written slower than it comes."""

    def resume(self) -> None:
        """The client caught up."""


class LaterExchange(Exchange):
    """A request whose body is still being read, for the exchange that will answer it."""

    __slots__ = ("_exchange", "_task")

    def __init__(self, exchange: Exchange, task: asyncio.Task[None]) -> None:
        self._exchange = exchange
        self._task = task

    def abandon(self) -> None:
        """The client is gone."""
        self._task.cancel()
        self._exchange.abandon()

    def pause(self) -> None:
        """The client takes what was written slower than it comes."""
        self._exchange.pause()

    def resume(self) -> None:
        """The client caught up."""
        self._exchange.resume()


class RequestHandler(Protocol[ConnectionT]):
    """What a connection belongs to, and hands its requests to."""

    limits: Limits
    loop: asyncio.AbstractEventLoop
    connections: set[ConnectionT]
    read_buffer: memoryview  # of all connections: what was read is parsed before the next read
    known_heads: dict[bytes, RequestHead]
    watch: ProgressWatch
    idle_watch: IdleWatch

    def body_memory(self, head: RequestHead) -> memoryview:
        """Where the body of a large request is to be read to; not touched before it arrives."""

    def handle(self, connection: ConnectionT, request: HttpRequest) -> Exchange | None:
        """Answer on the connection, now or later; later means to return what is at work."""
