# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 connections that any thread may use and that keep their time limits.

They stand in for the gevent connections of `tritonclient.http`, which belong to one thread and take
a limit for each read: an answer that trickles in never times out. A limit here is a deadline for
the whole exchange: connect, send, wait and receive.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import httptools

from pytriton.client.exceptions import PyTritonClientClosedError, PyTritonClientValueError
from pytriton.client.url import TritonUrl

_RECEIVE_BYTES = 65536
_JOIN_BYTES = 65536  # a smaller body travels in one send with its head


class HttpResponse:
    """An answer, with the few methods that `tritonclient.http` calls on one."""

    def __init__(self, status_code: int, headers: dict[str, str], body: bytes | bytearray) -> None:
        self.status_code = status_code
        self._headers = headers
        self._body = body
        self._read = 0

    def get(self, name: str, default: str | None = None) -> str | None:
        """The value of a header."""
        return self._headers.get(name.lower(), default)

    def read(self, length: int | None = None) -> bytes | memoryview:
        """The next bytes of the body; the tensors behind a JSON head come as a view of it."""
        start = self._read
        if length is None:
            self._read = len(self._body)
            return memoryview(self._body)[start:] if start else bytes(self._body)
        self._read = min(start + length, len(self._body))
        return bytes(self._body[start : self._read])


class HttpConnections:
    """The connections to one server: each call takes an idle one or opens another.

    Args:
        url: the server.
        timeout_s: time limit of an exchange.
    """

    def __init__(self, url: TritonUrl, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._limits = threading.local()
        self._idle: deque[socket.socket] = deque()
        self._owner_pid = os.getpid()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._idle)} idle"
        return f"<HttpConnections to {self._url.without_scheme}, {state}>"

    @contextlib.contextmanager
    def limited_to(self, timeout_s: float) -> Iterator[None]:
        """Use another time limit for the calls that this thread makes inside the block."""
        self._limits.timeout_s = timeout_s
        try:
            yield
        finally:
            del self._limits.timeout_s

    def get(self, request_uri: str, headers: Mapping[str, Any] | None = None) -> HttpResponse:
        return self._exchange(self._head("GET", request_uri, headers), b"")

    def post(
        self, request_uri: str, body: bytes | str = b"", headers: Mapping[str, Any] | None = None
    ) -> HttpResponse:
        data = body.encode() if isinstance(body, str) else body
        length = {"Content-Length": len(data)}
        return self._exchange(self._head("POST", request_uri, {**(headers or {}), **length}), data)

    def close(self) -> None:
        """Close idle connections; calls of other threads end as they would have."""
        self._closed = True
        self._close_idle()

    def _head(self, method: str, request_uri: str, headers: Mapping[str, Any] | None) -> bytes:
        lines = [f"{method} {request_uri} HTTP/1.1", f"Host: {self._url.without_scheme}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        for line in lines:
            if "\r" in line or "\n" in line:
                raise PyTritonClientValueError(f"Expected headers of one line each, got {line!r}")
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1", "replace")

    def _exchange(self, head: bytes, body: bytes) -> HttpResponse:
        timeout_s = getattr(self._limits, "timeout_s", self._timeout_s)
        deadline = time.monotonic() + timeout_s
        connection = self._take() or _connect(self._url, deadline)
        try:
            answer = _Answer()
            try:
                _send(connection, head, body, deadline)
            except (BrokenPipeError, ConnectionResetError):
                # A server that refuses a body answers before it has read all of it.
                answer.receive(connection, deadline)
                answer.is_last = True
            else:
                answer.receive(connection, deadline)
        except BaseException:
            connection.close()
            raise
        self._give_back(connection, answer)
        return HttpResponse(answer.status_code, answer.headers, answer.body)

    def _take(self) -> socket.socket | None:
        if self._closed:
            raise PyTritonClientClosedError(
                f"The connections to {self._url.with_scheme} are closed"
            )
        if self._owner_pid != os.getpid():
            # The parent goes on using them. Closing our copies does not end its connections.
            self._close_idle()
            self._owner_pid = os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            # Nothing was asked, so what there is to read is the server's goodbye.
            if not _is_readable(connection):
                return connection
            connection.close()

    def _give_back(self, connection: socket.socket, answer: _Answer) -> None:
        if self._closed or answer.is_last:
            connection.close()
        else:
            self._idle.append(connection)

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()


class _Answer:
    """Reads one answer from a connection."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.status_code = 0
        self.body: bytes | bytearray = b""
        self.is_last = False  # the connection cannot be used again
        self._has_head = False
        self._is_complete = False
        self._parts: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    def receive(self, connection: socket.socket, deadline: float) -> None:
        while not self._is_complete:
            connection.settimeout(_remaining(deadline))
            received = connection.recv(_RECEIVE_BYTES)
            if not received:
                self._end_by_close()
                break
            try:
                self._parser.feed_data(received)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                raise ConnectionError(f"expected an HTTP answer, got {received[:80]!r}") from error
            if self._has_head and not self._is_complete and "content-length" in self.headers:
                self._receive_rest(connection, deadline)
                return
        self.body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _receive_rest(self, connection: socket.socket, deadline: float) -> None:
        """Receive a large body where it stays, past the parser, which would copy it."""
        self.body = bytearray(int(self.headers["content-length"]))
        view = memoryview(self.body)
        filled = 0
        for part in self._parts:
            view[filled : filled + len(part)] = part
            filled += len(part)
        while filled < len(view):
            connection.settimeout(_remaining(deadline))
            count = connection.recv_into(view[filled:])
            if not count:
                raise ConnectionError(
                    f"expected {len(view)} bytes of an answer, the server closed after {filled}"
                )
            filled += count

    def _end_by_close(self) -> None:
        """Without a length and not in chunks, an answer ends where the connection does."""
        is_chunked = "transfer-encoding" in self.headers
        if not self._has_head or is_chunked or "content-length" in self.headers:
            raise ConnectionError("the server closed the connection before its answer was complete")
        self.is_last = True

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_head = True
        self.status_code = self._parser.get_status_code()
        self.is_last = not self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        self._is_complete = True


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("timed out")
    return remaining


def _connect(url: TritonUrl, deadline: float) -> socket.socket:
    addresses = socket.getaddrinfo(url.hostname, url.port, type=socket.SOCK_STREAM)
    failure: OSError = ConnectionError(f"expected an address of {url.hostname}, got none")
    for family, kind, protocol, _, address in addresses:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_remaining(deadline))
            connection.connect(address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise failure


def _send(connection: socket.socket, head: bytes, body: bytes, deadline: float) -> None:
    connection.settimeout(_remaining(deadline))
    if len(body) <= _JOIN_BYTES:
        connection.sendall(head + body)
        return
    connection.sendall(head)
    connection.settimeout(_remaining(deadline))
    connection.sendall(body)


def _is_readable(connection: socket.socket) -> bool:
    # poll, because select refuses the descriptors above 1023 of a busy process.
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))
