# SPDX-License-Identifier: Apache-2.0
"""Writes frames and their tensors to a stream of bytes; see `stream_channel` for the layout."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from pytriton.base.errors import UnavailableError
from pytriton.runtime.transport.frames import INLINE_ALIGNMENT, encode_record
from pytriton.runtime.transport.stream_reader import MAX_RECORD_BYTES, MAX_TENSOR_BYTES, pack_head

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from pytriton.runtime.transport.frames import Frame
    from pytriton.runtime.transport.payload import Buffer

# Tensors up to this size, and pieces that are smaller on average, are copied into one message: that
# costs less than a vector of pieces.
_JOINED_BYTES = 64 << 10
_SMALL_PIECE_BYTES = 2 << 10
_MAX_PIECES = 1024  # in one system call; Linux and macOS allow no more
# A peer that reads as fast as we send must not keep an event loop from its other work.
_MAX_WRITES = 8
_PADDING = [bytes(size) for size in range(INLINE_ALIGNMENT)]


class StreamWriter:
    """The sending end of a stream socket.

    Large pieces are not copied: what does not fit into the socket is kept as views until `flush`.
    So nothing may change the tensors of a message after it was sent. In the server nothing does:
    they are parts of requests and answers, which are read only, and the views keep them alive. A
    worker sends with a blocking socket, and has nothing left when `send` returns.

    Args:
        sock: The socket.

    Attributes:
        is_blocking: Whether the socket blocks.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.is_blocking = sock.getblocking()
        self._unsent: deque[memoryview] = deque()

    @property
    def has_unsent(self) -> bool:
        """Whether there is queued data for `flush`."""
        return bool(self._unsent)

    def send(self, frame: Frame, pieces: Sequence[Buffer], size: int) -> None:
        """Send a frame and its tensors, after what is still queued.

        Raises:
            OSError: The connection has ended.
            UnavailableError: The tensors are too large; nothing was sent.
            Exception: The frame cannot be encoded; nothing was sent.
        """
        record = encode_record(frame)
        length = len(record)
        if length > MAX_RECORD_BYTES:
            raise ValueError(f"expected a frame of at most {MAX_RECORD_BYTES} bytes, got {length}")
        if size > MAX_TENSOR_BYTES:
            raise UnavailableError(
                f"no room for {size} bytes of tensors: one message to another machine has at most "
                f"{MAX_TENSOR_BYTES} bytes"
            )
        head = (pack_head(length, size), record, _PADDING[-length % INLINE_ALIGNMENT])
        unsent = self._unsent
        if size <= _JOINED_BYTES or size < len(pieces) * _SMALL_PIECE_BYTES:
            message = b"".join((*head, *pieces))
            # Nearly always the socket takes all of it, and nothing has to be queued.
            sent = 0 if unsent else self._send_part(message)
            if sent == len(message):
                return
            unsent.append(memoryview(message)[sent:])
        else:
            unsent.append(memoryview(b"".join(head)))
            # Without empty ones: `flush` counts a piece as sent by its bytes.
            unsent.extend([memoryview(piece) for piece in pieces if len(piece)])
        self.flush()

    def flush(self) -> None:
        """Send queued data: all of it if the socket blocks, otherwise as much as fits."""
        unsent = self._unsent
        writes = 0
        while unsent and (self.is_blocking or writes < _MAX_WRITES):
            writes += 1
            try:
                sent = self._socket.sendmsg(list(islice(unsent, _MAX_PIECES)))
            except BlockingIOError:
                return
            while sent:
                piece = unsent[0]
                if sent < len(piece):
                    unsent[0] = piece[sent:]
                    break
                sent -= len(piece)
                unsent.popleft()

    def close(self) -> None:
        """Drop queued data."""
        self._unsent.clear()

    def _send_part(self, message: bytes) -> int:
        try:
            return self._socket.send(message)
        except BlockingIOError:
            return 0
