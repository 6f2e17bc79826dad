# SPDX-License-Identifier: Apache-2.0
"""Blocks of shared memory: who may write one, who still reads one, when one is free again.

Each process allocates only in its own `Arena`, so there is nothing to lock across processes.
Ownership is Python's reference counting on both sides: an allocated `Block` frees its place when
the last reference to it goes, and the channel keeps a reference for as long as the peer says
nothing. On the peer's side a `RemoteBlock` is the object that every array on the block keeps alive
(numpy collapses chains of views, but never drops the object it read `__array_interface__` from);
when the last array goes, the block is given back.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.errors import UnavailableError
from pytriton.transport.memory import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from pytriton.transport.memory import ReceivedSegment

ALIGNMENT = 64
SEGMENT_BYTES = 16 << 20
DEFAULT_LIMIT_BYTES = 8 << 30
# Without the interpreter's lock other threads change a count while it is read: outputs are copied.
COUNTS_REFERENCES = "t" not in getattr(sys, "abiflags", "")
IDLE_SECONDS = 5.0  # a segment unused for so long is given back to the system
_numbers = itertools.count(1)  # of blocks, those of other processes among them


class Block:
    """A piece of this process's arena; its place is free again when the object is gone."""

    __slots__ = ("__weakref__", "_places", "id", "offset", "segment", "size")

    def __init__(self, places: _Places, offset: int, size: int) -> None:
        self.id = next(_numbers)
        self._places = places
        self.segment = places.segment
        self.offset = offset
        self.size = size

    def view(self) -> memoryview:
        """The block's bytes, writable. The caller keeps the block while it uses the view."""
        return self.segment.view(self.offset, self.size)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return _array_interface(self.segment.address + self.offset, self.size)

    def abandon(self) -> None:
        """Never reuse this place: a peer that can no longer tell us may still be reading it."""
        self._places.is_retired = True

    def __del__(self) -> None:
        self._places.free(self.offset, self.size)


class RemoteBlock:
    """A block of the peer's arena, as long as any array here refers to it.

    Args:
        owner_id: the peer's number of it.
        segment: where it lies.
        extent: its offset and size there.
        release: gets the peer's number when the block is given back, and whether it is to be
            abandoned.
    """

    __slots__ = ("_is_abandoned", "_release", "id", "offset", "owner_id", "segment", "size")

    def __init__(
        self,
        owner_id: int,
        segment: ReceivedSegment,
        extent: tuple[int, int],
        release: Callable[[int, bool], None],
    ) -> None:
        self.id = next(_numbers)  # for those whom it is forwarded to
        self.owner_id = owner_id
        self.segment = segment
        self.offset, self.size = extent
        self._release = release
        self._is_abandoned = False

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return _array_interface(self.segment.address + self.offset, self.size)

    def abandon(self) -> None:
        """Let the owner never reuse this place: whom it was forwarded to may still be reading."""
        self._is_abandoned = True

    def __del__(self) -> None:
        self._release(self.owner_id, self._is_abandoned)


