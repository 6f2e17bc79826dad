# SPDX-License-Identifier: Apache-2.0
"""Reads frames and their tensors from a stream of bytes; see `stream_channel` for the layout."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from pytriton.base.errors import resource_error
from pytriton.runtime.transport.arena import DEFAULT_LIMIT_BYTES
from pytriton.runtime.transport.frames import INLINE_ALIGNMENT, decode_record
from pytriton.runtime.transport.payload import Received, UnreadReceived

if TYPE_CHECKING:
    import socket

    from numpy.typing import NDArray

# The magic number tells that a peer has lost its place; then the sizes of the record and of the
# tensors after it. The head is aligned as tensors are.
_HEAD = struct.Struct("<IIQ")
HEAD_BYTES = _HEAD.size
MAGIC = 0x72467470
# What a broken peer can make us reserve. The memory is used only as its bytes arrive.
MAX_RECORD_BYTES = 64 << 20
MAX_TENSOR_BYTES = DEFAULT_LIMIT_BYTES

# Messages up to this size are read together, and each is copied once. Larger ones are received in
# memory of their own.
SCRATCH_BYTES = 64 << 10
# A peer that sends as fast as we read must not keep an event loop from its other work.
_MAX_READS = 8
_NO_BLOCKS: dict[int, NDArray[np.uint8]] = {}


_unpack_head = _HEAD.unpack_from


def pack_head(record_bytes: int, tensor_bytes: int) -> bytes:
    """Returns the head of a message."""
    return _HEAD.pack(MAGIC, record_bytes, tensor_bytes)


class StreamReader:
    """The receiving end of a stream socket.

    Args:
        sock: The socket.

    Attributes:
        is_blocking: Whether the socket blocks.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.is_blocking = sock.getblocking()
        self._scratch = bytearray(SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._start = 0  # of what is in the scratch memory and was not read yet
        self._end = 0
        self._large: memoryview | None = None  # a message whose rest is still to come
        self._filled = 0  # of the large message
        self._excess = 0  # bytes after the large message to drop, as there was no memory for them
        self._lack = ""  # the reason

    @property
    def has_message(self) -> bool:
        """Whether `receive` returns a message, or an error, without reading from the socket."""
        if self._large is not None or self._end - self._start < HEAD_BYTES:
            return False
        magic, record_bytes, tensor_bytes = _unpack_head(self._scratch, self._start)
        size = HEAD_BYTES + record_bytes + -record_bytes % INLINE_ALIGNMENT + tensor_bytes
        is_complete: bool = self._start + size <= self._end
        return is_complete or magic != MAGIC

    def receive(self, flags: int) -> Received | None:
        """Returns the next message; None if there is none, and nobody waits.

        Raises:
            EOFError: The connection has ended, or the machine cannot be reached any more.
            ValueError: This is not the stream of a channel.
        """
        if self._start < self._end and (received := self._take()) is not None:
            return received
        reads = 0
        while self.is_blocking or reads < _MAX_READS:
            reads += 1
            if self._large is not None:
                if not self._read(self._large_room(self._large), flags):
                    return None
                if (received := self._take_large(self._large)) is not None:
                    return received
            elif not self._read(self._room(), flags):
                return None
            elif (received := self._take()) is not None:
                return received
        return None

    def close(self) -> None:
        """Free memory; this object may be kept longer."""
        self._large = None
        self._start = self._end = 0
        self._scratch = bytearray()
        self._view = memoryview(self._scratch)

    def _take(self) -> Received | None:
        """Returns a message that is in the scratch memory; begins to receive a large one."""
        start, end = self._start, self._end
        if end - start < HEAD_BYTES:
            return None
        magic, record_bytes, tensor_bytes = _unpack_head(self._scratch, start)
        # Before anything is reserved: a peer that has lost its place sends arbitrary sizes.
        if magic != MAGIC or record_bytes > MAX_RECORD_BYTES or tensor_bytes > MAX_TENSOR_BYTES:
            begin = bytes(self._view[start : start + HEAD_BYTES])
            raise ValueError(
                f"expected a message of at most {MAX_RECORD_BYTES} bytes and tensors of at most "
                f"{MAX_TENSOR_BYTES} bytes, got one that begins with {begin!r}"
            )
        at = HEAD_BYTES + record_bytes
        tensors_at = at + -at % INLINE_ALIGNMENT
        size = tensors_at + tensor_bytes
        if start + size <= end:
            self._start = start + size
            # A copy, as the scratch memory is used again while tensors of this message are.
            message = bytearray(self._view[start : start + size])
            frame = decode_record(memoryview(message)[HEAD_BYTES:at])
            return Received(frame, message, tensors_at, _NO_BLOCKS)
        if size > SCRATCH_BYTES:
            self._begin_large(size, tensors_at)
        return None

    def _begin_large(self, size: int, tensors_at: int) -> None:
        try:
            large = np.empty(size, np.uint8)  # a bytearray would be zeroed first
            self._excess = 0
        except MemoryError as error:
            # The record is received, so that its requests can be answered.
            self._lack = str(resource_error(error))
            large = np.empty(tensors_at, np.uint8)
            self._excess = size - tensors_at
        self._large = large.data
        arrived = self._view[self._start : self._end]
        self._filled = len(arrived)
        kept = arrived[: len(self._large)]
        self._large[: len(kept)] = kept
        self._start = self._end = 0

    def _large_room(self, large: memoryview) -> memoryview:
        """Returns where the next bytes of the large message go."""
        # Never more than the rest of this message: the next one belongs to the scratch memory.
        if self._filled < len(large):
            return large[self._filled :]
        return self._view[: len(large) + self._excess - self._filled]

    def _take_large(self, message: memoryview) -> Received | None:
        """Returns the large message if all of it has arrived."""
        if self._filled < len(message) + self._excess:
            return None
        self._large = None
        at = HEAD_BYTES + _unpack_head(message)[1]
        frame = decode_record(message[HEAD_BYTES:at])
        start = at + -at % INLINE_ALIGNMENT
        if self._excess:
            return UnreadReceived(frame, message, start, _NO_BLOCKS, self._lack)
        return Received(frame, message, start, _NO_BLOCKS)

    def _read(self, room: memoryview | bytearray, flags: int) -> bool:
        """Read into the scratch memory or the large message; returns whether anything came."""
        try:
            size = self._socket.recv_into(room, 0, flags)
        except BlockingIOError:
            return False
        except OSError as error:  # a reset, or keepalive found that the machine is gone
            raise EOFError from error
        if not size:
            raise EOFError
        if self._large is None:
            self._end += size
        else:
            self._filled += size
        return True

    def _room(self) -> memoryview | bytearray:
        """Returns the free end of the scratch memory; it has room for the rest of a message."""
        size = self._end - self._start
        if not size:
            self._start = self._end = 0
            return self._scratch
        if self._start:
            # Messages that fit into the scratch memory have to lie in it as a whole.
            self._view[:size] = self._view[self._start : self._end]
            self._start, self._end = 0, size
        return self._view[size:]
