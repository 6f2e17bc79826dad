# SPDX-License-Identifier: Apache-2.0
"""Handles received DATA frames: passes their bytes on in events, or in a buffer of the owner.

A large body comes in thousands of frames, so the work for each frame is small: consecutive frames
share an event. With a buffer for the stream, bytes are copied once, or not at all if the owner
reads them directly into the memory that `get_buffer` and `expect_more` return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.protocol.http2 import frames
from pytriton.protocol.http2 import limits as work
from pytriton.protocol.http2.events import DataBuffered, DataReceived
from pytriton.protocol.http2.expected_frames import ExpectedFrames, HeaderRoom
from pytriton.protocol.http2.frames import ConnectionViolation, Http2ErrorCode, StreamViolation
from pytriton.protocol.http2.streams import StreamInput, StreamState, next_state

if TYPE_CHECKING:
    from pytriton.protocol.http2.core import ConnectionCore
    from pytriton.protocol.http2.reader import FrameReader
    from pytriton.protocol.http2.streams import Stream

# If less is expected, a separate read for it takes longer than a copy.
MIN_DIRECT_READ_BYTES = 64 << 10
_OPEN = StreamState.OPEN
_RECV_DATA = (StreamInput.RECV_DATA, StreamInput.RECV_DATA_END)


class DataFrames:
    """Handles DATA frames, which `reader` may deliver in parts."""

    __slots__ = ("_core", "_expected", "_headers", "_reader", "is_borrowed")

    def __init__(self, core: ConnectionCore, reader: FrameReader) -> None:
        self._core = core
        self._reader = reader
        self._headers: HeaderRoom | None = None  # from the first message with expected frames on
        self._expected: ExpectedFrames | None = None  # while they are read
        self.is_borrowed = False  # whether the memory of payloads is reused after `receive`

    def on_data(self, flags: int, stream_id: int, payload: bytes | memoryview) -> None:
        """Handle a frame or a part of one."""
        padding = 0
        if flags & frames.PADDED:
            payload, padding = strip_padding(payload)
        stream = self._count_received(flags, stream_id, len(payload), padding)
        if stream is None:
            return
        is_end = bool(flags & frames.END_STREAM)
        # A stream may have a buffer for a large message: what does not fit follows as an event.
        if stream.buffer is not None and payload:
            payload = self._copy_to_buffer(stream, stream.buffer, payload, is_end=is_end)
            if not payload:
                return
        elif not payload and not is_end:
            self._core.charge(work.EMPTY_DATA)
            return
        events = self._core.events
        last = events[-1] if events else None
        # One event for consecutive frames of a stream, unless one is a view: a bytearray would copy
        # it, and it is large.
        if (
            last.__class__ is DataReceived
            and last.stream_id == stream_id
            and (self.is_borrowed or not _holds_view(last, payload))
        ):
            if not isinstance(last.data, bytearray):
                last.data = bytearray(last.data)
            last.data += payload
            last.end_stream = is_end
        else:
            data = bytes(payload) if self.is_borrowed else payload
            events.append(DataReceived(stream_id, data, is_end))

    def take_run(self, data: memoryview) -> int:
        """Put the frames that a large read begins with into the buffer of their stream at once.

        Most clients send 1 MiB in 64 frames: numpy takes 3 us for all frames of a read, the other
        methods take 2 us for each.

        Returns:
            How many bytes of `data` were taken; the rest, which is unusual or ends the stream, is
            for the other methods.
        """
        run = self._reader.find_run(data)
        stream = None if run is None else self._core.streams.open.get(run.stream_id)
        if run is None or stream is None or stream.buffer is None or stream.state is not _OPEN:
            return 0
        size = run.data_bytes
        windows = self._core.receive_windows
        # The other methods find out which violation it is, and how it ends.
        if size > len(stream.buffer) or not windows.allows(stream, size):
            return 0
        if stream.body_left is not None:
            if size > stream.body_left:
                return 0
            stream.body_left -= size
        windows.take(stream, size, 0)
        run.copy(data, stream.buffer)
        self._reader.skip(run)
        self._add_buffered(stream, stream.buffer, size, is_end=False)
        return run.end

    def get_buffer(self, *, reads_more: bool) -> memoryview | None:
        """Returns the buffer for the rest of a frame, or for the header of the next one.

        None if little of a message with a buffer is expected. The owner `reads_more` if it can fill
        the buffers from `expect_more` as well; otherwise only a large frame is worth it.
        """
        reader = self._reader
        stream = self._core.streams.open.get(reader.data_stream)
        if stream is None or stream.buffer is None or reader.has_pending:
            return None
        if not self._expected_length(stream, reads_more=reads_more):
            if reader.data_left < MIN_DIRECT_READ_BYTES:
                return None
        elif not reader.data_left:
            return self._header_room().memory[: frames.HEADER_BYTES]
        return stream.buffer[: reader.data_left]

    def expect_more(self) -> list[memoryview]:
        """Returns the buffers for what probably follows, as the one from `get_buffer` is full."""
        reader = self._reader
        stream = self._core.streams.open.get(reader.data_stream)
        if stream is None or stream.buffer is None:
            return []
        length = self._expected_length(stream, reads_more=True)
        if not length:
            return []
        left = reader.data_left
        self._expected = ExpectedFrames(stream, left, length, self._header_room())
        return self._expected.buffers[1 if left else 2 :]

    def buffer_updated(self, size: int) -> bytes:
        """Handle `size` bytes in the buffer from `get_buffer` and in those from `expect_more`.

        Returns:
            Input that was not as expected, or not complete.
        """
        expected, self._expected = self._expected, None
        if expected is not None:
            return self._take_expected(expected, size)
        reader = self._reader
        if not reader.data_left:
            return bytes(self._header_room().memory[:size])
        flags = reader.count_data(size)
        stream = self._count_received(flags, reader.data_stream, size, 0)
        if stream is not None and stream.buffer is not None:  # unless it has been reset
            self._add_buffered(stream, stream.buffer, size, is_end=bool(flags & frames.END_STREAM))
        return b""

    def _header_room(self) -> HeaderRoom:
        if self._headers is None:
            self._headers = HeaderRoom()
        return self._headers

    def _expected_length(self, stream: Stream, *, reads_more: bool) -> int:
        """Returns the length of the frames that probably follow; 0 if it is not worth a read."""
        assert stream.buffer is not None
        if reads_more and len(stream.buffer) >= MIN_DIRECT_READ_BYTES and stream.state is _OPEN:
            return self._reader.expected_length
        return 0

    def _take_expected(self, expected: ExpectedFrames, size: int) -> bytes:
        stream = expected.stream
        taken = expected.compare(size)
        data_bytes = taken.data_bytes
        assert stream.buffer is not None
        # The other methods find out which violation it is, and how it ends.
        if not self._core.receive_windows.allows(stream, data_bytes) or (
            stream.body_left is not None and data_bytes > stream.body_left
        ):
            return expected.join(0, size)
        flags = self._reader.skip_expected(taken)
        rest = expected.join(taken.wire_bytes, size) if taken.wire_bytes < size else b""
        if len(rest) >= frames.HEADER_BYTES:
            self._reader.doubt()
        if data_bytes:
            self._count_received(flags, stream.id, data_bytes, 0)
            is_end = bool(flags & frames.END_STREAM)
            self._add_buffered(stream, stream.buffer, data_bytes, is_end=is_end)
        return rest

    def _count_received(self, flags: int, stream_id: int, size: int, padding: int) -> Stream | None:
        """Count bytes for flow control, stream state and content-length; None if not open."""
        core = self._core
        is_end = flags & frames.END_STREAM
        event = _RECV_DATA[is_end]
        stream = core.streams.open.get(stream_id)
        if stream is None:
            # RFC 9113, 5.1: after RST_STREAM the peer may have sent frames before it read that.
            # They are legal, count in the window of the connection, and cost work.
            if size < work.LITTLE_DATA_BYTES:
                core.charge(work.UNREAD_DATA)
            core.receive_windows.take_unread(size + padding)
            next_state(stream_id, core.streams.state_of(stream_id), event)
            return None
        core.receive_windows.take(stream, size, padding)
        stream.state = next_state(stream_id, stream.state, event)
        if stream.body_left is not None:
            count_body(stream, stream.body_left - size, is_end=bool(is_end))
        return stream

    def _copy_to_buffer(
        self, stream: Stream, buffer: memoryview, payload: bytes | memoryview, *, is_end: bool
    ) -> bytes | memoryview:
        """Copy bytes to the buffer of their stream; returns those that do not fit."""
        size = min(len(payload), len(buffer))
        buffer[:size] = payload[:size]
        rest = payload[size:]
        self._add_buffered(stream, buffer, size, is_end=is_end and not rest)
        return rest

    def _add_buffered(self, stream: Stream, buffer: memoryview, size: int, *, is_end: bool) -> None:
        """Add an event for `size` bytes that are in the buffer of a stream."""
        stream.buffer = buffer[size:] if size < len(buffer) else None
        events = self._core.events
        last = events[-1] if events else None
        if last.__class__ is DataBuffered and last.stream_id == stream.id:
            last.size += size
            last.end_stream = is_end
        else:
            events.append(DataBuffered(stream.id, size, is_end))


def _holds_view(event: DataReceived, payload: bytes | memoryview) -> bool:
    return isinstance(payload, memoryview) or isinstance(event.data, memoryview)


def count_body(stream: Stream, left: int, *, is_end: bool) -> None:
    """Check a body against its content-length, of which `left` bytes are missing.

    Raises:
        StreamViolation: The body is longer, or ended early.
    """
    # RFC 9113, 8.1.1: a request whose DATA differs from its content-length is malformed.
    stream.body_left = left
    if left < 0 or (is_end and left):
        message = f"the body differs from its content-length by {-left} bytes"
        raise StreamViolation(stream.id, Http2ErrorCode.PROTOCOL_ERROR, message)


def strip_padding(payload: bytes | memoryview) -> tuple[bytes | memoryview, int]:
    """Returns a PADDED payload without its padding, and how many bytes were removed."""
    # RFC 9113, 6.1: the first byte is the length of the padding at the end.
    if not payload or payload[0] >= len(payload):
        message = f"expected padding shorter than the frame of {len(payload)} bytes"
        raise ConnectionViolation(Http2ErrorCode.PROTOCOL_ERROR, message)
    padding = payload[0] + 1
    return payload[1 : len(payload) - padding + 1], padding
