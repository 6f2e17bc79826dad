# SPDX-License-Identifier: Apache-2.0
"""Handles received frames that concern the whole connection: SETTINGS, PING and GOAWAY."""

from __future__ import annotations

from pytriton.protocol.http2 import frames, limits
from pytriton.protocol.http2.core import SHUTDOWN_PING, ConnectionCore
from pytriton.protocol.http2.errors import ConnectionViolation, Http2ErrorCode
from pytriton.protocol.http2.events import GoAwayReceived, PingAcknowledged
from pytriton.protocol.http2.settings import ENTRY_BYTES, Setting, parse_settings

TOO_MANY_PINGS = "too_many_pings"  # gRPC clients know this text, and ping less often
_PING_BYTES = 8
_MIN_GOAWAY_BYTES = 8


class ControlFrames:
    """Handles the frames of stream 0."""

    __slots__ = ("_core", "_pings")

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core
        self._pings = limits.PingPolicy(core.limits)

    def on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_stream_zero("SETTINGS", stream_id)
        core = self._core
        if flags & frames.ACK:
            check_length("SETTINGS with ACK", payload, 0)
            core.charge(limits.SETTINGS)
            return
        count, most = len(payload) // ENTRY_BYTES, core.limits.max_settings
        if count > most:
            message = f"expected SETTINGS of at most {most} entries, got {count}"
            raise ConnectionViolation(Http2ErrorCode.ENHANCE_YOUR_CALM, message)
        core.charge(limits.SETTINGS, 1 + count)
        entries = parse_settings(payload)
        initial_window = core.peer.initial_window
        for setting, value in entries:
            if setting == Setting.MAX_FRAME_SIZE:
                core.outbox.max_frame = value
            elif setting == Setting.HEADER_TABLE_SIZE:
                core.outbox.limit_header_table(value)
            core.peer.apply(setting, value)
        # No frame comes between the values of a setting, so streams need only the last one.
        growth = core.peer.initial_window - initial_window
        if growth:
            self._resize_windows(growth)
        core.outbox.reply(frames.SETTINGS_ACK)

    def _resize_windows(self, growth: int) -> None:
        core = self._core
        streams = core.streams.open
        core.charge(limits.WINDOWS_RESIZED, len(streams) // limits.RESIZED_STREAMS)
        for stream in streams.values():
            stream.send_window += growth
            if stream.send_window > frames.MAX_WINDOW:
                size = core.peer.initial_window
                message = f"INITIAL_WINDOW_SIZE {size} overflows the window of a stream"
                raise ConnectionViolation(Http2ErrorCode.FLOW_CONTROL_ERROR, message)
            core.outbox.schedule(stream)

    def on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_stream_zero("PING", stream_id)
        check_length("PING", payload, _PING_BYTES)
        core = self._core
        core.charge(limits.PING)
        if flags & frames.ACK:
            if payload == SHUTDOWN_PING and core.is_shutting_down:
                core.finish_shutdown()
            else:
                core.events.append(PingAcknowledged(payload))
            return
        is_idle = not core.streams.open
        if not self._pings.allows(core.now_ns, core.outbox.activity, is_idle=is_idle):
            raise ConnectionViolation(Http2ErrorCode.ENHANCE_YOUR_CALM, TOO_MANY_PINGS)
        core.outbox.reply(frames.ping(payload, frames.ACK))

    def on_goaway(self, stream_id: int, payload: bytes) -> None:
        _check_stream_zero("GOAWAY", stream_id)
        if len(payload) < _MIN_GOAWAY_BYTES:
            message = f"expected GOAWAY of at least {_MIN_GOAWAY_BYTES} bytes, got {len(payload)}"
            raise ConnectionViolation(Http2ErrorCode.FRAME_SIZE_ERROR, message)
        self._core.charge(limits.GOAWAY)
        self._core.events.append(GoAwayReceived(*frames.parse_goaway(payload)))


def check_length(name: str, payload: bytes, expected: int) -> None:
    """Raise ConnectionViolation if a frame does not have the length of its type."""
    if len(payload) != expected:
        message = f"expected {name} of {expected} bytes, got {len(payload)}"
        raise ConnectionViolation(Http2ErrorCode.FRAME_SIZE_ERROR, message)


def _check_stream_zero(name: str, stream_id: int) -> None:
    if stream_id:
        message = f"expected {name} on stream 0, got stream {stream_id}"
        raise ConnectionViolation(Http2ErrorCode.PROTOCOL_ERROR, message)
