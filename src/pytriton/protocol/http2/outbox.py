# SPDX-License-Identifier: Apache-2.0
"""The output of a connection: finished frames, and queued data under the peer's flow control.

Data stays in its stream's queue until `take` is called. If the socket does not drain, the queues
grow, and the writers of full queues are asked to pause.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.frames import (
    DEFAULT_HEADER_TABLE_BYTES,
    ConnectionViolation,
    Http2ErrorCode,
    LocalProtocolError,
)
from pytriton.protocol.http2.headers import EMPTY_TABLE_UPDATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.protocol.http2.limits import Http2Limits
    from pytriton.protocol.http2.streams import Stream

Buffer = bytes | bytearray | memoryview  # a view must be one of bytes: its len() is its size

_TRAILERS_FLAGS = frames.END_HEADERS | frames.END_STREAM
# Up to this size, copying data behind its frame header is cheaper than writing two buffers.
_INLINE_BYTES = 64 << 10
_MAX_INLINE_WAITING = 256 << 10  # above this, data is queued, so that flow control sees it
_MAX_TURN_BYTES = 1 << 20  # how much a stream may send before it is another one's turn


class Outbox:
    """The sending half of a connection: `frames` are sent first, then queued data, round-robin."""

    __slots__ = (
        "_limits",
        "_needs_table_update",
        "_pending_replies",
        "activity",
        "cut_bytes",
        "cut_turns",
        "ended",
        "frame_bytes",
        "frames",
        "granted_bytes",
        "max_frame",
        "queued_bytes",
        "resumed",
        "turns",
        "window",
    )

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self.frames: list[Buffer] = []
        self.frame_bytes = 0  # the size of `frames`
        self.queued_bytes = 0  # in the queues of all streams
        self.cut_bytes = 0  # taken from buffers whose rest is queued
        self.window = frames.DEFAULT_WINDOW  # the connection's
        self.granted_bytes = frames.DEFAULT_WINDOW  # sent bytes plus the window
        self.max_frame = frames.DEFAULT_MAX_FRAME
        self.activity = 0  # counts HEADERS and DATA sent, for the ping policy and the work budget
        self.cut_turns = 0  # of these, the ones that ended before the data of their stream
        self.turns: deque[Stream] = deque()  # streams with queued data and an open window
        self.ended: list[Stream] = []  # streams whose last queued frame was taken
        self.resumed: list[Stream] = []  # streams whose writer may resume
        self._pending_replies = 0
        self._needs_table_update = False

    def add(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.frame_bytes += len(frame)

    def reply(self, frame: bytes) -> None:
        """Add a frame that a frame of the peer requires.

        Raises:
            ConnectionViolation: The peer sends such frames without reading our replies.
        """
        self._pending_replies += 1
        if self._pending_replies > self._limits.max_pending_replies:
            message = f"expected replies to be read, got {self._pending_replies} that wait"
            raise ConnectionViolation(Http2ErrorCode.ENHANCE_YOUR_CALM, message)
        self.add(frame)

    def grant(self, increment: int) -> None:
        """Apply a WINDOW_UPDATE of the connection."""
        self.window += increment
        self.granted_bytes += increment

    def limit_header_table(self, size: int) -> None:
        """Apply the peer's HEADER_TABLE_SIZE: we use no table, but must confirm a smaller size."""
        if size < DEFAULT_HEADER_TABLE_BYTES:
            self._needs_table_update = True

    def add_header_block(self, stream_id: int, block: bytes, *, is_end: bool) -> None:
        """Add HEADERS with an encoded block."""
        self._write_header_block(stream_id, block, self.frames, is_end=is_end)
        self.frame_bytes += len(self.frames[-1])

    def add_data(self, stream: Stream, data: Buffer, *, is_end: bool) -> None:
        """Add a DATA frame; `fits_inline` must be true."""
        size = len(data)
        flags = frames.END_STREAM if is_end else 0
        header = frames.pack_header(size << 8 | frames.DATA, flags, stream.id)
        self.add(b"".join((header, data)))
        self.window -= size
        stream.send_window -= size
        stream.sent_bytes += size
        self.activity += 1

    def add_response(
        self,
        stream: Stream,
        head: bytes,
        body: Sequence[Buffer],
        size: int,
        trailers: bytes | None,
    ) -> bool:
        """Add a whole response as one buffer; if it does not fit, return False and add nothing."""
        largest = self.max_frame
        if (
            len(head) > largest
            or (trailers is not None and len(trailers) > largest)
            or self._needs_table_update
            or not self.fits_inline(stream, size)
        ):
            return False
        stream_id = stream.id
        pack_header = frames.pack_header
        data_flags = frames.END_STREAM if trailers is None else 0
        parts = [
            pack_header(len(head) << 8 | frames.HEADERS, frames.END_HEADERS, stream_id),
            head,
            pack_header(size << 8 | frames.DATA, data_flags, stream_id),
            *body,
        ]
        if trailers is not None:
            parts.append(
                pack_header(len(trailers) << 8 | frames.HEADERS, _TRAILERS_FLAGS, stream_id)
            )
            parts.append(trailers)
        return self.add_whole(stream, b"".join(parts), size)

    def add_whole(self, stream: Stream, response: bytes, size: int) -> bool:
        """Add the frames of a response with `size` bytes of data; like `add_response`."""
        if self._needs_table_update or not self.fits_inline(stream, size):
            return False
        # The stream ends with this response, so its own window and its sent bytes need no count.
        self.frames.append(response)
        self.frame_bytes += len(response)
        self.window -= size
        self.activity += 1
        return True

    def fits_inline(self, stream: Stream, size: int) -> bool:
        """Returns whether `size` bytes can be sent now, in one buffer with their frame header."""
        # Data that is queued goes first. What does not fit the windows (RFC 9113, 6.9.1) or a frame
        # (4.2) is queued, and so is data while much waits: else nobody would be asked to pause.
        if stream.queue:
            return False
        return not size or (
            size <= _INLINE_BYTES
            and size <= self.window
            and size <= stream.send_window
            and size <= self.max_frame
            and self.frame_bytes < _MAX_INLINE_WAITING
        )

    def queue_response(
        self, stream: Stream, head: bytes, body: Sequence[Buffer], trailers: bytes | None
    ) -> None:
        """Queue a whole response with data: all of it is there, so nobody could pause."""
        self.add_header_block(stream.id, head, is_end=False)
        stream.is_head_sent = True
        for part in body:
            self._enqueue(stream, part)
        stream.trailers = trailers
        stream.is_end_queued = True
        self.schedule(stream)

    def enqueue(self, stream: Stream, data: Buffer) -> None:
        """Queue data of a stream without copying it: it must not change until it is written."""
        if stream.queued_bytes >= self._limits.max_queued_bytes:
            message = f"stream {stream.id} has {stream.queued_bytes} bytes queued and takes no more"
            raise LocalProtocolError(message)
        self._enqueue(stream, data)
        self.schedule(stream)

    def _enqueue(self, stream: Stream, data: Buffer) -> None:
        view = memoryview(data)
        if view.itemsize != 1 or not view.contiguous:
            message = f"expected a contiguous view of bytes, got one of {view.format!r}"
            raise LocalProtocolError(message)
        if not view:
            return
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(view)
        stream.queued_bytes += len(view)
        self.queued_bytes += len(view)

    def drop(self, stream: Stream) -> None:
        """Drop the queued data of a closed stream."""
        self.queued_bytes -= stream.queued_bytes
        self.cut_bytes -= stream.cut_bytes
        stream.queued_bytes = stream.cut_bytes = 0
        stream.queue = None

    def schedule(self, stream: Stream) -> None:
        """Schedule the stream if it has queued data and an open window."""
        if stream.queue and stream.send_window > 0 and not stream.is_scheduled:
            stream.is_scheduled = True
            self.turns.append(stream)

    def take(self, max_bytes: int) -> list[Buffer]:
        """Returns the next output: all finished frames and at most `max_bytes` of queued data."""
        output = self.frames
        self.frames = []
        self._pending_replies = 0
        self.frame_bytes = 0
        turns = self.turns
        while turns and self.window > 0 and max_bytes > 0:
            stream = turns.popleft()
            stream.is_scheduled = False
            # A stream that is reset stays in `turns`: removing it from the middle would take linear
            # time.
            if stream.queue and stream.send_window > 0:  # it may have been reset or shrunk
                max_bytes -= self._send_turn(stream, stream.queue, max_bytes, output)
                self.schedule(stream)
        return output

    def _send_turn(
        self, stream: Stream, queue: deque[memoryview], max_bytes: int, output: list[Buffer]
    ) -> int:
        """Send as much as a stream may send in one turn; returns the number of bytes."""
        size = min(stream.queued_bytes, stream.send_window, self.window, _MAX_TURN_BYTES, max_bytes)
        self.window -= size
        stream.send_window -= size
        stream.sent_bytes += size
        stream.queued_bytes -= size
        self.queued_bytes -= size
        is_drained = not stream.queued_bytes
        if is_drained:
            stream.stall_mark_ns = 0
        flags = 0
        if is_drained and stream.is_end_queued and stream.trailers is None:
            flags = frames.END_STREAM
        self._write_data(stream, queue, size, flags, output)
        # RFC 9113, 8.1: trailers follow all DATA, so they wait in the stream until its queue is
        # empty.
        if is_drained and stream.is_end_queued:
            if stream.trailers is not None:
                self._write_header_block(stream.id, stream.trailers, output, is_end=True)
            self.ended.append(stream)
        elif stream.is_paused and stream.queued_bytes <= self._limits.low_water_bytes:
            stream.is_paused = False
            self.resumed.append(stream)
        if not is_drained:
            self.cut_turns += 1
        return size

    def _write_data(
        self, stream: Stream, queue: deque[memoryview], size: int, flags: int, output: list[Buffer]
    ) -> None:
        """Move the first `size` bytes of a queue to DATA frames; the last one gets the flags.

        Most clients accept frames of 16 KiB, so 1 MiB takes 64 frames: the inner loop only slices.
        """
        largest = self.max_frame
        header = frames.pack_header(largest << 8 | frames.DATA, 0, stream.id)
        while size > largest:
            view = queue[0]
            whole_frames = min(len(view), size - 1) // largest
            if not whole_frames:  # the next frame needs more than one buffer
                output.append(header)
                self._move(stream, queue, largest, output)
                size -= largest
                continue
            end = whole_frames * largest
            for start in range(0, end, largest):
                output.append(header)
                output.append(view[start : start + largest])
            self._drop(stream, queue, end)
            size -= end
        output.append(frames.pack_header(size << 8 | frames.DATA, flags, stream.id))
        self._move(stream, queue, size, output)
        self.activity += 1

    def _move(
        self, stream: Stream, queue: deque[memoryview], size: int, output: list[Buffer]
    ) -> None:
        """Move the first `size` bytes of a queue to `output` without copying them."""
        while size:
            part = queue[0][:size]
            output.append(part)
            self._drop(stream, queue, len(part))
            size -= len(part)

    def _drop(self, stream: Stream, queue: deque[memoryview], size: int) -> None:
        """Remove `size` bytes from the first buffer of a queue."""
        view = queue[0]
        if len(view) == size:
            queue.popleft()
            self.cut_bytes -= stream.cut_bytes
            stream.cut_bytes = 0
        else:
            queue[0] = view[size:]
            self.cut_bytes += size
            stream.cut_bytes += size

    def _write_header_block(
        self, stream_id: int, block: bytes, output: list[Buffer], *, is_end: bool
    ) -> None:
        # RFC 7541, 4.2: after the peer has lowered the size of the table, the next block has to
        # begin with a size update, even if we never use the table.
        if self._needs_table_update:
            self._needs_table_update = False
            block = EMPTY_TABLE_UPDATE + block
        flags = frames.END_STREAM if is_end else 0
        output.append(frames.header_frames(stream_id, block, flags, self.max_frame))
        self.activity += 1
