# SPDX-License-Identifier: Apache-2.0
"""One connection of HTTP/1.1: it receives requests and sends responses in order.

A response is sent whole or as a stream. The reader parses requests; here are keep-alive,
pipelining, flow control, and clients' timeouts.
"""

from __future__ import annotations

import asyncio
import enum
import http
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from pytriton.serving.server.api.pace import LINGER_S, Holder, InputTimer, OutputTimer
from pytriton.serving.server.api.shortage import TOO_SLOW
from pytriton.serving.server.api.turns import Turn
from pytriton.serving.server.http.connection import (
    BINARY_TYPE,
    JSON_LENGTH_LINE,
    JSON_TYPE,
    NO_CONTENT,
    HttpConnection,
    HttpRefusal,
    body_headers,
    plain_refusal,
)
from pytriton.serving.server.http.reader import RequestReader
from pytriton.serving.server.http.request import LARGE_BODY_BYTES, HttpRequest, RequestHead
from pytriton.serving.server.process.event_loop import has_unread, writer_of_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.serving.server.http.handler import HttpHandler


logger = logging.getLogger(__name__)


class ConnectionState(enum.Enum):
    """The state of a connection."""

    OPEN = "requests are read and answered"
    LINGERING = "the last response was sent, further input is discarded"
    CLOSING = "the written output is being sent"
    CLOSED = "the connection is closed"


TRANSITIONS: dict[ConnectionState, frozenset[ConnectionState]] = {
    ConnectionState.OPEN: frozenset(
        {ConnectionState.LINGERING, ConnectionState.CLOSING, ConnectionState.CLOSED}
    ),
    ConnectionState.LINGERING: frozenset({ConnectionState.CLOSING, ConnectionState.CLOSED}),
    ConnectionState.CLOSING: frozenset({ConnectionState.CLOSED}),
    ConnectionState.CLOSED: frozenset(),
}


class Expectation(NamedTuple):
    """The client waits for `100 Continue` before it sends the body of its next request."""


READ_BYTES = 64 << 10
MAX_PIPELINED = 16
MAX_WAITING_BYTES = 64 << 10  # of bodies that wait; one more may come with the same read
_OPEN, _LINGERING = ConnectionState.OPEN, ConnectionState.LINGERING
_CLOSING, _CLOSED = ConnectionState.CLOSING, ConnectionState.CLOSED

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

STATUS_LINES: dict[int, bytes] = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
} | {499: b"HTTP/1.1 499 Client Closed Request\r\n"}
# Responses after which the connection is kept. They lack lengths and the body.
JSON_RESPONSE = b"%bContent-Type: %b\r\nContent-Length: %%d\r\n\r\n%%b" % (
    STATUS_LINES[200],
    JSON_TYPE,
)
BINARY_RESPONSE = b"%bContent-Type: %b\r\n%bContent-Length: %%d\r\n\r\n%%b" % (
    STATUS_LINES[200],
    BINARY_TYPE,
    JSON_LENGTH_LINE,
)


def response_head(
    status: int,
    content_type: bytes,
    headers: bytes,
    size: int | None,
    *,
    closes: bool,
    is_http_10: bool = False,
) -> bytes:
    """Returns the head of a response with `size` bytes; `headers` are whole lines.

    Without a size it is chunked; in HTTP 1.0, the end of the connection is that of the response.
    """
    if closes:
        headers += b"Connection: close\r\n"
    elif is_http_10:
        headers += b"Connection: keep-alive\r\n"
    if status == NO_CONTENT:  # RFC 9110, 8.6: it has no length
        return b"%b%b\r\n" % (STATUS_LINES[status], headers)
    if size is not None:
        headers += b"Content-Length: %d\r\n" % size
    elif not is_http_10:
        headers += b"Transfer-Encoding: chunked\r\n"
    return b"%bContent-Type: %b\r\n%b\r\n" % (STATUS_LINES[status], content_type, headers)


def encode_refusal(answer: HttpRefusal, headers: bytes = b"") -> bytes:
    """Returns the last response on a connection; `headers` are further lines."""
    headers += answer.headers
    head = response_head(answer.status, JSON_TYPE, headers, len(answer.body), closes=True)
    return head + answer.body


