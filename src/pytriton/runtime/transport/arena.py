# SPDX-License-Identifier: Apache-2.0
"""Allocates blocks of shared memory and tracks by reference counts when they are free again.

Each process allocates only in its own `Arena`, so there is nothing to lock across processes.
On both sides Python's reference counts decide. An allocated `Block` frees its memory when the last
reference to it is gone; the channel keeps a reference until the peer has released the block. In the
peer, every array on the block keeps a `RemoteBlock` alive (numpy collapses chains of views, but
keeps the object from which it read `__array_interface__`). When the last array is gone, the
`RemoteBlock` releases the block.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.errors import UnavailableError, resource_error
from pytriton.runtime.transport.memory import Segment

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from pytriton.runtime.transport.loop_channel import LoopChannel
    from pytriton.runtime.transport.memory import ReceivedSegment
    from pytriton.runtime.transport.memory_channel import BlockTracker

ALIGNMENT = 64  # a cache line, and the widest vector register: numpy's kernels read aligned rows
# A segment costs a mapping and a file descriptor in each process, so small blocks share one. Pages
# that are never written take no memory.
SEGMENT_BYTES = 16 << 20
DEFAULT_LIMIT_BYTES = 8 << 30
# Without the GIL other threads change a reference count while it is read, so outputs are copied.
COUNTS_REFERENCES = "t" not in getattr(sys, "abiflags", "")
IDLE_SECONDS = 5.0  # a segment that was unused for this time is given back to the system
_numbers = itertools.count(1)  # ids of blocks, also of blocks of other processes
_Byte = ctypes.c_char
# Bodies up to this size are received in shared memory: copying 2 GiB there later would block the
# event loop for a second.
MAX_DIRECT_BODY_BYTES = 2 << 30
MAX_DIRECT_RESERVED_BYTES = DEFAULT_LIMIT_BYTES // 2


class Block:
    """A part of this process's arena; its memory is free again when the object is deleted."""

    __slots__ = (
        "__weakref__", "_allocator", "id", "is_input", "is_unshared", "offset", "segment", "size",
    )  # fmt: skip

    def __init__(self, allocator: _SegmentAllocator, offset: int, size: int) -> None:
        self.id = next(_numbers)
        self.is_unshared = False  # set by `give_up`
        self.is_input = False  # a model gets it, so a device may read it when it is gone
        self._allocator = allocator
        self.segment = allocator.segment
        self.offset = offset
        self.size = size

    def view(self) -> memoryview:
        """Returns the block's writable bytes. The caller keeps the block while it uses them."""
        return self.segment.view(self.offset, self.size)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return _array_interface(self.segment.address + self.offset, self.size)

    def abandon(self) -> None:
        """Never reuse this memory: a peer that can no longer release it may still read it."""
        self._allocator.is_retired = True

    def __del__(self) -> None:
        # On whichever thread drops the last reference, possibly inside of an allocation.
        release_later = self.segment.release_later if self.is_input else None
        if release_later is None:
            self._allocator.free(self.offset, self.size)
        else:
            release_later(functools.partial(self._allocator.free, self.offset, self.size))


class RemoteBlock:
    """A block of the peer's arena; it lives while any array in this process refers to it.

    At its end, `release` is called with the peer's id of the block, and whether it is abandoned.
    """

    __slots__ = (
        "_is_abandoned",
        "_release",
        "id",
        "is_given",
        "is_unshared",
        "offset",
        "owner_id",
        "segment",
        "size",
    )

    def __init__(
        self,
        owner_id: int,
        segment: ReceivedSegment,
        extent: tuple[int, int],
        release: Callable[[int, bool], None],
        *,
        is_given: bool = False,
        is_unshared: bool = False,
    ) -> None:
        self.is_given = is_given  # its owner made it for the message, and does not read it any more
        # It may also be forwarded to a process that writes to it, as it has no other reader here;
        # see `give_up`.
        self.is_unshared = is_unshared
        self.id = next(_numbers)  # used if the block is forwarded to another process
        self.owner_id = owner_id  # the peer's id of the block
        self.segment = segment
        self.offset, self.size = extent
        self._release = release
        self._is_abandoned = False

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return _array_interface(self.segment.address + self.offset, self.size)

    def abandon(self) -> None:
        """Make the owner never reuse this memory: processes it was forwarded to may read it."""
        self._is_abandoned = True

    def __del__(self) -> None:
        release_later = self.segment.release_later
        if release_later is None:
            self._release(self.owner_id, self._is_abandoned)
        else:  # a device may still read it
            release_later(functools.partial(self._release, self.owner_id, self._is_abandoned))


