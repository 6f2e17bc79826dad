# SPDX-License-Identifier: Apache-2.0
"""Connections of HTTP and gRPC whose requests have lines in the access log.

They are other classes than the usual ones, so that servers without an access log do no work for it.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import hpack

from pytriton.base.messages import RequestCost
from pytriton.protocol.grpc import OK_TRAILERS, GrpcStatus
from pytriton.protocol.http2 import Http2Connection, Http2ErrorCode, StreamReset
from pytriton.protocol.http2.events import DataBuffered, DataReceived
from pytriton.serving.engine.costs import CostWatcher
from pytriton.serving.engine.observers import Observer
from pytriton.serving.server.access_log.access_log import (
    CLIENT_CLOSED,
    GRPC,
    HTTP,
    AccessEntry,
    AccessLog,
)
from pytriton.serving.server.grpc.connection import GrpcConnection
from pytriton.serving.server.http.connection import JSON_TYPE, HttpConnection, HttpRefusal
from pytriton.serving.server.http.http1_connection import Http1Connection
from pytriton.serving.server.http.http2_stream import Http2Stream
from pytriton.serving.server.http.reader import RequestHead

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import InferRequest
    from pytriton.protocol.http2 import Event
    from pytriton.protocol.http2.events import RequestReceived
    from pytriton.protocol.http2.frames import BodyFrames, ResponseFrames
    from pytriton.protocol.http2.headers import Http2RequestHead as GrpcHead
    from pytriton.protocol.http2.limits import Http2Limits
    from pytriton.serving.engine.observers import Members
    from pytriton.serving.server.access.client_addresses import TrustedProxies
    from pytriton.serving.server.access.decisions import HeaderLookup
    from pytriton.serving.server.grpc.api import GrpcApi
    from pytriton.serving.server.grpc.connection import CallHandler
    from pytriton.serving.server.http.handler import HttpHandler
    from pytriton.serving.server.http.http2_connection import Http2ServerConnection
    from pytriton.serving.server.http.reader import HttpRequest
    from pytriton.serving.server.options.server_options import AccessLogOptions

_HEALTH = frozenset(
    {
        "/inference.GRPCInferenceService/ServerLive",
        "/inference.GRPCInferenceService/ServerReady",
        "/inference.GRPCInferenceService/ModelReady",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
    }
)
_HTTP_ERROR = int(GrpcStatus.UNKNOWN)  # of a request that is not gRPC
# The attributes on the way from the sink of a request to its connection: sinks of traces and of
# shared memory have another sink, those of protocols a connection or a call.
_WAYS = ("_sink", "_call")
_MAX_STEPS = 4


class LoggedAnswers(HttpConnection):
    """The answers of a connection or a stream, each of which adds an entry."""

    access_log: AccessLog  # set in the class of a server, as the ones below
    with_health: bool
    with_costs = False
    proxies: TrustedProxies | None = None  # None: none are believed

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._client = ""
        # Whether the current request has its entry. The request itself is not kept here: its body
        # may be shared memory, which would be in use as long as the client stays connected.
        self._is_entered = False
        self._began_ns = 0
        self._stream_status = 0
        self._streamed_bytes = 0
        # The model of the request to the engine, which the path may not name.
        self.model = self.version = self.request_id = ""
        self.cost: RequestCost | None = None  # None: nobody wants to know it

    def _handle(self, request: HttpRequest) -> None:
        self._is_entered = False
        self._began_ns = request.began_ns or time.monotonic_ns()
        self._stream_status = self._streamed_bytes = 0
        self.model = self.version = self.request_id = ""
        self.cost = RequestCost() if self.with_costs else None
        super()._handle(request)

    def respond(
        self,
        status: int,
        parts: Sequence[Buffer] = (),
        content_type: bytes = JSON_TYPE,
        headers: bytes = b"",
    ) -> None:
        """Answer the current request; `headers` are whole lines."""
        request = self._current
        if request is not None:
            is_sent = not self._is_streaming and request.head.method != b"HEAD"
            self._enter(request, status, sum(map(len, parts)) if is_sent else self._streamed_bytes)
        super().respond(status, parts, content_type, headers)

    def respond_small(
        self, json_length: int | None, body: bytes, encoding: str = "identity"
    ) -> None:
        """Answer an inference with a small body."""
        if self._current is not None:
            self._enter(self._current, 200, len(body))
        super().respond_small(json_length, body, encoding)

    def begin_stream(self, status: int, content_type: bytes, headers: bytes = b"") -> None:
        """Begin a response of unknown length."""
        self._stream_status = status
        super().begin_stream(status, content_type, headers)

    def stream(self, part: bytes) -> None:
        """Send a part of a streamed response."""
        self._streamed_bytes += len(part)
        super().stream(part)

    def end_stream(self) -> None:
        """End a streamed response."""
        if self._current is not None:
            self._enter(self._current, self._stream_status, self._streamed_bytes)
        super().end_stream()

    def _enter_abandoned(self) -> None:
        """Add the entry of a request whose client has left, if there is one."""
        request = self._current
        if request is not None:
            self._enter(request, CLIENT_CLOSED, self._streamed_bytes)

    def _enter(self, request: HttpRequest, status: int, bytes_out: int) -> None:
        """Add the entry of a request, unless it has one."""
        if not self._is_entered:
            self._is_entered = True
            duration_ns = time.monotonic_ns() - self._began_ns
            self._add(request.head, status, len(request.body), bytes_out, duration_ns)

    def _add(
        self, head: RequestHead, status: int, bytes_in: int, bytes_out: int, duration_ns: int
    ) -> None:
        found, resolved = head, head.resolved
        if isinstance(resolved, RequestHead):  # what a route of a cloud provider is translated to
            found, resolved = resolved, resolved.resolved
        route: Any = getattr(resolved, "route", None)
        if not self.with_health and route is not None and route.endpoint.api == "health":
            return
        client = self._client
        if self.proxies is not None:
            client = _forwarded_client(self.proxies, client, head.headers.get)
        self.access_log.add(
            AccessEntry(
                time.time(),
                client,
                HTTP,
                head.method or b"-",
                head.target or b"-",
                status,
                bytes_in,
                bytes_out,
                duration_ns,
                self.model or getattr(route, "model", ""),
                self.version or getattr(route, "version", ""),
                self.request_id,
                head.headers.get(b"user-agent", b""),
                self.cost,
                _principal(found),
            )
        )


class LoggedHttpConnection(LoggedAnswers, Http1Connection):
    """A connection that adds an entry for each of its requests."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the transport when a client connected."""
        self._client = address_of(transport)
        super().connection_made(transport)

    def _send_refusal(self, answer: HttpRefusal) -> None:
        self._add(self._reader.head, answer.status, 0, len(answer.body), 0)
        super()._send_refusal(answer)

    def _abandon_requests(self) -> None:
        self._enter_abandoned()
        super()._abandon_requests()


