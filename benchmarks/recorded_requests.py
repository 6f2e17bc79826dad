# SPDX-License-Identifier: Apache-2.0
"""Requests as client libraries put them on the wire: a relay before a server writes them down."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import hpack

from benchmarks.http2 import (
    DATA,
    END_STREAM,
    FRAME_HEAD,
    HEADERS,
    PREFACE,
    SERVICE,
    TIMEOUT_S,
)

CHUNK_BYTES = 2**16


@dataclass(frozen=True)
class GrpcCall:
    """What a client sent for one call: all of its headers, and its message with gRPC's prefix."""

    headers: list[tuple[str, str]]
    message: bytes

    @property
    def path(self) -> str:
        return dict(self.headers)[":path"]

    @property
    def metadata(self) -> list[tuple[str, str]]:
        """The headers that are not of HTTP/2 itself."""
        return [(name, value) for name, value in self.headers if not name.startswith(":")]


class Relay:
    """Passes connections on to a server, and keeps what their clients sent."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.sent: list[bytearray] = []  # by each connection
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        for connection in self._sockets:
            with contextlib.suppress(OSError):  # the other side has left
                connection.shutdown(socket.SHUT_RDWR)  # this wakes the threads up
        for thread in self._threads:
            thread.join()
        for connection in self._sockets:
            connection.close()

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _address = self._listener.accept()
                server = socket.create_connection(self._target, TIMEOUT_S)
                self._sockets += [client, server]
                self.sent.append(bytearray())
                self._start(_pass_on, client, server, self.sent[-1])
                self._start(_pass_on, server, client, None)


@contextlib.contextmanager
def recording(port: int) -> Iterator[Relay]:
    """A relay to that port of this machine, for the length of the block."""
    relay = Relay(port)
    try:
        yield relay
    finally:
        relay.close()


def _pass_on(source: socket.socket, target: socket.socket, record: bytearray | None) -> None:
    with contextlib.suppress(OSError):  # either side may leave at any time
        while chunk := source.recv(CHUNK_BYTES):
            if record is not None:
                record += chunk
            target.sendall(chunk)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def last_http_request(relay: Relay) -> bytes:
    """The last request with a body, from its first to its last byte."""
    requests = [request for sent in relay.sent for request in _http_requests(bytes(sent))]
    return [request for request in requests if request.startswith(b"POST ")][-1]


def _http_requests(sent: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(sent):
        body = sent.index(b"\r\n\r\n", at) + 4
        lines = sent[at:body].lower().split(b"\r\n")
        lengths = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
        end = body + sum(lengths)
        yield sent[at:end]
        at = end


def last_grpc_call(relay: Relay) -> GrpcCall:
    """The last inference."""
    calls = [call for sent in relay.sent for call in _grpc_calls(bytes(sent))]
    return [call for call in calls if call.path == f"{SERVICE}/ModelInfer"][-1]


def _grpc_calls(sent: bytes) -> Iterator[GrpcCall]:
    """The calls that a client has ended its side of; none of these here has CONTINUATION frames."""
    decoder = hpack.Decoder()
    headers: dict[int, list[tuple[str, str]]] = {}
    messages: dict[int, bytes] = {}
    at = len(PREFACE)
    while at < len(sent):
        head, flags, stream = FRAME_HEAD.unpack_from(sent, at)
        length, kind = head >> 8, head & 0xFF
        at += FRAME_HEAD.size
        payload = sent[at : at + length]
        at += length
        if kind == HEADERS:
            pairs = decoder.decode(payload)
            headers[stream] = [(str(name), str(value)) for name, value in pairs]
        elif kind == DATA:
            messages[stream] = messages.get(stream, b"") + payload
            if flags & END_STREAM:
                yield GrpcCall(headers[stream], messages[stream])