class Http1Connection(HttpConnection, asyncio.BufferedProtocol):
    """The protocol object of one client's connection."""

    client_ticket: object = None  # set by who accepted the client, and returned to it

    def __init__(self, handler: HttpHandler) -> None:
        super().__init__(handler)
        self._loop = handler.loop
        self._transport: Any = None
        self._write_parts: Any = None
        self._state = _OPEN
        self._closes_when_idle = handler.is_leaving
        # Whether small answers take the same way as others: somebody observes them, for example.
        self._has_one_way = handler.is_leaving or handler.answers is not None
        self.turn = Turn(handler.turns, self)

        self._reader = RequestReader(
            self,
            handler.limits,
            handler.origins,
            handler.cached_heads,
            handler.request_memory,
            self.turn,
            is_timed=handler.is_timed,
        )
        self._body = self._reader.body
        self._is_reading_paused = False

        # Responding, in order
        self._waiting: deque[HttpRequest | Expectation | HttpRefusal] = deque()
        self._waiting_bytes = 0  # of the bodies of these requests
        self._is_processing_scheduled = False
        # Whether the next request waits: for those before it, for the client, or for other clients.
        self._is_behind = False

        self._input_timer = InputTimer(handler.limits)
        self._output_timer = OutputTimer(handler.limits)
        self._was_used = False  # since the last check for idle connections
        self._used_s = 0.0  # when that was checked and it was, or the client has connected
        self._unread_bytes = 0  # of answers that the client has not read, as they were counted
        self._unsent_bytes = self._read_bytes = 0  # of these, what is left; what was read of all
        self._on_lost: asyncio.Future[None] | None = None

    def _become(self, state: ConnectionState) -> None:
        assert state in TRANSITIONS[self._state], f"{self._state} -> {state}"
        self._state = state

    def __repr__(self) -> str:
        is_answering = self._current is not None
        return f"<Http1Connection {self._state.name} {is_answering=} waiting={len(self._waiting)}>"

    def get_extra_info(self, name: str) -> Any:
        """Returns a fact about the transport; None if it is not known."""
        return self._transport.get_extra_info(name)

    # Transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._write_parts = writer_of_parts(transport)
        self._handler.connections.add(self)
        self._used_s = self._loop.time()
        self._handler.watch.add(self)
        self._handler.idle_watch.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._become(_CLOSED)
        self._handler.connections.discard(self)
        self._handler.watch.discard(self)
        self._handler.unread.count(self, 0)
        self._abandon_requests()
        if self._on_lost is not None:
            self._on_lost.set_result(None)

    def eof_received(self) -> bool:
        self.close()
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body.memory is None:
            return self._handler.read_buffer
        return self._body.memory[self._body.size :]

    def buffer_updated(self, nbytes: int) -> None:
        reader = self._reader
        if self._body.memory is not None:
            reader.buffer_updated(nbytes)
        elif not reader.is_over:
            reader.feed(bytes(self._handler.read_buffer[:nbytes]))
        if reader.is_mid_request and not reader.is_over:
            self._handler.watch.add(self)
            if self._body.memory is None:
                reader.count_part(nbytes)

    def pause_writing(self) -> None:
        self._is_behind = True
        self._pause_exchange()
        self._watch_writing()

    def resume_writing(self) -> None:
        self._end_counting()
        self._resume_exchange()
        self._is_behind = bool(self._waiting) or self.turn.is_over
        self._process_waiting_soon()

    # Reader callbacks

    def on_http2(self, data: bytes) -> None:
        """Let a connection of HTTP/2 take the place of this one, whose first bytes are `data`."""
        self._reader.stop()
        self._become(_CLOSED)
        self._handler.begin_http2(self, self._transport, data)

    def on_request(self, request: HttpRequest) -> None:
        """Handle a request, or queue it until those before it are answered."""
        # RFC 9112, 9.3.2: responses to pipelined requests are sent in their order, so one is
        # answered at a time.
        if self._current is None and not self._is_behind:
            self._handle(request)
        else:
            self._enqueue(request)

    def on_expectation(self) -> None:
        """Send `100 Continue` once the requests before this one are answered."""
        if self._current is None and not self._waiting:
            self._transport.write(CONTINUE)
        else:
            self._enqueue(Expectation())

    def on_refusal(self, status: int, message: str) -> None:
        """Refuse an invalid request after the responses to earlier ones; end the connection."""
        reader = self._reader
        logger.debug("HTTP error %d: %s", status, message)
        self._handler.count_refusal(status, message)
        if reader.is_mid_request and not reader.is_in_head:
            answer = self._handler.on_unread(reader.head, status, message)
        else:
            answer = plain_refusal(status, message)
        if self._current is None and not self._waiting:
            self._send_refusal(answer)
        else:
            self._enqueue(answer)

    def body_memory(self, head: RequestHead) -> memoryview:
        """Returns the memory for the body of a large request."""
        return self._handler.body_memory(head, self)

    def forget_heads(self) -> None:
        """Do nothing: the heads that are known are the handler's."""

    def large_body_refusal(self, head: RequestHead) -> tuple[int, str] | None:
        """Returns why a request may have no large body; None if it may."""
        return self._handler.large_body_refusal(head, self)

    def _enqueue(self, item: HttpRequest | Expectation | HttpRefusal) -> None:
        self._waiting.append(item)
        self._is_behind = True
        if isinstance(item, HttpRequest):
            self._waiting_bytes += len(item.body)
        # A client that sends without reading is not read from, either.
        is_full = len(self._waiting) >= MAX_PIPELINED or self._waiting_bytes > MAX_WAITING_BYTES
        if is_full:
            self._pause_reading()

    # Responding

    def _send(
        self,
        head: RequestHead,
        status: int,
        parts: Sequence[Buffer],
        size: int,
        content_type: bytes,
        headers: bytes,
    ) -> None:
        closes = not head.keep_alive or (self._closes_when_idle and not self._waiting)
        text = response_head(
            status, content_type, headers, size, closes=closes, is_http_10=head.is_http_10
        )
        if head.method == b"HEAD":
            self._transport.write(text)
        elif size <= LARGE_BODY_BYTES:
            self._transport.write(b"".join((text, *parts)))
        else:
            self._write_parts([text, *parts])
        self._end_exchange(closes=closes)

    def _break_off(self) -> None:
        self.close()

    def respond_small(
        self, json_length: int | None, body: bytes, encoding: str = "identity"
    ) -> None:
        """Answer an inference with a small body, like `respond(200, [body])` in 0.6 us less."""
        if self._has_one_way or encoding != "identity":
            self.respond(200, (body,), *body_headers(json_length, encoding))
        elif self._current is not None:
            if json_length is None:
                response = JSON_RESPONSE % (len(body), body)
            else:
                response = BINARY_RESPONSE % (json_length, len(body), body)
            self._transport.write(response)
            self._current = self._exchange = None
            self._was_used = True
            if self._waiting:
                self._process_waiting_soon()

    def _send_stream_head(
        self, head: RequestHead, status: int, content_type: bytes, headers: bytes
    ) -> None:
        closes, is_http_10 = self._closes_after_stream(head), head.is_http_10
        self._transport.write(
            response_head(status, content_type, headers, None, closes=closes, is_http_10=is_http_10)
        )

    def stream(self, part: bytes) -> None:
        """Send a part of a streamed response; an empty part is ignored."""
        request = self._current
        if request is None or not part:
            return
        if self.watched is not None:
            self.watched.add(len(part))
        if not request.head.is_http_10:
            part = b"%x\r\n%b\r\n" % (len(part), part)
        self._transport.write(part)

    def _send_stream_end(self, head: RequestHead) -> None:
        if not head.is_http_10:
            self._transport.write(b"0\r\n\r\n")
        self._end_exchange(closes=self._closes_after_stream(head))

    def _closes_after_stream(self, head: RequestHead) -> bool:
        is_last = self._closes_when_idle and not self._waiting
        return is_last or not head.keep_alive or head.is_http_10

    def _end_exchange(self, *, closes: bool) -> None:
        self._current = self._exchange = None
        self._was_used = True
        if closes:
            self.close()
        elif self._waiting:
            # Not at once, so that the caller does not wait until the next request is handled.
            self._process_waiting_soon()

    def _process_waiting_soon(self) -> None:
        if self._waiting and not self._is_processing_scheduled:
            self._is_processing_scheduled = True
            self._loop.call_soon(self._process_waiting)

    def _process_waiting(self) -> None:
        """Process queued requests until one is answered later, or others are served first."""
        turn = self.turn
        while (
            self._waiting and self._current is None and not (self.is_writing_paused or turn.is_over)
        ):
            item = self._waiting.popleft()
            if isinstance(item, HttpRequest):
                self._waiting_bytes -= len(item.body)
                self._handle(item)
            elif isinstance(item, Expectation):
                self._transport.write(CONTINUE)
            else:
                self._send_refusal(item)
        self._is_processing_scheduled = False
        self._is_behind = bool(self._waiting) or self.is_writing_paused or turn.is_over
        self._read_on()

    def _read_on(self) -> None:
        """Let the transport read more if there is room, and nothing waits for the next turn."""
        has_room = self._waiting_bytes <= MAX_WAITING_BYTES
        is_short = has_room and len(self._waiting) <= MAX_PIPELINED // 2
        is_left = self.turn.is_over or self._reader.has_rest
        if self._is_reading_paused and is_short and not is_left:
            self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_reading_paused and self._state in (_OPEN, _LINGERING):
            self._is_reading_paused = False
            self._transport.resume_reading()

    # Turns

    def end_turn(self) -> None:
        """Let the requests that follow wait, and read no more before the next turn."""
        if self._state is _OPEN and not self._transport.is_closing():
            self._is_behind = True
            self._pause_reading()

    def begin_turn(self) -> None:
        """Process the requests that wait, and then what was read after them."""
        if self._state is not _OPEN:
            return
        reader = self._reader
        self._process_waiting()
        if self.turn.is_over or not reader.has_rest:
            return
        reader.read_rest()
        if reader.is_mid_request and not reader.is_over:
            self._handler.watch.add(self)
        if self._state is _OPEN:
            self._read_on()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    # Ending

    def _send_refusal(self, answer: HttpRefusal) -> None:
        if self._handler.answers is not None:
            self._handler.answers.refused(self, self._reader.head, answer)
        headers, cors = b"", self._handler.cors
        if cors is not None:
            headers = cors.answer_headers(self._reader.head.headers.get)
        self._transport.write(encode_refusal(answer, headers))
        self._linger()

    def _linger(self) -> None:
        """Close our side of the connection, and discard what the client still sends."""
        self._reader.stop()
        if not self._transport.can_write_eof():
            self.close()
            return
        # RFC 9112, 9.6: closing a socket with unread input resets it, and the last response is
        # lost.
        self._transport.write_eof()
        self._become(_LINGERING)
        self._loop.call_later(LINGER_S, self.close)
        self._resume_reading()
        self._watch_writing()

    def close(self) -> None:
        """Close the connection once the written output is sent; open requests are abandoned."""
        if self._state in (_CLOSING, _CLOSED):
            return
        self._become(_CLOSING)
        self._abandon_requests()
        self._transport.close()
        self._watch_writing()

    def close_when_idle(self) -> None:
        """Close the connection once all complete requests are answered."""
        self._reader.stop()
        if self._is_held_back:
            self._waiting.pop()  # its body would not be read
        if self._current is None and not self._waiting:
            self.close()
        else:
            self.close_after_answer()

    def begin_shutdown(self) -> None:
        """Do nothing: whatever a client still asks is answered, and `end` follows."""

    def close_after_answer(self) -> None:
        """Close after an answer that says so; a client that is told sends nothing in vain."""
        self._closes_when_idle = self._has_one_way = True

    def end(self) -> asyncio.Future[None]:
        """Close the connection like `close_when_idle`; the future is done when it is closed."""
        self._on_lost = self._loop.create_future()
        self.close_when_idle()
        return self._on_lost

    def _abandon_requests(self) -> None:
        """Drop all requests, and abandon the current exchange."""
        self._reader.stop()
        self._waiting.clear()
        self._waiting_bytes = 0
        self._abandon_exchange()

    # Slow clients

    def _watch_writing(self) -> None:
        self.count_unread()
        self._handler.watch.add(self)

    def count_unread(self) -> Holder:
        """Count the answers that the client has not read; returns what they hold."""
        unsent = self._transport.get_write_buffer_size()
        self._read_bytes += max(0, self._unsent_bytes - unsent)
        self._unsent_bytes = unsent
        # The transport keeps the whole of what it was given until the last of it is sent.
        self._unread_bytes = max(unsent, self._unread_bytes)
        self._handler.unread.count(self, self._unread_bytes)
        return Holder(self, self._unread_bytes, self._read_bytes, self._end_unread)

    def _end_counting(self) -> None:
        self._unread_bytes = self._unsent_bytes = 0
        self._handler.unread.count(self, 0)

    def _end_unread(self, _: int) -> None:
        """Close the connection, because unread answers take too much memory."""
        unread = self._handler.unread
        unread.ended_count += 1
        logger.info(
            "HTTP client reads too slowly for %d bytes of responses, while unread ones use more "
            "than %d bytes: connection closed",
            self._unread_bytes,
            unread.limit_bytes,
        )
        self._transport.abort()
        self._end_counting()

    @property
    def _is_held_back(self) -> bool:
        """Whether the client waits for `100 Continue`, and so does not stall."""
        return bool(self._waiting) and isinstance(self._waiting[-1], Expectation)

    def uploads(self) -> Iterator[Holder]:
        """Returns the requests that take memory until their client sends or reads more."""
        held_bytes = self._body.held_bytes
        if held_bytes and not (self._is_reading_paused or self._is_held_back):
            yield Holder(self, held_bytes, held_bytes, self._end_upload)
        elif self._waiting_bytes > LARGE_BODY_BYTES and self.is_writing_paused:
            unread = self.count_unread()
            yield Holder((self, "waiting"), self._waiting_bytes, unread.moved, unread.end)

    def _end_upload(self, _: int) -> None:
        self._reader.stop()
        self.on_refusal(408, TOO_SLOW)

    def check_progress(self, now: float) -> bool:
        """Close the connection if the client stalls; returns whether to continue checking."""
        is_writing = self.is_writing_paused or self._state is not _OPEN
        if is_writing and self._unread_bytes:
            self.count_unread()
        unsent_bytes = self._transport.get_write_buffer_size() if is_writing else None
        if self._output_timer.is_overdue(now, unsent_bytes):
            logger.info("HTTP client read no responses for too long: connection closed")
            self._transport.abort()
            return False
        is_reading = self._state is _OPEN and self._check_reading(now)
        return is_writing or is_reading

    def _check_reading(self, now: float) -> bool:
        reader, limits = self._reader, self._handler.limits
        # The client cannot or need not send now while it waits for the server.
        is_waited_for = not (self._is_reading_paused or self._is_held_back)
        if self._input_timer.is_overdue(now, reader.incomplete_input() if is_waited_for else None):
            is_head = reader.is_in_head
            timeout_s = limits.header_timeout_s if is_head else limits.body_stall_timeout_s
            reader.stop()
            self.on_refusal(408, f"no progress of the request for {timeout_s:g} seconds")
            return True
        is_late = reader.is_new and now - self._used_s > limits.header_timeout_s
        if is_late and not has_unread(self._transport):
            logger.info("HTTP client connected and sent no request: connection closed")
            self._linger()
        return reader.is_new or (reader.is_mid_request and not reader.is_over)

    def check_idle(self, now: float) -> None:
        """Close the connection if it had no request for too long, and no data is unread."""
        is_busy = self._current is not None or bool(self._waiting) or self._reader.is_mid_request
        if self._was_used or is_busy:
            self._used_s, self._was_used = now, False
        elif (
            now - self._used_s > self._handler.limits.http_idle_timeout_s
            and self._state is _OPEN
            and not has_unread(self._transport)
        ):
            self._linger()