class LoggedHttp2Stream(LoggedAnswers, Http2Stream):
    """A stream of HTTP/2 that adds an entry for its request."""

    def __init__(self, connection: Http2ServerConnection, stream_id: int) -> None:
        super().__init__(connection, stream_id)
        self._client = address_of(connection.transport)
        self._began_ns = time.monotonic_ns()  # of a request that is refused, or held back

    def abandon(self) -> None:
        """Called when the client does not want the answer any more, or cannot get it."""
        self._enter_abandoned()
        super().abandon()


def _forwarded_client(proxies: TrustedProxies, connected: str, header: HeaderLookup) -> str:
    """Returns the client of a request that a proxy may have passed on; then it has no port."""
    host = connected.rpartition(":")[0].strip("[]")
    found = proxies.client_of(host, header)
    return connected if found == host else found


def _principal(head: RequestHead) -> str:
    return "" if head.grant is None else str(head.grant.name)


def address_of(transport: asyncio.BaseTransport) -> str:
    """Returns the address and the port of a client; empty if it has none."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return ""
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class CallRecord:
    """A call that has not ended."""

    __slots__ = (
        "began_ns",
        "bytes_in",
        "bytes_out",
        "cost",
        "head",
        "model",
        "request_id",
        "version",
    )

    def __init__(self, head: GrpcHead, began_ns: int, cost: RequestCost | None) -> None:
        self.head = head
        self.cost = cost
        self.began_ns = began_ns
        self.bytes_in = 0
        self.bytes_out = 0
        self.model = self.version = self.request_id = ""


class CountingConnection(Http2Connection):
    """An HTTP/2 connection that counts what its streams send, and tells how they end."""

    def __init__(
        self,
        limits: Http2Limits,
        records: dict[int, CallRecord],
        on_end: Callable[[int, int], None],
    ) -> None:
        super().__init__(limits)
        self._records = records
        self._on_end = on_end

    def send_response(
        self, stream_id: int, head: bytes, body: Sequence[Buffer], trailers: bytes
    ) -> None:
        """Send a whole response."""
        record = self._records.get(stream_id)
        if record is not None:
            record.bytes_out += sum(map(len, body))
            self._on_end(stream_id, status_of(trailers))
        super().send_response(stream_id, head, body, trailers)

    def send_whole(
        self, stream_id: int, frames: ResponseFrames | BodyFrames, data: Iterable[bytes]
    ) -> bool:
        """Send a small response; returns False if it cannot be sent at once, and sends nothing."""
        is_sent = super().send_whole(stream_id, frames, data)
        record = self._records.get(stream_id)
        if is_sent and record is not None:
            record.bytes_out += frames.data_bytes
            self._on_end(stream_id, 0)
        return is_sent

    def send_headers(self, stream_id: int, block: bytes, *, end_stream: bool = False) -> None:
        """Send the head of a response; with `end_stream`, it is the whole response."""
        if end_stream and stream_id in self._records:
            self._on_end(stream_id, status_of(block))
        super().send_headers(stream_id, block, end_stream=end_stream)

    def send_data(self, stream_id: int, data: Buffer, *, end_stream: bool = False) -> bool:
        """Send data as the client's windows allow."""
        record = self._records.get(stream_id)
        if record is not None:
            record.bytes_out += len(data)
        return super().send_data(stream_id, data, end_stream=end_stream)

    def send_trailers(self, stream_id: int, block: bytes) -> None:
        """End a response."""
        if stream_id in self._records:
            self._on_end(stream_id, status_of(block))
        super().send_trailers(stream_id, block)

    def reset(self, stream_id: int, code: Http2ErrorCode = Http2ErrorCode.CANCEL) -> None:
        """Reset a stream."""
        if stream_id in self._records:
            self._on_end(stream_id, int(GrpcStatus.CANCELLED))
        super().reset(stream_id, code)


