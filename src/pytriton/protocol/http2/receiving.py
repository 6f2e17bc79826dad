# SPDX-License-Identifier: Apache-2.0
"""Handles received frames: those of streams, and those of stream 0, which concern the connection.

`data` handles DATA. A fast path (`take_requests`) reads most small requests in one pass; whatever
is unusual about one is left to `Receiver`, which knows all frames.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pytriton.protocol.http2 import frames
from pytriton.protocol.http2 import limits as work
from pytriton.protocol.http2.core import SHUTDOWN_PING, ConnectionCore
from pytriton.protocol.http2.data import DataFrames, count_body, strip_padding
from pytriton.protocol.http2.events import (
    GoAwayReceived,
    InputLeft,
    PingAcknowledged,
    RequestReceived,
    TrailersReceived,
)
from pytriton.protocol.http2.frames import (
    ENTRY_BYTES,
    ConnectionViolation,
    Http2ErrorCode,
    Setting,
    StreamViolation,
    parse_settings,
)
from pytriton.protocol.http2.headers import HeaderDecoder, trailers_violation
from pytriton.protocol.http2.reader import VIEW_BYTES, FrameReader
from pytriton.protocol.http2.streams import Stream, StreamInput, StreamState, next_state

TOO_MANY_PINGS = "too_many_pings"  # gRPC clients know this text, and ping less often
_PING_BYTES = 8
_MIN_GOAWAY_BYTES = 8

_HALF_CLOSED_REMOTE = StreamState.HALF_CLOSED_REMOTE
_HEADER_BYTES = frames.HEADER_BYTES
_unpack_header = frames.unpack_header

_PRIORITY_BYTES = 5
# A read of more bytes than this is cut between two requests, so that others are served in between.
# An unknown head takes as long as a few requests with known ones.
_REQUEST_BYTES = 16 << 10
_UNKNOWN_HEAD_BYTES = 256
_unpack_window_update = struct.Struct(">IBII").unpack_from  # the header as above, the increment
_WINDOW_UPDATE_BYTES = frames.HEADER_BYTES + 4
_WINDOW_UPDATE = 4 << 8 | frames.WINDOW_UPDATE  # length and type
_WINDOW_UPDATE_START = frames.window_update(0, 0)[: frames.HEADER_BYTES]  # of the connection
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
        self.decoder = HeaderDecoder(core.limits)
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
        # A view is of memory that is reused after this call: events must not refer to it.
        if isinstance(data, memoryview):
            self._data.is_borrowed = True
            if not self._is_restricted:
                data = data[self._data.take_run(data) :]
        elif not self._is_restricted and self.reader.is_between_frames:
            taken = take_requests(self._core, self.decoder, data)
            if taken == len(data):
                return
            data = data[taken:] if taken else data
        self._read_frames(data)
        if self.reader.rest:
            self._core.events.append(InputLeft())

    def _read_frames(self, data: bytes | memoryview) -> None:
        for kind, flags, stream_id, payload in self.reader.read(data):
            # RFC 9113, 3.4: SETTINGS come first. 4.3: only CONTINUATION of the same stream may
            # follow HEADERS without END_HEADERS, because the block would be decoded in the wrong
            # order.
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

    def keep(self, data: bytes | memoryview) -> None:
        """Keep received bytes for `receive_rest`, behind those that are kept already."""
        self.reader.rest += data

    def receive_rest(self) -> None:
        """Handle frames that were kept, as `receive` does."""
        rest, self.reader.rest = self.reader.rest, b""
        self.receive(rest)

    def incomplete_input(self) -> IncompleteInput | None:
        reader = self.reader
        if self._block_stream:
            return IncompleteInput("a header block", self._block_stream)
        if not reader.has_preface or self._is_restricted:
            return IncompleteInput("the connection preface", 0)
        if reader.data_left:
            return IncompleteInput("a DATA frame", reader.partial_frames, reader.data_left)
        return IncompleteInput("a frame", reader.partial_frames) if reader.has_pending else None

    def get_buffer(self, *, reads_more: bool) -> memoryview | None:
        return None if self._is_restricted else self._data.get_buffer(reads_more=reads_more)

    def expect_more(self) -> list[memoryview]:
        return self._data.expect_more()

    def buffer_updated(self, size: int) -> None:
        """See `Http2Connection.buffer_updated`; ConnectionViolation ends the connection."""
        rest = b""
        try:
            rest = self._data.buffer_updated(size)
        except StreamViolation as violation:
            self._core.reset_violated(violation)
        if rest:
            self.receive(rest)

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
        # RFC 9113, 5.1.1: streams of clients have odd ids.
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
        # A block without end takes memory and no stream: the "CONTINUATION flood" (CVE-2024-27316).
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
        # The block is decoded even if the stream is refused: it may change the table (RFC 9113,
        # 4.3).
        head = self.decoder.decode_request(block)
        streams = core.streams
        streams.last_id = stream_id
        if core.is_refusing or len(streams.open) >= core.limits.max_concurrent_streams:
            core.charge(work.STREAM_REFUSED)
            # RFC 9113, 8.7: REFUSED_STREAM tells the client that it may safely send the request
            # again.
            core.outbox.reply(frames.rst_stream(stream_id, Http2ErrorCode.REFUSED_STREAM))
            core.close(stream_id, StreamState.RESET_BY_US)
            return
        violation = head.violation
        # RFC 9113, 8.1.1: malformed requests are stream errors.
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
        fields = self.decoder.decode(block)  # even if it is ignored: it may change the table
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
        # RFC 9113, 5.3.2: priorities are deprecated; only their length is checked.
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
        # RFC 9113, 6.9: the first bit is reserved. An increment of 0, or a window above 2^31-1, is
        # an error of the stream, or of the connection on stream 0.
        increment = frames.unpack_u32(payload)[0] & frames.MAX_WINDOW
        if not stream_id:
            code = _increment_error(core.outbox.window, increment)
            if code is not None:
                message = f"WINDOW_UPDATE of {increment} on a window of {core.outbox.window}"
                raise ConnectionViolation(code, message)
            core.outbox.grant(increment)
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


def take_requests(core: ConnectionCore, decoder: HeaderDecoder, data: bytes) -> int:
    """Handle the requests that `data`, which begins with a frame, begins with.

    Clients of gRPC's C core send WINDOW_UPDATE before the DATA of each request, and after it.

    Returns:
        Where the last of them ends; 0 if there is none.
    """
    streams, limits = core.streams, core.limits
    at = updates = 0
    stop = min(len(data) - 2 * _HEADER_BYTES, _REQUEST_BYTES)
    while at < stop:
        found = _find_request(core, data, at)
        if found is None:
            break
        stream_id, block, body_at, size, increment = found
        known = decoder.known_request(block)
        head = decoder.peek_request(block) if known is None else known
        # Whatever is wrong or over a limit is left to `Receiver`, which finds the error.
        if (
            head.violation is not None
            or (head.content_length is not None and head.content_length != size)
            or core.is_refusing
            or len(streams.open) >= limits.max_concurrent_streams
            or size > limits.stream_window_bytes
            or not core.receive_windows.take_whole(size)
        ):
            break
        if known is None:
            stop -= _UNKNOWN_HEAD_BYTES
            decoder.take_peeked()
        streams.last_id = stream_id
        streams.open[stream_id] = Stream(
            stream_id,
            _HALF_CLOSED_REMOTE,
            limits.stream_window_bytes - size,
            core.peer.initial_window + increment,
            unacknowledged=size,
        )
        at = body_at + size
        core.events.append(RequestReceived(stream_id, head, True, data[body_at:at]))
        if increment:
            updates += 1
        if data.startswith(_WINDOW_UPDATE_START, at):
            increment = _window_update(data, at, 0, core.outbox.window)
            if not increment:
                break
            updates += 1
            core.outbox.grant(increment)
            at += _WINDOW_UPDATE_BYTES
    if updates:
        core.charge(work.WINDOW_UPDATE, updates)
    return at


def _find_request(
    core: ConnectionCore, data: bytes, at: int
) -> tuple[int, bytes, int, int, int] | None:
    """Returns a request that begins here, if its frames are those of most clients.

    That is: its stream, the block of its head, where its body begins, the size of that, and the
    increment of a WINDOW_UPDATE between the two; 0 if there is none.
    """
    end = len(data)
    length_and_kind, flags, stream_id = _unpack_header(data, at)
    data_at = at + _HEADER_BYTES + (length_and_kind >> 8)
    if (
        length_and_kind & 0xFF != frames.HEADERS
        or flags != frames.END_HEADERS
        or data_at + _HEADER_BYTES > end
        or stream_id <= core.streams.last_id
        or stream_id > frames.MAX_STREAM_ID
        or not stream_id & 1
    ):
        return None
    block = data[at + _HEADER_BYTES : data_at]
    increment = 0
    length_and_kind, flags, data_stream = _unpack_header(data, data_at)
    if length_and_kind == _WINDOW_UPDATE:
        increment = _window_update(data, data_at, stream_id, core.peer.initial_window)
        data_at += _WINDOW_UPDATE_BYTES
        if not increment or data_at + _HEADER_BYTES > end:
            return None
        length_and_kind, flags, data_stream = _unpack_header(data, data_at)
    size = length_and_kind >> 8
    body_at = data_at + _HEADER_BYTES
    if (
        length_and_kind & 0xFF != frames.DATA
        or flags != frames.END_STREAM
        or data_stream != stream_id
        or body_at + size > end
        or size >= VIEW_BYTES
    ):
        return None
    return stream_id, block, body_at, size, increment


def _window_update(data: bytes, at: int, stream_id: int, window: int) -> int:
    """Returns the increment of a WINDOW_UPDATE; 0 if `Receiver` has to look at it."""
    if len(data) - at < _WINDOW_UPDATE_BYTES:
        return 0
    _, _, updated, increment = _unpack_window_update(data, at)
    increment &= frames.MAX_WINDOW
    if updated != stream_id or window + increment > frames.MAX_WINDOW:
        return 0
    return int(increment)


class ControlFrames:
    """Handles the frames of stream 0."""

    __slots__ = ("_core", "_pings")

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core
        self._pings = work.PingPolicy(core.limits)

    def on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_stream_zero("SETTINGS", stream_id)
        core = self._core
        if flags & frames.ACK:
            check_length("SETTINGS with ACK", payload, 0)
            core.charge(work.SETTINGS)
            return
        count, most = len(payload) // ENTRY_BYTES, core.limits.max_settings
        if count > most:
            message = f"expected SETTINGS of at most {most} entries, got {count}"
            raise ConnectionViolation(Http2ErrorCode.ENHANCE_YOUR_CALM, message)
        core.charge(work.SETTINGS, 1 + count)
        # RFC 9113, 6.5.3: values apply in the order in which they come, then all are acknowledged.
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
        core.charge(work.WINDOWS_RESIZED, len(streams) // work.RESIZED_STREAMS)
        for stream in streams.values():
            # RFC 9113, 6.9.2: windows of open streams change by the difference, and may become
            # negative.
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
        core.charge(work.PING)
        # RFC 9113, 6.7: a PING without ACK has to be answered with the same payload.
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
        self._core.charge(work.GOAWAY)
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
