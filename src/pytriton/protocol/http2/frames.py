# SPDX-License-Identifier: Apache-2.0
"""The layout of frames (RFC 9113, sections 4 and 6), error codes and settings.

Functions build frames to send. Exceptions are for violations, by the peer or by us.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.protocol.http2.limits import Http2Limits

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


class Http2ErrorCode(enum.IntEnum):
    """The reason in a RST_STREAM or GOAWAY frame."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionViolation(Exception):  # noqa: N818  named after what the peer did
    """A violation by the peer that ends the connection with GOAWAY."""

    def __init__(self, code: Http2ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class StreamViolation(Exception):  # noqa: N818  named after what the peer did
    """A violation by the peer that ends one stream with RST_STREAM; the connection stays open."""

    def __init__(self, stream_id: int, code: Http2ErrorCode, message: str) -> None:
        super().__init__(message)
        self.stream_id = stream_id
        self.code = code
        self.message = message


class LocalProtocolError(Exception):
    """Our own code tried to send what HTTP/2 does not allow."""


_ENTRY = struct.Struct(">HI")
ENTRY_BYTES = _ENTRY.size
DEFAULT_HEADER_TABLE_BYTES = 4096


class Setting(enum.IntEnum):
    """The settings that RFC 9113 defines."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


# Setting -> smallest and largest value, and the error code for any other value.
_RANGES = {
    Setting.ENABLE_PUSH: (0, 1, Http2ErrorCode.PROTOCOL_ERROR),
    Setting.INITIAL_WINDOW_SIZE: (0, MAX_WINDOW, Http2ErrorCode.FLOW_CONTROL_ERROR),
    Setting.MAX_FRAME_SIZE: (
        DEFAULT_MAX_FRAME,
        (1 << 24) - 1,
        Http2ErrorCode.PROTOCOL_ERROR,
    ),
}


@dataclass(slots=True)
class PeerSettings:
    """The peer's current settings; those that it never sent have the RFC's defaults."""

    header_table_bytes: int = DEFAULT_HEADER_TABLE_BYTES
    initial_window: int = DEFAULT_WINDOW
    max_frame: int = DEFAULT_MAX_FRAME
    max_header_list_bytes: int | None = None

    def apply(self, setting: int, value: int) -> None:
        """Apply one validated setting; unknown settings and those for clients change nothing."""
        if setting == Setting.HEADER_TABLE_SIZE:
            self.header_table_bytes = value
        elif setting == Setting.INITIAL_WINDOW_SIZE:
            self.initial_window = value
        elif setting == Setting.MAX_FRAME_SIZE:
            self.max_frame = value
        elif setting == Setting.MAX_HEADER_LIST_SIZE:
            self.max_header_list_bytes = value


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """Returns the entries of a SETTINGS payload in order; ConnectionViolation if one is invalid."""
    if len(payload) % _ENTRY.size:
        message = f"expected SETTINGS in entries of {_ENTRY.size} bytes, got {len(payload)} bytes"
        raise ConnectionViolation(Http2ErrorCode.FRAME_SIZE_ERROR, message)
    entries = list(_ENTRY.iter_unpack(payload))
    for setting, value in entries:
        if setting not in _RANGES:
            continue
        smallest, largest, code = _RANGES[Setting(setting)]
        if not smallest <= value <= largest:
            name = Setting(setting).name
            message = f"expected {name} from {smallest} to {largest}, got {value}"
            raise ConnectionViolation(code, message)
    return entries


def server_preface(limits: Http2Limits) -> bytes:
    """Returns the first frames of a server: SETTINGS, and WINDOW_UPDATE for the connection."""
    entries = (
        (Setting.MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams),
        (Setting.INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
        (Setting.MAX_FRAME_SIZE, limits.max_frame_bytes),
        (Setting.MAX_HEADER_LIST_SIZE, limits.max_header_list_bytes),
    )
    payload = b"".join(_ENTRY.pack(setting, value) for setting, value in entries)
    growth = limits.connection_window_bytes - DEFAULT_WINDOW
    window = window_update(0, growth) if growth > 0 else b""
    return frame(SETTINGS, 0, 0, payload) + window


_ID_BYTES = 4


class ResponseFrames:
    """HEADERS, one DATA frame and trailers; each block fits into one frame of any client."""

    __slots__ = ("_after_data", "_before_data", "_before_head", "_trailers", "data_bytes")

    def __init__(self, head: bytes, data_bytes: int, trailers: bytes) -> None:
        self.data_bytes = data_bytes
        self._before_head = _start(HEADERS, END_HEADERS, len(head))
        self._before_data = head + _start(DATA, 0, data_bytes)
        flags = END_HEADERS | END_STREAM
        self._after_data = _start(HEADERS, flags, len(trailers))
        self._trailers = trailers

    def join(self, stream_id: int, data: Iterable[bytes]) -> bytes:
        """Returns the frames of a response with this data."""
        encoded_id = stream_id.to_bytes(_ID_BYTES, "big")
        return b"".join(
            (
                self._before_head,
                encoded_id,
                self._before_data,
                encoded_id,
                *data,
                self._after_data,
                encoded_id,
                self._trailers,
            )
        )


class BodyFrames:
    """HEADERS and one DATA frame, which ends the response; the block fits into any frame."""

    __slots__ = ("_before_data", "_before_head", "data_bytes")

    def __init__(self, head: bytes, data_bytes: int) -> None:
        self.data_bytes = data_bytes
        self._before_head = _start(HEADERS, END_HEADERS, len(head))
        self._before_data = head + _start(DATA, END_STREAM, data_bytes)

    def join(self, stream_id: int, data: Iterable[bytes]) -> bytes:
        """Returns the frames of a response with this data."""
        encoded_id = stream_id.to_bytes(_ID_BYTES, "big")
        return b"".join((self._before_head, encoded_id, self._before_data, encoded_id, *data))


def _start(kind: int, flags: int, length: int) -> bytes:
    """Returns a frame header without the stream id at its end."""
    return pack_header(length << 8 | kind, flags, 0)[:-_ID_BYTES]