def _array_interface(address: int, size: int) -> dict[str, Any]:
    # Without the "|" of the documentation, numpy looks the type up instead of parsing it: 0.7 us.
    return {"data": (address, False), "shape": (size,), "typestr": "u1", "version": 3}


def find_block(data: Any) -> tuple[Block | RemoteBlock, int] | None:
    """Returns the block that contains a view, and the view's offset in it.

    None if the view is in other memory.
    """
    block = _block_of(data)
    if block is None:
        return None
    return block, _address(data) - block.segment.address - block.offset


def forget(data: memoryview) -> None:
    """Give the pages of a view back to the system, if it is in a block of this process.

    Those that a GPU may read stay: see `Mapping.forget`.

    A block that is free again keeps its pages for the next one. Bodies that were never complete
    would leave more of them behind than were ever in use at the same time.
    """
    found = find_block(data)
    if found is not None and isinstance(found[0], Block):
        block, offset = found
        block.segment.forget(block.offset + offset, len(data))


def _block_of(data: Any) -> Block | RemoteBlock | None:
    array: Any = data.obj if isinstance(data, memoryview) else None
    block: Any = array.base if isinstance(array, np.ndarray) else None
    return block if isinstance(block, _BLOCKS) else None


_BLOCKS = (Block, RemoteBlock)


def _address(data: Any) -> int:
    """Returns where the bytes of a view or of an array begin."""
    try:
        # This takes 1 us, and 6 us with numpy; each large tensor of a batch needs it.
        return ctypes.addressof(_Byte.from_buffer(data))
    except (TypeError, ValueError):  # it cannot be written, is empty, or has gaps
        address: int = np.asarray(data).__array_interface__["data"][0]
        return address


def give_up(data: Any) -> None:
    """Let the bytes of a tensor be passed on by reference to a process that may write to them.

    The caller must be the only one that has read them, and must not read them again. If their owner
    is a process that may still read them, they will be copied as ever.
    """
    block = _block_of(data)
    if block is not None and (isinstance(block, Block) or block.is_given):
        block.is_unshared = True


def find_unshared_remote_block(
    arrays: Mapping[str, NDArray[Any]], name: str
) -> tuple[RemoteBlock, int] | None:
    """Like `find_unshared_block`, but only for blocks of the peer."""
    if (found := find_unshared_block(arrays, name)) is not None:
        block, offset = found
        if isinstance(block, RemoteBlock):
            return block, offset
    return None


def find_unshared_block(
    arrays: Mapping[str, NDArray[Any]], name: str
) -> tuple[Block | RemoteBlock, int] | None:
    """Returns the block that contains `arrays[name]`, and the offset of the array in it.

    None if anything else refers to the array or the block. Only `arrays` may refer to the array,
    and only the received message to a block of the peer: code with another reference could change
    the bytes while they are sent.
    """
    if not COUNTS_REFERENCES:
        return None
    root = _root(arrays[name])
    block: Any = root.base
    if not isinstance(block, _BLOCKS):
        return None
    # The received message keeps an array of a peer's block in its table, and none of an own one.
    others = 0 if isinstance(block, RemoteBlock) else 1
    if sys.getrefcount(root) > _SOLE_ROOT - others:
        return None
    # Through a function, as when it was calibrated: its own references are the same each time.
    if _reference_count(arrays, name) > _SOLE_REFERENCE:
        return None
    return block, _address(arrays[name]) - block.segment.address - block.offset


def _root(array: NDArray[Any]) -> NDArray[Any]:
    # A view usually has the base of its base, but chains with a subclass of ndarray stay.
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _reference_count(arrays: Mapping[str, NDArray[Any]], name: str) -> int:
    return sys.getrefcount(arrays[name])


def _count_sole_references() -> tuple[int, int]:
    """Returns both counts for an array without other references; they differ by interpreter."""
    table = [np.empty(1, np.uint8)]
    arrays = {"": table[0][:]}
    root = _root(arrays[""])
    return _reference_count(arrays, ""), sys.getrefcount(root)


