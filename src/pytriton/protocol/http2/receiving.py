# SPDX-License-Identifier: Apache-2.0
"""Handles received frames of streams; `data` handles DATA, `control` the frames of stream 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pytriton.protocol.http2 import frames
from pytriton.protocol.http2 import limits as work
from pytriton.protocol.http2.control import ControlFrames, check_length
from pytriton.protocol.http2.data import DataFrames, count_body, strip_padding
from pytriton.protocol.http2.errors import ConnectionViolation, Http2ErrorCode, StreamViolation
from pytriton.protocol.http2.events import RequestReceived, TrailersReceived
from pytriton.protocol.http2.headers import HeaderDecoder, trailers_violation
from pytriton.protocol.http2.reader import FrameReader
from pytriton.protocol.http2.streams import Stream, StreamInput, StreamState, next_state
from pytriton.protocol.http2.whole_requests import take_requests

if TYPE_CHECKING:
    from pytriton.protocol.http2.core import ConnectionCore

_PRIORITY_BYTES = 5
_IDLE = StreamState.IDLE  # looking up an enum's member takes 0.16 us on Python 3.11
_RECV_HEADERS = (StreamInput.RECV_HEADERS, StreamInput.RECV_HEADERS_END)


class IncompleteInput(NamedTuple):
    """Input of a peer that is not complete."""

    description: str
    serial: int  # differs for another incomplete input
    data_left: int = 0  # missing bytes of a DATA frame; only these may come slowly


class Receiver:
    """Applies received frames to the state of a connection; violations are raised."""

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core
        self.reader = FrameReader(core.limits)
        self._decoder = HeaderDecoder(core.limits)
        self._control = ControlFrames(core)
        self._data = DataFrames(core, self.reader)
        # Whether only one type of frame may follow: SETTINGS first, CONTINUATION in header blocks.
        self._is_restricted = True
        self._block_stream = 0
        self._block: list[bytes] = []  # fragments of an incomplete header block
        self._block_bytes = 0
        self._block_end_stream = 0

    def receive(self, data: bytes | memoryview) -> None:
        """Handle all frames that `data` completes; ConnectionViolation ends the connection."""
        self._data.is_borrowed = False
        if isinstance(data, memoryview):
            self._data.is_borrowed = True
            if not self._is_restricted:
                data = data[self._data.take_run(data) :]
        elif not self._is_restricted and self.reader.is_between_frames:
            taken = take_requests(self._core, self._decoder, data)
            if taken == len(data):
                return
            data = data[taken:] if taken else data
        for kind, flags, stream_id, payload in self.reader.read(data):
            if self._is_restricted:
                self._check_restriction(kind, flags, stream_id)
            try:
                if kind == frames.HEADERS:
                    self._on_headers(flags, stream_id, bytes(payload))
                elif kind != frames.DATA:
                    self._on_other(kind, flags, stream_id, bytes(payload))
                else:
                    self._data.on_data(flags, stream_id, payload)
            except StreamViolation as violation:
                self._core.reset_violated(violation)

    def incomplete_input(self) -> IncompleteInput | None:
        reader = self.reader
        if self._block_stream:
            return IncompleteInput("a header block", self._block_stream)
        if not reader.has_preface or self._is_restricted:
            return IncompleteInput("the connection preface", 0)
        if reader.data_left:
            return IncompleteInput("a DATA frame", reader.partial_frames, reader.data_left)
        return IncompleteInput("a frame", reader.partial_frames) if reader.has_pending else None

    def get_buffer(self) -> memoryview | None:
        return None if self._is_restricted else self._data.get_buffer()

    def buffer_updated(self, size: int) -> None:
        """See `Connection.buffer_updated`; ConnectionViolation ends the connection."""
        try:
            self._data.buffer_updated(size)
        except StreamViolation as violation:
            self._core.reset_violated(violation)

    def _on_other(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        match kind:
            case frames.WINDOW_UPDATE:
                self._on_window_update(stream_id, payload)
            case frames.CONTINUATION:
                self._on_continuation(flags, stream_id, payload)
            case frames.RST_STREAM:
                self._on_rst_stream(stream_id, payload)
            case frames.PRIORITY:
                self._on_priority(stream_id, payload)
            case frames.SETTINGS:
                self._control.on_settings(flags, stream_id, payload)
            case frames.PING:
                self._control.on_ping(flags, stream_id, payload)
            case frames.GOAWAY:
                self._control.on_goaway(stream_id, payload)
            case frames.PUSH_PROMISE:
                message = "PUSH_PROMISE came from a client"
                raise ConnectionViolation(Http2ErrorCode.PROTOCOL_ERROR, message)
            case _:  # RFC 9113, section 4.1: unknown types are ignored
                self._core.charge(work.UNKNOWN_FRAME)

    def _check_restriction(self, kind: int, flags: int, stream_id: int) -> None:
        expected = (
            frames.CONTINUATION if self._block_stream else frames.SETTINGS,
            self._block_stream,
        )
        if (kind, stream_id) != expected or (not self._block_stream and flags & frames.ACK):
            message = (
                f"expected a frame of type {expected[0]} on stream {expected[1]},"
                f" got type {kind} with flags {flags:#x} on stream {stream_id}"
            )
            raise ConnectionViolation(Http2ErrorCode.PROTOCOL_ERROR, message)
        self._is_restricted = bool(self._block_stream)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            message = f"expected HEADERS on an odd stream id, got {stream_id}"
            raise ConnectionViolation(Http2ErrorCode.PROTOCOL_ERROR, message)
        if flags & (frames.PADDED | frames.PRIORITY_FIELDS):
            payload = _header_fragment(flags, payload)
        end_stream = flags & frames.END_STREAM
        if flags & frames.END_HEADERS:
            self._on_header_block(stream_id, payload, end_stream)
            return
        self._is_restricted = True
        self._block_stream = stream_id
        self._block = [payload]
        self._block_bytes = len(payload)
        self._block_end_stream = end_stream

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._is_restricted:
            message = f"CONTINUATION on stream {stream_id} follows no HEADERS"
            raise ConnectionViolation(Http2ErrorCode.PROTOCOL_ERROR, message)
        self._core.charge(work.CONTINUATION)
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
            raise ConnectionViolation(Http2ErrorCode.ENHANCE_YOUR_CALM, message)
        if flags & frames.END_HEADERS:
            block = b"".join(self._block)
            self._block = []
            self._is_restricted = False
            self._block_stream = 0
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
            core.charge(work.STREAM_REFUSED)
            core.outbox.reply(frames.rst_stream(stream_id, Http2ErrorCode.REFUSED_STREAM))
            core.close(stream_id, StreamState.RESET_BY_US)
            return
        violation = head.violation
        if end_stream and head.content_length:
            violation = f"expected a body of {head.content_length} bytes, got none"
        if violation is not None:
            raise StreamViolation(stream_id, Http2ErrorCode.PROTOCOL_ERROR, violation)
        state = next_state(stream_id, _IDLE, _RECV_HEADERS[end_stream])
        receive_window = core.limits.stream_window_bytes
        streams.open[stream_id] = Stream(
            stream_id, state, receive_window, core.peer.initial_window, head.content_length
        )
        core.events.append(RequestReceived(stream_id, head, bool(end_stream)))

    def _on_trailers(self, stream_id: int, block: bytes, end_stream: int) -> None:
        core = self._core
        fields = self._decoder.decode(block)  # even if it is ignored: it may change the table
        state = next_state(stream_id, core.streams.state_of(stream_id), _RECV_HEADERS[end_stream])
        stream = core.streams.open.get(stream_id)
        if stream is None:
            core.charge(work.UNREAD_HEADERS, 1 + len(block) // work.UNREAD_HEADER_BYTES)
            return
        stream.state = state
        violation = trailers_violation(fields)
        if violation is not None:
            raise StreamViolation(stream_id, Http2ErrorCode.PROTOCOL_ERROR, violation)
        if stream.body_left is not None:
            count_body(stream, stream.body_left, is_end=True)
        core.events.append(TrailersReceived(stream_id, tuple(fields)))

    def _on_priority(self, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionViolation(Http2ErrorCode.PROTOCOL_ERROR, "PRIORITY came on stream 0")
        if len(payload) != _PRIORITY_BYTES:
            message = f"expected PRIORITY of {_PRIORITY_BYTES} bytes, got {len(payload)}"
            raise StreamViolation(stream_id, Http2ErrorCode.FRAME_SIZE_ERROR, message)
        self._core.charge(work.PRIORITY)

    def _on_rst_stream(self, stream_id: int, payload: bytes) -> None:
        check_length("RST_STREAM", payload, 4)
        core = self._core
        next_state(stream_id, core.streams.state_of(stream_id), StreamInput.RECV_RESET)
        stream = core.streams.open.get(stream_id)
        if stream is None:
            core.charge(work.LATE_RESET)
        else:
            core.reset_by_peer(stream, frames.unpack_u32(payload)[0])

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        check_length("WINDOW_UPDATE", payload, 4)
        core = self._core
        core.charge(work.WINDOW_UPDATE)
        increment = frames.unpack_u32(payload)[0] & frames.MAX_WINDOW
        if not stream_id:
            code = _increment_error(core.outbox.window, increment)
            if code is not None:
                message = f"WINDOW_UPDATE of {increment} on a window of {core.outbox.window}"
                raise ConnectionViolation(code, message)
            core.outbox.window += increment
            core.outbox.granted_bytes += increment
            return
        next_state(stream_id, core.streams.state_of(stream_id), StreamInput.RECV_WINDOW_UPDATE)
        stream = core.streams.open.get(stream_id)
        if stream is None:
            return
        code = _increment_error(stream.send_window, increment)
        if code is not None:
            message = f"WINDOW_UPDATE of {increment} on a window of {stream.send_window}"
            raise StreamViolation(stream_id, code, message)
        stream.send_window += increment
        core.outbox.schedule(stream)


def _header_fragment(flags: int, payload: bytes) -> bytes:
    """Returns the fragment in a HEADERS payload, without padding and priority fields."""
    if flags & frames.PADDED:
        payload = bytes(strip_padding(payload)[0])
    if flags & frames.PRIORITY_FIELDS:
        if len(payload) < _PRIORITY_BYTES:
            message = f"expected {_PRIORITY_BYTES} bytes of priority, got {len(payload)}"
            raise ConnectionViolation(Http2ErrorCode.FRAME_SIZE_ERROR, message)
        payload = payload[_PRIORITY_BYTES:]
    return payload


def _increment_error(window: int, increment: int) -> Http2ErrorCode | None:
    if not increment:
        return Http2ErrorCode.PROTOCOL_ERROR
    if window + increment > frames.MAX_WINDOW:
        return Http2ErrorCode.FLOW_CONTROL_ERROR
    return None
