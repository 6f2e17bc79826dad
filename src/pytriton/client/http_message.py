# SPDX-License-Identifier: Apache-2.0
"""Serialises HTTP/1.1 requests and parses responses; `(asyncio_)connections` has the sockets."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import httptools

from pytriton.client.exceptions import PyTritonClientValueError

_JOIN_BYTES = 65536
_FIRST_FINAL_STATUS = 200  # RFC 9110, 15.2
_SETTINGS = b"\x04"  # type of the first frame of an HTTP/2 server; RFC 9113, 3.4
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.1


def request_data(
    method: str,
    target: str,
    host: str,
    headers: Mapping[str, Any] | None,
    body: Sequence[bytes],
) -> Sequence[bytes]:
    """Returns what to write: a small body together with its head, a large one in its parts.

    Raises:
        PyTritonClientValueError: As `request_head`.
    """
    size = sum(map(len, body))
    given: Mapping[str, Any] = headers or {}
    if method == "POST":
        given = {**given, "Content-Length": size}
    head = request_head(method, target, host, given)
    return (b"".join((head, *body)),) if size <= _JOIN_BYTES else (head, *body)


def request_head(method: str, target: str, host: str, headers: Mapping[str, Any]) -> bytes:
    """Returns the head of a request; a given `Host` header takes precedence, for gateways.

    Raises:
        PyTritonClientValueError: A header contains a line break, has an invalid name, or is not
            Latin-1.
    """
    lines = [f"{method} {target} HTTP/1.1"]
    if "host" not in [_checked_name(name) for name in headers]:
        lines.append(f"Host: {host}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    for line in lines:
        if "\r" in line or "\n" in line:
            raise PyTritonClientValueError(f"Expected headers of one line each, got {line!r}")
    try:
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1")
    except UnicodeEncodeError as error:
        raise PyTritonClientValueError(
            f"Expected headers in Latin-1, got {error.object[error.start : error.end]!r}"
        ) from error


@functools.lru_cache(maxsize=256)  # most requests have the same names as the previous one
def _checked_name(name: str) -> str:
    """Returns the name of a header in lower case."""
    if not _NAME.fullmatch(name):
        raise PyTritonClientValueError(
            f"Expected names of headers in one line each, of letters, digits and -, got {name!r}"
        )
    return name.lower()


class HttpAnswer:
    """Parses one response from the received bytes."""

    def __init__(self) -> None:
        self.status_code: int = 0
        self.headers: dict[str, str] = {}
        self.is_complete: bool = False
        self.is_last: bool = False  # the connection cannot be used for another request
        self._has_head = False
        self._parts: list[bytes] = []
        self._buffer: bytearray | None = None
        self._parser = httptools.HttpResponseParser(self)

    @property
    def body(self) -> bytes | bytearray:
        if self._buffer is not None:
            return self._buffer
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def feed(self, data: bytes) -> None:
        """Parses received data; empty data is the end of the connection.

        Raises:
            ConnectionError: The data is not HTTP, or it is empty and the response incomplete.
        """
        if not data:
            self._end()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise ConnectionError(f"expected an HTTP answer, got {described(data)}") from error

    def rest(self) -> memoryview | None:
        """Returns the buffer for the rest of a body of known length, or None.

        The caller fills the buffer, because the parser would copy the data once more. Returns None
        if the head is incomplete, the length is unknown or the response is complete.

        Raises:
            ConnectionError: The body does not fit into memory.
        """
        if not self._has_head or self.is_complete or "content-length" not in self.headers:
            return None
        start = b"".join(self._parts)
        length = int(self.headers["content-length"])
        try:
            self._buffer = bytearray(length)
        except (MemoryError, OverflowError) as error:
            raise ConnectionError(
                f"expected an answer that fits into memory, got one of {length} bytes"
            ) from error
        self._buffer[: len(start)] = start
        self.is_complete = True
        return memoryview(self._buffer)[len(start) :]

    def _end(self) -> None:
        """Handles the end of the connection, which also ends a body without length and chunks."""
        is_delimited = not {"content-length", "transfer-encoding"}.isdisjoint(self.headers)
        if not self._has_head or is_delimited:
            raise ConnectionError("the server closed the connection before its answer was complete")
        self.is_last = self.is_complete = True

    # Callbacks of the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status_code = self._parser.get_status_code()
        if status_code < _FIRST_FINAL_STATUS:  # an interim response; the final one follows
            self.headers = {}
            return
        self._has_head = True
        self.status_code = status_code
        self.is_last = not self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        self.is_complete = self._has_head


def described(data: bytes) -> str:
    """Describes data that is not an HTTP response."""
    if data[3:4] == _SETTINGS:
        return "HTTP/2, as gRPC servers speak it; such ports need an address with grpc://"
    return repr(data[:80])