_SOLE_REFERENCE, _SOLE_ROOT = _count_sole_references()


def block_bytes(block: Block | RemoteBlock) -> NDArray[np.uint8]:
    """Returns the block as an array; the array and all its views keep the block alive."""
    return np.asarray(block)


class _SegmentAllocator:
    """One segment and its free extents, which are sorted by offset and never adjacent."""

    __slots__ = ("_extents", "_returned", "idle_since", "is_retired", "segment")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.is_retired = False
        self.idle_since = 0.0  # 0 while a block is in use
        self._extents: list[tuple[int, int]] = [(0, segment.size)]
        self._returned: deque[tuple[int, int]] = deque()

    @property
    def is_idle(self) -> bool:
        # As extents are never adjacent, a segment without blocks has exactly one.
        self._collect()
        return self._extents == [(0, self.segment.size)]

    def allocate(self, size: int) -> int | None:
        self._collect()
        # First fit, from the lowest offset: the pages at the end of a segment that is never full
        # are never touched, and take no memory.
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

    def check_integrity(self, blocks: Iterable[Block] | None) -> None:
        """See `Arena.check_integrity`; `blocks` are those of this segment."""
        used = [(block.offset, block.size) for block in blocks or ()]
        extents = sorted([*self._extents, *self._returned, *used])
        for (start, length), (following, _) in itertools.pairwise(extents):
            assert start + length <= following, (
                f"the extents at {start} and {following} of segment {self.segment.id} overlap"
            )
        assert not extents or (extents[0][0] >= 0 and sum(extents[-1]) <= self.segment.size), (
            f"an extent is outside of segment {self.segment.id}: {extents}"
        )
        for (start, length), (following, _) in itertools.pairwise(self._extents):
            assert start + length < following, (
                f"the free extents at {start} and {following} are out of order or not merged"
            )
        total = sum(length for _, length in extents)
        assert blocks is None or total == self.segment.size, (
            f"segment {self.segment.id} has {self.segment.size} bytes, free and used are {total}"
        )

    def _collect(self) -> None:
        if not self._returned:
            return
        extents = self._extents
        # `popleft` is atomic, too: a block that is freed now is merged here or the next time.
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
    """Allocates blocks in segments that are created as needed and dropped when idle.

    `allocate` is not thread-safe: an arena has one writer, an event loop or an instance's thread.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        # The channels that send its blocks. They tell their peers what `allocate` has dropped: a
        # peer that does not unmap a segment keeps its memory.
        self.senders: weakref.WeakSet[BlockTracker] = weakref.WeakSet()
        self._allocators: dict[int, _SegmentAllocator] = {}

    def allocate(self, size: int) -> Block:
        """Allocate a block of at least `size` bytes; UnavailableError if the arena is full."""
        rounded = max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
        for allocator in self._allocators.values():
            if not allocator.is_retired and (offset := allocator.allocate(rounded)) is not None:
                return Block(allocator, offset, rounded)
        allocator = self._grow(rounded)
        offset = allocator.allocate(rounded)
        assert offset is not None, "the segment is new, and large enough"
        return Block(allocator, offset, rounded)

    def owns(self, block: Block) -> bool:
        """Returns whether a block was allocated here, in a segment that is still in use."""
        allocator = self._allocators.get(block.segment.id)
        return allocator is not None and allocator.segment is block.segment

    def check_integrity(self, blocks: Iterable[Block] | None = None) -> None:
        """Raise AssertionError if the books of this arena contradict each other. Changes nothing.

        Free extents are in order, merged, inside of their segment and never overlap. With `blocks`,
        which have to be all that are in use, no block overlaps another or a free extent, and free
        and used bytes are together the size of each segment. Only the arena's writer may call this.
        """
        used: dict[int, list[Block]] = {}
        for block in blocks or ():
            assert self.owns(block), f"block {block.id} is in segment {block.segment.id}, not ours"
            used.setdefault(block.segment.id, []).append(block)
        for segment_id, allocator in self._allocators.items():
            assert segment_id == allocator.segment.id, f"segment {segment_id} has another's place"
            allocator.check_integrity(None if blocks is None else used.get(segment_id, ()))

    def trim(self, *, idle_seconds: float = IDLE_SECONDS) -> list[int]:
        """Drop segments that were unused for `idle_seconds`; returns their ids for the peer."""
        dropped = [
            segment_id
            for segment_id, allocator in self._allocators.items()
            if allocator.is_idle
            and (allocator.is_retired or time.monotonic() - allocator.idle_since >= idle_seconds)
        ]
        for segment_id in dropped:
            del self._allocators[segment_id]
        return dropped

    @property
    def reserved_bytes(self) -> int:
        """The address space of all segments; pages that were never written take no memory."""
        return sum(allocator.segment.size for allocator in self._allocators.values())

    @property
    def has_idle_segments(self) -> bool:
        """Whether `trim` will find something to drop, now or later."""
        for allocator in self._allocators.values():  # noqa: SIM110  `any` takes two more calls
            if allocator.is_idle:
                return True
        return False

    def __repr__(self) -> str:
        idle = sum(allocator.is_idle for allocator in self._allocators.values())
        return f"<Arena segments={len(self._allocators)} idle={idle} bytes={self.reserved_bytes}>"

    def _grow(self, size: int) -> _SegmentAllocator:
        segment_size = max(SEGMENT_BYTES, size)
        if self.reserved_bytes + segment_size > self.limit_bytes:
            # Idle segments may be too small, or too many: a larger one takes their place at once.
            dropped = self.trim(idle_seconds=0.0)
            for sender in self.senders:
                sender.queue_dropped_segments(dropped)
        if self.reserved_bytes + segment_size > self.limit_bytes:
            message = (
                f"no room for a tensor of {size} bytes: {self.reserved_bytes} of at most "
                f"{self.limit_bytes} bytes of shared memory are in use"
            )
            raise UnavailableError(message)
        try:
            segment = Segment(segment_size)
        except (OSError, MemoryError) as error:
            reason = resource_error(error) or error
            raise UnavailableError(f"no room for a tensor of {size} bytes: {reason}") from error
        allocator = _SegmentAllocator(segment)
        self._allocators[allocator.segment.id] = allocator
        return allocator


class MemoryTrimmer:
    """The arena that channels share, and a timer that runs while the arena has memory."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        arena: Arena | None = None,
    ) -> None:
        self.arena = arena or Arena()
        self._max_direct_bytes = MAX_DIRECT_RESERVED_BYTES
        self._loop = loop
        self._users: dict[LoopChannel, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, limit_bytes: int) -> None:
        """Limit the memory of the arena, and accordingly that of bodies that may never arrive."""
        self.arena.limit_bytes = limit_bytes
        self._max_direct_bytes = limit_bytes // 2

    def add(self, user: LoopChannel) -> None:
        """Add a channel, whose peer is then told about dropped segments."""
        self._users[user] = None

    def remove(self, user: LoopChannel) -> None:
        """Remove a closed channel; without any channel, all idle memory is given back."""
        self._users.pop(user, None)
        if not self._users:
            self.arena.trim(idle_seconds=0.0)

    def touch(self) -> None:
        """Start the timer, because shared memory is in use."""
        if self._timer is None:
            self._timer = self._loop.call_later(IDLE_SECONDS, self._trim)

    def stop(self) -> None:
        """Stop the timer because the event loop ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def body_memory(self, size: int, header_bytes: int) -> memoryview | None:
        """Returns memory for a request's body in which the bytes after the header are aligned.

        None if it is better to copy later: bodies that may never arrive must not fill the arena.
        """
        reserved = self.arena.reserved_bytes + size
        if size > MAX_DIRECT_BODY_BYTES or reserved > self._max_direct_bytes:
            return None
        try:
            block = self.arena.allocate(size + ALIGNMENT)
        except UnavailableError:
            return None
        self.touch()
        start = -header_bytes % ALIGNMENT
        return block_bytes(block).data[start : start + size]

    def _trim(self) -> None:
        self._timer = None
        # Without channels the model is unloaded, and only requests in flight use memory.
        dropped = self.arena.trim(idle_seconds=IDLE_SECONDS if self._users else 0.0)
        for user in list(self._users):
            user.drop_segments(dropped)
        if self.arena.reserved_bytes or any(user.maps_memory for user in self._users):
            self.touch()
