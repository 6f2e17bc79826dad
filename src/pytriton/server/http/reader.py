# SPDX-License-Identifier: Apache-2.0
"""The reading half of an HTTP/1.1 connection: bytes in, whole requests or one refusal out.

Parsing is httptools'. Added here are limits, what RFC 9112 asks of a server beyond syntax, and two
short ways: a head that was seen before is not parsed again, and a large body is read from the
socket straight into its own memory, past the parser, which would copy it twice.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, Protocol

import httptools
import msgspec
import numpy as np

if TYPE_CHECKING:
    from pytriton.server.options.server_options import Limits

logger = logging.getLogger(__name__)

LARGE_BODY_BYTES = 64 << 10
MAX_KNOWN_HEADS = 1024
MAX_KNOWN_HEAD_BYTES = 4096
HEADER_OVERHEAD_BYTES = 32  # counted for each header, as HTTP/2 does: bounds their number too
CHUNK_OVERHEAD_BYTES = 64  # what the framing of one chunk may take on average

# With one of these, a request is more than its head and as many bytes as Content-Length says.
_UNKNOWABLE = frozenset({b"transfer-encoding", b"expect", b"upgrade"})

# What RFC 9110, 7.2 allows in a Host header, loosely: characters of names, addresses and ports.
_HOST = re.compile(rb"[\w.~!$&'()*+,;=%:\[\]-]*")


class RequestHead(msgspec.Struct):
    """What comes before the body. Shared by all requests that begin with the same bytes."""

    method: bytes = b""
    target: bytes = b""
    headers: dict[bytes, bytes] = {}  # by lower-case name; repeated ones joined by a comma
    header_list: list[tuple[bytes, bytes]] = []  # as sent
    keep_alive: bool = True
    is_http_10: bool = False
    content_length: int = 0


class HttpRequest(msgspec.Struct, eq=False):
    """A request whose body has arrived."""

    head: RequestHead
    body: Any = b""  # a buffer


class RequestSink(Protocol):
    """Where a reader delivers what it read, in order."""

    def on_request(self, request: HttpRequest) -> None:
        """Take a whole request."""

    def on_expectation(self) -> None:
        """The client of the request that is being read waits for `100 Continue`."""

    def on_refusal(self, status: int, message: str) -> None:
        """What came cannot be read on; nothing follows."""

    def body_memory(self, head: RequestHead) -> memoryview:
        """Where the body of a large request is to be read to; not touched before it arrives."""


def private_memory(size: int) -> memoryview:
    """Memory of this process: pages that a client only announces and never sends cost nothing."""
    return np.empty(size, np.uint8).data


class RequestReader:
    """Turns the bytes of one connection into requests."""

    def __init__(
        self, sink: RequestSink, limits: Limits, known_heads: dict[bytes, RequestHead]
    ) -> None:
        self._sink = sink
        self._limits = limits
        self._known_heads = known_heads
        self._parser: Any = None  # made when needed: many clients only repeat known heads
        self.is_over = False  # nothing more is read
        self.is_mid_request = False
        self.is_in_head = False
        self.head = RequestHead()  # of the request that is being read, or was read last
        self.large: memoryview | None = None  # a body that is read past the parser
        self._delivered: RequestHead | None = None
        self._is_upgrade = False
        self._head_bytes = 0
        self._loose_bytes = 0  # of this request, neither body nor in a read of other requests
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        self._large_bytes = 0  # announced, if it is more than a parser should see
        self._chunks = 0

    def feed(self, data: bytes) -> None:
        """Read on."""
        if self.is_mid_request or not self._take_known(data):
            while data and not self.is_over:
                data = self._parse(data)

    def room(self) -> memoryview:
        """Where the rest of a large body goes."""
        assert self.large is not None
        return self.large[self._body_bytes :]

    def fill(self, nbytes: int) -> None:
        """So many bytes were written to `room`."""
        assert self.large is not None
        self._body_bytes += nbytes
        if self._body_bytes == len(self.large):
            body, self.large = self.large, None
            self._end_request(body)

    def stop(self) -> None:
        """Read no more, and keep nothing."""
        self.is_over = True
        self._parser = self.large = None
        self._body = b""

    # Parsing

    def _take_known(self, data: bytes) -> bool:
        """Take a whole request whose head was seen before, byte for byte, without parsing it again.

        Clients repeat themselves: this saves 7 of 20 microseconds of reading a small request.
        """
        end = data.find(b"\r\n\r\n") + 4
        head = self._known_heads.get(data[:end])
        if head is None or len(data) != end + head.content_length or self.is_over:
            return False
        if not head.keep_alive:
            self.is_over = True
        self._sink.on_request(HttpRequest(head, data[end:]))
        return True

    def _remember(self, data: bytes) -> None:
        """Keep a head for `_take_known`, if nothing but a body of known length depends on it."""
        head, known = self.head, self._known_heads
        end = data.find(b"\r\n\r\n") + 4
        if (
            len(data) == end + head.content_length
            and end <= MAX_KNOWN_HEAD_BYTES
            and not _UNKNOWABLE.intersection(head.headers)
        ):
            if len(known) >= MAX_KNOWN_HEADS:
                known.clear()
            known[data[:end]] = head

    def _parse(self, data: bytes) -> bytes:
        """Parse what came; returns what has to be parsed again."""
        head, body_bytes, was_mid_request = self.head, self._body_bytes, self.is_mid_request
        if self._parser is None:
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
        if self.is_mid_request and not self.is_over:
            if was_mid_request and self.head is head:
                self._count_loose(len(data) - (self._body_bytes - body_bytes))
            if self._large_bytes and not self.is_over:
                self._begin_large_body()
        elif self.head is self._delivered and self.head is not head and not was_mid_request:
            self._remember(data)
        return b""

    def _without_upgrade(self, rest: bytes) -> bytes:
        """An offer to switch protocols is declined: the request as it would be without the offer.

        The parser takes what follows such a head for another protocol, even a request's body.
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
        """Called by the parser."""
        self.head = RequestHead()
        self.is_mid_request = self.is_in_head = True
        self._is_upgrade = False
        self._head_bytes = self._loose_bytes = self._chunks = 0

    def on_url(self, url: bytes) -> None:
        """Called by the parser, more than once where the URL came in pieces."""
        self.head.target += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if self.is_over or not self.is_in_head:  # nothing here has a use for trailers
            return
        value = value.strip(b" \t")
        headers = self.head.headers
        key = name.lower()
        if key not in headers:
            headers[key] = value
        elif key == b"host":
            self._refuse(400, "expected one Host header, got several")
        else:
            headers[key] = b"%b, %b" % (headers[key], value)
        self.head.header_list.append((name, value))
        self._count_head(len(name) + len(value) + HEADER_OVERHEAD_BYTES)

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self.is_over:
            return
        parser, head = self._parser, self.head
        self.is_in_head = False
        head.method = parser.get_method()
        head.keep_alive = parser.should_keep_alive()
        version = parser.get_http_version()
        head.is_http_10 = version == "1.0"
        # The parser bounds the number, not its leading zeros, and Python takes only so many digits.
        head.content_length = int(head.headers.get(b"content-length", b"0").lstrip(b"0") or b"0")
        refusal = _head_refusal(head, version, self._limits) or _host_refusal(head)
        if refusal is not None:
            self._refuse(*refusal)
            return
        self._is_upgrade = parser.should_upgrade()
        if head.content_length > LARGE_BODY_BYTES:
            self._large_bytes = head.content_length
        if b"expect" in head.headers and not (head.is_http_10 or self._is_upgrade):
            self._sink.on_expectation()

    def on_body(self, body: bytes) -> None:
        """Called by the parser for each piece of a body."""
        if self.is_over:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.http_max_input_bytes:
            self._refuse(*_size_refusal(self._body_bytes, self._limits))
        elif not self._body:
            self._body = body
        else:
            # One growing block: thousands of small pieces would take many times their size.
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body

    def on_chunk_header(self) -> None:
        """Called by the parser for each chunk, the last empty one too."""
        self._chunks += 1
        limit = self._limits.http_max_chunks
        if self._chunks > limit + 1:
            self._refuse(
                400,
                f"Chunked request body exceeds maximum of {limit} non-empty chunks. "
                "Send fewer or larger HTTP chunks.",
            )

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if not (self.is_over or self._is_upgrade):
            self._end_request(self._body)

    # Bodies and limits

    def _end_request(self, body: Any) -> None:
        head = self._delivered = self.head
        self._body = b""
        self._body_bytes = self._large_bytes = 0
        self.is_mid_request = False
        if not head.keep_alive:
            self.is_over = True
        self._sink.on_request(HttpRequest(head, body))

    def _begin_large_body(self) -> None:
        try:
            large = self._sink.body_memory(self.head)
        except MemoryError:
            self._refuse(503, f"no memory for a request body of {self._large_bytes} bytes")
            return
        large[: self._body_bytes] = self._body
        self.large = large
        self._body = b""
        self._parser = None  # it would wait for this body for ever

    def _count_head(self, nbytes: int) -> None:
        self._head_bytes += nbytes
        if self._head_bytes > self._limits.http_max_header_bytes:
            self._refuse_head()

    def _count_loose(self, nbytes: int) -> None:
        """Bound what the parser keeps or drops unseen: a header without end, framing of chunks."""
        self._loose_bytes += nbytes
        limit = self._limits.http_max_header_bytes
        if self._loose_bytes <= limit + CHUNK_OVERHEAD_BYTES * self._chunks:
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


