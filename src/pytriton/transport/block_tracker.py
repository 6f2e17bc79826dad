# SPDX-License-Identifier: Apache-2.0
"""Which blocks each end of a channel still reads, and what they tell each other about it.

Three lists matter: blocks that the peer may still read (`lent`), which are of our arena or, where
we forwarded them, of a third process's; segments of the peer's that are mapped here; and blocks of
the peer's that nothing here reads any more. What changed rides on the next message.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from pytriton.transport.arena import RemoteBlock, block_bytes
from pytriton.transport.memory import ReceivedSegment
from pytriton.transport.refs import BlockRef, MemoryUpdate, SegmentRef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    from numpy.typing import NDArray

    from pytriton.transport.arena import Block
    from pytriton.transport.memory import Segment
    from pytriton.transport.payload import Payload

_MAX_RELEASES = 2000  # with one message


def _do_nothing() -> None:
    """Take a release that nobody wants to know of."""


class MemoryBook:
    """One end's account of the memory that two ends share.

    Args:
        on_release: called when there is a release to tell the peer, on whatever thread dropped the
            last array of a block.
    """

    def __init__(self, on_release: Callable[[], None]) -> None:
        self.has_update = False  # there is something to tell the peer; set after it was put down
        self._on_release = on_release
        # Reentrant, as a finalizer may run wherever memory is allocated, and send a release.
        self._lock = threading.RLock()
        self._lent: dict[int, list[Block | RemoteBlock]] = {}  # as often as the peer has it
        self._known_segments: set[int] = set()  # that the peer has mapped
        self._forwarded: dict[int, weakref.ref[ReceivedSegment]] = {}
        self._forgotten_segments: deque[int] = deque()
        self._mappings: dict[int, ReceivedSegment] = {}  # by the peer's number
        self._released: deque[int] = deque()
        self._abandoned: deque[int] = deque()
        self._is_closed = False

    @property
    def lent_count(self) -> int:
        """How many blocks the peer may still read."""
        return len(self._lent)

    @property
    def mapped_count(self) -> int:
        """How many segments of the peer's are mapped here."""
        return len(self._mappings)

    @property
    def has_releases(self) -> bool:
        """Whether blocks of the peer's are to be given back."""
        return bool(self._released or self._abandoned)

    def forget_segments(self, segments: Iterable[int]) -> None:
        """Tell the peer, with the next message, to unmap segments that it knows."""
        gone = self._known_segments.intersection(segments)
        self._known_segments -= gone
        if gone:
            self._forgotten_segments.extend(gone)
            self.has_update = True

    def make_update(self, payload: Payload) -> tuple[MemoryUpdate, list[int]]:
        """What to say with a message that has this payload, and the descriptors to send along."""
        update = MemoryUpdate(returned_blocks=[block.owner_id for block in payload.returned_blocks])
        descriptors = []
        for block in payload.blocks:
            segment = block.segment
            if segment.id not in self._known_segments:
                self._introduce(segment)
                update.segments.append(SegmentRef(segment.id, segment.size))
                descriptors.append(segment.descriptor)
            with self._lock:
                self._lent.setdefault(block.id, []).append(block)
            update.blocks.append(BlockRef(block.id, segment.id, block.offset, block.size))
        self.has_update = False  # first: what is put down from now on may be too late for this one
        while self._forgotten_segments:
            update.dropped_segments.append(self._forgotten_segments.popleft())
        room = _MAX_RELEASES
        for waiting, told in (
            (self._released, update.released_blocks),
            (self._abandoned, update.abandoned_blocks),
        ):
            while waiting and room:
                told.append(waiting.popleft())
                room -= 1
            self.has_update = self.has_update or bool(waiting)
        return update, descriptors

    def take_update(
        self, update: MemoryUpdate, segments: Iterable[ReceivedSegment]
    ) -> dict[int, NDArray[np.uint8]]:
        """Take what the peer says; the blocks of its message, those of ours by negative numbers."""
        for ref, segment in zip(update.segments, segments, strict=True):
            self._mappings[ref.id] = segment
        for segment_id in update.dropped_segments:
            self._mappings.pop(segment_id, None)
        # Before releases: a block that comes back is used here before it is given up there.
        blocks = {
            -block_id: block_bytes(self._lent[block_id][0]) for block_id in update.returned_blocks
        }
        for block_id in update.released_blocks:
            self._take_back(block_id)
        for block_id in update.abandoned_blocks:
            self._take_back(block_id).abandon()
        for block in update.blocks:
            mapping = self._mappings[block.segment]
            if block.offset < 0 or block.size < 0 or block.offset + block.size > mapping.size:
                raise ValueError(f"expected a block within {mapping.size} bytes, got {block}")
            extent = (block.offset, block.size)
            blocks[block.id] = block_bytes(RemoteBlock(block.id, mapping, extent, self._release))
        return blocks

    def close(self) -> None:
        """The peer cannot tell any more what it reads: what it has is never used again."""
        self._is_closed = True
        self._on_release = _do_nothing  # so that a closed channel and its book are gone at once
        with self._lock:
            lent, self._lent = self._lent, {}
        for holds in lent.values():
            holds[0].abandon()
        self._forwarded.clear()
        self._known_segments.clear()
        self._forgotten_segments.clear()
        self._mappings.clear()  # arrays that are still read keep theirs

    def _introduce(self, segment: Segment | ReceivedSegment) -> None:
        self._known_segments.add(segment.id)
        if isinstance(segment, ReceivedSegment):
            # Its owner's arena is in another process: the peer is told when it is gone here.
            segment_id = segment.id
            self._forwarded[segment_id] = weakref.ref(
                segment, lambda _: self._forget_forwarded(segment_id)
            )

    def _forget_forwarded(self, segment_id: int) -> None:
        # Runs wherever the last reference to the segment goes.
        self._forwarded.pop(segment_id, None)
        self._known_segments.discard(segment_id)
        if not self._is_closed:
            self._forgotten_segments.append(segment_id)
            self.has_update = True

    def _take_back(self, block_id: int) -> Block | RemoteBlock:
        with self._lock:
            holds = self._lent[block_id]
            block = holds.pop()
            if not holds:
                del self._lent[block_id]
        return block

    def _release(self, block_id: int, is_abandoned: bool) -> None:
        # Runs when the last array on the block goes, on whatever thread that happens.
        if self._is_closed:
            return
        (self._abandoned if is_abandoned else self._released).append(block_id)
        self.has_update = True
        self._on_release()
