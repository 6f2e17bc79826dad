# SPDX-License-Identifier: Apache-2.0
"""What the code that answers a request knows of its client, whichever version of HTTP that speaks.

`http1_connection` and `http2_stream` send the answers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pytriton.base.errors import error_for_clients
from pytriton.base.messages import TraceOrigin
from pytriton.protocol.json_text import dump_json
from pytriton.serving.server.api.status import HTTP_STATUS
from pytriton.serving.server.api.turns import BYTES_PER_UNIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.serving.server.api.turns import Turn
    from pytriton.serving.server.http.handler import HttpExchange, HttpHandler
    from pytriton.serving.server.http.request import HttpRequest, RequestHead

logger = logging.getLogger(__name__)

NO_CONTENT = 204
UNAVAILABLE = 503
RETRY_AFTER = b"Retry-After: 1\r\n"  # seconds; memory and connections become free at any time
# Of requests that are refused before their bodies were read, by status.
REFUSAL_HEADERS = {
    401: b"WWW-Authenticate: Bearer\r\n",
    429: RETRY_AFTER,
    UNAVAILABLE: RETRY_AFTER,
}
JSON_TYPE = b"application/json"
BINARY_TYPE = b"application/octet-stream"
JSON_LENGTH_LINE = b"Inference-Header-Content-Length: %d\r\n"


def body_headers(json_length: int | None, encoding: str) -> tuple[bytes, bytes]:
    """Returns the content type of the body of an inference, and lines of headers.

    `json_length` is the length of its JSON; None if nothing follows.
    """
    lines = b"" if json_length is None else JSON_LENGTH_LINE % json_length
    if encoding != "identity":
        lines += b"Content-Encoding: %b\r\n" % encoding.encode()
    return JSON_TYPE if json_length is None else BINARY_TYPE, lines


def error_body(message: str) -> bytes:
    """Returns Triton's error object."""
    return b'{"error":%b}' % dump_json(message)


class HttpRefusal(NamedTuple):
    """The answer to a request that is refused before its body was read to its end."""

    status: int
    body: bytes  # JSON
    headers: bytes = b""  # lines


def plain_refusal(status: int, message: str) -> HttpRefusal:
    """Returns a refusal with Triton's error object."""
    return HttpRefusal(status, error_body(message), REFUSAL_HEADERS.get(status, b""))


class AnswerWatch(Protocol):
    """What somebody wants to know of the answer to one request, of which it hears the end once."""

    def begin_stream(self, status: int) -> None:
        """Called when a response of unknown length begins."""

    def add(self, size: int) -> None:
        """Called with a part of it."""

    def end(self, status: int, size: int) -> None:
        """Called with the answer, or with what ends a stream before its end."""

    def end_stream(self) -> None:
        """Called at the end of a stream."""

    def abandon(self) -> None:
        """Called when the client has left."""


class AnswerObserver(Protocol):
    """Sees the requests of a port, also those that are refused before they were read."""

    def arrived(self, connection: HttpConnection, request: HttpRequest) -> AnswerWatch:
        """Called with a request before it is answered."""

    def refused(self, connection: HttpConnection, head: RequestHead, answer: HttpRefusal) -> None:
        """Called with a request that is not read to its end, and nothing after it."""