class LoggedGrpcConnection(GrpcConnection):
    """A connection that adds an entry for each of its calls."""

    access_log: AccessLog  # set in the class of a server, as the ones below
    with_health: bool
    with_costs = False
    proxies: TrustedProxies | None = None  # None: none are believed

    def __init__(self, handler: CallHandler, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(handler, loop)
        self.records: dict[int, CallRecord] = {}
        self.http2 = CountingConnection(handler.http2_limits, self.records, self._on_end)
        self._client = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the transport when a client connected."""
        self._client = address_of(transport)
        super().connection_made(transport)

    def _on_request(self, event: RequestReceived) -> None:
        cost = RequestCost() if self.with_costs else None
        record = self.records[event.stream_id] = CallRecord(event.head, self._received_ns, cost)
        if event.end_stream:
            record.bytes_in = len(event.body)
        super()._on_request(event)

    def _on_data(self, event: DataReceived | DataBuffered | RequestReceived) -> None:
        record = self.records.get(event.stream_id)
        if record is not None:
            if isinstance(event, DataReceived):
                record.bytes_in += len(event.data)
            elif isinstance(event, DataBuffered):
                record.bytes_in += event.size
        super()._on_data(event)

    def _on_event(self, event: Event) -> None:
        super()._on_event(event)
        if isinstance(event, StreamReset) and event.stream_id in self.records:
            self._on_end(event.stream_id, int(GrpcStatus.CANCELLED))

    def _abandon_all(self) -> None:
        super()._abandon_all()
        for stream_id in list(self.records):
            self._on_end(stream_id, int(GrpcStatus.CANCELLED))

    def _on_end(self, stream_id: int, status: int) -> None:
        record = self.records.pop(stream_id)
        head = record.head
        if not self.with_health and head.path in _HEALTH:
            return
        client = self._client
        if self.proxies is not None:
            client = _forwarded_client(self.proxies, client, partial(_joined_values, head))
        self.access_log.add(
            AccessEntry(
                time.time(),
                client,
                GRPC,
                b"",
                head.path.encode("latin-1", "backslashreplace"),
                status,
                record.bytes_in,
                record.bytes_out,
                time.monotonic_ns() - record.began_ns,
                record.model,
                record.version,
                record.request_id,
                _user_agent(head),
                record.cost,
                getattr(head.memo, "principal", ""),
            )
        )


def status_of(block: bytes) -> int:
    """Returns the status in a header block of ours."""
    if block == OK_TRAILERS:
        return 0
    fields = dict(hpack.Decoder().decode(block, raw=True))
    text = fields.get(b"grpc-status", b"")
    return int(text) if text else _HTTP_ERROR


def _joined_values(head: GrpcHead, name: bytes) -> bytes | None:
    """Returns the values of all fields of a name, in their order; None if there are none."""
    values = [value for other, value in head.fields if other == name]
    return b", ".join(values) if values else None


def _user_agent(head: GrpcHead) -> bytes:
    for name, value in head.fields:
        if name == b"user-agent":
            return value
    return b""


class AccessLogUse(Observer):
    """Replaces the classes of connections, and observes the requests for the engine."""

    def __init__(
        self,
        options: AccessLogOptions,
        loop: asyncio.AbstractEventLoop,
        proxies: TrustedProxies | None = None,
    ) -> None:
        self.log = AccessLog(options, loop)
        self._with_costs = bool(options.fields)
        self._members = {
            "access_log": self.log,
            "with_health": options.health,
            "with_costs": self._with_costs,
            "proxies": proxies,
        }

    def use_http(self, handler: HttpHandler) -> None:
        """Log the requests of an HTTP port."""
        handler.is_timed = True
        usual, stream = handler.connection_class, handler.stream_class
        handler.connection_class = type(
            f"Logged{usual.__name__}", (LoggedHttpConnection, usual), dict(self._members)
        )
        handler.stream_class = type(
            f"Logged{stream.__name__}", (LoggedHttp2Stream, stream), dict(self._members)
        )

    def use_grpc(self, api: GrpcApi) -> None:
        """Log the calls of the gRPC port."""
        api.connection_class = type(
            "LoggedGrpcConnection", (LoggedGrpcConnection,), dict(self._members)
        )

    def begun(self, members: Members) -> CostWatcher | None:
        """Note the models and the ids of requests, and what they cost if that is wanted."""
        noted = [_noted(caller) for caller in members.callers]
        for request, each in zip(members.requests, noted, strict=True):
            if each is not None:
                _note(request, each)
                if isinstance(each, CallRecord) and members.chunk is not None:
                    spec = members.chunk.model.spec
                    each.model, each.version = spec.name, str(spec.version)
        if not self._with_costs:
            return None
        costs = [None if each is None else each.cost for each in noted]
        return CostWatcher(costs.__getitem__) if any(costs) else None


def _noted(sink: Any) -> LoggedAnswers | CallRecord | None:
    """Returns where facts about a request are noted, given its sink."""
    for _ in range(_MAX_STEPS):
        following = next((each for way in _WAYS if (each := getattr(sink, way, None))), None)
        if following is None:
            break
        sink = following
    if isinstance(sink, LoggedAnswers):
        return sink
    connection: Any = getattr(sink, "connection", None) or getattr(sink, "_connection", None)
    if isinstance(connection, LoggedGrpcConnection):
        return connection.records.get(sink.stream_id)
    return connection if isinstance(connection, LoggedAnswers) else None


def _note(request: InferRequest, noted: LoggedAnswers | CallRecord) -> None:
    """Note what a request is for."""
    if not noted.model:
        noted.model = request.model_name
        noted.version = request.model_version
        noted.request_id = request.id
