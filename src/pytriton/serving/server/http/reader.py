# SPDX-License-Identifier: Apache-2.0
"""The reading half of an HTTP/1.1 connection: turns bytes into requests, or into one refusal.

httptools does the parsing. This module adds limits, checks that RFC 9112 requires beyond syntax,
and two optimisations: a head that was seen before is not parsed again, and a large body is read
from the socket directly into its memory, without the parser, which would copy it twice.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import httptools

from pytriton.base.errors import UnavailableError
from pytriton.protocol.http2 import IncompleteInput
from pytriton.protocol.http2.frames import PREFACE
from pytriton.serving.server.http.request import (
    HEADER_OVERHEAD_BYTES,
    LARGE_BODY_BYTES,
    BodyBuffer,
    HttpRequest,
    RequestHead,
    head_refusal,
    incomplete_body,
    size_refusal,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.serving.server.api.origins import OriginPolicy
    from pytriton.serving.server.api.request_memory import RequestMemory
    from pytriton.serving.server.api.turns import Turn
    from pytriton.serving.server.options.server_options import ClientLimits

logger = logging.getLogger(__name__)

MAX_CACHED_HEADS = 1024
MAX_CACHED_HEAD_BYTES = 4096
MAX_PARTIAL_BYTES = 4096  # of a body whose first part is kept until the rest has come
# A longer read is parsed piece by piece, as the turns of its connection allow.
_PIECE_BYTES = 4096
_HEAD_BYTES_PER_UNIT = 64
_CHUNKS_PER_UNIT = 8
CHUNK_OVERHEAD_BYTES = 64  # the largest average size of a chunk's framing

# With one of these headers, a request is more than a head and a body of Content-Length bytes.
_UNCACHEABLE = frozenset({b"transfer-encoding", b"expect", b"upgrade"})


class RequestSink(Protocol):
    """The receiver of a reader's requests, in order.

    It may keep requests, whose memory is its own, but must not feed the reader from a callback.
    After a refusal nothing follows.
    """

    def on_request(self, request: HttpRequest) -> None:
        """Called with a complete request."""

    def on_expectation(self) -> None:
        """Called when the client waits for `100 Continue` before it sends the body."""

    def on_refusal(self, status: int, message: str) -> None:
        """Called when a request is invalid; nothing more is read."""

    def on_http2(self, data: bytes) -> None:
        """Called if the client speaks HTTP/2, with all of its bytes; nothing more is read."""

    def body_memory(self, head: RequestHead) -> memoryview:
        """Returns the memory for the body of a large request; pages are not touched in advance."""

    def large_body_refusal(self, head: RequestHead) -> tuple[int, str] | None:
        """Returns why a request may have no body above `LARGE_BODY_BYTES`; None if it may."""


class RequestReader:
    """Turns the bytes of one connection into requests."""

    def __init__(
        self,
        sink: RequestSink,
        limits: ClientLimits,
        origins: OriginPolicy,
        cached_heads: dict[bytes, RequestHead],
        memory: RequestMemory,
        turn: Turn,
        *,
        is_timed: bool = False,
    ) -> None:
        self._sink = sink
        self._limits = limits
        self._origins = origins
        self._turn = turn
        self._rest = b""  # of a read with much in it: it is parsed in turns
        self._rest_at = 0  # where it begins
        self._is_timed = is_timed
        self._began_ns = 0
        self._cached_heads = cached_heads
        self._parser: Any = None  # created when needed: many clients only repeat cached heads
        self._is_first = True  # no request was read: it may be a connection of HTTP/2
        self._in_parts_count = 0  # of requests that came in parts, and some others
        self.is_over = False  # nothing more is read
        self.is_mid_request = False
        self.is_in_head = False
        self.head = RequestHead()  # of the request that is being read, or was read last
        self.body = BodyBuffer(memory)  # if it has memory, it bypasses the parser
        self._delivered: RequestHead | None = None
        self._is_upgrade = False
        self._head_bytes = 0
        # Received bytes of this request other than its body and its first read.
        self._unreported_bytes = 0
        self._chunks = 0
        self._partial = b""  # a request with a cached head, whose body is not complete

    def feed(self, data: bytes) -> None:
        if not self.is_mid_request:
            if self._is_timed:
                self._began_ns = time.monotonic_ns()
            # A complete request with a cached head is not parsed. Clients often repeat the same
            # head. Reading a small request takes 13 us instead of 20 us.
            if self._feed_known(data):
                return
        elif self._partial:
            # The rest of a small body: the whole request is looked at again.
            data, self._partial = self._partial + data, b""
            self.is_mid_request = False
            if self._feed_known(data):
                if not self.is_mid_request:
                    self.body.clear()
                    self._in_parts_count += 1
                return
        is_http2 = self._is_first and PREFACE.startswith(data[: len(PREFACE)])
        if len(data) > _PIECE_BYTES and not is_http2:
            self._rest, self._rest_at = data, 0
            self.read_rest()
            return
        while data and not self.is_over:
            data = self._parse(data)

    @property
    def has_rest(self) -> bool:
        """Whether received bytes wait for the next turn."""
        return bool(self._rest) and not self.is_over

    def read_rest(self) -> None:
        """Read what is left of the last read, until the turn of the connection ends."""
        while self.has_rest and not self._turn.is_over:
            self._read_piece()

    def _read_piece(self) -> None:
        """Read a request of what is left, or a small part of one."""
        self._turn.spend(1)
        if self._body_left:
            self._read_body()
        elif self.is_mid_request or not self._read_known():
            self._read_part()

    def _read_known(self) -> bool:
        """Read a whole request with a cached head; returns False if there is none."""
        data, at = self._rest, self._rest_at
        end = data.find(b"\r\n\r\n", at, at + MAX_CACHED_HEAD_BYTES) + 4
        head = self._cached_heads.get(data[at:end])
        if head is None or end + head.content_length > len(data):
            return False
        return self._feed_known(self._take(end + head.content_length))

    def _read_part(self) -> None:
        """Read a head, a part of one, or some chunks."""
        data, at, was_mid_request = self._rest, self._rest_at, self.is_mid_request
        was_in_head = self.is_in_head or not was_mid_request
        chunks, delivered = self._chunks, self._delivered
        end = data.find(b"\r\n\r\n", at, at + _PIECE_BYTES) + 4
        piece = self._take(end if end > at else at + _PIECE_BYTES)
        again = self._parse(piece)
        if was_in_head:
            self._turn.spend(len(piece) // _HEAD_BYTES_PER_UNIT)
        else:
            self._turn.spend(max(0, self._chunks - chunks) // _CHUNKS_PER_UNIT)
        if again:
            self._rest, self._rest_at = again + self._rest[self._rest_at :], 0
        # A request that came alone is cached with a larger body, too.
        elif not was_mid_request and self._rest and self._body_left == len(data) - self._rest_at:
            self._read_body()
            if self._delivered is not delivered:
                self._cache_head(data[at:])

    def _read_body(self) -> None:
        """Read what is there of a body of known length."""
        piece = self._take(self._rest_at + self._body_left)
        rest = self.body.rest
        if rest is None:
            self._parse(piece)
        else:
            rest[: len(piece)] = piece
            self.buffer_updated(len(piece))

    @property
    def _body_left(self) -> int:
        """How much of a body of known length is missing."""
        is_body = self.is_mid_request and not self.is_in_head
        return max(0, self.head.content_length - self.body.size) if is_body else 0

    def _take(self, end: int) -> bytes:
        """Returns what is left, up to a position in it."""
        piece = self._rest[self._rest_at : end]
        self._rest_at = end
        if end >= len(self._rest):
            self._rest = b""
        return piece

    def _feed_known(self, data: bytes) -> bool:
        """Read a request with a cached head; returns False if there is none, or it is not alone."""
        # Without an end of the head, `data[:3]` is looked up, which no cached head is.
        end = data.find(b"\r\n\r\n") + 4
        head = self._cached_heads.get(data[:end])
        if head is None or self.is_over:
            return False
        missing = end + head.content_length - len(data)
        if not missing:
            self._is_first = False
            if not head.keep_alive:
                self.is_over = True
            self._sink.on_request(HttpRequest(head, data[end:], self._began_ns))
            return True
        if missing < 0 or head.content_length > MAX_PARTIAL_BYTES:
            return False
        # Many clients send a body after its head, by another system call.
        self._partial = data
        self.is_mid_request = True
        self.is_in_head = False
        self.head = head
        return True

    def buffer_updated(self, nbytes: int) -> None:
        """Count `nbytes` that were written to the memory for the rest of the body."""
        self.body.size += nbytes
        if self._has_room(partial(self.body.count, nbytes)) and not self._body_left:
            self._end_request()

    def count_part(self, nbytes: int) -> None:
        """Count a read after which the request is not complete; it is refused without memory.

        A large body is counted where it is kept. Otherwise, all received bytes are kept: it is a
        part of the head, or the body is small. Requests that come in one read cost nothing here.
        """
        if self.body.size <= LARGE_BODY_BYTES:
            self._has_room(partial(self.body.count, nbytes))

    @property
    def is_new(self) -> bool:
        """Whether the client has begun no request yet."""
        return self._is_first and not (self.is_mid_request or self.is_over)

    def incomplete_input(self) -> IncompleteInput | None:
        """Returns what is missing of a request that has begun, for the timeout of slow clients."""
        if self.is_over or not self.is_mid_request:
            return None
        if self.is_in_head:
            return IncompleteInput("a request head", self._in_parts_count)
        size, partial = self.body.size, self._partial
        if partial:
            size = len(partial) - partial.find(b"\r\n\r\n") - 4
        return incomplete_body(self.head, size, self._in_parts_count)

    def _has_room(self, count: Callable[[], None]) -> bool:
        """Count received bytes; returns False if the request is refused, as they have no room."""
        try:
            count()
        except UnavailableError as error:
            self._refuse(503, error.message)
            return False
        return True

    def stop(self) -> None:
        """Stop reading, and release all memory."""
        self.is_over = True
        self.body.drop()
        self._parser = None
        self._partial = self._rest = b""

    # Parsing

    def _cache_head(self, data: bytes) -> None:
        """Cache the head of a request that only consists of it and a body of known length.

        `data` begins with it. A part of a small body may be missing.
        """
        head, cached = self.head, self._cached_heads
        end = data.find(b"\r\n\r\n") + 4
        missing = end + head.content_length - len(data)
        if (
            (not missing or (0 < missing <= head.content_length <= MAX_PARTIAL_BYTES))
            and data.startswith(head.method)  # rather than with empty lines
            and end <= MAX_CACHED_HEAD_BYTES
            and not _UNCACHEABLE.intersection(head.headers)
        ):
            if len(cached) >= MAX_CACHED_HEADS:
                cached.clear()
            cached[data[:end]] = head

    def _parse(self, data: bytes) -> bytes:
        """Parse received bytes; returns bytes that have to be parsed again."""
        head, body_bytes, was_mid_request = self.head, self.body.size, self.is_mid_request
        delivered = self._delivered
        rest = self._run_parser(data)
        if rest:
            return rest
        if self.is_mid_request and not self.is_over:
            if was_mid_request and self.head is head:
                self._count_unreported(len(data) - (self.body.size - body_bytes))
            if self.head.content_length > LARGE_BODY_BYTES and not self.is_over:
                self._begin_large_body()
            elif not (was_mid_request or self.is_in_head) and self._delivered is delivered:
                self._cache_head(data)
        elif self.head is self._delivered and self.head is not head and not was_mid_request:
            self._cache_head(data)
        return b""

    def _run_parser(self, data: bytes) -> bytes:
        """Pass received bytes to the parser; returns bytes that have to be parsed again."""
        if self._parser is None:
            if self._is_first and PREFACE.startswith(data[: len(PREFACE)]):
                self._begin_http2(data)
                return b""
            self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self.is_over:
                return self._without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:
            logger.exception("an HTTP request could not be read")
            self._refuse(500, "the server failed to read the request, its log says why")
        except httptools.HttpParserError as error:
            self._refuse(*_syntax_refusal(error))
        return b""

    def _begin_http2(self, data: bytes) -> None:
        """Let HTTP/2 begin with the first bytes of a connection; part of its preface may miss."""
        if len(data) >= len(PREFACE):
            self.stop()
            self._sink.on_http2(data)
            return
        self._partial = data
        self.is_mid_request = self.is_in_head = True

    def _without_upgrade(self, rest: bytes) -> bytes:
        """Returns the request without its Upgrade header, which this server ignores.

        The parser stops after a head with that header, even if a body follows.
        """
        version = self._parser.get_http_version().encode()
        self._parser = None
        self.is_mid_request = False
        lines = [b"%b %b HTTP/%b" % (self.head.method, self.head.target, version)]
        for name, value in self.head.header_list:
            if name.lower() != b"upgrade":
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join((*lines, b"", rest))

    # Parser callbacks

    def on_message_begin(self) -> None:
        self.head = RequestHead()
        self._is_first = False
        self.is_mid_request = self.is_in_head = True
        self._is_upgrade = False
        self._head_bytes = self._unreported_bytes = self._chunks = 0

    def on_url(self, url: bytes) -> None:
        self.head.target += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.is_over or not self.is_in_head:  # trailers are ignored
            return
        value = value.strip(b" \t")
        headers = self.head.headers
        key = name.lower()
        if key not in headers:
            headers[key] = value
        # RFC 9112, 3.2: several Host headers have to be refused; a proxy may have used the other
        # one.
        elif key == b"host":
            self._refuse(400, "expected one Host header, got several")
        else:
            headers[key] = b"%b, %b" % (headers[key], value)
        self.head.header_list.append((name, value))
        self._count_head(len(name) + len(value) + HEADER_OVERHEAD_BYTES)

    def on_headers_complete(self) -> None:
        if self.is_over:
            return
        parser, head = self._parser, self.head
        self.is_in_head = False
        head.method = parser.get_method()
        head.keep_alive = parser.should_keep_alive()
        version = parser.get_http_version()
        head.is_http_10 = version == "1.0"
        # The parser limits the number but not its leading zeros, and int() limits the digits.
        head.content_length = int(head.headers.get(b"content-length", b"0").lstrip(b"0") or b"0")
        refusal = head_refusal(head, version, self._limits, self._origins) or (
            head.content_length > LARGE_BODY_BYTES and self._sink.large_body_refusal(head)
        )
        if refusal:
            self._refuse(*refusal)
            return
        self._is_upgrade = parser.should_upgrade()
        if b"expect" in head.headers and not (head.is_http_10 or self._is_upgrade):
            self._sink.on_expectation()

    def on_body(self, body: bytes) -> None:
        if self.is_over:
            return
        size = self.body.size + len(body)
        # Content-Length was checked with the head; this is for chunked bodies.
        is_large = size > LARGE_BODY_BYTES >= self.head.content_length
        if size > self._limits.http_max_input_bytes:
            self._refuse(*size_refusal(self.head, size, self._limits))
        elif not is_large or self._has_large_room(size):
            self.body.add(body)

    def _has_large_room(self, size: int) -> bool:
        """Count a chunked body that is large, or has become so now; returns whether it may be."""
        if self.body.size > LARGE_BODY_BYTES:
            return self._has_room(partial(self.body.count, size - self.body.size))
        refusal = self._sink.large_body_refusal(self.head)
        if refusal is not None:
            self._refuse(*refusal)
            return False
        return self._has_room(partial(self.body.count_anew, size))

    def on_chunk_header(self) -> None:
        self._chunks += 1
        limit = self._limits.http_max_chunks
        if self._chunks > limit + 1:
            self._refuse(
                400,
                f"Chunked request body exceeds maximum of {limit} non-empty chunks. "
                "Send fewer or larger HTTP chunks.",
            )

    def on_message_complete(self) -> None:
        if not (self.is_over or self._is_upgrade):
            self._end_request()

    # Bodies and limits

    def _end_request(self) -> None:
        head = self._delivered = self.head
        head.content_length = self.body.size  # that of a chunked body was not announced
        body = self.body.take(LARGE_BODY_BYTES)
        self._in_parts_count += 1
        self.is_mid_request = False
        if not head.keep_alive:
            self.is_over = True
        self._sink.on_request(HttpRequest(head, body, self._began_ns))

    def _begin_large_body(self) -> None:
        try:
            memory = self._sink.body_memory(self.head)
        except MemoryError:
            size = self.head.content_length
            self._refuse(503, f"no memory for a request body of {size} bytes")
            return
        if self._has_room(partial(self.body.use_memory, memory)):
            self._parser = None  # it still expects this body

    def _count_head(self, nbytes: int) -> None:
        self._head_bytes += nbytes
        if self._head_bytes > self._limits.http_max_header_bytes:
            self._refuse_head()

    def _count_unreported(self, nbytes: int) -> None:
        """Limit input that the parser does not report: incomplete headers and chunk framing."""
        self._unreported_bytes += nbytes
        limit = self._limits.http_max_header_bytes
        if self._unreported_bytes <= limit + CHUNK_OVERHEAD_BYTES * self._chunks:
            return
        if self.is_in_head:
            self._refuse_head()
        else:
            self._refuse(400, f"chunk extensions and trailers exceed the maximum of {limit} bytes")

    def _refuse_head(self) -> None:
        limit = self._limits.http_max_header_bytes
        self._refuse(431, f"request headers exceed the maximum of {limit} bytes")

    def _refuse(self, status: int, message: str) -> None:
        if not self.is_over:
            self.stop()
            self._sink.on_refusal(status, message)


def _syntax_refusal(error: Exception) -> tuple[int, str]:
    if "PRI" in str(error):  # or they are not the first bytes of a connection
        return 505, "expected HTTP version 1.0 or 1.1, or the whole connection preface of HTTP/2"
    return 400, f"malformed HTTP request: {error}"
