# SPDX-License-Identifier: Apache-2.0
"""The layout of frames (RFC 9113, sections 4 and 6), and functions that build frames to send."""

from __future__ import annotations

import struct
from typing import Final

# Plain integers, because an IntEnum would add a slow lookup and comparison to every frame.
DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

ACK: Final = 0x01
END_STREAM: Final = 0x01
END_HEADERS: Final = 0x04
PADDED: Final = 0x08
PRIORITY_FIELDS: Final = 0x20

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9
MAX_STREAM_ID: Final = (1 << 31) - 1
MAX_WINDOW: Final = (1 << 31) - 1
DEFAULT_WINDOW: Final = 65_535
DEFAULT_MAX_FRAME: Final = 16_384

_HEADER = struct.Struct(">IBI")  # length and type share the first word
_U32 = struct.Struct(">I")
_GOAWAY = struct.Struct(">II")

unpack_header = _HEADER.unpack_from
pack_header = _HEADER.pack  # (length << 8 | type, flags, stream id)
unpack_u32 = _U32.unpack

SETTINGS_ACK: Final = pack_header(SETTINGS, ACK, 0)


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return pack_header(len(payload) << 8 | kind, flags, stream_id) + payload


def header_frames(stream_id: int, block: bytes, flags: int, max_frame: int) -> bytes:
    """Returns HEADERS and, if the block exceeds `max_frame`, CONTINUATION frames."""
    if len(block) <= max_frame:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    parts = [frame(HEADERS, flags, stream_id, block[:max_frame])]
    for start in range(max_frame, len(block), max_frame):
        is_last = start + max_frame >= len(block)
        fragment = block[start : start + max_frame]
        parts.append(frame(CONTINUATION, END_HEADERS if is_last else 0, stream_id, fragment))
    return b"".join(parts)


def ping(payload: bytes, flags: int = 0) -> bytes:
    """Returns a PING frame, or with the flag `ACK` the answer to one."""
    return frame(PING, flags, 0, payload)


def window_update(stream_id: int, increment: int) -> bytes:
    """Returns a WINDOW_UPDATE frame for a stream, or for the connection if the id is 0."""
    return frame(WINDOW_UPDATE, 0, stream_id, _U32.pack(increment))


def rst_stream(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _U32.pack(code))


def goaway(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    """Returns a GOAWAY frame; `debug` is a text for the peer's log."""
    return frame(GOAWAY, 0, 0, _GOAWAY.pack(last_stream_id, code) + debug)


def parse_goaway(payload: bytes) -> tuple[int, int, bytes]:
    """Returns the last stream id, error code and debug text of a payload of at least 8 bytes."""
    last_stream_id, code = _GOAWAY.unpack_from(payload)
    return last_stream_id & MAX_STREAM_ID, code, payload[_GOAWAY.size :]
