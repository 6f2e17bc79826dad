# SPDX-License-Identifier: Apache-2.0
"""One HTTP/2 connection of a port that also speaks HTTP/1.1: requests and answers of many streams.

The frames are those of `protocol/http2`. Requests become the records that the reader of HTTP/1.1
makes, and each is answered through an object of its own, so that the code that answers requests
need not know which version they came with.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.errors import UnavailableError
from pytriton.protocol.http2 import (
    ConnectionTerminated,
    DataBuffered,
    DataReceived,
    Http2Connection,
    Http2ErrorCode,
    Http2Limits,
    IncompleteInput,
    RequestReceived,
    StreamReset,
    TrailersReceived,
    WriteResumed,
    encode_header_block,
)
from pytriton.protocol.http2.frames import BodyFrames
from pytriton.runtime.transport.arena import forget
from pytriton.serving.server.api.stalls import ClientStalls
from pytriton.serving.server.http.connection import (
    JSON_TYPE,
    NO_CONTENT,
    RETRY_AFTER,
    UNAVAILABLE,
    HttpConnection,
    body_headers,
)
from pytriton.serving.server.http.reader import (
    HEADER_OVERHEAD_BYTES,
    LARGE_BODY_BYTES,
    HttpRequest,
    RequestHead,
    head_refusal,
    size_refusal,
)
from pytriton.serving.server.http.timeouts import LINGER_S, ClientTimeouts
from pytriton.serving.server.process.event_loop import has_unread, reader_of_parts, writer_of_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.protocol.http2 import Event, Http2RequestHead
    from pytriton.serving.server.api.request_memory import MemoryLease, RequestMemory
    from pytriton.serving.server.http.handler import HttpHandler
    from pytriton.serving.server.options.server_options import ClientLimits

logger = logging.getLogger(__name__)

_monotonic_ns = time.monotonic_ns
_JOINED_BYTES = 64 << 10  # up to this size, one copy is cheaper than a gathering write
# A client whose read of many requests took longer than this has to wait for the others.
_TURN_NS = 5_000_000
# A stream with so much unread output is reset if more comes: its model does not pause.
_MAX_UNREAD_BYTES = 2 << 30
_UNKNOWN_LENGTH = 1 << 62
# Smaller bodies do not count in the budget for memory: there are as many as streams at most.
_UNCOUNTED_BYTES = 4096
_NO_LIMIT = 2**62

_is_method = re.compile(rb"[A-Z][A-Z-]*").fullmatch
_is_target = re.compile(rb"[!-~]+").fullmatch  # what HTTP/1.1 allows in its first line
_is_value = re.compile(rb"[\t -~\x80-\xff]*").fullmatch

_CONTINUE = encode_header_block([(b":status", b"100")])
_BROKEN = Http2ErrorCode.INTERNAL_ERROR


def http2_limits(limits: ClientLimits) -> Http2Limits:
    """Returns the limits of a connection of an HTTP port."""
    return Http2Limits(
        # A head above the limit is answered, one above twice the limit ends the connection.
        max_header_block_bytes=2 * limits.http_max_header_bytes,
        max_header_list_bytes=2 * limits.http_max_header_bytes,
        max_queued_bytes=2 * _MAX_UNREAD_BYTES,
        max_stall_ns=int(limits.write_stall_timeout_s * 1e9),
        # Proxies and some clients ping idle connections. The work budget bounds pings, too.
        min_ping_interval_ns=0,
        min_idle_ping_interval_ns=0,
        max_ping_strikes=_NO_LIMIT,
    )


# Heads of requests


def request_head(received: Http2RequestHead, content_length: int) -> RequestHead:
    """Returns the head of a request as the reader of HTTP/1.1 would; it is not checked."""
    headers: dict[bytes, bytes] = {}
    fields = list(received.fields)
    if received.authority:
        # RFC 9113, 8.3.1: the authority takes the place of Host, which may be there as well.
        host = received.authority.encode("latin-1")
        fields = [(b"host", host), *(each for each in fields if each != (b"host", host))]
    for name, value in fields:
        if name not in headers:
            headers[name] = value
        else:
            # RFC 9113, 8.2.3: a Cookie may be split into several fields.
            separator = b"; " if name == b"cookie" else b", "
            headers[name] = separator.join((headers[name], value))
    return RequestHead(
        received.method.encode("latin-1"),
        received.path.encode("latin-1"),
        headers,
        fields,
        content_length=content_length,
    )


def _field_refusal(head: RequestHead, limits: ClientLimits) -> tuple[int, str] | None:
    """Returns why a head cannot be one of HTTP/1.1, which HTTP/2 must not be a way around."""
    hosts = sum(name == b"host" for name, _ in head.header_list)
    size = len(head.target) + sum(
        len(name) + len(value) + HEADER_OVERHEAD_BYTES for name, value in head.header_list
    )
    if size > limits.http_max_header_bytes:
        return 431, f"request headers exceed the maximum of {limits.http_max_header_bytes} bytes"
    if hosts != 1:
        found = "none" if not hosts else "several"
        return 400, f"expected one :authority or Host, got {found}"
    if not _is_method(head.method):
        return 400, f"malformed HTTP request: the method is {head.method[:100]!a}"
    if head.method != b"CONNECT" and not _is_target(head.target):
        return 400, f"malformed HTTP request: the target is {head.target[:100]!a}"
    for name, value in head.header_list:
        if not _is_value(value):
            return 400, f"malformed HTTP request: header {name!a} has control characters"
    return None


class RequestBody:
    """The body of a request that is not complete."""

    __slots__ = ("_budget", "_data", "_lease", "_memory", "began_ns", "head", "size")

    def __init__(self, head: RequestHead, began_ns: int, budget: RequestMemory) -> None:
        self.head = head
        self.began_ns = began_ns
        self.size = 0  # what has been received
        self._budget = budget
        self._lease: MemoryLease | None = None  # unless it is small
        self._memory: memoryview | None = None  # for all of a large body
        self._data: bytes | bytearray = b""

    def use_memory(self, memory: memoryview) -> None:
        """Keep the body in this memory, which is as large as it is announced."""
        self._lease = self._budget.lease()
        self._memory = self._lease.attach(memory)

    def count(self, size: int) -> None:
        """Count received bytes; UnavailableError if there is no memory for them."""
        self.size += size
        if self._lease is not None:
            self._lease.grow(size)
        elif self.size > _UNCOUNTED_BYTES:
            self._lease = self._budget.lease()
            self._lease.grow(self.size)

    def drop(self) -> None:
        """Give the memory of a body back that will not be complete."""
        if self._memory is not None:
            forget(self._memory)
        self._memory = self._lease = None
        self._data = b""

    @property
    def rest(self) -> memoryview | None:
        """The memory for the data that follows, if that has a place."""
        return None if self._memory is None else self._memory[self.size :]

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Add received data, which was counted."""
        if self._memory is not None:
            self._memory[self.size - len(data) : self.size] = data
        elif not self._data:
            self._data = bytes(data)
        else:
            # One growing buffer: thousands of small objects would need many times their size.
            if isinstance(self._data, bytes):
                self._data = bytearray(self._data)
            self._data += data

    def complete(self) -> HttpRequest:
        """Returns the request, as all of its body was received."""
        head = self.head
        if head.content_length != self.size:  # it was not announced
            head = msgspec.structs.replace(head, content_length=self.size, resolved=None)
        body: Buffer = self._data
        if self._memory is not None:
            body = self._memory
        elif self._lease is not None:
            body = self._lease.attach(body)
        return HttpRequest(head, body, self.began_ns)

    def incomplete_input(self) -> IncompleteInput:
        """Returns what is missing, for the timeout of slow clients."""
        whole = self.head.content_length or _UNKNOWN_LENGTH
        return IncompleteInput("a request body", 0, whole - self.size)


