# SPDX-License-Identifier: Apache-2.0
"""The DATA frames that probably come next, so that one read puts their data where it belongs.

All frames of a large message but the last have the same length in most clients. So the places of
all headers are known before they are read: headers go to a place of their own, and the data between
them to the memory of the message. Wherever the client did otherwise, the bytes are put together
again, and read as any others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.reader import VIEW_BYTES

if TYPE_CHECKING:
    from pytriton.protocol.http2.streams import Stream

# How much of a message one read takes at most, beside the frame with which that is reached. More
# would not be faster, and what has to be put together again is copied.
_READ_BYTES = 1 << 20
_HEADER_BYTES = frames.HEADER_BYTES
_MOST_FRAMES = _READ_BYTES // VIEW_BYTES


class ExpectedInput(NamedTuple):
    """The beginning of what was received, as far as it is as expected."""

    wire_bytes: int  # the number of bytes, with headers
    data_bytes: int  # the same without headers
    frames: int  # the number of frames that begin in it
    data_left: int  # missing bytes of its last frame
    is_end: bool  # whether its last frame is the last of the stream


class HeaderRoom:
    """Memory for headers, with a view of each; views are kept, because 64 of them take 20 us."""

    __slots__ = ("_views", "memory")

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(_MOST_FRAMES * _HEADER_BYTES))
        self._views: list[memoryview] = []

    def views(self, count: int) -> list[memoryview]:
        """Returns the views of the first `count` headers."""
        views = self._views
        for at in range(len(views) * _HEADER_BYTES, count * _HEADER_BYTES, _HEADER_BYTES):
            views.append(self.memory[at : at + _HEADER_BYTES])
        return views[:count]


class ExpectedFrames:
    """The rest of a frame, and the frames after it, in the memory of their message."""

    __slots__ = ("_headers", "_last_bytes", "_rest_bytes", "buffers", "count", "length", "stream")

    def __init__(self, stream: Stream, rest_bytes: int, length: int, room: HeaderRoom) -> None:
        """Expect the rest of a frame, if any, then frames of `length`, until the buffer is full."""
        memory = stream.buffer
        assert memory is not None, "the stream has a buffer for its next data"
        self.stream = stream
        self.length = length
        rest_bytes = min(rest_bytes, len(memory))
        self._rest_bytes = rest_bytes
        following = min(len(memory), max(_READ_BYTES, rest_bytes + length)) - rest_bytes
        self.count = count = -(-following // length)
        self._last_bytes = min(length, len(memory) - rest_bytes - (count - 1) * length)
        self._headers = room.memory
        self.buffers = [memory[:rest_bytes]] * (2 * count + 1)
        self.buffers[1::2] = room.views(count)
        starts = range(rest_bytes, rest_bytes + count * length, length)
        self.buffers[2::2] = [memory[at : at + length] for at in starts]

    def compare(self, size: int) -> ExpectedInput:
        """Returns how much of the first `size` bytes in the buffers is as expected."""
        rest = self._rest_bytes
        if size <= rest:
            return ExpectedInput(size, size, 0, 0, is_end=False)
        length = self.length
        whole, part = divmod(size - rest, length + _HEADER_BYTES)
        seen = whole + (part >= _HEADER_BYTES)
        headers = bytes(self._headers[: seen * _HEADER_BYTES])
        good = self._count_equal(headers, min(seen, self.count - 1))
        is_end = False
        if good == self.count - 1 < seen:
            last = headers[good * _HEADER_BYTES :]
            is_end = last == self._header(self._last_bytes, frames.END_STREAM)
            good += is_end or last == self._header(self._last_bytes, 0)
        end = rest + good * (length + _HEADER_BYTES)
        if good == self.count:
            end -= length - self._last_bytes
        wire_bytes = min(end, size)
        data_bytes = wire_bytes - good * _HEADER_BYTES
        return ExpectedInput(wire_bytes, data_bytes, good, end - wire_bytes, is_end)

    def join(self, start: int, size: int) -> bytes:
        """Returns the bytes from `start` of the first `size` bytes in the buffers."""
        parts = []
        for buffer in self.buffers:
            if start < min(len(buffer), size):
                parts.append(buffer[max(start, 0) : size])
            start -= len(buffer)
            size -= len(buffer)
            if size <= 0:
                break
        return b"".join(parts)

    def _count_equal(self, headers: bytes, count: int) -> int:
        """Returns how many of the first `count` headers are those of frames that are not last."""
        expected = self._header(self.length, 0)
        if headers.startswith(expected * count):
            return count
        equal = 0
        while headers.startswith(expected, equal * _HEADER_BYTES):
            equal += 1
        return equal

    def _header(self, length: int, flags: int) -> bytes:
        return frames.pack_header(length << 8 | frames.DATA, flags, self.stream.id)
