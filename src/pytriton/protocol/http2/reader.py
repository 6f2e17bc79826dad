# SPDX-License-Identifier: Apache-2.0
"""Splits received bytes into frames. Large DATA frames are passed on in parts, not collected."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.frames import ConnectionViolation, Http2ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytriton.protocol.http2.expected_frames import ExpectedInput
    from pytriton.protocol.http2.limits import Http2Limits

# Type, flags, stream id and payload. If a DATA frame comes in parts, only the last part has the
# flags. This is a plain tuple because one is made for every frame: it takes 0.07 us, a NamedTuple
# 0.5 us.
Frame = tuple[int, int, int, bytes | memoryview]

# Payloads from this size on are views of the input. A view takes 0.3 us, like a copy of 4 KiB.
VIEW_BYTES = 4096
_HEADER_DTYPE = np.dtype((np.void, frames.HEADER_BYTES))
# So many large frames have to come before any are expected again: input that was not as expected is
# copied twice.
_DOUBTFUL_FRAMES = 16
# So many frames are read at once: the owner may have others to serve before it reads the rest. It
# takes as long to decode and to check a head as to handle so many other frames.
FRAMES_AT_ONCE = 512
_FRAMES_PER_HEAD = 8
_BYTES_PER_FRAME = 16  # of settings and heads


class FrameRun(NamedTuple):
    """Consecutive large DATA frames of one stream that have equal headers without flags."""

    stream_id: int
    rest_bytes: int  # the rest of a frame that comes first
    length: int  # of each payload
    whole_frames: int
    tail_bytes: int  # the received part of another frame that follows, with its header

    @property
    def end(self) -> int:
        """The length of the run in the input."""
        return (
            self.rest_bytes
            + self.whole_frames * (self.length + frames.HEADER_BYTES)
            + self.tail_bytes
        )

    @property
    def data_bytes(self) -> int:
        """The number of its bytes that are data."""
        tail = self.tail_bytes - frames.HEADER_BYTES if self.tail_bytes else 0
        return self.rest_bytes + self.whole_frames * self.length + tail

    def copy(self, data: memoryview, buffer: memoryview) -> None:
        """Copy the data of the run from the input to the beginning of a buffer."""
        start, length = self.rest_bytes, self.length
        if start:
            buffer[:start] = data[:start]
        shape, strides = (self.whole_frames, length), (length + frames.HEADER_BYTES, 1)
        rows = np.ndarray(shape, np.uint8, data, start + frames.HEADER_BYTES, strides)
        np.ndarray(shape, np.uint8, buffer, start)[...] = rows
        if self.tail_bytes:
            size, end = self.data_bytes, self.end
            at = start + self.whole_frames * length
            buffer[at:size] = data[end - size + at : end]


class FrameReader:
    """Turns chunks of any size into frames."""

    __slots__ = (
        "_data_flags",
        "_data_length",
        "_doubtful_frames",
        "_max_data",
        "_max_other",
        "_needed",
        "_pending",
        "data_left",
        "data_stream",
        "has_preface",
        "partial_frames",
        "rest",
    )

    def __init__(self, limits: Http2Limits) -> None:
        self._max_data = limits.max_frame_bytes
        self._max_other = min(limits.max_frame_bytes, limits.max_header_block_bytes)
        self.has_preface = False
        self._pending = bytearray()  # the beginning of an incomplete frame
        self._needed = 0  # length that the pending bytes must have to be read
        self.data_left = 0  # missing bytes of a DATA frame whose header was read
        self.data_stream = 0
        self._data_flags = 0
        self._data_length = 0  # of the last large DATA frame, which was one of `data_stream`
        self._doubtful_frames = 0
        self.partial_frames = 0  # counts the frames that were not received at once
        self.rest = b""  # what follows the frames that were read at once

    @property
    def is_between_frames(self) -> bool:
        """Whether the next byte begins a frame."""
        return self.has_preface and not self.data_left and not self._pending

    @property
    def has_pending(self) -> bool:
        """Whether a frame other than DATA has been received in part."""
        return bool(self._pending)

    def read(self, data: bytes | memoryview) -> Iterator[Frame]:
        """Yields the frames that `data` completes; the caller must iterate to the end.

        If there are too many to be read at once, `rest` is what follows: it has to be read next.

        Raises:
            ConnectionViolation: A frame is too large, or the peer does not speak HTTP/2.
        """
        if self._pending or not self.has_preface:
            data = self._join_pending(data)
        end = len(data)
        at = 0
        if self.data_left and end:
            at = min(self.data_left, end)
            yield self._data_part(data, 0, at)
        left = FRAMES_AT_ONCE
        while left > 0 and end - at >= frames.HEADER_BYTES:
            length_and_kind, flags, stream_id = frames.unpack_header(data, at)
            length = length_and_kind >> 8
            kind = length_and_kind & 0xFF
            left -= 1 if kind == frames.DATA else _price(kind, length)
            # RFC 9113, 4.2: a frame above our SETTINGS_MAX_FRAME_SIZE is an error; the check comes
            # before any of it is stored.
            if length > self._max_other:
                self._check_size(kind, length)
            # RFC 9113, 4.1: the first bit is reserved, and has to be ignored.
            stream_id &= frames.MAX_STREAM_ID
            start = at + frames.HEADER_BYTES
            stop = start + length
            if stop > end:
                # DATA need not be complete, as its bytes are passed on. Padded DATA has to be: the
                # length of the padding is not known to be valid before (6.1). Other frames are
                # small.
                if kind == frames.DATA and not flags & frames.PADDED:
                    self.partial_frames += 1
                    self.data_left = length
                    self._data_flags = flags
                    self._note_data(stream_id, length)
                    if start < end:
                        yield self._data_part(data, start, end)
                    return
                self._keep(data[at:], is_rest=False)  # whatever it costs: it has to be completed
                return
            at = stop
            if length < VIEW_BYTES or kind != frames.DATA:
                yield kind, flags, stream_id, data[start:stop]
            else:
                self._note_data(stream_id, length)
                yield kind, flags, stream_id, memoryview(data)[start:stop]
        if at < end:
            self._keep(data[at:], is_rest=left <= 0)

    def find_run(self, data: memoryview) -> FrameRun | None:
        """Returns the run of DATA frames that `data` begins with; `skip` has to follow.

        The run may begin with the rest of a frame; None if it would have no whole frame.
        """
        start = self.data_left
        left = len(data) - start
        if (
            left < VIEW_BYTES
            or self._pending
            or not self.has_preface
            or (start and self._data_flags)
        ):
            return None
        # All frames but the last of a message have the same length in most clients: equal headers
        # at equal distances are found without a loop over frames.
        length_and_kind, flags, stream_id = frames.unpack_header(data, start)
        length = length_and_kind >> 8
        count, tail_bytes = divmod(left, length + frames.HEADER_BYTES)
        if (
            not count
            or flags
            or length_and_kind & 0xFF != frames.DATA
            or not VIEW_BYTES <= length <= self._max_data
            or (start and stream_id != self.data_stream)
        ):
            return None
        has_tail = tail_bytes > frames.HEADER_BYTES
        equal = _equal_headers(data, start, length + frames.HEADER_BYTES, count + has_tail)
        if equal <= count:
            count, has_tail = equal, False
        return FrameRun(stream_id, start, length, count, tail_bytes if has_tail else 0)

    def skip(self, run: FrameRun) -> None:
        """Continue after a run."""
        self.data_left = 0
        self._note_data(run.stream_id, run.length, run.whole_frames)
        if run.tail_bytes:
            self.partial_frames += 1
            self.data_left = run.length - run.tail_bytes + frames.HEADER_BYTES
            self._data_flags = 0

    @property
    def expected_length(self) -> int:
        """The length of the next DATA frames if they are like the last large one; 0: unknown."""
        if self._doubtful_frames or (self.data_left and self._data_flags):
            return 0
        return self._data_length

    def skip_expected(self, taken: ExpectedInput) -> int:
        """Continue after expected frames; returns the flags of the last one if it is complete."""
        if not taken.frames:
            return self.count_data(taken.data_bytes)
        self.data_left = taken.data_left
        self._data_flags = frames.END_STREAM if taken.is_end else 0
        if taken.data_left:
            self.partial_frames += 1
            return 0
        return self._data_flags

    def doubt(self) -> None:
        """Expect nothing of the next frames, because some were not as expected."""
        self._doubtful_frames = _DOUBTFUL_FRAMES

    def count_data(self, size: int) -> int:
        """Count `size` bytes of a DATA frame as read; returns its flags if these are the last."""
        self.data_left -= size
        return 0 if self.data_left else self._data_flags

    def _keep(self, data: bytes | memoryview, *, is_rest: bool) -> None:
        """Keep what cannot be read yet: the part of a frame, or more frames than are read."""
        if is_rest:
            self.rest = bytes(data)
            return
        self.partial_frames += 1
        self._pending += data
        self._needed = self._frame_bytes()

    def _join_pending(self, data: bytes | memoryview) -> bytes:
        """Append `data` to the pending bytes; returns all of them if they are enough to be read."""
        pending = self._pending
        pending += data
        # RFC 9113, 3.4: a client begins with 24 bytes that no HTTP/1.1 server takes for a request.
        if not self.has_preface:
            seen = bytes(pending[: len(frames.PREFACE)])
            if not frames.PREFACE.startswith(seen):
                message = f"expected the HTTP/2 connection preface, got {seen!r}"
                raise ConnectionViolation(Http2ErrorCode.PROTOCOL_ERROR, message)
            if len(seen) < len(frames.PREFACE):
                return b""
            self.has_preface = True
            del pending[: len(frames.PREFACE)]
        if len(pending) < self._needed:
            return b""
        joined = bytes(pending)
        pending.clear()
        return joined

    def _frame_bytes(self) -> int:
        """Returns the length of the pending frame; that of a frame header if it is not known."""
        if len(self._pending) < frames.HEADER_BYTES:
            return frames.HEADER_BYTES
        return frames.HEADER_BYTES + int.from_bytes(self._pending[:3], "big")

    def _note_data(self, stream_id: int, length: int, count: int = 1) -> None:
        self.data_stream = stream_id
        self._data_length = length if length >= VIEW_BYTES else 0
        if self._doubtful_frames:
            self._doubtful_frames = max(0, self._doubtful_frames - count)

    def _data_part(self, data: bytes | memoryview, start: int, stop: int) -> Frame:
        flags = self.count_data(stop - start)
        return frames.DATA, flags, self.data_stream, memoryview(data)[start:stop]

    def _check_size(self, kind: int, length: int) -> None:
        largest = self._max_data if kind == frames.DATA else self._max_other
        if length > largest:
            message = f"expected a frame of type {kind} of at most {largest} bytes, got {length}"
            raise ConnectionViolation(Http2ErrorCode.FRAME_SIZE_ERROR, message)


def _price(kind: int, length: int) -> int:
    """Returns how many small frames take as long as one of this kind and length."""
    return (_FRAMES_PER_HEAD if kind == frames.HEADERS else 1) + length // _BYTES_PER_FRAME


def _equal_headers(data: memoryview, start: int, stride: int, count: int) -> int:
    """Returns how many of the headers that begin every `stride` bytes are equal to the first."""
    headers = np.ndarray(count, _HEADER_DTYPE, data, start, (stride,)).tobytes()
    first = headers[: frames.HEADER_BYTES]
    if headers == first * count:
        return count
    equal = 1
    while headers.startswith(first, equal * frames.HEADER_BYTES):
        equal += 1
    return equal
