# SPDX-License-Identifier: Apache-2.0
"""What each frame of the peer does: one method a frame type, and header blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.wire.http2 import frames
from pytriton.wire.http2.core import SHUTDOWN_PING
from pytriton.wire.http2.defences import Allowance, PingPolicy
from pytriton.wire.http2.errors import ConnectionViolation, ErrorCode, StreamViolation
from pytriton.wire.http2.events import (
    DataReceived,
    GoAwayReceived,
    PingAcknowledged,
    RequestReceived,
    TrailersReceived,
)
from pytriton.wire.http2.header_decoding import HeaderDecoder
from pytriton.wire.http2.header_rules import trailers_violation
from pytriton.wire.http2.reader import VIEW_BYTES, FrameReader, strip_padding
from pytriton.wire.http2.settings import Setting, parse_settings
from pytriton.wire.http2.states import StreamInput, StreamState, next_state
from pytriton.wire.http2.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.wire.http2.core import ConnectionCore

_PING_BYTES = 8
_PRIORITY_BYTES = 5
_MIN_GOAWAY_BYTES = 8
_RECV_HEADERS = (StreamInput.RECV_HEADERS, StreamInput.RECV_HEADERS_END)
_RECV_DATA = (StreamInput.RECV_DATA, StreamInput.RECV_DATA_END)


class Receiver:
    """Applies frames to the state of a connection; violations leave it as exceptions."""

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core
        self._reader = FrameReader(core.limits)
        self._decoder = HeaderDecoder(core.limits)
        self._pings = PingPolicy(core.limits)
        limits = core.limits
        self._idle_frames = Allowance(limits.idle_frame_burst, limits.idle_frames_per_second)
        # The only frame that may come next: SETTINGS at first, CONTINUATION inside a header block.
        self._expected: tuple[int, int] | None = (frames.SETTINGS, 0)
        self._has_settings = False
        self._block: list[bytes] = []  # fragments of an unfinished header block
        self._block_bytes = 0
        self._block_end_stream = 0
        self._on_kind: tuple[Callable[[int, int, bytes], None], ...] = (
            self._on_push_promise,  # DATA never comes this way
            self._on_headers,
            self._on_priority,
            self._on_rst_stream,
            self._on_settings,
            self._on_push_promise,
            self._on_ping,
            self._on_goaway,
            self._on_window_update,
            self._on_continuation,
        )

    def receive(self, data: bytes) -> None:
        """Apply all that `data` completes; ConnectionViolation ends the connection."""
        for kind, flags, stream_id, payload, padding in self._reader.read(data):
            if self._expected is not None and (kind, stream_id) != self._expected:
                wanted_kind, wanted_id = self._expected
                message = (
                    f"expected a frame of type {wanted_kind} on stream {wanted_id},"
                    f" got one of type {kind} on stream {stream_id}"
                )
                raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, message)
            try:
                if kind == frames.DATA:
                    self._on_data(flags, stream_id, payload, padding)
                elif kind < len(self._on_kind):
                    self._on_kind[kind](flags, stream_id, payload)  # type: ignore[arg-type]  # only DATA is a view
                else:
                    self._charge_idle_frame()
            except StreamViolation as violation:
                self._core.reset_violated(violation)

    def _on_data(
        self, flags: int, stream_id: int, payload: bytes | memoryview, padding: int
    ) -> None:
        core = self._core
        size = len(payload)
        end = flags & frames.END_STREAM
        core.inflow.take(size + padding)
        stream = core.streams.open.get(stream_id)
        if stream is None:
            core.inflow.discard(size + padding)
            next_state(stream_id, core.streams.state_of(stream_id), _RECV_DATA[end])
            return
        stream.unacknowledged += size + padding
        state = next_state(stream_id, stream.state, _RECV_DATA[end])
        assert state is not None
        stream.state = state
        core.inflow.take_stream(stream, size, padding)
        if stream.body_left is not None:
            self._count_body(stream, size, is_end=bool(end))
        if not size and not end:
            self._charge_idle_frame()
        else:
            self._deliver(stream_id, payload, is_end=bool(end))

    def _deliver(self, stream_id: int, payload: bytes | memoryview, *, is_end: bool) -> None:
        """Tell of data; small frames in a row become one event, so that a million of them stay cheap."""
        events = self._core.events
        if events and len(payload) < VIEW_BYTES:
            last = events[-1]
            if last.__class__ is DataReceived and last.stream_id == stream_id:
                if not isinstance(last.data, bytearray):
                    last.data = bytearray(last.data)
                last.data += payload
                last.end_stream = is_end
                return
        events.append(DataReceived(stream_id, payload, is_end))

    def _count_body(self, stream: Stream, size: int, *, is_end: bool) -> None:
        assert stream.body_left is not None
        stream.body_left -= size
        if stream.body_left < 0 or (is_end and stream.body_left):
            message = f"the body differs from its content-length by {-stream.body_left} bytes"
            raise StreamViolation(stream.id, ErrorCode.PROTOCOL_ERROR, message)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            message = f"expected HEADERS on an odd stream id, got {stream_id}"
            raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, message)
        if flags & (frames.PADDED | frames.PRIORITY_FIELDS):
            payload = _header_fragment(flags, payload)
        end_stream = flags & frames.END_STREAM
        if flags & frames.END_HEADERS:
            self._on_header_block(stream_id, payload, end_stream)
            return
        self._expected = (frames.CONTINUATION, stream_id)
        self._block = [payload]
        self._block_bytes = len(payload)
        self._block_end_stream = end_stream

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._expected is None:
            message = f"CONTINUATION on stream {stream_id} follows no HEADERS"
            raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, message)
        limits = self._core.limits
        self._block.append(payload)
        self._block_bytes += len(payload)
        if (
            len(self._block) > limits.max_continuations + 1
            or self._block_bytes > limits.max_header_block_bytes
        ):
            message = (
                f"expected a header block of at most {limits.max_header_block_bytes} bytes in"
                f" {limits.max_continuations} CONTINUATION frames, got more"
            )
            raise ConnectionViolation(ErrorCode.ENHANCE_YOUR_CALM, message)
        if flags & frames.END_HEADERS:
            block = b"".join(self._block)
            self._block = []
            self._expected = None
            self._on_header_block(stream_id, block, self._block_end_stream)

    def _on_header_block(self, stream_id: int, block: bytes, end_stream: int) -> None:
        if stream_id > self._core.streams.last_id:
            self._open_stream(stream_id, block, end_stream)
        else:
            self._on_trailers(stream_id, block, end_stream)

    def _open_stream(self, stream_id: int, block: bytes, end_stream: int) -> None:
        core = self._core
        head = self._decoder.decode_request(block)
        streams = core.streams
        streams.last_id = stream_id
        if core.is_refusing or len(streams.open) >= core.limits.max_concurrent_streams:
            core.outbox.reply(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            core.close(stream_id, StreamState.RESET_BY_US)
            return
        violation = head.violation
        if end_stream and head.content_length:
            violation = f"expected a body of {head.content_length} bytes, got none"
        if violation is not None:
            raise StreamViolation(stream_id, ErrorCode.PROTOCOL_ERROR, violation)
        state = next_state(stream_id, StreamState.IDLE, _RECV_HEADERS[end_stream])
        assert state is not None
        receive_window = core.limits.stream_window_bytes
        streams.open[stream_id] = Stream(
            stream_id, state, receive_window, core.peer.initial_window, head.content_length
        )
        core.events.append(RequestReceived(stream_id, head, bool(end_stream)))

    def _on_trailers(self, stream_id: int, block: bytes, end_stream: int) -> None:
        core = self._core
        fields = self._decoder.decode(block)  # even where it is ignored: it may change the table
        state = next_state(stream_id, core.streams.state_of(stream_id), _RECV_HEADERS[end_stream])
        if state is None:
            return
        stream = core.streams.open[stream_id]
        stream.state = state
        violation = trailers_violation(fields)
        if violation is not None:
            raise StreamViolation(stream_id, ErrorCode.PROTOCOL_ERROR, violation)
        if stream.body_left is not None:
            self._count_body(stream, 0, is_end=True)
        core.events.append(TrailersReceived(stream_id, tuple(fields)))

    def _on_priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, "PRIORITY came on stream 0")
        if len(payload) != _PRIORITY_BYTES:
            message = f"expected PRIORITY of {_PRIORITY_BYTES} bytes, got {len(payload)}"
            raise StreamViolation(stream_id, ErrorCode.FRAME_SIZE_ERROR, message)
        self._charge_idle_frame()

    def _on_rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        _check_length("RST_STREAM", payload, 4)
        core = self._core
        state = core.streams.state_of(stream_id)
        if next_state(stream_id, state, StreamInput.RECV_RESET) is None:
            self._charge_idle_frame()
        else:
            code: int = frames.unpack_u32(payload)[0]
            core.reset_by_peer(core.streams.open[stream_id], code)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            message = f"expected SETTINGS on stream 0, got stream {stream_id}"
            raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, message)
        if flags & frames.ACK:
            _check_length("SETTINGS with ACK", payload, 0)
            if not self._has_settings:
                message = "expected SETTINGS after the preface, got an acknowledgement"
                raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, message)
            self._charge_idle_frame()
            return
        self._has_settings = True
        self._expected = None
        self._charge_idle_frame()
        for setting, value in parse_settings(payload):
            self._apply_setting(setting, value)
        self._core.outbox.reply(frames.SETTINGS_ACK)

    def _apply_setting(self, setting: int, value: int) -> None:
        core = self._core
        if setting == Setting.INITIAL_WINDOW_SIZE:
            growth = value - core.peer.initial_window
            for stream in core.streams.open.values():
                stream.send_window += growth
                if stream.send_window > frames.MAX_WINDOW:
                    message = f"INITIAL_WINDOW_SIZE {value} overflows the window of a stream"
                    raise ConnectionViolation(ErrorCode.FLOW_CONTROL_ERROR, message)
                core.outbox.schedule(stream)
        elif setting == Setting.MAX_FRAME_SIZE:
            core.outbox.max_frame = value
        elif setting == Setting.HEADER_TABLE_SIZE:
            core.outbox.limit_header_table(value)
        core.peer.apply(setting, value)

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        message = "PUSH_PROMISE came from a client"
        raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, message)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        core = self._core
        _check_length("PING", payload, _PING_BYTES)
        if stream_id:
            message = f"expected PING on stream 0, got stream {stream_id}"
            raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, message)
        if flags & frames.ACK:
            self._charge_idle_frame()
            if payload == SHUTDOWN_PING and core.is_shutting_down:
                core.finish_shutdown()
            else:
                core.events.append(PingAcknowledged(payload))
            return
        is_idle = not core.streams.open
        if not self._pings.allows(core.now_ns, core.outbox.activity, is_idle=is_idle):
            raise ConnectionViolation(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
        core.outbox.reply(frames.ping(payload, frames.ACK))

    def _on_goaway(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            message = f"expected GOAWAY on stream 0, got stream {stream_id}"
            raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, message)
        if len(payload) < _MIN_GOAWAY_BYTES:
            message = f"expected GOAWAY of at least {_MIN_GOAWAY_BYTES} bytes, got {len(payload)}"
            raise ConnectionViolation(ErrorCode.FRAME_SIZE_ERROR, message)
        self._charge_idle_frame()
        self._core.events.append(GoAwayReceived(*frames.parse_goaway(payload)))

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        _check_length("WINDOW_UPDATE", payload, 4)
        core = self._core
        increment = frames.unpack_u32(payload)[0] & frames.MAX_WINDOW
        if not stream_id:
            code = _increment_error(core.outbox.window, increment)
            if code is not None:
                message = f"WINDOW_UPDATE of {increment} on a window of {core.outbox.window}"
                raise ConnectionViolation(code, message)
            core.outbox.window += increment
            return
        state = core.streams.state_of(stream_id)
        if next_state(stream_id, state, StreamInput.RECV_WINDOW_UPDATE) is None:
            return
        stream = core.streams.open[stream_id]
        code = _increment_error(stream.send_window, increment)
        if code is not None:
            message = f"WINDOW_UPDATE of {increment} on a window of {stream.send_window}"
            raise StreamViolation(stream_id, code, message)
        stream.send_window += increment
        core.outbox.schedule(stream)

    def _charge_idle_frame(self) -> None:
        if not self._idle_frames.use(self._core.now_ns):
            message = "expected frames that do something, got too many that do not"
            raise ConnectionViolation(ErrorCode.ENHANCE_YOUR_CALM, message)


def _header_fragment(flags: int, payload: bytes) -> bytes:
    """The fragment in a HEADERS payload, without padding and priority fields."""
    if flags & frames.PADDED:
        payload = bytes(strip_padding(payload)[0])
    if flags & frames.PRIORITY_FIELDS:
        if len(payload) < _PRIORITY_BYTES:
            message = f"expected {_PRIORITY_BYTES} bytes of priority, got {len(payload)}"
            raise ConnectionViolation(ErrorCode.FRAME_SIZE_ERROR, message)
        payload = payload[_PRIORITY_BYTES:]
    return payload


def _check_length(name: str, payload: bytes, expected: int) -> None:
    if len(payload) != expected:
        message = f"expected {name} of {expected} bytes, got {len(payload)}"
        raise ConnectionViolation(ErrorCode.FRAME_SIZE_ERROR, message)


def _increment_error(window: int, increment: int) -> ErrorCode | None:
    if not increment:
        return ErrorCode.PROTOCOL_ERROR
    if window + increment > frames.MAX_WINDOW:
        return ErrorCode.FLOW_CONTROL_ERROR
    return None
