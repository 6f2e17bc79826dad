# SPDX-License-Identifier: Apache-2.0
"""Makes large ModelInfer calls over a raw socket, to measure no client library.

It sends frames as large as the server takes, within the windows that the server opens, reads while
it writes, and looks into no answer before the call is over.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque

import hpack

from benchmarks import http2
from benchmarks.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    HEADERS,
    PING,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)

METHOD = "ModelInfer"
LARGEST_FRAME = 2**20
# Frames are cut while less than this waits, so that a PING, by which a server measures the
# connection, is answered soon.
BURST_BYTES = 2**20
# Room for all that comes with an answer: headers, frame heads, window updates.
SLACK_BYTES = 2**20


class LargeCallClient:
    """A connection for one call at a time; `answer_bytes` is the content of the largest answer."""

    def __init__(self, connection: socket.socket, answer_bytes: int) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._poll = select.poll()
        self._outgoing: deque[memoryview] = deque()
        self._received = memoryview(bytearray(answer_bytes + SLACK_BYTES))
        self._filled = self._parsed = 0
        self._encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        # What the server's settings and updates allow.
        self._max_frame = http2.INITIAL_MAX_FRAME
        self._initial_window = self._connection_window = http2.INITIAL_WINDOW
        self._has_settings = False
        # The call that goes on.
        self._stream, self._stream_window = -1, 0
        self._unsent = memoryview(b"")
        self._parts: list[memoryview] = []
        self._header_blocks: list[bytes] = []
        self._is_over = False

    def open(self) -> None:
        """Sets the connection up on both sides."""
        self._queue(http2.opening((http2.MAX_FRAME_SIZE, LARGEST_FRAME)))
        while self._outgoing or not self._has_settings:
            self._exchange()

    def call(self, request: bytes) -> tuple[float, bytes]:
        """Sends the framed request; how many seconds the answer took, and its message."""
        self._prepare(request)
        begin = time.perf_counter()
        while not self._is_over:
            self._exchange()
        elapsed_s = time.perf_counter() - begin
        http2.check_status(self._decoder, self._header_blocks)
        (message,) = http2.messages(b"".join(self._parts))
        return elapsed_s, message

    def _prepare(self, request: bytes) -> None:
        """Queues the headers of the next call, after the credit for the last one's answer."""
        if self._parts:
            self._queue(http2.credit(sum(map(len, self._parts))))
        rest = bytes(self._received[self._parsed : self._filled])
        self._received[: len(rest)] = rest
        self._parsed, self._filled = 0, len(rest)
        self._stream += 2
        self._stream_window = self._initial_window
        self._unsent = memoryview(request)
        self._parts, self._header_blocks, self._is_over = [], [], False
        headers = self._encoder.encode(http2.call_headers(METHOD))
        self._queue(frame(HEADERS, END_HEADERS, self._stream, headers))

    def _queue(self, data: bytes) -> None:
        self._outgoing.append(memoryview(data))

    def _exchange(self) -> None:
        """Waits until the server sends, or takes what there is to send."""
        self._queue_data()
        self._poll.register(self._socket, select.POLLIN | (select.POLLOUT * bool(self._outgoing)))
        events = self._poll.poll(http2.TIMEOUT_S * 1000)
        if not events:
            raise TimeoutError(f"nothing came or went for {http2.TIMEOUT_S:.0f} s")
        ((_, happened),) = events
        if happened & select.POLLOUT:
            self._send()
        if happened & ~select.POLLOUT:
            self._receive()

    def _queue_data(self) -> None:
        """Cuts frames off the request, as the windows allow, until a burst is waiting."""
        waiting = sum(map(len, self._outgoing))
        while waiting < BURST_BYTES and self._unsent:
            room = min(self._stream_window, self._connection_window, self._max_frame)
            if room <= 0:
                break
            part, self._unsent = self._unsent[:room], self._unsent[room:]
            flags = 0 if self._unsent else END_STREAM
            self._queue(http2.frame_head(DATA, flags, self._stream, len(part)))
            self._outgoing.append(part)
            waiting += len(part)
            self._stream_window -= len(part)
            self._connection_window -= len(part)

    def _send(self) -> None:
        sent = self._socket.sendmsg(self._outgoing)
        while sent:
            part = self._outgoing.popleft()
            if sent < len(part):
                self._outgoing.appendleft(part[sent:])
            sent -= min(sent, len(part))

    def _receive(self) -> None:
        if self._filled == len(self._received):
            raise RuntimeError(f"expected an answer of less than {self._filled} bytes, got more")
        count = self._socket.recv_into(self._received[self._filled :])
        if not count:
            raise ConnectionError(f"the server closed after {self._filled} bytes of its answer")
        self._filled += count
        while self._filled - self._parsed >= FRAME_HEAD.size:
            length_and_kind, flags, stream = FRAME_HEAD.unpack_from(self._received, self._parsed)
            payload_at = self._parsed + FRAME_HEAD.size
            end = payload_at + (length_and_kind >> 8)
            if end > self._filled:
                break
            self._parsed = end
            self._take(length_and_kind & 0xFF, flags, stream, self._received[payload_at:end])

    def _take(self, kind: int, flags: int, stream: int, payload: memoryview) -> None:
        if kind == DATA and not flags:
            self._parts.append(payload)
        elif kind == HEADERS and flags | END_STREAM == END_HEADERS | END_STREAM:
            self._header_blocks.append(bytes(payload))
            self._is_over = bool(flags & END_STREAM)
        elif kind == SETTINGS and not flags & ACK:
            for setting, value in struct.iter_unpack(">HI", payload):
                self._take_setting(setting, value)
            self._has_settings = True
            self._queue(frame(SETTINGS, ACK, 0, b""))
        elif kind == WINDOW_UPDATE:
            self._take_credit(stream, int.from_bytes(payload, "big"))
        elif kind == PING and not flags & ACK:
            self._queue(frame(PING, ACK, 0, bytes(payload)))
        elif kind not in (SETTINGS, PING):
            content = bytes(payload)
            raise ConnectionError(f"got a frame of type {kind} with flags {flags}: {content!r}")

    def _take_setting(self, setting: int, value: int) -> None:
        if setting == http2.INITIAL_WINDOW_SIZE:
            self._stream_window += value - self._initial_window
            self._initial_window = value
        elif setting == http2.MAX_FRAME_SIZE:
            self._max_frame = min(value, LARGEST_FRAME)
        elif setting == http2.HEADER_TABLE_SIZE:
            self._encoder.header_table_size = min(value, self._encoder.header_table_size)

    def _take_credit(self, stream: int, size: int) -> None:
        """Credit for a call that is over is of no use to the next one."""
        if stream == 0:
            self._connection_window += size
        elif stream == self._stream:
            self._stream_window += size
