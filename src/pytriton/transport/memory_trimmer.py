# SPDX-License-Identifier: Apache-2.0
"""Gives shared memory back when nobody has used it for a while, on an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pytriton.errors import UnavailableError
from pytriton.transport.arena import (
    ALIGNMENT,
    DEFAULT_LIMIT_BYTES,
    IDLE_SECONDS,
    Arena,
    block_bytes,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

# Copying as much later would keep the event loop for a second.
MAX_DIRECT_BODY_BYTES = 2 << 30
MAX_DIRECT_RESERVED_BYTES = DEFAULT_LIMIT_BYTES // 2


class MemoryUser(Protocol):
    """A channel that has an arena in common with others."""

    @property
    def maps_memory(self) -> bool:
        """Whether memory of the peer is mapped here."""

    def drop_segments(self, segments: Collection[int]) -> None:
        """Tell the peer now which segments are gone, and what else there is to say of memory."""


class MemoryTrimmer:
    """The arena that channels share, and a timer that runs while there is something in it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, arena: Arena | None = None) -> None:
        self.arena = arena or Arena()
        self._loop = loop
        self._users: set[MemoryUser] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, user: MemoryUser) -> None:
        """Keep a channel's peer informed of what happens to the memory."""
        self._users.add(user)

    def remove(self, user: MemoryUser) -> None:
        """Forget a channel that was closed; with the last one the memory goes, too."""
        self._users.discard(user)
        if not self._users:
            self.arena.trim(idle_seconds=0.0)

    def touch(self) -> None:
        """Shared memory is in use: look later whether it still is."""
        if self._timer is None:
            self._timer = self._loop.call_later(IDLE_SECONDS, self._trim)

    def stop(self) -> None:
        """Look no more; for an event loop that ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def body_memory(self, size: int, header_bytes: int) -> memoryview | None:
        """Memory to read a request's body into, such that the bytes after its header are aligned.

        None where it is better to copy later: bodies that may never arrive must not take all room.
        """
        reserved = self.arena.reserved_bytes + size
        if size > MAX_DIRECT_BODY_BYTES or reserved > MAX_DIRECT_RESERVED_BYTES:
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
        # Where no channel is left, the model is gone, and only requests on their way use memory.
        dropped = self.arena.trim(idle_seconds=IDLE_SECONDS if self._users else 0.0)
        for user in list(self._users):
            user.drop_segments(dropped)
        if self.arena.reserved_bytes or any(user.maps_memory for user in self._users):
            self.touch()
