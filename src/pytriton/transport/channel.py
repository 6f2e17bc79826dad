# SPDX-License-Identifier: Apache-2.0
"""Frames and tensors over a link: small tensors inside the message, large ones in shared memory.

Both ends use the same class. It keeps two books: `_lent`, blocks of our arena that the peer may
still read, and `_given_back`, blocks of the peer's arena that nothing here reads any more. Entries
of the second ride on the next message.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.dtypes import BY_NUMBER, BYTES, bytes_elements_to_array, decode_bytes
from pytriton.transport.arena import Arena, Block, RemoteBlock, block_bytes, find_block
from pytriton.transport.frames import (
    INLINE_ALIGNMENT,
    BlockRef,
    Frame,
    MemoryNotes,
    Notes,
    SegmentRef,
    Spill,
    TensorRef,
    decode_frame,
    encode_frame,
)
from pytriton.transport.link import MAX_MESSAGE_BYTES, make_link
from pytriton.transport.memory import Mapping, check_received

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Buffer = bytes | bytearray | memoryview

# Below this a tensor is copied through the socket, which is cheaper than tracking a block for it.
INLINE_TENSOR_BYTES = 32 << 10
INLINE_TOTAL_BYTES = 64 << 10
# Beyond this a message goes through a block, which leaves room for what is said about memory.
_SPILL_BYTES = MAX_MESSAGE_BYTES - (32 << 10)
_MAX_RELEASES = 2000
_PADDING = [bytes(size) for size in range(INLINE_ALIGNMENT)]


class Payload:
    """Collects the tensor bytes of one outgoing message."""

    __slots__ = ("_arena", "_inline_size", "blocks", "inline", "returned_blocks")

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._inline_size = 0
        self.inline: list[Buffer] = []
        self.blocks: list[Block] = []
        self.returned_blocks: list[RemoteBlock] = []

    def add(self, pieces: Sequence[Buffer], size: int) -> tuple[int, int]:
        """Place `pieces` one after the other; their block (0: inside the message) and offset."""
        if size <= INLINE_TENSOR_BYTES and self._inline_size + size <= INLINE_TOTAL_BYTES:
            offset = self._inline_size
            padding = -size % INLINE_ALIGNMENT
            self.inline.extend(pieces)
            if padding:
                self.inline.append(_PADDING[padding])
            self._inline_size = offset + size + padding
            return 0, offset
        if len(pieces) == 1 and (found := find_block(pieces[0])) is not None:
            block, offset = found
            if self._arena.owns(block) and offset % INLINE_ALIGNMENT == 0:
                return self._lend(block), offset
        block = self._arena.allocate(size)
        self.blocks.append(block)
        view = block.view()
        at = 0
        for piece in pieces:
            end = at + len(piece)
            view[at:end] = piece
            at = end
        return block.id, 0

    def give_back(self, block: RemoteBlock) -> int:
        """Refer to a block of the receiver's, which holds the bytes already."""
        # Held until the message is sent: the receiver must not hear before that it is given up.
        self.returned_blocks.append(block)
        return -block.id

    def _lend(self, block: Block) -> int:
        if block not in self.blocks:
            self.blocks.append(block)
        return block.id


class Received:
    """A message that came in, and access to its tensors."""

    __slots__ = ("_blocks", "_message", "_start", "frame")

    def __init__(
        self, frame: Frame, message: bytearray, start: int, blocks: dict[int, NDArray[np.uint8]]
    ) -> None:
        self.frame = frame
        self._message = message
        self._start = start
        self._blocks = blocks

    @property
    def uses_blocks(self) -> bool:
        """Whether some of its tensors are in shared memory."""
        return bool(self._blocks)

    def buffer(self, ref: TensorRef) -> memoryview:
        """The tensor's bytes, alive for as long as the view."""
        source: Any = self._blocks[ref.block] if ref.block else self._message
        start = ref.offset + (0 if ref.block else self._start)
        return memoryview(source)[start : start + ref.size]

    def array(self, ref: TensorRef) -> NDArray[Any]:
        """The tensor as a writable array; object elements of type bytes for BYTES."""
        dtype = BY_NUMBER[ref.dtype]
        if dtype is BYTES:
            return bytes_elements_to_array(decode_bytes(self.buffer(ref)), ref.shape)
        if not ref.size:
            return np.empty(ref.shape, dtype.numpy)
        if ref.block:
            flat = self._blocks[ref.block][ref.offset : ref.offset + ref.size].view(dtype.numpy)
            return flat.reshape(ref.shape)
        array: NDArray[Any]
        array = np.ndarray(ref.shape, dtype.numpy, self._message, self._start + ref.offset)
        return array


