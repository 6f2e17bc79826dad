# SPDX-License-Identifier: Apache-2.0
"""The interface between a connection and the code that answers its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

    from pytriton.serving.server.api.origins import OriginPolicy
    from pytriton.serving.server.http.reader import HttpRequest, RequestHead
    from pytriton.serving.server.http.timeouts import IdleWatch, ProgressWatch
    from pytriton.serving.server.options.server_options import Limits
    from pytriton.serving.server.process.connection_set import ConnectionSet

ConnectionT = TypeVar("ConnectionT")


class HttpExchange:
    """A request that is answered later."""

    __slots__ = ()

    def abandon(self) -> None:
        """Called when the client has disconnected."""

    def pause(self) -> None:
        """Called when the client reads responses too slowly."""

    def resume(self) -> None:
        """Called when the client has read most of the output."""


class PendingExchange(HttpExchange):
    """A request whose body is being read in the background, and the exchange that answers it."""

    __slots__ = ("_exchange", "_task")

    def __init__(self, exchange: HttpExchange, task: asyncio.Task[None]) -> None:
        self._exchange = exchange
        self._task = task

    def abandon(self) -> None:
        self._task.cancel()
        self._exchange.abandon()

    def pause(self) -> None:
        """Called when the client reads responses too slowly."""
        self._exchange.pause()

    def resume(self) -> None:
        """Called when the client has read most of the output."""
        self._exchange.resume()


class RequestHandler(Protocol[ConnectionT]):
    """The owner of connections, which answers their requests."""

    limits: Limits
    origins: OriginPolicy
    loop: asyncio.AbstractEventLoop
    connections: ConnectionSet[ConnectionT]
    read_buffer: memoryview  # all connections share it: it is parsed before the next read
    cached_heads: dict[bytes, RequestHead]
    watch: ProgressWatch
    idle_watch: IdleWatch
    is_timed: bool  # requests tell when their first bytes came
    is_leaving: bool  # connections are closed after their first answer

    def body_memory(self, head: RequestHead) -> memoryview:
        """Returns the memory for the body of a large request; pages are not touched in advance."""

    def handle(self, connection: ConnectionT, request: HttpRequest) -> HttpExchange | None:
        """Answer a request now, or return the exchange that will answer it."""
