# SPDX-License-Identifier: Apache-2.0
"""The reading half of an HTTP/1.1 connection: turns bytes into requests, or into one refusal.

httptools does the parsing. This module adds limits, checks that RFC 9112 requires beyond syntax,
and two optimisations: a head that was seen before is not parsed again, and a large body is read
from the socket directly into its memory, without the parser, which would copy it twice.
"""

from __future__ import annotations

import copy
import logging
import re
import time
from typing import TYPE_CHECKING, Any, Protocol

import httptools
import msgspec
import numpy as np

from pytriton.base.errors import UnavailableError
from pytriton.protocol.http2.frames import PREFACE
from pytriton.runtime.transport.arena import forget
from pytriton.serving.server.api.status import HTTP_RESTRICTED

if TYPE_CHECKING:
    from pytriton.serving.server.api.origins import OriginPolicy
    from pytriton.serving.server.api.request_memory import MemoryLease, RequestMemory
    from pytriton.serving.server.api.turns import Turn
    from pytriton.serving.server.options.server_options import ClientLimits

logger = logging.getLogger(__name__)

LARGE_BODY_BYTES = 64 << 10
SIZE_HINT = "Use --http-max-input-size to increase the limit."  # with it, size refusals end
# Requests without tensors and files need no more.
SMALL_BODY = f"expected a body of at most {LARGE_BODY_BYTES} bytes for this request, got more"
MAX_CACHED_HEADS = 1024
MAX_CACHED_HEAD_BYTES = 4096
MAX_PARTIAL_BYTES = 4096  # of a body whose first part is kept until the rest has come
# A longer read is parsed piece by piece, as the turns of its connection allow.
_PIECE_BYTES = 4096
_HEAD_BYTES_PER_UNIT = 64
_CHUNKS_PER_UNIT = 8
# Of an incomplete request, more than this counts in the budget for memory. A connection itself
# takes more, and so requests whose head and small body come in two reads need not be counted.
_UNCOUNTED_PART_BYTES = 4096
HEADER_OVERHEAD_BYTES = 32  # added for each header, as in HTTP/2, which limits their number, too
CHUNK_OVERHEAD_BYTES = 64  # the largest average size of a chunk's framing

# With one of these headers, a request is more than a head and a body of Content-Length bytes.
_UNCACHEABLE = frozenset({b"transfer-encoding", b"expect", b"upgrade"})

# The endpoints for which the length of the JSON in front of binary tensors has no meaning.
_JSON_ONLY = (b"/generate", b"/generate_stream")

# The characters of names, addresses and ports, which RFC 9110, 7.2 allows in a Host header.
_HOST = re.compile(rb"[\w.~!$&'()*+,;=%:\[\]-]*")


class RequestHead(msgspec.Struct):
    """The request line and the headers; requests that begin with the same bytes may share it."""

    method: bytes = b""
    target: bytes = b""
    headers: dict[bytes, bytes] = {}  # by lower-case name; repeated ones are joined with commas
    header_list: list[tuple[bytes, bytes]] = []  # as received
    keep_alive: bool = True
    is_http_10: bool = False
    content_length: int = 0
    resolved: Any = None  # kept by the handler: how it answers requests with this head
    grant: Any = None  # kept by the handler: who sends them, if there is a policy


class HttpRequest(msgspec.Struct, eq=False, gc=False):
    """A complete request."""

    head: RequestHead
    body: Any = b""  # a buffer
    began_ns: int = 0  # time.monotonic_ns() when its first bytes came; 0 if nobody asks for it


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