def _array_interface(address: int, size: int) -> dict[str, Any]:
    return {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


def find_block(data: Any) -> tuple[Block, int] | None:
    """The block of this process that a view lies in, and where; None for any other memory."""
    array: Any = data.obj if isinstance(data, memoryview) else None
    block: Any = array.base if isinstance(array, np.ndarray) else None
    if not isinstance(block, Block):
        return None
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return block, address - block.segment.address - block.offset


def find_unshared_remote_block(
    arrays: Mapping[str, NDArray[Any]], name: str
) -> tuple[RemoteBlock, int] | None:
    """The peer's block that `arrays[name]` lies in, and where, if nothing else refers to it.

    Only `arrays` may hold the array, and only the message that it came with the block: whoever else
    had a reference could change the bytes while they are on their way.
    """
    if not COUNTS_REFERENCES:
        return None
    root = _root(arrays[name])
    block: Any = root.base
    if not isinstance(block, RemoteBlock):
        return None
    if sys.getrefcount(root) > _SOLE_ROOT or _reference_count(arrays, name) > _SOLE_REFERENCE:
        return None
    offset = arrays[name].__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return block, offset


def _root(array: NDArray[Any]) -> NDArray[Any]:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _reference_count(arrays: Mapping[str, NDArray[Any]], name: str) -> int:
    return sys.getrefcount(arrays[name])


def _count_sole_references() -> tuple[int, int]:
    """What the counts above are for an array that nothing else refers to: interpreters differ."""
    table = [np.empty(1, np.uint8)]
    arrays = {"": table[0][:]}
    root = _root(arrays[""])
    return _reference_count(arrays, ""), sys.getrefcount(root)


_SOLE_REFERENCE, _SOLE_ROOT = _count_sole_references()


def block_bytes(block: Block | RemoteBlock) -> NDArray[np.uint8]:
    """The block as an array; the block lives as long as the array or any view of it."""
    return np.asarray(block)


class _Places:
    """One segment and its free extents, sorted by offset and never adjacent."""

    __slots__ = ("_extents", "_returned", "idle_since", "is_retired", "segment")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.is_retired = False
        self.idle_since = 0.0  # 0 while a block is in use
        self._extents: list[tuple[int, int]] = [(0, segment.size)]
        self._returned: deque[tuple[int, int]] = deque()

    @property
    def is_idle(self) -> bool:
        self._collect()
        return self._extents == [(0, self.segment.size)]

    def take(self, size: int) -> int | None:
        self._collect()
        for index, (offset, length) in enumerate(self._extents):
            if length >= size:
                rest = length - size
                self._extents[index : index + 1] = [(offset + size, rest)] if rest else []
                self.idle_since = 0.0
                return offset
        return None

    def free(self, offset: int, size: int) -> None:
        # A finalizer may run on any thread; appending is atomic, and the owner merges later.
        self._returned.append((offset, size))

    def _collect(self) -> None:
        if not self._returned:
            return
        extents = self._extents
        while self._returned:
            extents.append(self._returned.popleft())
        merged: list[tuple[int, int]] = []
        for start, length in sorted(extents):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        self._extents = merged
        if merged == [(0, self.segment.size)]:
            self.idle_since = time.monotonic()


class Arena:
    """Allocates blocks in segments that are made as needed and dropped when idle.

    Not thread-safe for `allocate`: an arena has one writer, an event loop or an instance's thread.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._places: dict[int, _Places] = {}

    def allocate(self, size: int) -> Block:
        """A block of at least `size` bytes; UnavailableError where the arena is full."""
        rounded = max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
        for places in self._places.values():
            if not places.is_retired and (offset := places.take(rounded)) is not None:
                return self._block(places, offset, rounded)
        places = self._grow(rounded)
        offset = places.take(rounded)
        assert offset is not None
        return self._block(places, offset, rounded)

    def owns(self, block: Block) -> bool:
        """Whether a block was allocated here, in a segment that is still in use."""
        places = self._places.get(block.segment.id)
        return places is not None and places.segment is block.segment

    def trim(self, *, idle_seconds: float = IDLE_SECONDS) -> list[int]:
        """Drop segments that nobody used for a while; the peer has to be told which."""
        dropped = [
            segment_id
            for segment_id, places in self._places.items()
            if places.is_idle
            and (places.is_retired or time.monotonic() - places.idle_since >= idle_seconds)
        ]
        for segment_id in dropped:
            del self._places[segment_id]
        return dropped

    @property
    def reserved_bytes(self) -> int:
        """Address space of all segments; pages that were never written cost nothing."""
        return sum(places.segment.size for places in self._places.values())

    @property
    def has_idle_segments(self) -> bool:
        """Whether `trim` will find something to drop, now or later."""
        return any(places.is_idle for places in self._places.values())

    def __repr__(self) -> str:
        idle = sum(places.is_idle for places in self._places.values())
        return f"<Arena segments={len(self._places)} idle={idle} bytes={self.reserved_bytes}>"

    def _block(self, places: _Places, offset: int, size: int) -> Block:
        return Block(places, offset, size)

    def _grow(self, size: int) -> _Places:
        segment_size = max(SEGMENT_BYTES, size)
        if self.reserved_bytes + segment_size > self._limit_bytes:
            self.trim(idle_seconds=0.0)
        if self.reserved_bytes + segment_size > self._limit_bytes:
            message = (
                f"no room for a tensor of {size} bytes: {self.reserved_bytes} of at most "
                f"{self._limit_bytes} bytes of shared memory are in use"
            )
            raise UnavailableError(message)
        try:
            segment = Segment(segment_size)
        except OSError as error:  # no descriptor or no memory is left
            raise UnavailableError(f"no room for a tensor of {size} bytes: {error}") from error
        places = _Places(segment)
        self._places[places.segment.id] = places
        return places
