# SPDX-License-Identifier: Apache-2.0
"""Frames and tensors over a link: small tensors inside the message, large ones in shared memory.

Both ends use the same class. It keeps two books: `_lent`, blocks of our arena that the peer may
still read, and `_given_back`, blocks of the peer's arena that nothing here reads any more. Entries
of the second ride on the next message.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.dtypes import BY_NUMBER, BYTES, bytes_elements_to_array, decode_bytes
from pytriton.transport.arena import Arena, Block, RemoteBlock, block_bytes
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
from pytriton.transport.memory import Mapping

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Buffer = bytes | bytearray | memoryview

# Below this a tensor is copied through the socket, which is cheaper than tracking a block for it.
INLINE_TENSOR_BYTES = 32 << 10
INLINE_TOTAL_BYTES = 64 << 10
_PADDING = [bytes(size) for size in range(INLINE_ALIGNMENT)]


class Payload:
    """Collects the tensor bytes of one outgoing message."""

    __slots__ = ("_arena", "_inline_size", "blocks", "inline")

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._inline_size = 0
        self.inline: list[Buffer] = []
        self.blocks: list[Block] = []

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
        block = self._arena.allocate(size)
        self.blocks.append(block)
        view = block.view()
        at = 0
        for piece in pieces:
            end = at + len(piece)
            view[at:end] = piece
            at = end
        return block.id, 0

    def lend(self, block: Block) -> int:
        """Pass on a block that already holds the bytes."""
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
        count = ref.size // dtype.itemsize
        flat = np.frombuffer(self._message, dtype.numpy, count, self._start + ref.offset)
        return flat.reshape(ref.shape)


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

    def payload(self) -> Payload:
        """An empty payload for the next message."""
        return Payload(self.arena)

    def send(self, frame: Frame, payload: Payload | None = None) -> None:
        """Send a frame with the tensors that its references name."""
        with self._send_lock:
            self._send(frame, payload)

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
        if self._given_back or self._forgotten_segments:
            self.send(Notes())

    def close(self) -> None:
        """Close the connection. Blocks that the peer may still read are never used again."""
        for blocks in self._lent.values():
            blocks[0].abandon()
        self._lent.clear()
        for descriptor in self.link.take_descriptors(1 << 16):
            os.close(descriptor)
        self.link.close()

    def __repr__(self) -> str:
        return f"<Channel fd={self.fileno()} lent={len(self._lent)} mapped={len(self._mappings)}>"

    def _send(self, frame: Frame, payload: Payload | None) -> None:
        blocks = payload.blocks if payload is not None else []
        inline = payload.inline if payload is not None else []
        if not blocks and not self._given_back and not self._forgotten_segments:
            head = encode_frame(frame)
            message = b"".join((head, *inline)) if inline else head
            if len(message) <= MAX_MESSAGE_BYTES:
                self.link.send(message)
                return
        head = encode_frame(frame)
        if len(head) + sum(map(len, inline)) > MAX_MESSAGE_BYTES:
            frame, inline = self._spill(b"".join((head, *inline)), blocks)
        notes, descriptors = self._make_notes(blocks)
        frame.memory = notes
        self.link.send(b"".join((encode_frame(frame), *inline)), descriptors)

    def _spill(self, message: bytes, blocks: list[Block]) -> tuple[Frame, list[Buffer]]:
        block = self.arena.allocate(len(message))
        block.view()[: len(message)] = message
        blocks.append(block)
        return Spill(block.id, len(message)), []

    def _make_notes(self, blocks: list[Block]) -> tuple[MemoryNotes, list[int]]:
        notes = MemoryNotes()
        descriptors = []
        for block in blocks:
            segment = block.segment
            if segment.id not in self._known_segments:
                self._known_segments.add(segment.id)
                notes.segments.append(SegmentRef(segment.id, segment.size))
                descriptors.append(segment.descriptor)
            self._lent.setdefault(block.id, []).append(block)
            notes.blocks.append(BlockRef(block.id, segment.id, block.offset, block.size))
        notes.dropped_segments, self._forgotten_segments = self._forgotten_segments, []
        while self._given_back:
            notes.released_blocks.append(self._given_back.popleft())
        return notes, descriptors

    def _take_notes(self, notes: MemoryNotes) -> dict[int, NDArray[np.uint8]]:
        descriptors = self.link.take_descriptors(len(notes.segments))
        for segment, descriptor in zip(notes.segments, descriptors, strict=True):
            try:
                self._mappings[segment.id] = Mapping(descriptor, segment.size)
            finally:
                os.close(descriptor)
        for segment_id in notes.dropped_segments:
            self._mappings.pop(segment_id, None)
        for block_id in notes.released_blocks:
            holds = self._lent[block_id]
            holds.pop()
            if not holds:
                del self._lent[block_id]
        return {
            ref.id: block_bytes(
                RemoteBlock(
                    ref.id, self._mappings[ref.segment], (ref.offset, ref.size), self._give_back
                )
            )
            for ref in notes.blocks
        }

    def _give_back(self, block_id: int) -> None:
        # Runs when the last array on the block goes, on whatever thread that happens.
        self._given_back.append(block_id)
        if self.gives_back_at_once and self._send_lock.acquire(blocking=False):
            try:
                self._send(Notes(), None)
            except OSError:
                pass  # the peer is gone, and its arena with it
            finally:
                self._send_lock.release()
