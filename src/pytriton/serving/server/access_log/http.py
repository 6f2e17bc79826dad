# SPDX-License-Identifier: Apache-2.0
"""HTTP connections whose requests have lines in the access log.

They are another class than the usual ones, so that servers without an access log do no work for it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pytriton.serving.server.access_log.access_log import CLIENT_CLOSED, HTTP, AccessEntry
from pytriton.serving.server.http.connection import JSON_TYPE, HttpConnection, refusal
from pytriton.serving.server.http.reader import RequestHead

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.serving.server.access_log.access_log import AccessLog
    from pytriton.serving.server.http.handler import RequestHandler
    from pytriton.serving.server.http.reader import HttpRequest


class LoggedHttpConnection(HttpConnection):
    """A connection that adds an entry for each of its requests."""

    access_log: AccessLog  # set in the class of a server, as the ones below
    with_health: bool

    def __init__(self, handler: RequestHandler[HttpConnection]) -> None:
        super().__init__(handler)
        self._client = ""
        self._entered: HttpRequest | None = None  # the last request that has its entry
        self._began_ns = 0
        self._stream_status = 0
        self._streamed_bytes = 0
        # What the engine was asked for, which the path may not say.
        self.model = self.version = self.request_id = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the transport when a client connected."""
        self._client = address_of(transport)
        super().connection_made(transport)

    def _handle(self, request: HttpRequest) -> None:
        self._began_ns = request.began_ns or time.monotonic_ns()
        self._stream_status = self._streamed_bytes = 0
        self.model = self.version = self.request_id = ""
        super()._handle(request)

    def respond(
        self,
        status: int,
        parts: Sequence[Buffer] = (),
        content_type: bytes = JSON_TYPE,
        headers: bytes = b"",
    ) -> None:
        """Answer the current request; `headers` are whole lines."""
        request = self._current
        if request is not None:
            is_sent = not self._is_streaming and request.head.method != b"HEAD"
            self._enter(request, status, sum(map(len, parts)) if is_sent else self._streamed_bytes)
        super().respond(status, parts, content_type, headers)

    def respond_json(self, body: bytes) -> None:
        """Answer with a small body of JSON."""
        if self._current is not None:
            self._enter(self._current, 200, len(body))
        super().respond_json(body)

    def begin_stream(self, status: int, content_type: bytes, headers: bytes = b"") -> None:
        """Begin a response of unknown length."""
        self._stream_status = status
        super().begin_stream(status, content_type, headers)

    def stream(self, part: bytes) -> None:
        """Send a part of a streamed response."""
        self._streamed_bytes += len(part)
        super().stream(part)

    def end_stream(self) -> None:
        """End a streamed response."""
        if self._current is not None:
            self._enter(self._current, self._stream_status, self._streamed_bytes)
        super().end_stream()

    def _send_refusal(self, status: int, message: str) -> None:
        size = len(refusal(status, message).partition(b"\r\n\r\n")[2])
        self._add(self._reader.head, status, 0, size, 0)
        super()._send_refusal(status, message)

    def _abandon_requests(self) -> None:
        request = self._current
        if request is not None:
            self._enter(request, CLIENT_CLOSED, self._streamed_bytes)
        super()._abandon_requests()

    def _enter(self, request: HttpRequest, status: int, bytes_out: int) -> None:
        """Add the entry of a request, unless it has one."""
        if request is not self._entered:
            self._entered = request
            duration_ns = time.monotonic_ns() - self._began_ns
            self._add(request.head, status, len(request.body), bytes_out, duration_ns)

    def _add(
        self, head: RequestHead, status: int, bytes_in: int, bytes_out: int, duration_ns: int
    ) -> None:
        resolved = head.resolved
        if isinstance(resolved, RequestHead):  # what a route of a cloud provider is translated to
            resolved = resolved.resolved
        route: Any = getattr(resolved, "route", None)
        if not self.with_health and route is not None and route.endpoint.api == "health":
            return
        self.access_log.add(
            AccessEntry(
                time.time(),
                self._client,
                HTTP,
                head.method or b"-",
                head.target or b"-",
                status,
                bytes_in,
                bytes_out,
                duration_ns,
                self.model or getattr(route, "model", ""),
                self.version or getattr(route, "version", ""),
                self.request_id,
                head.headers.get(b"user-agent", b""),
            )
        )


def address_of(transport: asyncio.BaseTransport) -> str:
    """Returns the address and the port of a client; empty if it has none."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return ""
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
