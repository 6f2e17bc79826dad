# SPDX-License-Identifier: Apache-2.0
"""The interface between a connection and the code that answers its requests.

A port has one handler, which all of its connections share. It answers a request at once, or returns
the exchange that will answer it. It has one timer of each kind for all of them, so that requests
set none.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pytriton.serving.server.api.http2_transport import FlushQueue
from pytriton.serving.server.api.request_memory import RequestMemory
from pytriton.serving.server.api.shortage import UnreadAnswers
from pytriton.serving.server.api.turns import Turns
from pytriton.serving.server.http.connection import HttpRefusal, plain_refusal
from pytriton.serving.server.http.http1_connection import READ_BYTES, Http1Connection
from pytriton.serving.server.http.http2_connection import Http2ServerConnection, http2_limits
from pytriton.serving.server.http.http2_stream import Http2Stream
from pytriton.serving.server.http.request import (
    SIZE_HINT,
    SMALL_BODY,
    HttpRequest,
    RequestHead,
    private_memory,
)
from pytriton.serving.server.process.clients import ConnectionSet

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

    from pytriton.serving.server.access.decisions import Client
    from pytriton.serving.server.api.origins import OriginPolicy
    from pytriton.serving.server.http.connection import AnswerObserver, HttpConnection
    from pytriton.serving.server.options.server_options import ClientLimits


HttpClient = Http1Connection | Http2ServerConnection

_BAD_REQUEST = 400
# Names of limits in metrics, by the status of a refusal; others count their own refusals.
_LIMITS = {408: "http_request_time", 431: "http_header_bytes"}

CHECK_INTERVAL_S = 1.0
# An idle connection is closed after the timeout, or up to this fraction of it later.
CHECKS_PER_TIMEOUT = 10
MAX_IDLE_INTERVAL_S = 60.0


class HttpExchange:
    """A request that is answered later: what its connection tells the code that answers it.

    None of the methods may respond: the connection has no request any more, or cannot write now.
    """

    __slots__ = ()

    def abandon(self) -> None:
        """Called when the client has disconnected."""

    def pause(self) -> None:
        """Called when the client reads responses too slowly."""

    def resume(self) -> None:
        """Called when the client has read most of the output."""


class PendingExchange(HttpExchange):
    """A request whose body is being read in the background, and the exchange that answers it.

    That may be known only when the body was read.
    """

    __slots__ = ("exchange", "task")

    def __init__(self, exchange: HttpExchange, task: asyncio.Task[None] | None = None) -> None:
        self.exchange = exchange
        self.task = task

    def abandon(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self.exchange.abandon()

    def pause(self) -> None:
        self.exchange.pause()

    def resume(self) -> None:
        self.exchange.resume()


class ProgressWatch:
    """Checks connections once a second while there are any to check."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: dict[HttpClient, None] = {}
        self._has_timer = False

    def add(self, connection: HttpClient) -> None:
        """Check a connection periodically until `check_progress` returns False."""
        self._watched[connection] = None
        if not self._has_timer:
            self._has_timer = True
            self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def discard(self, connection: HttpClient) -> None:
        self._watched.pop(connection, None)

    def __len__(self) -> int:
        return len(self._watched)

    def _check(self) -> None:
        now = self._loop.time()
        for connection in list(self._watched):
            if not connection.check_progress(now):
                self._watched.pop(connection, None)
        self._has_timer = bool(self._watched)
        if self._has_timer:
            self._loop.call_later(CHECK_INTERVAL_S, self._check)


