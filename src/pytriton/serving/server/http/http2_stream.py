# SPDX-License-Identifier: Apache-2.0
"""One stream of HTTP/2 on a port that also speaks HTTP/1.1: a request, its body, and its answer.

Requests become the records that the reader of HTTP/1.1 makes, and each is answered through an
object of its own, so that the code that answers requests need not know which version they came
with.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.protocol.http2 import Http2ErrorCode, IncompleteInput, encode_header_block
from pytriton.protocol.http2.frames import BodyFrames
from pytriton.serving.server.http.connection import (
    JSON_TYPE,
    NO_CONTENT,
    HttpConnection,
    body_headers,
)
from pytriton.serving.server.http.request import (
    HEADER_OVERHEAD_BYTES,
    UNCOUNTED_PART_BYTES,
    BodyBuffer,
    HttpRequest,
    RequestHead,
    incomplete_body,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.protocol.http2 import Http2RequestHead
    from pytriton.serving.server.api.request_memory import RequestMemory
    from pytriton.serving.server.api.turns import Turn
    from pytriton.serving.server.http.http2_connection import Http2ServerConnection
    from pytriton.serving.server.options.server_options import ClientLimits

logger = logging.getLogger(__name__)

# A stream with so much unread output is reset if more comes: its model does not pause.
MAX_UNREAD_BYTES = 2 << 30
GRPC_TYPE = b"application/grpc"
_UNIMPLEMENTED = 12  # of gRPC's statuses

_is_method = re.compile(rb"[A-Z][A-Z-]*").fullmatch
_is_target = re.compile(rb"[!-~]+").fullmatch  # what HTTP/1.1 allows in its first line
_is_value = re.compile(rb"[\t -~\x80-\xff]*").fullmatch


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


def field_refusal(head: RequestHead, limits: ClientLimits) -> tuple[int, str] | None:
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


class RequestBody(BodyBuffer):
    """The body of a request that is not complete."""

    __slots__ = ("began_ns", "head", "refusal")

    def __init__(self, head: RequestHead, began_ns: int, budget: RequestMemory) -> None:
        super().__init__(budget)
        self.head = head
        self.began_ns = began_ns
        self.refusal: tuple[int, str] | None = None  # the answer, if that is known already

    def complete(self) -> HttpRequest:
        """Returns the request, as all of its body was received."""
        head, size = self.head, self.size
        if head.content_length != size:  # it was not announced
            head = msgspec.structs.replace(
                head, content_length=size, resolved=None, translated=None
            )
        # There are as many small ones as streams at most.
        return HttpRequest(head, self.take(UNCOUNTED_PART_BYTES), self.began_ns)

    def incomplete_input(self) -> IncompleteInput:
        """Returns what is missing, for the timeout of slow clients."""
        return incomplete_body(self.head, self.size)


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

    @property
    def turn(self) -> Turn:  # type: ignore[override]  # all streams of a connection share one
        """What the client's connection may still do in this iteration of the event loop."""
        return self._connection.turn

    def handle(self, request: HttpRequest) -> None:
        """Answer a request, now or later."""
        self._handle(request)

    def hold(self, request: HttpRequest) -> None:
        """Keep a request that cannot be answered yet; see `handle_held`."""
        self._current = request
        self._observe(request)

    def _observe(self, request: HttpRequest) -> None:
        if self._handler.answers is not None:
            self.watched = self._handler.answers.arrived(self, request)

    def handle_held(self) -> None:
        """Answer the request that was held, unless the client does not want it any more."""
        if self._current is not None:
            self._handle(self._current)

    @property
    def held_bytes(self) -> int:
        """The size of the body of a request that was held."""
        return 0 if self._current is None else len(self._current.body)

    def end_held(self, _: int) -> None:
        """Reset the stream of a request that was held for too long."""
        logger.info("HTTP client reads too slowly to have its next request answered: stream reset")
        self.drop(Http2ErrorCode.ENHANCE_YOUR_CALM)

    def refuse(self, head: RequestHead, status: int, message: str) -> None:
        """Answer a request that is refused, whatever its body is."""
        self._current = HttpRequest(head)
        self._observe(self._current)
        self._handler.count_refusal(status, message)
        logger.debug("HTTP error %d: %s", status, message)
        answer = self._handler.on_unread(head, status, message)
        self.respond(answer.status, (answer.body,), JSON_TYPE, answer.headers)

    def refuse_grpc(self, head: RequestHead) -> None:
        """Answer a client of gRPC at once, as a call may never end, with where it should go."""
        self._current = HttpRequest(head)
        lines = b"grpc-status: %d\r\ngrpc-message: %b\r\n"
        text = self._handler.grpc_hint
        logger.debug("gRPC client at an HTTP port: %s", text)
        self.respond(200, (), GRPC_TYPE, lines % (_UNIMPLEMENTED, text.encode()))

    def _send(
        self,
        head: RequestHead,
        status: int,
        parts: Sequence[Buffer],
        size: int,
        content_type: bytes,
        headers: bytes,
    ) -> None:
        block = response_block(status, content_type, headers, size)
        body = () if head.method == b"HEAD" else parts
        self._connection.http2.send_body(self.stream_id, block, body)
        self._end()

    def _break_off(self) -> None:
        self.drop(Http2ErrorCode.INTERNAL_ERROR)

    def respond_small(
        self, json_length: int | None, body: bytes, encoding: str = "identity"
    ) -> None:
        """Answer an inference with a small body, like `respond(200, [body])` in less time."""
        if self._current is None:
            return
        if encoding == "identity":
            frames, connection = small_frames(json_length, len(body)), self._connection
            if connection.http2.send_whole(self.stream_id, frames, (body,)):
                if self.watched is not None:
                    self._take_watched().end(200, len(body))
                self._current = self._exchange = None  # the same as `_end`, without a call
                connection.remove(self)
                return
        # The windows of the client are too small, or the answer is compressed.
        self.respond(200, (body,), *body_headers(json_length, encoding))

    def _send_stream_head(
        self, head: RequestHead, status: int, content_type: bytes, headers: bytes
    ) -> None:
        block = response_block(status, content_type, headers)
        self._connection.http2.send_headers(self.stream_id, block)
        self._connection.flush_soon()

    def stream(self, part: bytes) -> None:
        """Send a part of a streamed response; an empty part is ignored."""
        if self._current is None or not part:
            return
        if self.watched is not None:
            self.watched.add(len(part))
        http2 = self._connection.http2
        if http2.queued_bytes(self.stream_id) >= MAX_UNREAD_BYTES:
            logger.info("HTTP client read too little of a streamed response: stream reset")
            self.drop(Http2ErrorCode.ENHANCE_YOUR_CALM)
            return
        if not http2.send_data(self.stream_id, part) and not self.is_writing_paused:
            self._pause_exchange()
        self._connection.flush_soon()

    def _send_stream_end(self, head: RequestHead) -> None:
        self._connection.http2.send_data(self.stream_id, b"", end_stream=True)
        self._end()

    def resume(self) -> None:
        """Called when the client has read most of the output."""
        self._resume_exchange()

    def _end(self) -> None:
        self._current = self._exchange = None
        self._connection.remove(self)

    def abandon(self) -> None:
        """Called when the client does not want the answer any more, or cannot get it."""
        self._abandon_exchange()

    def drop(self, code: Http2ErrorCode) -> None:
        """Reset the stream, whose answer stays incomplete."""
        self._connection.http2.reset(self.stream_id, code)
        self._connection.remove(self)
        self.abandon()
