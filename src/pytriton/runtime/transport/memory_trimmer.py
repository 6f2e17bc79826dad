# SPDX-License-Identifier: Apache-2.0
"""Gives shared memory back to the system when it was unused for a while, on an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pytriton.base.errors import UnavailableError
from pytriton.runtime.transport.arena import (
    ALIGNMENT,
    DEFAULT_LIMIT_BYTES,
    IDLE_SECONDS,
    Arena,
    block_bytes,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

# Bodies up to this size are received in shared memory: copying 2 GiB there later would block the
# event loop for a second.
MAX_DIRECT_BODY_BYTES = 2 << 30
MAX_DIRECT_RESERVED_BYTES = DEFAULT_LIMIT_BYTES // 2


class MemoryUser(Protocol):
    """A channel that shares its arena with others."""

    @property
    def maps_memory(self) -> bool:
        """Whether memory of the peer is mapped here, or that of a third process there."""

    def drop_segments(self, segments: Collection[int]) -> None:
        """Tell the peer now which segments were dropped, and send other updates about memory."""


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
        self._users: set[MemoryUser] = set()
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, limit_bytes: int) -> None:
        """Limit the memory of the arena, and accordingly that of bodies that may never arrive."""
        self.arena.limit_bytes = limit_bytes
        self._max_direct_bytes = limit_bytes // 2

    def add(self, user: MemoryUser) -> None:
        """Add a channel, whose peer is then told about dropped segments."""
        self._users.add(user)

    def remove(self, user: MemoryUser) -> None:
        """Remove a closed channel; without any channel, all idle memory is given back."""
        self._users.discard(user)
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