# Heads of responses


@functools.lru_cache(maxsize=1024)  # most answers differ in their length at most
def response_block(
    status: int, content_type: bytes, headers: bytes, size: int | None = None
) -> bytes:
    """Returns the header block of a response; `headers` are whole lines of HTTP/1.1."""
    fields = [(b":status", b"%d" % status)]
    if status == NO_CONTENT:  # it has neither a type nor a length
        size = None
    else:
        fields.append((b"content-type", content_type))
    for line in headers.split(b"\r\n"):
        if line:
            name, _, value = line.partition(b":")
            fields.append((name.lower(), value.strip()))
    if size is not None:
        fields.append((b"content-length", b"%d" % size))
    return encode_header_block(fields)


@functools.lru_cache(maxsize=4096)
def small_frames(json_length: int | None, size: int) -> BodyFrames:
    """Returns the frames of the answer to an inference, which lack the stream and the body."""
    return BodyFrames(response_block(200, *body_headers(json_length, "identity"), size), size)


class Http2Stream(HttpConnection):
    """The answer to one request."""

    def __init__(self, connection: Http2ServerConnection, stream_id: int) -> None:
        super().__init__(connection.handler)
        self._connection = connection
        self.stream_id = stream_id

    @property
    def peer(self) -> Any:
        """Who is at the other end of all streams, once a policy has asked for it."""
        return self._connection.peer

    @peer.setter
    def peer(self, peer: Any) -> None:
        self._connection.peer = peer

    def get_extra_info(self, name: str) -> Any:
        """Returns a fact about the transport; None if it is not known."""
        return self._connection.get_extra_info(name)

    def handle(self, request: HttpRequest) -> None:
        """Answer a request, now or later."""
        self._handle(request)

    def hold(self, request: HttpRequest) -> None:
        """Keep a request that cannot be answered yet; see `handle_held`."""
        self._current = request

    def handle_held(self) -> None:
        """Answer the request that was held, unless the client does not want it any more."""
        if self._current is not None:
            self._handle(self._current)

    def refuse(self, head: RequestHead, status: int, message: str) -> None:
        """Answer a request that is refused, whatever its body is."""
        self._current = HttpRequest(head)
        self._handler.count_refusal(status, message)
        self._handler.on_unread(head, status, message)
        self.respond_error(status, message, RETRY_AFTER if status == UNAVAILABLE else b"")

    def respond(
        self,
        status: int,
        parts: Sequence[Buffer] = (),
        content_type: bytes = JSON_TYPE,
        headers: bytes = b"",
    ) -> None:
        """Answer the request; `headers` are whole lines."""
        request = self._current
        if request is None:  # the client has reset the stream
            return
        if self._is_streaming:  # a reset tells the client that the streamed response is incomplete
            self.drop(_BROKEN)
            return
        head, cors = request.head, self._connection.cors
        if cors is not None and head.method != b"OPTIONS":  # those say it themselves
            headers += cors.answer_headers(head.headers.get)
        block = response_block(status, content_type, headers, sum(map(len, parts)))
        body = () if head.method == b"HEAD" else parts
        self._connection.http2.send_body(self.stream_id, block, body)
        self._end()

    def respond_small(
        self, json_length: int | None, body: bytes, encoding: str = "identity"
    ) -> None:
        """Answer an inference with a small body, like `respond(200, [body])` in less time."""
        if self._current is None:
            return
        if encoding == "identity":
            frames = small_frames(json_length, len(body))
            if self._connection.http2.send_whole(self.stream_id, frames, (body,)):
                self._end()
                return
        # The windows of the client are too small, or the answer is compressed.
        self.respond(200, (body,), *body_headers(json_length, encoding))

    def begin_stream(self, status: int, content_type: bytes, headers: bytes = b"") -> None:
        """Begin a response of unknown length, with lines of headers; `stream` follows."""
        request, cors = self._current, self._connection.cors
        if request is None:
            return
        self._is_streaming = True
        if cors is not None:
            headers += cors.answer_headers(request.head.headers.get)
        block = response_block(status, content_type, headers)
        self._connection.http2.send_headers(self.stream_id, block)
        self._connection.flush_soon()

    def stream(self, part: bytes) -> None:
        """Send a part of a streamed response; an empty part is ignored."""
        if self._current is None or not part:
            return
        http2 = self._connection.http2
        if http2.queued_bytes(self.stream_id) >= _MAX_UNREAD_BYTES:
            logger.info("HTTP client read too little of a streamed response: stream reset")
            self.drop(Http2ErrorCode.ENHANCE_YOUR_CALM)
            return
        if not http2.send_data(self.stream_id, part) and not self.is_writing_paused:
            self.is_writing_paused = True
            if self._exchange is not None:
                self._exchange.pause()
        self._connection.flush_soon()

    def end_stream(self) -> None:
        """End a streamed response."""
        if self._current is None:
            return
        self._is_streaming = False
        self._connection.http2.send_data(self.stream_id, b"", end_stream=True)
        self._end()

    def resume(self) -> None:
        """Called when the client has read most of the output."""
        self.is_writing_paused = False
        if self._exchange is not None:
            self._exchange.resume()

    def _end(self) -> None:
        self._current = self._exchange = None
        self._connection.remove(self)

    def abandon(self) -> None:
        """Called when the client does not want the answer any more, or cannot get it."""
        exchange, self._exchange = self._exchange, None
        self._current = None
        if exchange is not None:
            exchange.abandon()

    def drop(self, code: Http2ErrorCode) -> None:
        """Reset the stream, whose answer stays incomplete."""
        self._connection.http2.reset(self.stream_id, code)
        self._connection.remove(self)
        self.abandon()


