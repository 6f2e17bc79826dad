# SPDX-License-Identifier: Apache-2.0
"""Clients that send the bytes of requests as they are, many at a time, and keep whole answers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

import hpack

from benchmarks import http2
from benchmarks.http2 import ACK, DATA, END_HEADERS, END_STREAM, FRAME_HEAD, HEADERS, PING, SETTINGS
from tests.e2e.waiting import DEADLINE_S
from tests.exactness.random_requests import GrpcRequest

RST_STREAM, GOAWAY = 3, 7
METHOD = "ModelInfer"


class HttpClient:
    """Connections that have a request each."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sockets: list[socket.socket] = []

    def send(self, requests: Sequence[bytes]) -> None:
        while len(self._sockets) < len(requests):
            address = ("127.0.0.1", self._port)
            self._sockets.append(socket.create_connection(address, DEADLINE_S))
        for connection, request in zip(self._sockets, requests, strict=False):
            connection.sendall(request)

    def receive(self, count: int) -> list[bytes]:
        """The answers of the last requests, from the first to the last byte."""
        answers = [self._read_answer(connection) for connection in self._sockets[:count]]
        for index in reversed(range(count)):
            # An answer may have been the last one of its connection.
            if b"connection: close" in answers[index].lower():
                self._sockets.pop(index).close()
        return answers

    def close(self) -> None:
        for connection in self._sockets:
            connection.close()

    def _read_answer(self, connection: socket.socket) -> bytes:
        answer = b""
        while True:
            while b"\r\n\r\n" not in answer:
                answer += self._read(connection, answer)
            if not answer.startswith(b"HTTP/1.1 100"):
                break
            answer = answer.partition(b"\r\n\r\n")[2]
        head, _, body = answer.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        while len(body) < length:
            more = self._read(connection, answer)
            body += more
            answer += more
        return answer

    @staticmethod
    def _read(connection: socket.socket, so_far: bytes) -> bytes:
        chunk = connection.recv(2**16)
        if not chunk:
            raise ConnectionError(f"the server closed after {so_far!r}")
        return chunk


@dataclass
class GrpcAnswer:
    """All that a server said about a call."""

    headers: list[list[tuple[str, str]]] = field(default_factory=list)
    data: bytes = b""
    is_reset: bool = False


class GrpcConnection:
    """Calls that are all under way on one connection."""

    def __init__(self, port: int) -> None:
        self._socket = http2.connect(port)
        self._encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        self._next = 1
        self._received = b""
        self._calls: dict[int, GrpcAnswer] = {}
        self._open: set[int] = set()
        self._socket.sendall(http2.opening())

    def send(self, requests: Sequence[GrpcRequest]) -> None:
        frames = []
        for request in requests:
            base = [
                (name, value) for name, value in http2.call_headers(METHOD) if name.startswith(":")
            ]
            block = self._encoder.encode([*base, *request.headers], huffman=False)
            frames.append(http2.frame(HEADERS, END_HEADERS, self._next, block))
            frames.append(http2.frame(DATA, END_STREAM, self._next, request.message))
            self._calls[self._next] = GrpcAnswer()
            self._open.add(self._next)
            self._next += 2
        self._socket.sendall(b"".join(frames))

    def receive(self) -> list[GrpcAnswer]:
        """The answers of the last calls, in the order in which these were sent."""
        while self._open:
            chunk = self._socket.recv(2**16)
            if not chunk:
                raise ConnectionError("the server closed a connection with open calls")
            self._received += chunk
            self._read_frames()
        answers = list(self._calls.values())
        self._calls.clear()
        read = sum(len(answer.data) for answer in answers)
        if read:
            self._socket.sendall(http2.credit(read))
        return answers

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _read_frames(self) -> None:
        at = 0
        while len(self._received) - at >= FRAME_HEAD.size:
            head, flags, stream = FRAME_HEAD.unpack_from(self._received, at)
            end = at + FRAME_HEAD.size + (head >> 8)
            if end > len(self._received):
                break
            self._take(head & 0xFF, flags, stream, self._received[at + FRAME_HEAD.size : end])
            at = end
        self._received = self._received[at:]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == HEADERS:
            pairs = [(str(name), str(value)) for name, value in self._decoder.decode(payload)]
            self._calls[stream].headers.append(pairs)
        elif kind == DATA:
            self._calls[stream].data += payload
        elif kind == RST_STREAM:
            self._calls[stream].is_reset = True
            self._open.discard(stream)
        elif kind == SETTINGS and not flags & ACK:
            self._socket.sendall(http2.frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._socket.sendall(http2.frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            raise ConnectionError(f"the server ended a connection: {payload!r}")
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            self._open.discard(stream)