def private_memory(size: int) -> memoryview:
    """Allocate memory of this process; it uses no pages until data is received."""
    return np.empty(size, np.uint8).data


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
        self._memory = memory
        self._turn = turn
        self._rest = b""  # of a read with much in it: it is parsed in turns
        self._rest_at = 0  # where it begins
        self._lease: MemoryLease | None = None  # of a large body, or of an incomplete request
        self._part_bytes = 0  # received bytes of a request that is incomplete after its read
        self._is_timed = is_timed
        self._began_ns = 0
        self._cached_heads = cached_heads
        self._parser: Any = None  # created when needed: many clients only repeat cached heads
        self._is_first = True  # no request was read: it may be a connection of HTTP/2
        self.is_over = False  # nothing more is read
        self.is_mid_request = False
        self.is_in_head = False
        self.head = RequestHead()  # of the request that is being read, or was read last
        self.large_body: memoryview | None = None  # the memory of a body that bypasses the parser
        self._delivered: RequestHead | None = None
        self._is_upgrade = False
        self._head_bytes = 0
        # Received bytes of this request other than its body and its first read.
        self._unreported_bytes = 0
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        self._large_bytes = 0  # the announced size of a body that is to bypass the parser
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
                    self._drop_parts()
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
        if self.large_body is None:
            self._parse(piece)
        else:
            self.get_buffer()[: len(piece)] = piece
            self.buffer_updated(len(piece))

    @property
    def _body_left(self) -> int:
        """How much of a body of known length is missing."""
        is_body = self.is_mid_request and not self.is_in_head
        return max(0, self.head.content_length - self._body_bytes) if is_body else 0

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
        self.head = copy.copy(head)  # an object of its own tells that another body is being timed
        return True

    def get_buffer(self) -> memoryview:
        """Returns the memory for the rest of a large body."""
        assert self.large_body is not None
        return self.large_body[self._body_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        """Count `nbytes` that were written to the memory from `get_buffer`."""
        assert self.large_body is not None
        self._body_bytes += nbytes
        if self._lease_more(nbytes) and self._body_bytes == len(self.large_body):
            body, self.large_body = self.large_body, None
            self._end_request(body)

    def count_part(self, nbytes: int) -> None:
        """Count a read after which the request is not complete; it is refused without memory.

        A large body is counted where it is kept. Otherwise, all received bytes are kept: it is a
        part of the head, or the body is small. Requests that come in one read cost nothing here.
        """
        if self._body_bytes > LARGE_BODY_BYTES:
            return
        self._part_bytes += nbytes
        if self._lease is not None:
            self._lease_more(nbytes)
        elif self._part_bytes > _UNCOUNTED_PART_BYTES:
            self._lease = self._memory.lease()
            self._lease_more(self._part_bytes)

    @property
    def held_bytes(self) -> int:
        """How much of the budget for memory the part of an incomplete request takes."""
        return 0 if self._lease is None else self._lease.nbytes

    def _drop_parts(self) -> None:
        self._lease = None
        self._part_bytes = 0

    def stop(self) -> None:
        """Stop reading, and release all memory."""
        self.is_over = True
        if self.large_body is not None:
            forget(self.large_body)
        self._parser = self.large_body = self._lease = None
        self._body = self._partial = self._rest = b""

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
        head, body_bytes, was_mid_request = self.head, self._body_bytes, self.is_mid_request
        delivered = self._delivered
        rest = self._run_parser(data)
        if rest:
            return rest
        if self.is_mid_request and not self.is_over:
            if was_mid_request and self.head is head:
                self._count_unreported(len(data) - (self._body_bytes - body_bytes))
            if self._large_bytes and not self.is_over:
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
            self._is_first = False
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
        if head.content_length > LARGE_BODY_BYTES:
            self._large_bytes = head.content_length
        if b"expect" in head.headers and not (head.is_http_10 or self._is_upgrade):
            self._sink.on_expectation()

    def on_body(self, body: bytes) -> None:
        if self.is_over:
            return
        was_large = self._body_bytes > LARGE_BODY_BYTES
        self._body_bytes += len(body)
        # Content-Length was checked with the head; this is for chunked bodies.
        if self._body_bytes > self._limits.http_max_input_bytes:
            self._refuse(*size_refusal(self.head, self._body_bytes, self._limits))
        elif self._body_bytes > LARGE_BODY_BYTES >= self.head.content_length and not (
            self._lease_more(len(body)) if was_large else self._begin_large_chunks()
        ):
            return
        elif not self._body:
            self._body = body
        else:
            # One growing buffer: thousands of small objects would need many times their size.
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body

    def _begin_large_chunks(self) -> bool:
        """Count a chunked body that has become large; returns whether it may."""
        refusal = self._sink.large_body_refusal(self.head)
        if refusal is not None:
            self._refuse(*refusal)
            return False
        self._lease = self._memory.lease()
        return self._lease_more(self._body_bytes)

    def _lease_more(self, nbytes: int) -> bool:
        """Count bytes of a large body; returns whether there is memory for them."""
        assert self._lease is not None
        try:
            self._lease.grow(nbytes)
        except UnavailableError as error:
            self._refuse(503, error.message)
            return False
        return True

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
            lease = self._lease if self._body_bytes > LARGE_BODY_BYTES else None
            self._end_request(self._body if lease is None else lease.attach(self._body))

    # Bodies and limits

    def _end_request(self, body: Any) -> None:
        head = self._delivered = self.head
        head.content_length = len(body)  # that of a chunked body was not announced
        self._body = b""
        self._drop_parts()
        self._body_bytes = self._large_bytes = 0
        self.is_mid_request = False
        if not head.keep_alive:
            self.is_over = True
        self._sink.on_request(HttpRequest(head, body, self._began_ns))

    def _begin_large_body(self) -> None:
        try:
            large = self._sink.body_memory(self.head)
        except MemoryError:
            self._refuse(503, f"no memory for a request body of {self._large_bytes} bytes")
            return
        self._lease = self._memory.lease()
        large = self._lease.attach(large)
        if not self._lease_more(self._body_bytes):
            return
        large[: self._body_bytes] = self._body
        self.large_body = large
        self._body = b""
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


def head_refusal(
    head: RequestHead, version: str, limits: ClientLimits, origins: OriginPolicy
) -> tuple[int, str] | None:
    """Returns the status and the reason why a head is refused; None if it is not."""
    refusal = _syntax_or_size_refusal(head, version, limits) or _host_refusal(head)
    if refusal is None:
        problem = origins.refusal(head.method, head.headers.get)
        if problem is not None:
            origins.refused_count += 1
            refusal = HTTP_RESTRICTED, problem
    return refusal


def _syntax_or_size_refusal(
    head: RequestHead, version: str, limits: ClientLimits
) -> tuple[int, str] | None:
    """Returns why RFC 9112 or a limit forbids a well-formed head; None if they do not."""
    coding = head.headers.get(b"transfer-encoding", b"chunked").lower()
    expectation = head.headers.get(b"expect", b"100-continue").lower()
    if version not in ("1.0", "1.1"):
        return 505, f"expected HTTP version 1.0 or 1.1, got {version}"
    if head.method == b"CONNECT":
        return 501, "this server is no proxy: CONNECT is not supported"
    if head.is_http_10 and b"transfer-encoding" in head.headers:
        return 400, "expected Content-Length in a request of HTTP 1.0, got Transfer-Encoding"
    if coding != b"chunked":  # unless it is the last coding, the end of the body is unknown
        is_framed = coding.rpartition(b",")[2].strip() == b"chunked"
        return 501 if is_framed else 400, "the only Transfer-Encoding that is supported is chunked"
    if expectation != b"100-continue" and not head.is_http_10:
        return 417, "the only expectation that can be met is 100-continue"
    is_too_large = head.content_length > limits.http_max_input_bytes
    return size_refusal(head, head.content_length, limits) if is_too_large else None


def _host_refusal(head: RequestHead) -> tuple[int, str] | None:
    """Returns why RFC 9112, 3.2 forbids a missing or malformed Host; None if it does not."""
    host = head.headers.get(b"host")
    if host is None:
        is_fine = head.is_http_10
        return None if is_fine else (400, "expected a Host header in a request of HTTP 1.1")
    if _HOST.fullmatch(host):
        return None
    return 400, f"expected a name or an address as Host, got {host.decode('latin-1')!a}"


def size_refusal(head: RequestHead, size: int, limits: ClientLimits) -> tuple[int, str]:
    """Returns the refusal of a body that is too large, in Triton's words for what it has in it."""
    most = limits.http_max_input_bytes
    json_length = head.headers.get(b"inference-header-content-length")
    if head.target.partition(b"?")[0].endswith(_JSON_ONLY):
        json_length = None
    if b"content-encoding" in head.headers or json_length not in (None, b"0"):
        problem = f"request size of {size} bytes exceeds the maximum allowed value of {most} bytes"
    elif json_length is None:
        problem = (
            f"request JSON size of {size} bytes exceeds the maximum allowed input size of "
            f"{most} bytes"
        )
    else:
        problem = (
            f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
            f"{most} bytes"
        )
    return 400, f"{problem}. {SIZE_HINT}"


def _syntax_refusal(error: Exception) -> tuple[int, str]:
    if "PRI" in str(error):  # or they are not the first bytes of a connection
        return 505, "expected HTTP version 1.0 or 1.1, or the whole connection preface of HTTP/2"
    return 400, f"malformed HTTP request: {error}"