class Http2ServerConnection(asyncio.BufferedProtocol):
    """The protocol object of one client's connection."""

    peer: Any = None  # who is at the other end, once a policy has asked for it
    client_ticket: object = None  # set by who accepted the client, and returned to it

    def __init__(self, handler: HttpHandler) -> None:
        self.handler = handler
        # The answers to pages of other origins have more headers, if some are allowed.
        self.cors = handler.origins if handler.origins.has_cors else None
        self.http2 = Http2Connection(handler.http2_limits)
        self.transport: Any = None
        self._loop = handler.loop
        self._write_parts: Any = None
        self._read_parts: Any = None
        self._direct_bytes = 0  # the size of the memory for the next read, if a body has some
        self._bodies: dict[int, RequestBody] = {}  # of requests that are not complete
        self._streams: dict[int, Http2Stream] = {}  # of requests that are not answered
        self._held: deque[Http2Stream] = deque()  # of these, the ones that nobody handles yet
        self._is_flush_due = False
        self._is_busy = False  # within events or a flush: what is answered then is written after it
        self._is_writing_paused = False
        self._is_reading_paused = False
        self._is_closing = False
        self._lingering: asyncio.TimerHandle | None = None
        self._stalls = ClientStalls(handler.limits)
        self._timeouts = ClientTimeouts(handler.limits)
        self._is_new = True  # there was no request yet
        self._was_used = False  # since the last check for idle connections
        self._began_s = 0.0
        self._on_lost: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Http2ServerConnection {len(self._streams)} requests, {self.http2!r}>"

    def get_extra_info(self, name: str) -> Any:
        """Returns a fact about the transport; None if it is not known."""
        return self.transport.get_extra_info(name)

    # Transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._write_parts = writer_of_parts(transport)
        self._read_parts = reader_of_parts(transport)
        self.handler.connections.add(self)
        self._began_s = self._loop.time()
        self._timeouts.begin(self._began_s)
        self.handler.watch.add(self)
        self.handler.idle_watch.start()
        if self.handler.is_leaving:
            self.http2.begin_shutdown()
        self.flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self.handler.connections.discard(self)
        self.handler.watch.discard(self)
        self._abandon_requests()
        if self._lingering is not None:
            self._lingering.cancel()
        if self._on_lost is not None:
            self._on_lost.set_result(None)

    def eof_received(self) -> bool:
        return False

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
            self._handle(http2.buffer_updated(nbytes, now_ns), now_ns)
            return
        data = self.handler.read_buffer[:nbytes]
        # Frames of large bodies are copied to their places. Requests in bytes are read faster.
        self._handle(http2.receive(data if http2.has_buffers else bytes(data), now_ns), now_ns)
        if nbytes == len(self.handler.read_buffer) and _monotonic_ns() - now_ns > _TURN_NS:
            # The transport would read on at once: let other clients be served before.
            self._pause_reading()
            self.flush_soon()

    def receive_first(self, data: bytes) -> None:
        """Process bytes that were read before this became the protocol of the transport."""
        now_ns = _monotonic_ns()
        self._handle(self.http2.receive(data, now_ns), now_ns)

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._flush_now()

    # Events

    def _handle(self, events: list[Event], now_ns: int) -> None:
        self.handler.watch.add(self)
        self._is_busy = True
        try:
            for event in events:
                if event.__class__ is RequestReceived:
                    self._on_request(event, now_ns)
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
            head = request_head(received, size)
            refusal = _field_refusal(head, self.handler.limits) or head_refusal(
                head, "1.1", self.handler.limits, self.handler.origins
            )
            if refusal is not None:
                self._begin(stream_id).refuse(head, *refusal)
                return
            received.memo = head
        large_refusal = self._large_refusal(head) if size > LARGE_BODY_BYTES else None
        if large_refusal is not None:
            self._begin(stream_id).refuse(head, *large_refusal)
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
        if not self._has_room(stream_id, body, size):
            return
        if isinstance(event, DataReceived):  # the others are in their place already
            body.add(event.data)
            if not event.end_stream and body.rest is not None:
                self.http2.set_buffer(stream_id, body.rest)
        self.http2.acknowledge(stream_id, size)
        if event.end_stream:
            del self._bodies[stream_id]
            self._on_complete(stream_id, body.complete())

    def _has_room(self, stream_id: int, body: RequestBody, size: int) -> bool:
        """Provide for the next bytes of a body; returns False if it is refused."""
        head, limits = body.head, self.handler.limits
        whole = body.size + size
        refusal = None
        if whole > limits.http_max_input_bytes:  # its length was not announced
            refusal = size_refusal(head, whole, limits)
        elif body.size <= LARGE_BODY_BYTES < whole and not head.content_length:
            refusal = self._large_refusal(head)
        if refusal is None:
            try:
                if not body.size and head.content_length > LARGE_BODY_BYTES:
                    body.use_memory(self.handler.body_memory(head, self))
                body.count(size)
            except MemoryError:
                refusal = 503, f"no memory for a request body of {head.content_length} bytes"
            except UnavailableError as error:
                refusal = 503, error.message
        if refusal is not None:
            self._refuse_body(stream_id, *refusal)
        return refusal is None

    def _large_refusal(self, head: RequestHead) -> tuple[int, str] | None:
        """Returns why a request may have no large body; None if it may."""
        refusal = self.handler.large_body_refusal(head, self)
        if refusal is not None:
            return refusal
        problem = self.handler.request_memory.refusal(head.content_length)
        return None if problem is None else (503, problem)

    def _refuse_body(self, stream_id: int, status: int, message: str) -> None:
        body = self._bodies.pop(stream_id)
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
            body = self._bodies.pop(event.stream_id, None)
            if body is not None:
                self._on_complete(event.stream_id, body.complete())
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
        elif isinstance(event, ConnectionTerminated):
            if event.code is not Http2ErrorCode.NO_ERROR:
                logger.info("HTTP/2 connection ended: %s", ascii(event.message))
            self._abandon_requests()

    def remove(self, stream: Http2Stream) -> None:
        """Forget a stream whose answer was passed on, and write that."""
        self._was_used = True
        self._streams.pop(stream.stream_id, None)
        # Nothing else is expected: the next iteration would be 20 us later.
        if not self._streams and not self._is_busy:
            self._flush_now()
        elif not self._is_flush_due:
            self.flush_soon()

    def _abandon_requests(self) -> None:
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

    # Writing

    def flush_soon(self) -> None:
        """Schedule a call of `flush`, so that the output of an iteration is written at once."""
        if not self._is_flush_due and not self._is_closing:
            self._is_flush_due = True
            self.handler.flush_soon(self)

    def flush(self) -> None:
        """Write the output, because `flush_soon` was called."""
        self._is_flush_due = False
        self._flush_now()

    def _flush_now(self) -> None:
        """Write the output until the transport pauses writing."""
        http2 = self.http2
        if self._is_closing or self.transport.is_closing():
            return
        if not self._is_writing_paused:
            self._is_busy = True
            try:
                self._write_all()
            finally:
                self._is_busy = False
        # Output that is left in the transport is still written after `close`.
        if http2.should_close and not self._is_writing_paused:
            self._leave()
        # Output that waits only for the client's windows is no reason: WINDOW_UPDATE has to be
        # read.
        elif self._is_writing_paused and http2.is_output_full:
            self._pause_reading()
        else:
            self._resume_reading()

    def _write_all(self) -> None:
        http2 = self.http2
        # Taking output may resume writers, which add output.
        while output := http2.take_output():
            self._write(output)
            for event in http2.take_events():
                self._on_event(event)
            if self._is_writing_paused or not http2.has_output:
                break
        while self._held and not http2.is_output_full:
            self._held.popleft().handle_held()

    def _write(self, output: list[Buffer]) -> None:
        if len(output) == 1:
            self.transport.write(output[0])
        elif sum(map(len, output)) <= _JOINED_BYTES:
            self.transport.write(b"".join(output))
        else:
            self._write_parts(output)

    def _pause_reading(self) -> None:
        """Stop reading from a client, until the next `flush` at least."""
        if not self._is_reading_paused and not self._is_closing:
            self._is_reading_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            self.transport.resume_reading()

    # Ending

    def begin_shutdown(self) -> None:
        """Ask the client to send no more requests here; those that it has sent are answered."""
        self.http2.begin_shutdown()
        self.flush_soon()

    def close_after_answer(self) -> None:
        """Close once the client knows that it should leave, and has its answers."""
        self.begin_shutdown()

    def end(self) -> asyncio.Future[None]:
        """Close once all complete requests are answered; the future is done when it is closed."""
        self._on_lost = self._loop.create_future()
        if self._lingering is not None:
            self.transport.close()
        # The client may send these again elsewhere (RFC 9113, 8.7).
        for stream_id in self._bodies:
            self.http2.reset(stream_id, Http2ErrorCode.REFUSED_STREAM)
        self._drop_bodies()
        self.http2.finish_shutdown()
        self._flush_now()
        return self._on_lost

    def _leave(self) -> None:
        """Close our side of the connection.

        A socket that is closed with unread input is reset, and the client may lose its last answers
        by that. So what it still sends is discarded for a while.
        """
        is_sending = self.http2.is_terminated or has_unread(self.transport)
        self._is_closing = True
        if not is_sending or not self.transport.can_write_eof():
            self._abandon_requests()
            self.transport.close()
            return
        self._resume_reading()
        self.transport.write_eof()
        self._lingering = self._loop.call_later(LINGER_S, self.transport.close)

    # Slow clients

    def check_progress(self, now: float) -> bool:
        """Close the connection if the client stalls; returns whether to continue checking."""
        now_ns = int(now * 1e9)
        is_waiting = self._is_writing_paused or self._is_closing
        unsent_bytes = self.transport.get_write_buffer_size() if is_waiting else None
        if self._stalls.is_write_stalled(now_ns, unsent_bytes):
            logger.info("HTTP client read no responses for too long: connection closed")
            self._is_closing = True
            self.transport.abort()
            return False
        if self._is_closing:
            return True
        self._is_busy = True
        try:
            for stream_id in self.http2.stalled_streams(now_ns):
                logger.info("HTTP client read nothing of a response for too long: stream reset")
                self._drop(stream_id)
            self._check_reading(now, now_ns)
        finally:
            self._is_busy = False
        if self.http2.has_output or self.http2.should_close or self._held:
            self.flush_soon()
        return self._is_new or self.http2.open_streams > 0 or self._has_incomplete_input()

    def _has_incomplete_input(self) -> bool:
        return self.http2.incomplete_input() is not None

    def _drop(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            self.http2.reset(stream_id)
        else:
            stream.drop(Http2ErrorCode.CANCEL)

    def _check_reading(self, now: float, now_ns: int) -> None:
        """End requests and connections with incomplete input, unless the client waits for us."""
        http2, limits = self.http2, self.handler.limits
        bodies = {} if self._is_reading_paused else self._bodies
        incomplete = None if self._is_reading_paused else http2.incomplete_input()
        if self._stalls.is_input_stalled(now_ns, incomplete) and incomplete is not None:
            text = f"{incomplete.description} came too slowly"
            http2.abort(Http2ErrorCode.ENHANCE_YOUR_CALM, text)
            for event in http2.take_events():
                self._on_event(event)
            return
        awaited = {
            stream_id: body.incomplete_input()
            for stream_id, body in bodies.items()
            if http2.can_peer_send(stream_id)
        }
        for stream_id in self._stalls.stalled_requests(now_ns, awaited):
            text = f"no progress of the request for {limits.body_stall_timeout_s:g} seconds"
            self._refuse_body(stream_id, 408, text)
        is_late = self._is_new and now - self._began_s > limits.header_timeout_s
        if is_late and not has_unread(self.transport):
            logger.info("HTTP client connected and sent no request: connection closed")
            http2.finish_shutdown()

    def check_idle(self, now: float) -> None:
        """Close the connection if it had no request for too long, and no data is unread."""
        is_in_use = self._was_used or self.http2.open_streams > 0
        self._was_used = False
        if (
            self._timeouts.is_idle(now, is_in_use=is_in_use)
            and not self._is_closing
            and not has_unread(self.transport)
        ):
            self.http2.finish_shutdown()
            self.flush_soon()
