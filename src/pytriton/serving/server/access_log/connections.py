# SPDX-License-Identifier: Apache-2.0
"""Fills the entries of the access log: observes answers over HTTP, calls of gRPC, and requests."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import hpack

from pytriton.base.messages import RequestCost
from pytriton.protocol.grpc import OK_TRAILERS, GrpcStatus
from pytriton.protocol.http2 import Http2Connection, Http2ErrorCode, StreamReset
from pytriton.protocol.http2.events import DataBuffered, DataReceived, RequestReceived
from pytriton.serving.engine.costs import CostWatcher
from pytriton.serving.engine.observers import Observer
from pytriton.serving.server.access_log.access_log import (
    CLIENT_CLOSED,
    GRPC,
    HTTP,
    AccessEntry,
    AccessLog,
)
from pytriton.serving.server.http.request import HttpRequest, RequestHead
from pytriton.serving.server.http.routes import Route

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import InferRequest
    from pytriton.protocol.http2 import Event
    from pytriton.protocol.http2.frames import BodyFrames, ResponseFrames
    from pytriton.protocol.http2.headers import Http2RequestHead as GrpcHead
    from pytriton.protocol.http2.limits import Http2Limits
    from pytriton.serving.engine.observers import Members
    from pytriton.serving.server.access.client_addresses import TrustedProxies
    from pytriton.serving.server.access.decisions import HeaderLookup
    from pytriton.serving.server.grpc.api import GrpcApi
    from pytriton.serving.server.grpc.connection import GrpcConnection
    from pytriton.serving.server.http.connection import HttpConnection, HttpRefusal
    from pytriton.serving.server.http.handler import HttpHandler
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


class EntrySink:
    """Where entries go, and what they have.

    Args:
        log: The log.
        with_health: Whether questions about health are logged.
        with_costs: Whether what requests cost is logged.
        proxies: Who is believed to say who its clients are; None: nobody.
    """

    def __init__(
        self,
        log: AccessLog,
        *,
        with_health: bool,
        with_costs: bool = False,
        proxies: TrustedProxies | None = None,
    ) -> None:
        self.add = log.add
        self.with_health = with_health
        self.with_costs = with_costs
        self._proxies = proxies

    def new_cost(self) -> RequestCost | None:
        """Returns where the costs of a request are added up; None: nobody wants to know them."""
        return RequestCost() if self.with_costs else None

    def client_of(self, connected: str, header: HeaderLookup) -> str:
        """Returns the client of a request that a proxy may have passed on; then it has no port."""
        if self._proxies is None:
            return connected
        host = connected.rpartition(":")[0].strip("[]")
        found = self._proxies.client_of(host, header)
        return connected if found == host else found


class HttpRecord:
    """A request that has no answer yet; see `AnswerWatch`.

    It does not keep the request, whose body may be shared memory.
    """

    __slots__ = (
        "_began_ns", "_bytes_in", "_client", "_entries", "_head", "_status", "_streamed_bytes",
        "cost", "model", "request_id", "version",
    )  # fmt: skip

    def __init__(self, entries: EntrySink, client: str, request: HttpRequest) -> None:
        self._entries = entries
        self._client = client
        self._head = request.head
        self._bytes_in = len(request.body)
        self._began_ns = request.began_ns or time.monotonic_ns()
        self._status = self._streamed_bytes = 0
        # The model of the request to the engine, which the path may not name.
        self.model = self.version = self.request_id = ""
        self.cost = entries.new_cost()

    def begin_stream(self, status: int) -> None:
        """Note the status of a response of unknown length."""
        self._status = status

    def add(self, size: int) -> None:
        """Count a part of it."""
        self._streamed_bytes += size

    def end_stream(self) -> None:
        """Add the entry of a stream."""
        self.end(self._status, 0)

    def abandon(self) -> None:
        """Add the entry of a request whose client has left."""
        self.end(CLIENT_CLOSED, 0)

    def end(self, status: int, size: int, duration_ns: int | None = None) -> None:
        """Add the entry of a request with its answer."""
        if duration_ns is None:
            duration_ns = time.monotonic_ns() - self._began_ns
        head, entries = self._head, self._entries
        asked = head.translated  # from a cloud provider
        found = asked if isinstance(asked, RequestHead) else head
        route = asked if isinstance(asked, Route) else None
        if found.resolved is not None:
            route = found.resolved.route
        if not entries.with_health and route is not None and route.endpoint.api == "health":
            return
        entries.add(
            AccessEntry(
                time.time(),
                entries.client_of(self._client, head.headers.get),
                HTTP,
                head.method or b"-",
                head.target or b"-",
                status,
                self._bytes_in,
                self._streamed_bytes + size,
                duration_ns,
                self.model or ("" if route is None else route.model),
                self.version or ("" if route is None else route.version),
                self.request_id,
                head.headers.get(b"user-agent", b""),
                self.cost,
                "" if found.grant is None else str(found.grant.name),
            )
        )


class HttpEntries:
    """Adds an entry for each request of an HTTP port; see `AnswerObserver`."""

    def __init__(self, entries: EntrySink) -> None:
        self._entries = entries

    def arrived(self, connection: HttpConnection, request: HttpRequest) -> HttpRecord:
        """Begin the entry of a request."""
        return HttpRecord(self._entries, address_of(connection), request)

    def refused(self, connection: HttpConnection, head: RequestHead, answer: HttpRefusal) -> None:
        """Add the entry of a request that was not read to its end."""
        record = HttpRecord(self._entries, address_of(connection), HttpRequest(head))
        record.end(answer.status, len(answer.body), 0)


def address_of(connection: HttpConnection | GrpcConnection) -> str:
    """Returns the address and the port of a client; empty if it has none."""
    name = connection.get_extra_info("peername")
    if not isinstance(name, tuple):
        return ""
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class CallRecord:
    """A call that has not ended."""

    __slots__ = (
        "began_ns", "bytes_in", "bytes_out", "cost", "head", "model", "request_id", "version"
    )  # fmt: skip

    def __init__(self, head: GrpcHead, cost: RequestCost | None) -> None:
        self.head = head
        self.cost = cost
        self.began_ns = time.monotonic_ns()
        self.bytes_in = 0
        self.bytes_out = 0
        self.model = self.version = self.request_id = ""


class ObservedHttp2(Http2Connection):
    """The state of a connection, which adds an entry for each of its calls."""

    def __init__(self, entries: EntrySink, limits: Http2Limits, owner: GrpcConnection) -> None:
        super().__init__(limits)
        self.records: dict[int, CallRecord] = {}
        self._entries = entries
        self._owner = owner
        self._client: str | None = None  # None: it has sent nothing yet

    def watched(self, stream_id: int) -> CallRecord | None:
        """Returns where facts about a call are noted."""
        return self.records.get(stream_id)

    def take_events(self) -> list[Event]:
        """Returns the events since the last call."""
        events = super().take_events()
        for event in events:
            if isinstance(event, RequestReceived):
                if self._client is None:
                    self._client = address_of(self._owner)
                record = CallRecord(event.head, self._entries.new_cost())
                self.records[event.stream_id] = record
                record.bytes_in = len(event.body) if event.end_stream else 0
            elif isinstance(event, DataReceived | DataBuffered):
                found = self.records.get(event.stream_id)
                if found is not None:
                    found.bytes_in += (
                        event.size if isinstance(event, DataBuffered) else len(event.data)
                    )
            elif isinstance(event, StreamReset):
                self._end(event.stream_id, GrpcStatus.CANCELLED)
        return events

    def abandon(self) -> None:
        """Called when the client cannot get answers any more."""
        for stream_id in list(self.records):
            self._end(stream_id, GrpcStatus.CANCELLED)

    def send_response(
        self, stream_id: int, head: bytes, body: Sequence[Buffer], trailers: bytes
    ) -> None:
        """Send a whole response."""
        record = self.records.get(stream_id)
        if record is not None:
            record.bytes_out += sum(map(len, body))
            self._end(stream_id, status_of(trailers))
        super().send_response(stream_id, head, body, trailers)

    def send_whole(
        self, stream_id: int, frames: ResponseFrames | BodyFrames, data: Iterable[bytes]
    ) -> bool:
        """Send a small response; returns False if it cannot be sent at once, and sends nothing."""
        is_sent = super().send_whole(stream_id, frames, data)
        record = self.records.get(stream_id)
        if is_sent and record is not None:
            record.bytes_out += frames.data_bytes
            self._end(stream_id, 0)
        return is_sent

    def send_headers(self, stream_id: int, block: bytes, *, end_stream: bool = False) -> None:
        """Send the head of a response; with `end_stream`, it is the whole response."""
        if end_stream and stream_id in self.records:
            self._end(stream_id, status_of(block))
        super().send_headers(stream_id, block, end_stream=end_stream)

    def send_data(self, stream_id: int, data: Buffer, *, end_stream: bool = False) -> bool:
        """Send data as the client's windows allow."""
        record = self.records.get(stream_id)
        if record is not None:
            record.bytes_out += len(data)
        return super().send_data(stream_id, data, end_stream=end_stream)

    def send_trailers(self, stream_id: int, block: bytes) -> None:
        """End a response."""
        if stream_id in self.records:
            self._end(stream_id, status_of(block))
        super().send_trailers(stream_id, block)

    def reset(self, stream_id: int, code: Http2ErrorCode = Http2ErrorCode.CANCEL) -> None:
        """Reset a stream."""
        if stream_id in self.records:
            self._end(stream_id, GrpcStatus.CANCELLED)
        super().reset(stream_id, code)

    def _end(self, stream_id: int, status: int) -> None:
        record = self.records.pop(stream_id, None)
        if record is None:
            return
        head, entries = record.head, self._entries
        if not entries.with_health and head.path in _HEALTH:
            return
        entries.add(
            AccessEntry(
                time.time(),
                entries.client_of(self._client or "", partial(_joined_values, head)),
                GRPC,
                b"",
                head.path.encode("latin-1", "backslashreplace"),
                int(status),
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
    """Observes the ports of a front end, and the requests for the engine."""

    def __init__(
        self,
        options: AccessLogOptions,
        loop: asyncio.AbstractEventLoop,
        proxies: TrustedProxies | None = None,
    ) -> None:
        self.log = AccessLog(options, loop)
        self._entries = EntrySink(
            self.log, with_health=options.health, with_costs=bool(options.fields), proxies=proxies
        )

    def use_http(self, handler: HttpHandler) -> None:
        """Log the requests of an HTTP port."""
        handler.is_timed = True
        handler.answers = HttpEntries(self._entries)

    def use_grpc(self, api: GrpcApi) -> None:
        """Log the calls of the gRPC port."""
        api.make_observed = partial(ObservedHttp2, self._entries)

    def begun(self, members: Members) -> CostWatcher | None:
        """Note the models and the ids of requests, and what they cost if that is wanted."""
        noted: list[HttpRecord | CallRecord | None] = members.watched
        for request, each in zip(members.requests, noted, strict=True):
            if each is not None:
                _note(request, each)
                if isinstance(each, CallRecord) and members.chunk is not None:
                    spec = members.chunk.model.spec
                    each.model, each.version = spec.name, str(spec.version)
        if not self._entries.with_costs:
            return None
        costs = [None if each is None else each.cost for each in noted]
        return CostWatcher(costs.__getitem__) if any(costs) else None


def _note(request: InferRequest, noted: HttpRecord | CallRecord) -> None:
    """Note what a request is for."""
    if not noted.model:
        noted.model = request.model_name
        noted.version = request.model_version
        noted.request_id = request.fields.id
