# SPDX-License-Identifier: Apache-2.0
"""A client of an HTTP port that speaks HTTP/2, without sockets: it makes frames by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import hpack

from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.frames import frame
from pytriton.serving.server.http.handler import HttpHandler
from pytriton.serving.server.http.http2_connection import Http2ServerConnection
from tests.server.http_fakes import Answer, Client
from tests.wire.http2.frame_client import (
    INITIAL_WINDOW_SIZE,
    SentFrame,
    data,
    parse_frames,
    setting,
    settings,
    window_update,
)

Fields = list[tuple[bytes, bytes]]
HOST = b"h"


def head(
    target: bytes = b"/", *more: tuple[bytes, bytes], method: bytes = b"GET", host: bytes = HOST
) -> Fields:
    """The fields of a request."""
    pseudo = [(b":method", method), (b":scheme", b"http"), (b":path", target)]
    return [*pseudo, (b":authority", host), *more]


def length(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % len(body)


@dataclass
class Reply:
    """What came back on a stream."""

    heads: list[dict[bytes, bytes]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    is_ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self.heads[-1][b":status"]) if self.heads else 0

    @property
    def headers(self) -> dict[bytes, bytes]:
        return {name: value for name, value in self.heads[-1].items() if name != b":status"}

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def answer(self) -> Answer:
        assert self.is_ended, self
        return Answer(self.status, self.headers, self.body)


class Http2Client(Client):
    """The client's end of one connection."""

    def __init__(
        self,
        handler: HttpHandler | None = None,
        *,
        window: int = 1 << 20,
        connection_window: int = 1 << 30,
        **limits,
    ) -> None:
        super().__init__(handler, **limits)
        self.transport.read_buffer = self.handler.read_buffer
        self.encoder = hpack.Encoder()
        self._next_id = 1
        self.begin_reading()
        start = frames.PREFACE + settings(setting(INITIAL_WINDOW_SIZE, window))
        if connection_window > frames.DEFAULT_WINDOW:
            start += window_update(0, connection_window - frames.DEFAULT_WINDOW)
        self.send(start)
        self.connection: Http2ServerConnection = self.transport.protocol
        assert isinstance(self.connection, Http2ServerConnection)

    # Requests

    def headers(self, fields: Fields, stream_id: int, *, end_stream: bool = False) -> bytes:
        flags = frames.END_HEADERS | (frames.END_STREAM if end_stream else 0)
        return frame(frames.HEADERS, flags, stream_id, self.encoder.encode(fields))

    def new_id(self) -> int:
        stream_id, self._next_id = self._next_id, self._next_id + 2
        return stream_id

    def request(self, fields: Fields, body: bytes = b"") -> tuple[int, bytes]:
        """The frames of a whole request, and its stream."""
        stream_id = self.new_id()
        if not body:
            return stream_id, self.headers(fields, stream_id, end_stream=True)
        return stream_id, self.headers(fields, stream_id) + data(stream_id, body, end_stream=True)

    def get(self, target: bytes = b"/", *more: tuple[bytes, bytes], **named) -> int:
        """Send a request without a body; returns its stream."""
        stream_id, wire = self.request(head(target, *more, **named))
        self.send(wire)
        return stream_id

    def post(self, body: bytes, target: bytes = b"/", *more: tuple[bytes, bytes], **named) -> int:
        """Send a request with a body; returns its stream."""
        fields = head(target, length(body), *more, method=b"POST", **named)
        stream_id, wire = self.request(fields, body)
        self.send(wire)
        return stream_id

    def open(self, fields: Fields) -> int:
        """Send only the head of a request with a body; returns its stream."""
        stream_id = self.new_id()
        self.send(self.headers(fields, stream_id))
        return stream_id

    def send_data(
        self,
        stream_id: int,
        payload: bytes,
        *,
        end_stream: bool = False,
        sizes: Iterator[int] | None = None,
        frame_bytes: int = 16_384,
    ) -> None:
        """Send data in frames of the usual size."""
        parts = [payload[at : at + frame_bytes] for at in range(0, len(payload), frame_bytes)]
        parts = parts or [b""]
        wire = [
            data(stream_id, part, end_stream=end_stream and number == len(parts))
            for number, part in enumerate(parts, 1)
        ]
        self.send(b"".join(wire), sizes)

    # Answers

    def begin_reading(self) -> None:
        """Read all that comes back from the first byte on."""
        self._decoder = hpack.Decoder()
        self._read_bytes = 0
        self.frames: list[SentFrame] = []
        self.replies: dict[int, Reply] = {}

    def read(self) -> None:
        """Read all that has come back."""
        taken = bytes(self.received[self._read_bytes :])
        self._read_bytes += len(taken)
        for sent in parse_frames(taken):
            self.frames.append(sent)
            reply = self.replies.setdefault(sent.stream_id, Reply())
            if sent.kind == frames.HEADERS:
                assert not reply.is_ended
                fields = self._decoder.decode(sent.payload, raw=True)
                assert all(name == name.lower() for name, _ in fields)
                reply.heads.append(dict(fields))
            elif sent.kind == frames.DATA:
                assert not reply.is_ended
                reply.parts.append(sent.payload)
            elif sent.kind == frames.RST_STREAM:
                reply.reset = int.from_bytes(sent.payload, "big")
            if sent.kind in (frames.HEADERS, frames.DATA) and sent.flags & frames.END_STREAM:
                reply.is_ended = True

    def reply(self, stream_id: int) -> Reply:
        self.loop.run()
        self.read()
        return self.replies.get(stream_id, Reply())

    def answer(self, stream_id: int) -> Answer:
        """The whole answer on a stream."""
        return self.reply(stream_id).answer

    def goaways(self) -> list[tuple[int, int]]:
        """The last stream and the error code of each GOAWAY."""
        self.loop.run()
        self.read()
        payloads = [sent.payload for sent in self.frames if sent.kind == frames.GOAWAY]
        return [frames.parse_goaway(payload)[:2] for payload in payloads]

    def acknowledge_shutdown(self) -> None:
        """Answer the ping that comes with the first GOAWAY of a shutdown."""
        self.send(frames.ping(b"shutdown", frames.ACK))


def as_http1(
    fields: Iterable[tuple[bytes, bytes]], body: bytes, *, is_chunked: bool = False
) -> bytes:
    """The same request in HTTP/1.1."""
    pseudo = {name: value for name, value in fields if name.startswith(b":")}
    lines = [b"%b %b HTTP/1.1" % (pseudo[b":method"], pseudo[b":path"])]
    lines.append(b"Host: %b" % pseudo[b":authority"])
    lines += [b"%b: %b" % each for each in fields if not each[0].startswith(b":")]
    if is_chunked:
        lines.append(b"Transfer-Encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    return b"\r\n".join((*lines, b"", body))
