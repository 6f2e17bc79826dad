# SPDX-License-Identifier: Apache-2.0
"""What DATA frames do: bytes for the owner of the connection, in events or put where it wants them.

A large body comes in thousands of frames, so little is done for each of them: those in a row share
an event, and what has a place is copied there once or, where `room` tells the owner, not even that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.wire.http2 import frames
from pytriton.wire.http2.errors import ConnectionViolation, ErrorCode, StreamViolation
from pytriton.wire.http2.events import DataPlaced, DataReceived
from pytriton.wire.http2.states import StreamInput, next_state

if TYPE_CHECKING:
    from pytriton.wire.http2.core import ConnectionCore
    from pytriton.wire.http2.reader import FrameReader
    from pytriton.wire.http2.streams import Stream

# With less to come of a DATA frame, a read that ends with it costs more than a copy.
MIN_ROOM_BYTES = 64 << 10
_RECV_DATA = (StreamInput.RECV_DATA, StreamInput.RECV_DATA_END)


class DataFrames:
    """Applies DATA frames, which `reader` may pass on in parts."""

    __slots__ = ("_core", "_reader", "is_borrowed")

    def __init__(self, core: ConnectionCore, reader: FrameReader) -> None:
        self._core = core
        self._reader = reader
        self.is_borrowed = False  # payloads lie in memory that is used again after `receive`

    def on_data(self, flags: int, stream_id: int, payload: bytes | memoryview) -> None:
        """Take a frame or a part of one."""
        padding = 0
        if flags & frames.PADDED:
            payload, padding = strip_padding(payload)
        stream = self._book(flags, stream_id, len(payload), padding)
        if stream is None:
            return
        is_end = bool(flags & frames.END_STREAM)
        if stream.place is not None and payload:
            payload = self._put(stream, stream.place, payload, is_end=is_end)
            if not payload:
                return
        elif not payload and not is_end:
            self._core.charge_idle_frame()
            return
        events = self._core.events
        last = events[-1] if events else None
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

    def on_run(self, stream_id: int, payloads: list[memoryview]) -> None:
        """Take frames without flags that follow each other."""
        size = sum(map(len, payloads))
        stream = self._core.streams.open.get(stream_id)
        place = None if stream is None else stream.place
        if stream is None or place is None or len(place) < size:
            self.on_data(0, stream_id, b"".join(payloads))
            return
        self._book(0, stream_id, size, 0)
        start = 0
        for payload in payloads:
            end = start + len(payload)
            place[start:end] = payload
            start = end
        self._advance(stream, place, size, is_end=False)

    def room(self) -> memoryview | None:
        """Where the bytes that come next belong, if they have a place and are many."""
        reader = self._reader
        stream = self._core.streams.open.get(reader.data_stream)
        if stream is None or stream.place is None or reader.data_left < MIN_ROOM_BYTES:
            return None
        return stream.place[: reader.data_left]

    def fill(self, size: int) -> None:
        """So many bytes were written to `room`."""
        stream_id = self._reader.data_stream
        flags = self._reader.pass_data(size)
        stream = self._book(flags, stream_id, size, 0)
        if stream is not None and stream.place is not None:  # unless it was reset meanwhile
            self._advance(stream, stream.place, size, is_end=bool(flags & frames.END_STREAM))

    def _book(self, flags: int, stream_id: int, size: int, padding: int) -> Stream | None:
        """Account for bytes; None where no open stream takes them."""
        core = self._core
        is_end = flags & frames.END_STREAM
        event = _RECV_DATA[is_end]
        stream = core.streams.open.get(stream_id)
        if stream is None:
            core.inflow.take_unread(size + padding)
            next_state(stream_id, core.streams.state_of(stream_id), event)
            return None
        core.inflow.take(stream, size, padding)
        stream.state = next_state(stream_id, stream.state, event)
        if stream.body_left is not None:
            count_body(stream, stream.body_left - size, is_end=bool(is_end))
        return stream

    def _put(
        self, stream: Stream, place: memoryview, payload: bytes | memoryview, *, is_end: bool
    ) -> bytes | memoryview:
        """Put bytes into the place of their stream; returns those for which it has no room."""
        size = min(len(payload), len(place))
        place[:size] = payload[:size]
        rest = payload[size:]
        self._advance(stream, place, size, is_end=is_end and not rest)
        return rest

    def _advance(self, stream: Stream, place: memoryview, size: int, *, is_end: bool) -> None:
        """So many bytes were put into the place of a stream."""
        stream.place = place[size:] if size < len(place) else None
        events = self._core.events
        last = events[-1] if events else None
        if last.__class__ is DataPlaced and last.stream_id == stream.id:
            last.size += size
            last.end_stream = is_end
        else:
            events.append(DataPlaced(stream.id, size, is_end))


def _holds_view(event: DataReceived, payload: bytes | memoryview) -> bool:
    return isinstance(payload, memoryview) or isinstance(event.data, memoryview)


def count_body(stream: Stream, left: int, *, is_end: bool) -> None:
    """Compare what came of a body with its content-length, of which `left` bytes are missing."""
    stream.body_left = left
    if left < 0 or (is_end and left):
        message = f"the body differs from its content-length by {-left} bytes"
        raise StreamViolation(stream.id, ErrorCode.PROTOCOL_ERROR, message)


def strip_padding(payload: bytes | memoryview) -> tuple[bytes | memoryview, int]:
    """A PADDED payload without its padding, and how many bytes that took away."""
    if not payload or payload[0] >= len(payload):
        message = f"expected padding shorter than the frame of {len(payload)} bytes"
        raise ConnectionViolation(ErrorCode.PROTOCOL_ERROR, message)
    padding = payload[0] + 1
    return payload[1 : len(payload) - padding + 1], padding