class Channel:
    """One end of the connection between the server and an instance."""

    def __init__(self, sock: socket.socket, arena: Arena) -> None:
        self.link = make_link(sock)
        self.arena = arena
        self._known_segments: set[int] = set()  # of our arena, that the peer has mapped
        self._forgotten_segments: list[int] = []
        self._lent: dict[int, list[Block]] = {}  # as often as the peer has it
        self._mappings: dict[int, Mapping] = {}  # the peer's segments
        self._given_back: deque[int] = deque()
        self._send_lock = threading.Lock()
        self.gives_back_at_once = (
            False  # while this end waits for messages, nothing else carries the news
        )

    def fileno(self) -> int:
        """The socket's descriptor, for an event loop to watch."""
        return self.link.socket.fileno()

    @property
    def maps_memory(self) -> bool:
        """Whether a segment of the peer is mapped here."""
        return bool(self._mappings)

    @property
    def has_notes(self) -> bool:
        """Whether there is something to tell the peer with the next message."""
        return bool(self._given_back or self._forgotten_segments)

    def payload(self) -> Payload:
        """An empty payload for the next message."""
        return Payload(self.arena)

    def send(self, frame: Frame, payload: Payload | None = None) -> None:
        """Send a frame with the tensors that its references name."""
        with self._send_lock:
            self._send(frame, payload)
        if self._given_back and self.gives_back_at_once:
            self._send_given_back()

    def receive(self, flags: int = 0) -> Received | None:
        """The next message or None, see `Link.receive`; EOFError when the peer is gone."""
        message = self.link.receive(flags)
        if message is None:
            return None
        if not message:
            raise EOFError
        frame, start = decode_frame(memoryview(message))
        blocks = self._take_notes(frame.memory) if frame.memory is not None else {}
        if isinstance(frame, Spill):
            message = bytearray(blocks[frame.block][: frame.size])
            memory = frame.memory
            frame, start = decode_frame(memoryview(message))
            frame.memory = memory
        return Received(frame, message, start, blocks)

    def forget_segments(self, segments: Iterable[int]) -> None:
        """Tell the peer, with the next message, to unmap segments that our arena dropped."""
        gone = self._known_segments.intersection(segments)
        self._known_segments -= gone
        self._forgotten_segments.extend(gone)

    def send_notes(self) -> None:
        """Tell the peer now what would otherwise wait for the next message."""
        if self.has_notes:
            self.send(Notes())

    def close(self) -> None:
        """Close the connection. Blocks that the peer may still read are never used again."""
        for blocks in self._lent.values():
            blocks[0].abandon()
        self._lent.clear()
        self._mappings.clear()  # arrays that are still read keep theirs
        for descriptor in self.link.take_descriptors(1 << 16):
            os.close(descriptor)
        self.link.close()

    def __repr__(self) -> str:
        return f"<Channel fd={self.fileno()} lent={len(self._lent)} mapped={len(self._mappings)}>"

    def _send(self, frame: Frame, payload: Payload | None) -> None:
        payload = payload or self.payload()
        inline: Sequence[Buffer] = payload.inline
        message = b"".join((encode_frame(frame), *inline))
        if len(message) > _SPILL_BYTES:
            frame, inline = self._spill(message, payload), ()
        descriptors: list[int] = []
        if (
            payload.blocks
            or payload.returned_blocks
            or self._given_back
            or self._forgotten_segments
        ):
            frame.memory, descriptors = self._make_notes(payload)
            message = b"".join((encode_frame(frame), *inline))
        self.link.send(message, descriptors)

    def _spill(self, message: bytes, payload: Payload) -> Spill:
        block = self.arena.allocate(len(message))
        block.view()[: len(message)] = message
        payload.blocks.append(block)
        return Spill(block.id, len(message))

    def _make_notes(self, payload: Payload) -> tuple[MemoryNotes, list[int]]:
        notes = MemoryNotes(returned_blocks=[block.id for block in payload.returned_blocks])
        descriptors = []
        for block in payload.blocks:
            segment = block.segment
            if segment.id not in self._known_segments:
                self._known_segments.add(segment.id)
                notes.segments.append(SegmentRef(segment.id, segment.size))
                descriptors.append(segment.descriptor)
            self._lent.setdefault(block.id, []).append(block)
            notes.blocks.append(BlockRef(block.id, segment.id, block.offset, block.size))
        notes.dropped_segments, self._forgotten_segments = self._forgotten_segments, []
        while self._given_back and len(notes.released_blocks) < _MAX_RELEASES:
            notes.released_blocks.append(self._given_back.popleft())
        return notes, descriptors

    def _take_notes(self, notes: MemoryNotes) -> dict[int, NDArray[np.uint8]]:
        descriptors = self.link.take_descriptors(len(notes.segments))
        for segment, descriptor in zip(notes.segments, descriptors, strict=True):
            try:
                check_received(descriptor, segment.size)
                self._mappings[segment.id] = Mapping(descriptor, segment.size)
            finally:
                os.close(descriptor)
        for segment_id in notes.dropped_segments:
            self._mappings.pop(segment_id, None)
        # Before releases: a block that comes back is used here before it is given up there.
        blocks = {
            -block_id: block_bytes(self._lent[block_id][0]) for block_id in notes.returned_blocks
        }
        for block_id in notes.released_blocks:
            holds = self._lent[block_id]
            holds.pop()
            if not holds:
                del self._lent[block_id]
        for ref in notes.blocks:
            mapping = self._mappings[ref.segment]
            if ref.offset < 0 or ref.size < 0 or ref.offset + ref.size > mapping.size:
                raise ValueError(f"expected a block within {mapping.size} bytes, got {ref}")
            remote = RemoteBlock(ref.id, mapping, (ref.offset, ref.size), self._give_back)
            blocks[ref.id] = block_bytes(remote)
        return blocks

    def _give_back(self, block_id: int) -> None:
        # Runs when the last array on the block goes, on whatever thread that happens.
        self._given_back.append(block_id)
        if self.gives_back_at_once:
            self._send_given_back()

    def _send_given_back(self) -> None:
        # Whoever has the lock looks again after its end: what came meanwhile is not left behind.
        with contextlib.suppress(OSError):  # the peer is gone, and its arena with it
            while self._given_back and self._send_lock.acquire(blocking=False):
                try:
                    self._send(Notes(), None)
                finally:
                    self._send_lock.release()
