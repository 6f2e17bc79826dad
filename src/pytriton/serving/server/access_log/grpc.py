# SPDX-License-Identifier: Apache-2.0
"""gRPC connections whose calls have lines in the access log: a stream has one, at its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import hpack

from pytriton.protocol.grpc import OK_TRAILERS, Status
from pytriton.protocol.http2 import Connection, ErrorCode, StreamReset
from pytriton.protocol.http2.events import DataBuffered, DataReceived
from pytriton.serving.server.access_log.access_log import GRPC, AccessEntry
from pytriton.serving.server.access_log.http import address_of
from pytriton.serving.server.grpc.columns import ColumnCall
from pytriton.serving.server.grpc.connection import GrpcConnection

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.protocol.http2 import Event
    from pytriton.protocol.http2.events import RequestReceived
    from pytriton.protocol.http2.frames import ResponseFrames
    from pytriton.protocol.http2.headers import Http2RequestHead as GrpcHead
    from pytriton.protocol.http2.limits import Http2Limits
    from pytriton.serving.server.access_log.access_log import AccessLog
    from pytriton.serving.server.grpc.call import GrpcCall
    from pytriton.serving.server.grpc.connection import CallHandler

_HEALTH = frozenset(
    {
        "/inference.GRPCInferenceService/ServerLive",
        "/inference.GRPCInferenceService/ServerReady",
        "/inference.GRPCInferenceService/ModelReady",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
    }
)
_HTTP_ERROR = int(Status.UNKNOWN)  # of a request that is not gRPC


class CallRecord:
    """What is known of a call that has not ended."""

    __slots__ = ("began_ns", "bytes_in", "bytes_out", "head", "model", "request_id", "version")

    def __init__(self, head: GrpcHead, began_ns: int) -> None:
        self.head = head
        self.began_ns = began_ns
        self.bytes_in = 0
        self.bytes_out = 0
        self.model = self.version = self.request_id = ""


class CountingConnection(Connection):
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

    def send_whole(self, stream_id: int, frames: ResponseFrames, data: Iterable[bytes]) -> bool:
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

    def reset(self, stream_id: int, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """Reset a stream."""
        if stream_id in self._records:
            self._on_end(stream_id, int(Status.CANCELLED))
        super().reset(stream_id, code)


class LoggedGrpcConnection(GrpcConnection):
    """A connection that adds an entry for each of its calls."""

    access_log: AccessLog  # set in the class of a server, as the ones below
    with_health: bool

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
        record = self.records[event.stream_id] = CallRecord(event.head, self._received_ns)
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
            self._on_end(event.stream_id, int(Status.CANCELLED))

    def replace_call(self, call: GrpcCall) -> None:
        """Serve a stream with this call, unless it has ended already."""
        super().replace_call(call)
        record = self.records.get(call.stream_id)
        if record is not None and isinstance(call, ColumnCall) and call.chunk is not None:
            spec = call.chunk.model.spec
            record.model, record.version = spec.name, str(spec.version)

    def _abandon_calls(self) -> None:
        super()._abandon_calls()
        for stream_id in list(self.records):
            self._on_end(stream_id, int(Status.CANCELLED))

    def _on_end(self, stream_id: int, status: int) -> None:
        record = self.records.pop(stream_id)
        head = record.head
        if not self.with_health and head.path in _HEALTH:
            return
        self.access_log.add(
            AccessEntry(
                time.time(),
                self._client,
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
            )
        )


def status_of(block: bytes) -> int:
    """Returns the status in a header block of ours."""
    if block == OK_TRAILERS:
        return 0
    fields = dict(hpack.Decoder().decode(block, raw=True))
    text = fields.get(b"grpc-status", b"")
    return int(text) if text else _HTTP_ERROR


def _user_agent(head: GrpcHead) -> bytes:
    for name, value in head.fields:
        if name == b"user-agent":
            return value
    return b""
