# SPDX-License-Identifier: Apache-2.0
"""Reads streams of small responses over a raw socket, to measure no client library.

It knows just enough HTTP/2 for one ModelStreamInfer call, and looks into no response before the
call is over.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

import hpack

from benchmarks import http2
from benchmarks.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    HEADERS,
    INITIAL_MAX_FRAME,
    INITIAL_WINDOW,
    PING,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    messages,
)

METHOD = "ModelStreamInfer"
STREAM = 1


@dataclass(frozen=True)
class StreamResult:
    """How one call went, in seconds since its first request was sent."""

    responses: int
    first_s: float
    last_s: float


class StreamCall:
    """The only call on a connection that nothing was sent on yet."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = bytearray()
        self._data = bytearray()
        self._header_blocks: list[bytes] = []
        self._is_open = False
        self._is_over = False

    def open(self) -> None:
        """Sends the headers; once the server's settings are here, both sides are set up."""
        headers = hpack.Encoder().encode(http2.call_headers(METHOD))
        self._socket.sendall(http2.opening() + frame(HEADERS, END_HEADERS, STREAM, headers))
        while not self._is_open:
            self._receive()

    def run(self, requests: list[bytes]) -> tuple[StreamResult, list[bytes]]:
        """Sends the framed requests at once and reads until the call ends; also the responses."""
        sent = b"".join(requests)
        if len(sent) > INITIAL_WINDOW:
            raise ValueError(f"expected requests of up to {INITIAL_WINDOW} bytes, got {len(sent)}")
        parts = [sent[at : at + INITIAL_MAX_FRAME] for at in range(0, len(sent), INITIAL_MAX_FRAME)]
        frames = [frame(DATA, 0, STREAM, part) for part in parts]
        begin = time.perf_counter()
        self._socket.sendall(b"".join(frames) + frame(DATA, END_STREAM, STREAM, b""))
        while not self._data and not self._is_over:
            self._receive()
        first = time.perf_counter()
        while not self._is_over:
            self._receive()
        last = time.perf_counter()
        http2.check_status(hpack.Decoder(), self._header_blocks)
        responses = list(messages(self._data))
        return StreamResult(len(responses), first - begin, last - begin), responses

    def _receive(self) -> None:
        chunk = self._socket.recv(2**20)
        if not chunk:
            raise ConnectionError(f"the server closed after {len(self._data)} bytes of responses")
        buffer = self._received
        buffer += chunk
        at, end = 0, len(buffer)
        while end - at >= FRAME_HEAD.size:
            length_and_kind, flags, _ = FRAME_HEAD.unpack_from(buffer, at)
            payload_at = at + FRAME_HEAD.size
            next_at = payload_at + (length_and_kind >> 8)
            if next_at > end:
                break
            self._take(length_and_kind & 0xFF, flags, buffer[payload_at:next_at])
            at = next_at
        del buffer[:at]

    def _take(self, kind: int, flags: int, payload: bytearray) -> None:
        if kind == DATA and not flags:
            self._data += payload
        elif kind == HEADERS and flags | END_STREAM == END_HEADERS | END_STREAM:
            self._header_blocks.append(bytes(payload))
            self._is_over = bool(flags & END_STREAM)
        elif kind == SETTINGS and not flags & ACK:
            self._socket.sendall(frame(SETTINGS, ACK, 0, b""))
            self._is_open = True
        elif kind == PING and not flags & ACK:
            self._socket.sendall(frame(PING, ACK, 0, bytes(payload)))
        elif kind not in (SETTINGS, PING, WINDOW_UPDATE):
            raise ConnectionError(f"got a frame of type {kind} with flags {flags}: {payload!r}")