def _head_refusal(head: RequestHead, version: str, limits: Limits) -> tuple[int, str] | None:
    """What RFC 9112 and the limits have against a well-formed head."""
    coding = head.headers.get(b"transfer-encoding", b"chunked").lower()
    expectation = head.headers.get(b"expect", b"100-continue").lower()
    if version not in ("1.0", "1.1"):
        return 505, f"expected HTTP version 1.0 or 1.1, got {version}"
    if head.method == b"CONNECT":
        return 501, "this server is no proxy: CONNECT is not supported"
    if head.is_http_10 and b"transfer-encoding" in head.headers:
        return 400, "expected Content-Length in a request of HTTP 1.0, got Transfer-Encoding"
    if coding != b"chunked":  # without it at the end, nobody knows where the body ends
        is_framed = coding.rpartition(b",")[2].strip() == b"chunked"
        return 501 if is_framed else 400, "the only Transfer-Encoding that is supported is chunked"
    if expectation != b"100-continue" and not head.is_http_10:
        return 417, "the only expectation that can be met is 100-continue"
    is_too_large = head.content_length > limits.http_max_input_bytes
    return _size_refusal(head.content_length, limits) if is_too_large else None


def _host_refusal(head: RequestHead) -> tuple[int, str] | None:
    """What RFC 9112, 3.2 has against a missing or malformed Host; several are refused before."""
    host = head.headers.get(b"host")
    if host is None:
        is_fine = head.is_http_10
        return None if is_fine else (400, "expected a Host header in a request of HTTP 1.1")
    if _HOST.fullmatch(host):
        return None
    return 400, f"expected a name or an address as Host, got {host.decode('latin-1')!a}"


def _size_refusal(size: int, limits: Limits) -> tuple[int, str]:
    return 400, (
        f"request size of {size} bytes exceeds the maximum allowed value of "
        f"{limits.http_max_input_bytes} bytes. Use --http-max-input-size to increase the limit."
    )


def _syntax_refusal(error: Exception) -> tuple[int, str]:
    if "PRI" in str(error):  # how every HTTP/2 connection begins
        return 505, "expected HTTP version 1.0 or 1.1, got 2.0: gRPC has a port of its own"
    return 400, f"malformed HTTP request: {error}"
