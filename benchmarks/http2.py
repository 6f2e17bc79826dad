# SPDX-License-Identifier: Apache-2.0
"""The little of HTTP/2 that both raw-socket gRPC clients need: frames, a call's head, messages."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator

import hpack

SERVICE = "/inference.GRPCInferenceService"
TIMEOUT_S = 120.0

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD = struct.Struct(">IBI")  # length and type, flags, stream
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK = END_STREAM = 1
END_HEADERS = 4
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 4, 5  # settings
INITIAL_WINDOW = 65_535
INITIAL_MAX_FRAME = 16_384
LARGEST_WINDOW = 2**31 - 1


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return frame_head(kind, flags, stream, len(payload)) + payload


def frame_head(kind: int, flags: int, stream: int, length: int) -> bytes:
    return FRAME_HEAD.pack(length << 8 | kind, flags, stream)


def opening(*settings: tuple[int, int]) -> bytes:
    """What a client sends first; its windows are so wide that answers never wait for credit."""
    wide = (INITIAL_WINDOW_SIZE, LARGEST_WINDOW)
    pairs = b"".join(struct.pack(">HI", *setting) for setting in (wide, *settings))
    return PREFACE + frame(SETTINGS, 0, 0, pairs) + credit(LARGEST_WINDOW - INITIAL_WINDOW)


def credit(size: int) -> bytes:
    """Lets the server send that many bytes more on the connection."""
    return frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", size))


def call_headers(method: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"{SERVICE}/{method}"),
        (":authority", "127.0.0.1"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]


def check_status(decoder: hpack.Decoder, header_blocks: Iterable[bytes]) -> None:
    """Raises for a call whose headers and trailers do not say that it went well."""
    headers = {
        str(name): str(value) for block in header_blocks for name, value in decoder.decode(block)
    }
    if headers.get("grpc-status") != "0":
        raise RuntimeError(f"expected the call to end with grpc-status 0, got {headers}")


def messages(data: bytes | bytearray) -> Iterator[bytes]:
    """Splits the content of DATA frames into gRPC's messages."""
    at = 0
    while at < len(data):
        is_compressed, length = struct.unpack_from(">BI", data, at)
        at += 5 + length
        if is_compressed or at > len(data):
            raise RuntimeError("expected whole messages that are not compressed")
        yield bytes(data[at - length : at])
