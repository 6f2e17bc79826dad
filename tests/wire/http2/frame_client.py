# SPDX-License-Identifier: Apache-2.0
"""A client made of single frames, so that tests can break any rule, and a reader of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import hpack

from pytriton.protocol.http2 import Http2Connection, Http2Limits, encode_header_block, frames
from pytriton.protocol.http2.events import Event, InputLeft
from pytriton.protocol.http2.frames import frame

GRPC_HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "localhost:8001"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)
RESPONSE_HEAD = b"\x88"  # :status 200
TRAILERS = encode_header_block([(b"grpc-status", b"0")])
INITIAL_WINDOW_SIZE = 4


class SentFrame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def parse_frames(data: bytes) -> list[SentFrame]:
    sent = []
    at = 0
    while at < len(data):
        length_and_kind, flags, stream_id = frames.unpack_header(data, at)
        length = length_and_kind >> 8
        payload = data[at + 9 : at + 9 + length]
        assert len(payload) == length, "the output ends inside a frame"
        sent.append(SentFrame(length_and_kind & 0xFF, flags, stream_id, payload))
        at += 9 + length
    return sent


class FrameClient:
    """Sends hand-made frames to a connection and reads its answers; time moves only by hand."""

    def __init__(self, limits: Http2Limits | None = None, *, settings: bytes = b"") -> None:
        self.connection = Http2Connection(limits or Http2Limits())
        self.encoder = hpack.Encoder()
        self.now_ns = 1_000_000_000_000
        self.send(frames.PREFACE + frame(frames.SETTINGS, 0, 0, settings))
        self.output()

    def send(self, *data: bytes) -> list[Event]:
        events = self.connection.receive(b"".join(data), self.now_ns)
        return self.with_rest(events)

    def with_rest(self, events: list[Event]) -> list[Event]:
        """These events, and those of what was not processed at once."""
        while self.connection.has_rest:
            assert isinstance(events[-1], InputLeft)
            events = events[:-1] + self.connection.receive_rest(self.now_ns)
        return events

    def deliver(self, data: bytes) -> Iterator[list[Event]]:
        """Do what a transport does that reads into memory: what was lent is used again at once."""
        while data:
            buffer = self.connection.get_buffer(reads_more=True)
            if buffer is not None:
                size = fill([buffer], data)
                if size == len(buffer):
                    size += fill(self.connection.expect_more(), data[size:])
                events = self.connection.buffer_updated(size, self.now_ns)
            else:
                size = len(data)
                buffer = bytearray(data)
                events = self.connection.receive(memoryview(buffer), self.now_ns)
                buffer[:] = bytes(size)
            yield self.with_rest(events)
            data = data[size:]

    def block(self, headers=GRPC_HEADERS) -> bytes:
        return self.encoder.encode(headers)

    def headers(self, stream_id, headers=GRPC_HEADERS, *, end_stream=False) -> bytes:
        flags = frames.END_HEADERS | (frames.END_STREAM if end_stream else 0)
        return frame(frames.HEADERS, flags, stream_id, self.block(headers))

    def open(self, *stream_ids: int, end_stream: bool = False) -> None:
        for stream_id in stream_ids:
            self.send(self.headers(stream_id, end_stream=end_stream))

    def output_bytes(self) -> bytes:
        written = b""
        while self.connection.has_output:
            written += b"".join(self.connection.take_output())
        return written

    def output(self) -> list[SentFrame]:
        return parse_frames(self.output_bytes())

    def data_sent(self, stream_id: int) -> bytes:
        return b"".join(
            sent.payload
            for sent in self.output()
            if sent.kind == frames.DATA and sent.stream_id == stream_id
        )


def fill(buffers: list[memoryview], data: bytes) -> int:
    """Put bytes into buffers, as a read does; returns how many had room."""
    at = 0
    for buffer in buffers:
        part = data[at : at + len(buffer)]
        buffer[: len(part)] = part
        at += len(part)
    return at


def data(stream_id: int, payload: bytes, *, end_stream: bool = False) -> bytes:
    return frame(frames.DATA, frames.END_STREAM if end_stream else 0, stream_id, payload)


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: int = 8) -> bytes:
    return frame(frames.RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def setting(number: int, value: int) -> bytes:
    return number.to_bytes(2, "big") + value.to_bytes(4, "big")


def settings(*entries: bytes, flags: int = 0) -> bytes:
    return frame(frames.SETTINGS, flags, 0, b"".join(entries))


def ping(payload: bytes = b"12345678", *, flags: int = 0) -> bytes:
    return frame(frames.PING, flags, 0, payload)


def responding(
    *stream_ids: int, limits: Http2Limits | None = None, window: int = 65_535
) -> FrameClient:
    """A client whose streams got the head of a response."""
    client = FrameClient(limits, settings=setting(INITIAL_WINDOW_SIZE, window))
    client.open(*stream_ids, end_stream=True)
    for stream_id in stream_ids:
        client.connection.send_headers(stream_id, RESPONSE_HEAD)
    client.output()
    return client