class IdleWatch:
    """Checks all connections periodically, so that requests need not read the clock."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connections: Collection[HttpClient],
        timeout_s: float,
    ) -> None:
        self._loop = loop
        self._connections = connections
        self._interval_s = min(timeout_s / CHECKS_PER_TIMEOUT, MAX_IDLE_INTERVAL_S)
        self._has_timer = False

    def start(self) -> None:
        """Check the connections as long as there are any; never if the timeout is 0."""
        if not self._has_timer and self._interval_s:
            self._has_timer = True
            self._loop.call_later(self._interval_s, self._check)

    def _check(self) -> None:
        self._has_timer = False
        now = self._loop.time()
        for connection in list(self._connections):
            connection.check_idle(now)
        if self._connections:
            self.start()


class HttpHandler:
    """The owner of the connections of one port, which answers their requests in `handle`.

    It never keeps a request: a connection drops its current one when the client disconnects, and
    then calls `HttpExchange.abandon`.
    """

    def __init__(
        self,
        limits: ClientLimits,
        loop: asyncio.AbstractEventLoop,
        origins: OriginPolicy,
        request_memory: RequestMemory | None = None,
    ) -> None:
        self.limits = limits
        self.origins = origins
        # Adds headers to the answers to pages of other origins, if some are allowed.
        self.cors = origins if origins.has_cors else None
        self.request_memory = RequestMemory() if request_memory is None else request_memory
        self.unread = UnreadAnswers(loop)  # a front end has one for all of its ports
        self.refusals: Counter[str] = Counter()  # by the limit that a request exceeded
        self.loop = loop
        self.connections: ConnectionSet[HttpClient] = ConnectionSet()
        # All connections share it: what is read is parsed, or copied, before the next read.
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.cached_heads: dict[bytes, RequestHead] = {}
        self.grpc_hint = "this port serves HTTP, not gRPC"  # for clients who have the wrong port
        self.is_timed = False  # requests tell when their first bytes came
        self.answers: AnswerObserver | None = None  # None: nobody observes them
        self.is_leaving = False  # clients are asked to go to another server
        self.connection_class: type[Http1Connection] = Http1Connection
        self.stream_class: type[Http2Stream] = Http2Stream
        self.http2_limits = http2_limits(limits)
        self.flushes = FlushQueue(loop)
        self.turns = Turns(loop)
        self.watch = ProgressWatch(loop)
        self.idle_watch = IdleWatch(loop, self.connections, limits.http_idle_timeout_s)

    def make_connection(self) -> Http1Connection:
        """Returns the protocol of a new client, which `begin_http2` may replace."""
        return self.connection_class(self)

    def begin_http2(self, replaced: Http1Connection, transport: Any, data: bytes) -> None:
        """Serve a client with HTTP/2, because that is what its first bytes, `data`, are."""
        connection = Http2ServerConnection(self)
        # It is the same client, which has not left.
        connection.client_ticket, replaced.client_ticket = replaced.client_ticket, None
        transport.set_protocol(connection)
        connection.connection_made(transport)
        self.connections.discard(replaced)
        self.watch.discard(replaced)
        connection.receive_first(data)

    def let_clients_leave(self) -> None:
        """Close each connection after its next answer, also those that are opened from now on."""
        self.is_leaving = True
        for connection in list(self.connections):
            connection.close_after_answer()

    def forget_heads(self) -> None:
        """Find out again what answers requests, and for whom: what was true of a head is not."""
        self.cached_heads.clear()
        for connection in list(self.connections):
            connection.forget_heads()

    def begin_shutdown(self) -> None:
        """Ask clients to open no more requests, as far as their protocol can tell them."""
        for connection in list(self.connections):
            connection.begin_shutdown()

    def body_memory(self, head: RequestHead, client: Client) -> memoryview:
        """Returns the memory for the body of a large request; pages are not touched in advance."""
        return private_memory(head.content_length)

    def large_body_refusal(self, head: RequestHead, client: Client) -> tuple[int, str] | None:
        """Returns status and reason if a request may have no large body; None if it may.

        It is asked with the head, and for bodies of unknown length when they become large. For all
        ports and protocols the order is: what the head asks for, who sends it, whether that may do
        it, whether there is memory; then the memory is taken, and the body is read.
        """
        refusal = self.route_refusal(head, client)
        if refusal is not None:
            return refusal
        problem = self.request_memory.refusal(head.content_length)
        return None if problem is None else (503, problem)

    def route_refusal(self, head: RequestHead, client: Client) -> tuple[int, str] | None:
        """Returns why what a head asks for needs no large body, or may not be done by its sender.

        Most requests need no more than `LARGE_BODY_BYTES`.
        """
        return 400, SMALL_BODY

    def answer_preflight(self, connection: HttpConnection, head: RequestHead) -> bool:
        """Answer a browser that asks what a page may send; returns whether the request does."""
        answer = self.origins.preflight(head.headers.get) if head.method == b"OPTIONS" else None
        if answer is None:
            return False
        if answer.message:
            connection.respond_error(answer.status, answer.message, answer.headers)
        else:
            connection.respond(answer.status, (), b"", answer.headers)
        return True

    def count_refusal(self, status: int, message: str) -> None:
        """Count a request that was refused while it was read, by the limit that it exceeded."""
        limit = _LIMITS.get(status)
        if status == _BAD_REQUEST and message.endswith((SIZE_HINT, SMALL_BODY)):
            limit = "http_body_bytes"
        if limit is not None:
            self.refusals[limit] += 1

    def on_unread(self, head: RequestHead, status: int, message: str) -> HttpRefusal:
        """Called when a request is refused after its head, before its body was read to its end.

        Returns the answer.
        """
        return plain_refusal(status, message)

    def handle(self, connection: HttpConnection, request: HttpRequest) -> HttpExchange | None:
        """Answer a request now, or return the exchange that will answer it."""
        raise NotImplementedError
