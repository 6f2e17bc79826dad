# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 requests as bytes, and answers from bytes; sockets are in `connections` and its twin."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import httptools

from pytriton.client.exceptions import PyTritonClientValueError

_FIRST_FINAL_STATUS = 200  # RFC 9110, 15.2
_SETTINGS = b"\x04"  # the type of the frame that a server of HTTP/2 begins with; RFC 9113, 3.4
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.1


def request_head(method: str, target: str, host: str, headers: Mapping[str, Any]) -> bytes:
    """The head of a request; a `Host` among the headers wins, for gateways that route by it.

    Raises:
        PyTritonClientValueError: A header would become several lines, has a name that none can
            have, or is not Latin-1.
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


@functools.lru_cache(maxsize=256)  # a request has the names that the last one had
def _checked_name(name: str) -> str:
    """The name of a header in lower case."""
    if not _NAME.fullmatch(name):
        raise PyTritonClientValueError(
            f"Expected names of headers in one line each, of letters, digits and -, got {name!r}"
        )
    return name.lower()


class HttpAnswer:
    """One answer, made of what the connection receives."""

    def __init__(self) -> None:
        self.status_code = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self.is_last = False  # the connection cannot be used for another request
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
        """Take what was received.

        Raises:
            ConnectionError: It is not HTTP, or it is empty and the answer not complete.
        """
        if not data:
            self._end()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise ConnectionError(f"expected an HTTP answer, got {described(data)}") from error

    def rest(self) -> memoryview | None:
        """Where the rest of a body of known length belongs: past the parser, which would copy it.

        None where there is no such rest yet. Whoever asks fills it.

        Raises:
            ConnectionError: There is no memory for so much.
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
        """Without a length and not in chunks, an answer ends where the connection does."""
        is_delimited = not {"content-length", "transfer-encoding"}.isdisjoint(self.headers)
        if not self._has_head or is_delimited:
            raise ConnectionError("the server closed the connection before its answer was complete")
        self.is_last = self.is_complete = True

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status_code = self._parser.get_status_code()
        if status_code < _FIRST_FINAL_STATUS:  # an interim answer, which the real one follows
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
    """What came instead of an answer."""
    if data[3:4] == _SETTINGS:
        return "HTTP/2, as gRPC servers speak it; such ports need an address with grpc://"
    return repr(data[:80])