class HttpConnection:
    """Where the answer to a request goes: a connection of HTTP/1.1, or one stream of HTTP/2.

    The code that answers requests knows nothing else of a client. There is one request at a time;
    whatever is sent after its end, or after the client has left, is dropped.
    """

    peer: Any = None  # who is at the other end, once a policy has asked for it
    turn: Turn  # what it may still do for its client in this iteration of the event loop

    def __init__(self, handler: HttpHandler) -> None:
        self._handler = handler
        self._current: HttpRequest | None = None
        self._exchange: HttpExchange | None = None
        self._is_streaming = False
        self.watched: AnswerWatch | None = None  # of the current request, if somebody observes it
        self.is_writing_paused = False  # much output waits, as the client reads slowly

    @property
    def began_ns(self) -> int:
        """When the first bytes of the current request came; 0 if that is not known."""
        return 0 if self._current is None else self._current.began_ns

    def origin(self) -> TraceOrigin:
        """Returns where the current request came from, for those who observe it."""
        header = {} if self._current is None else self._current.head.headers
        traceparent, tracestate = header.get(b"traceparent", b""), header.get(b"tracestate", b"")
        return TraceOrigin(
            "HTTP", traceparent.decode("latin-1"), tracestate.decode("latin-1"), self.began_ns
        )

    def get_extra_info(self, name: str) -> Any:
        """Returns a fact about the transport; None if it is not known."""
        raise NotImplementedError

    def _handle(self, request: HttpRequest) -> None:
        self._current = request
        if self._handler.answers is not None:
            self.watched = self._handler.answers.arrived(self, request)
        try:
            exchange = self._handler.handle(self, request)
        except Exception as error:  # noqa: BLE001  the client gets it
            head = request.head
            activity = f"it served {head.method!a} {head.target!a}"
            failure = error_for_clients(error, activity)
            self.respond_error(HTTP_STATUS[failure.code], failure.message)
            return
        # It may be answered already, and the next one may have taken its place.
        if self._current is request:
            self._exchange = exchange
            if self.is_writing_paused and exchange is not None:
                exchange.pause()

    def _pause_exchange(self) -> None:
        self.is_writing_paused = True
        if self._exchange is not None:
            self._exchange.pause()

    def _resume_exchange(self) -> None:
        self.is_writing_paused = False
        if self._exchange is not None:
            self._exchange.resume()

    def _abandon_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        self._current = None
        if self.watched is not None:
            self._take_watched().abandon()
        if exchange is not None:
            exchange.abandon()

    def respond(
        self,
        status: int,
        parts: Sequence[Buffer] = (),
        content_type: bytes = JSON_TYPE,
        headers: bytes = b"",
    ) -> None:
        """Answer the current request; `headers` are whole lines."""
        request = self._current
        if request is None:  # the client has left
            return
        size = sum(map(len, parts))
        if self.watched is not None:
            is_sent = not self._is_streaming and request.head.method != b"HEAD"
            self._take_watched().end(status, size if is_sent else 0)
        if self._is_streaming:
            self._break_off()
            return
        self.turn.spend(1 + size // BYTES_PER_UNIT)
        head, cors = request.head, self._handler.cors
        if cors is not None and head.method != b"OPTIONS":  # those say it themselves
            headers += cors.answer_headers(head.headers.get)
        self._send(head, status, parts, size, content_type, headers)

    def _take_watched(self) -> AnswerWatch:
        """Returns who observes the answer, and forgets it: it hears of the end."""
        watched, self.watched = self.watched, None
        assert watched is not None, f"nobody observes {self!r}"
        return watched

    def _send(
        self,
        head: RequestHead,
        status: int,
        parts: Sequence[Buffer],
        size: int,
        content_type: bytes,
        headers: bytes,
    ) -> None:
        """Send the whole response to a request with this head, which ends with it."""
        raise NotImplementedError

    def _break_off(self) -> None:
        """Tell the client that a streamed response stays incomplete."""
        raise NotImplementedError

    def respond_small(
        self, json_length: int | None, body: bytes, encoding: str = "identity"
    ) -> None:
        """Answer an inference with a small body, like `respond(200, [body])` in less time.

        Only for requests that `small_body_layout` allows. `json_length` is the length of the JSON,
        None if nothing follows; it counts before the body was compressed.
        """
        raise NotImplementedError

    def respond_error(self, status: int, message: str, headers: bytes = b"") -> None:
        """Answer with Triton's error object."""
        logger.debug("HTTP error %d: %s", status, message)
        self.respond(status, (error_body(message),), JSON_TYPE, headers)

    def begin_stream(self, status: int, content_type: bytes, headers: bytes = b"") -> None:
        """Begin a response of unknown length, with lines of headers; `stream` follows."""
        request = self._current
        if request is None:
            return
        self._is_streaming = True
        if self.watched is not None:
            self.watched.begin_stream(status)
        head, cors = request.head, self._handler.cors
        if cors is not None:
            headers += cors.answer_headers(head.headers.get)
        self._send_stream_head(head, status, content_type, headers)

    def _send_stream_head(
        self, head: RequestHead, status: int, content_type: bytes, headers: bytes
    ) -> None:
        """Send the head of a streamed response to a request with this head."""
        raise NotImplementedError

    def stream(self, part: bytes) -> None:
        """Send a part of a streamed response; an empty part is ignored."""
        raise NotImplementedError

    def end_stream(self) -> None:
        """End a streamed response."""
        if self._current is None:
            return
        if self.watched is not None:
            self._take_watched().end_stream()
        self._is_streaming = False
        self._send_stream_end(self._current.head)

    def _send_stream_end(self, head: RequestHead) -> None:
        """Tell the client that a streamed response to a request with this head is complete."""
        raise NotImplementedError
