# SPDX-License-Identifier: Apache-2.0
"""One HTTP/2 connection of a port that also speaks HTTP/1.1: what it receives, and its limits.

The frames are those of `protocol/http2`. `http2_stream` has the requests and their answers, and
`api/http2_transport` writes them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import UnavailableError
from pytriton.protocol.http2 import (
    ConnectionTerminated,
    DataBuffered,
    DataReceived,
    Http2Connection,
    Http2ErrorCode,
    Http2Limits,
    InputLeft,
    RequestReceived,
    StreamReset,
    TrailersReceived,
    WriteResumed,
    encode_header_block,
)
from pytriton.serving.server.api.http2_transport import Http2Transport
from pytriton.serving.server.api.pace import Holder
from pytriton.serving.server.api.shortage import TOO_SLOW
from pytriton.serving.server.http.http2_stream import (
    GRPC_TYPE,
    MAX_UNREAD_BYTES,
    RequestBody,
    field_refusal,
    request_head,
)
from pytriton.serving.server.http.request import (
    LARGE_BODY_BYTES,
    HttpRequest,
    head_refusal,
    size_refusal,
)
from pytriton.serving.server.process.event_loop import has_unread, reader_of_parts, writer_of_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytriton.protocol.http2 import Event
    from pytriton.serving.server.http.handler import HttpHandler
    from pytriton.serving.server.http.http2_stream import Http2Stream
    from pytriton.serving.server.http.request import RequestHead
    from pytriton.serving.server.options.server_options import ClientLimits

logger = logging.getLogger(__name__)

_monotonic_ns = time.monotonic_ns
_NO_LIMIT = 2**62

_CONTINUE = encode_header_block([(b":status", b"100")])


def http2_limits(limits: ClientLimits) -> Http2Limits:
    """Returns the limits of a connection of an HTTP port."""
    return Http2Limits(
        # A head above the limit is answered, one above twice the limit ends the connection.
        max_header_block_bytes=2 * limits.http_max_header_bytes,
        max_header_list_bytes=2 * limits.http_max_header_bytes,
        max_queued_bytes=2 * MAX_UNREAD_BYTES,
        max_stall_ns=int(limits.write_stall_timeout_s * 1e9),
        # Proxies and some clients ping idle connections. The work budget bounds pings, too.
        min_ping_interval_ns=0,
        min_idle_ping_interval_ns=0,
        max_ping_strikes=_NO_LIMIT,
    )


class Http2ServerConnection(Http2Transport, asyncio.BufferedProtocol):
    """The protocol object of one client's connection."""

    client_name = "HTTP"

    def __init__(self, handler: HttpHandler) -> None:
        super().__init__(
            Http2Connection(handler.http2_limits),
            handler.limits,
            handler.flushes,
            handler.loop,
            handler.unread,
            handler.turns,
        )
        self.handler = handler
        self._read_parts: Any = None
        self._direct_bytes = 0  # the size of the memory for the next read, if a body has some
        self._bodies: dict[int, RequestBody] = {}  # of requests that are not complete
        self._streams: dict[int, Http2Stream] = {}  # of requests that are not answered
        self._held: deque[Http2Stream] = deque()  # of these, the ones that nobody handles yet
        self._is_busy = False  # within events or a flush: what is answered then is written after it
        self._is_new = True  # there was no request yet
        self._was_used = False  # since the last check for idle connections
        self._used_s = 0.0  # when that was checked and there was one, or the client has connected

    def __repr__(self) -> str:
        return f"<Http2ServerConnection {len(self._streams)} requests, {self.http2!r}>"

    # Transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._write_parts = writer_of_parts(transport)
        self._read_parts = reader_of_parts(transport)
        self.handler.connections.add(self)
        self._used_s = self._loop.time()
        self.handler.watch.add(self)
        self.handler.idle_watch.start()
        if self.handler.is_leaving:
            self.http2.begin_shutdown()
        self.flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self.handler.connections.discard(self)
        self.handler.watch.discard(self)
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        http2 = self.http2
        if http2.has_buffers and not self._is_closing:
            buffer = http2.get_buffer(reads_more=self._read_parts is not None)
            if buffer is not None:
                self._direct_bytes = len(buffer)
                return buffer
        self._direct_bytes = 0
        return self.handler.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closing:  # what the client still sends is dropped
            return
        http2, now_ns = self.http2, _monotonic_ns()
        if self._direct_bytes:
            if (
                nbytes == self._direct_bytes
                and self._read_parts is not None
                and (parts := http2.expect_more())
            ):
                nbytes += self._read_parts(parts)
            self.handle(http2.buffer_updated(nbytes, now_ns), now_ns)
            return
        data = self.handler.read_buffer[:nbytes]
        # Frames of large bodies are copied to their places. Requests in bytes are read faster.
        self.handle(http2.receive(data if http2.has_buffers else bytes(data), now_ns), now_ns)
        if nbytes == len(self.handler.read_buffer):  # there may be more, and the transport reads on
            self.turn.end()

    def receive_first(self, data: bytes) -> None:
        """Process bytes that were read before this became the protocol of the transport."""
        now_ns = _monotonic_ns()
        self.handle(self.http2.receive(data, now_ns), now_ns)

    def forget_heads(self) -> None:
        """Keep nothing that was found out about heads."""
        self.http2.forget_memos()

    # Events

    def handle(self, events: list[Event], received_ns: int) -> None:
        """Handle what was received, until the turn of this connection ends."""
        self.handler.watch.add(self)
        self._is_busy = True
        self._events = left = iter(events)
        try:
            for event in left:
                if event.__class__ is RequestReceived:
                    self._on_request(event, received_ns)
                elif event.__class__ is DataReceived or event.__class__ is DataBuffered:
                    self._on_data(event)
                else:
                    self._on_event(event)
        finally:
            self._is_busy = False
        if (self.http2.has_output or self._held) and not self._is_flush_due:
            self.flush_soon()

    def _on_request(self, event: RequestReceived, now_ns: int) -> None:
        self._is_new = False
        received, stream_id = event.head, event.stream_id
        size = len(event.body) if event.end_stream else received.content_length or 0
        # The decoder gives requests with equal heads the same object, which so are checked once.
        head: RequestHead | None = received.memo
        if head is None or head.content_length != size:
            self.turn.spend(1)
            head = request_head(received, size)
            refusal = field_refusal(head, self.handler.limits) or head_refusal(
                head, "1.1", self.handler.limits, self.handler.origins
            )
            if refusal is not None:
                self._refuse(event, head, refusal)
                return
            if head.headers.get(b"content-type", b"").startswith(GRPC_TYPE):
                self._begin(stream_id).refuse_grpc(head)
                return
            received.memo = head
        if size > LARGE_BODY_BYTES and (refusal := self.handler.large_body_refusal(head, self)):
            self._begin(stream_id).refuse(head, *refusal)
            return
        began_ns = now_ns if self.handler.is_timed else 0
        if event.end_stream:
            self._on_complete(stream_id, HttpRequest(head, event.body, began_ns))
            return
        self._bodies[stream_id] = RequestBody(head, began_ns, self.handler.request_memory)
        if b"expect" in head.headers:
            self.http2.send_interim(stream_id, _CONTINUE)

    def _on_data(self, event: DataReceived | DataBuffered) -> None:
        stream_id = event.stream_id
        body = self._bodies.get(stream_id)
        if body is None:  # it was refused
            return
        size = event.size if isinstance(event, DataBuffered) else len(event.data)
        if not self._has_room(body, event, size):
            return
        if isinstance(event, DataBuffered):  # it is in its place already
            body.size += size
        else:
            body.add(event.data)
            if not event.end_stream and body.rest is not None:
                self.http2.set_buffer(stream_id, body.rest)
        self.http2.acknowledge(stream_id, size)
        if event.end_stream:
            self._end_body(stream_id, body)

    def _end_body(self, stream_id: int, body: RequestBody) -> None:
        """Answer a request whose body is complete."""
        del self._bodies[stream_id]
        if body.refusal is None:
            self._on_complete(stream_id, body.complete())
        else:
            self._begin(stream_id).refuse(body.head, *body.refusal)

    def _refuse(self, event: RequestReceived, head: RequestHead, refusal: tuple[int, str]) -> None:
        """Refuse a request by its head, after a small body that follows.

        Without that, the stream would be reset after the answer (RFC 9113, 8.1). Then curl 7.88
        reports an error of the protocol, and does not show the answer.
        """
        most = min(LARGE_BODY_BYTES, self.handler.limits.http_max_input_bytes)
        is_small = 0 < head.content_length <= most
        if event.end_stream or not is_small or b"expect" in head.headers:
            self._begin(event.stream_id).refuse(head, *refusal)
            return
        body = RequestBody(head, 0, self.handler.request_memory)
        body.refusal = refusal
        self._bodies[event.stream_id] = body

    def _has_room(self, body: RequestBody, event: DataReceived | DataBuffered, size: int) -> bool:
        """Provide for the next bytes of a body; returns False if it is refused."""
        head, limits = body.head, self.handler.limits
        whole = body.size + size
        refusal = None
        if whole > limits.http_max_input_bytes:  # its length was not announced
            refusal = size_refusal(head, whole, limits)
        elif body.size <= LARGE_BODY_BYTES < whole and not head.content_length:
            refusal = self.handler.large_body_refusal(head, self)
        if refusal is None:
            try:
                if not body.size and head.content_length > LARGE_BODY_BYTES:
                    body.use_memory(self.handler.body_memory(head, self))
                body.count(size, waits=not event.end_stream)
            except MemoryError:
                refusal = 503, f"no memory for a request body of {head.content_length} bytes"
            except UnavailableError as error:
                refusal = 503, error.message
        if refusal is not None:
            self._refuse_body(event.stream_id, *refusal)
        return refusal is None

    def _refuse_body(self, stream_id: int, status: int, message: str) -> None:
        body = self._bodies.pop(stream_id)
        self.http2.set_buffer(stream_id, None)
        body.drop()
        self._begin(stream_id).refuse(body.head, status, message)

    def _on_complete(self, stream_id: int, request: HttpRequest) -> None:
        stream = self._begin(stream_id)
        # A client that does not read its answers gets no more: they would be kept for it.
        if self.http2.is_output_full or self._held:
            stream.hold(request)
            self._held.append(stream)
        else:
            stream.handle(request)

    def _begin(self, stream_id: int) -> Http2Stream:
        stream = self._streams[stream_id] = self.handler.stream_class(self, stream_id)
        return stream

    def _on_event(self, event: Event) -> None:
        if isinstance(event, TrailersReceived):  # their fields are ignored
            body = self._bodies.get(event.stream_id)
            if body is not None:
                self._end_body(event.stream_id, body)
        elif isinstance(event, StreamReset):
            body = self._bodies.pop(event.stream_id, None)
            if body is not None:
                body.drop()
            stream = self._streams.pop(event.stream_id, None)
            if stream is not None:
                stream.abandon()
        elif isinstance(event, WriteResumed):
            stream = self._streams.get(event.stream_id)
            if stream is not None:
                stream.resume()
        elif isinstance(event, InputLeft):
            self.turn.end()
        elif isinstance(event, ConnectionTerminated):
            self._on_terminated(event)

    def _on_terminated(self, event: ConnectionTerminated) -> None:
        if event.code is not Http2ErrorCode.NO_ERROR:
            logger.info("HTTP/2 connection ended: %s", ascii(event.message))
        self._abandon_all()

    def remove(self, stream: Http2Stream) -> None:
        """Forget a stream whose answer was passed on, and write that."""
        self._was_used = True
        self._streams.pop(stream.stream_id, None)
        # Nothing else is expected: the next iteration would be 20 us later.
        if not self._streams and not self._is_busy:
            self.flush()
        elif not self._is_flush_due:
            self.flush_soon()

    def _abandon_all(self) -> None:
        streams, self._streams = self._streams, {}
        self._drop_bodies()
        self._held.clear()
        for stream in streams.values():
            stream.abandon()

    def _drop_bodies(self) -> None:
        bodies, self._bodies = self._bodies, {}
        for stream_id, body in bodies.items():
            self.http2.set_buffer(stream_id, None)
            body.drop()

    def flush(self) -> None:
        """Write the output until the transport pauses writing, then handle held requests."""
        self._is_busy = True
        try:
            super().flush()
            while self._held and self._can_write() and not self.turn.is_over:
                self._held.popleft().handle_held()
        finally:
            self._is_busy = False

    def _can_write(self) -> bool:
        is_full = self._is_writing_paused or self.http2.is_output_full
        return not is_full and not self.transport.is_closing()

    # Ending

    def close_after_answer(self) -> None:
        """Close once the client knows that it should leave, and has its answers."""
        self.begin_shutdown()

    def end(self) -> asyncio.Future[None]:
        """Close once all complete requests are answered; the future is done when it is closed."""
        self._on_lost = self._loop.create_future()
        if self._lingering is not None:
            self.transport.close()
        begun = (each for each in self._left if isinstance(each, RequestReceived))
        refused = {each.stream_id for each in begun if not each.end_stream}
        self._left = [each for each in self._left if getattr(each, "stream_id", 0) not in refused]
        # The client may send these again elsewhere (RFC 9113, 8.7).
        for stream_id in (*self._bodies, *refused):
            self.http2.reset(stream_id, Http2ErrorCode.REFUSED_STREAM)
        self._drop_bodies()
        self.http2.finish_shutdown()
        self.flush()
        return self._on_lost

    def _may_be_sending(self) -> bool:
        return super()._may_be_sending() or has_unread(self.transport)

    # Slow clients

    def check_progress(self, now: float) -> bool:
        """Close the connection if the client stalls; returns whether to continue checking."""
        now_ns = int(now * 1e9)
        self._is_busy = True
        try:
            if not self._check_writing(now_ns):
                return True
            self._check_reading(now, now_ns)
        finally:
            self._is_busy = False
        if self.http2.has_output or self.http2.should_close or self._held:
            self.flush_soon()
        is_busy = self.http2.open_streams > 0 or self._is_writing_paused
        return self._is_new or is_busy or self._has_incomplete_input()

    def _has_incomplete_input(self) -> bool:
        return self.http2.incomplete_input() is not None

    def _reset_unread(self, stream_id: int, code: Http2ErrorCode = Http2ErrorCode.CANCEL) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            self.http2.reset(stream_id, code)
        else:
            stream.drop(code)

    def uploads(self) -> Iterator[Holder]:
        """Returns the requests that take memory until their client sends or reads more."""
        if not self._is_reading_paused and not self._is_closing:
            for stream_id, body in self._bodies.items():
                if body.held_bytes and self.http2.can_peer_send(stream_id):
                    end = partial(self._end_upload, stream_id)
                    yield Holder((self, stream_id), body.held_bytes, body.size, end)
        # These wait until their client reads the answers to others.
        for stream in self._held:
            nbytes = stream.held_bytes
            if nbytes > LARGE_BODY_BYTES:
                read_bytes = self.count_unread().moved
                yield Holder((self, stream.stream_id), nbytes, read_bytes, stream.end_held)

    def _end_upload(self, stream_id: int, _: int) -> None:
        self._refuse_body(stream_id, 408, TOO_SLOW)

    def _check_reading(self, now: float, now_ns: int) -> None:
        """End requests and connections with incomplete input, unless the client waits for us."""
        limits = self.handler.limits
        for stream_id in self._check_input(now_ns, self._bodies):
            text = f"no progress of the request for {limits.body_stall_timeout_s:g} seconds"
            self._refuse_body(stream_id, 408, text)
        is_late = self._is_new and now - self._used_s > limits.header_timeout_s
        if is_late and not has_unread(self.transport):
            logger.info("HTTP client connected and sent no request: connection closed")
            self.http2.finish_shutdown()

    def check_idle(self, now: float) -> None:
        """Close the connection if it had no request for too long, and no data is unread."""
        if self._was_used or self.http2.open_streams > 0:
            self._used_s, self._was_used = now, False
        elif (
            now - self._used_s > self.handler.limits.http_idle_timeout_s
            and not self._is_closing
            and not has_unread(self.transport)
        ):
            self.http2.finish_shutdown()
            self.flush_soon()
