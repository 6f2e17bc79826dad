# SPDX-License-Identifier: Apache-2.0
"""SETTINGS (RFC 9113, section 6.5): those of the peer, and those that we send."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.errors import ConnectionViolation, Http2ErrorCode

if TYPE_CHECKING:
    from pytriton.protocol.http2.limits import Http2Limits

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
    Setting.INITIAL_WINDOW_SIZE: (0, frames.MAX_WINDOW, Http2ErrorCode.FLOW_CONTROL_ERROR),
    Setting.MAX_FRAME_SIZE: (
        frames.DEFAULT_MAX_FRAME,
        (1 << 24) - 1,
        Http2ErrorCode.PROTOCOL_ERROR,
    ),
}


@dataclass(slots=True)
class PeerSettings:
    """The peer's current settings; those that it never sent have the RFC's defaults."""

    header_table_bytes: int = DEFAULT_HEADER_TABLE_BYTES
    initial_window: int = frames.DEFAULT_WINDOW
    max_frame: int = frames.DEFAULT_MAX_FRAME
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
    """Returns what a server sends first: SETTINGS, and a WINDOW_UPDATE for the connection."""
    entries = (
        (Setting.MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams),
        (Setting.INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
        (Setting.MAX_FRAME_SIZE, limits.max_frame_bytes),
        (Setting.MAX_HEADER_LIST_SIZE, limits.max_header_list_bytes),
    )
    payload = b"".join(_ENTRY.pack(setting, value) for setting, value in entries)
    growth = limits.connection_window_bytes - frames.DEFAULT_WINDOW
    window = frames.window_update(0, growth) if growth > 0 else b""
    return frames.frame(frames.SETTINGS, 0, 0, payload) + window
