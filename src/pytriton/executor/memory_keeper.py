# SPDX-License-Identifier: Apache-2.0
"""Gives shared memory back when a model has not used it for a while."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

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

    from pytriton.transport.channel import Channel

MAX_DIRECT_BODY_BYTES = 64 << 20
MAX_DIRECT_RESERVED_BYTES = DEFAULT_LIMIT_BYTES // 2


class MemoryKeeper:
    """The arena of a model's instances, and a timer that runs while there is something in it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.arena = Arena()
        self._loop = loop
        self._channels: set[Channel] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, channel: Channel) -> None:
        """Keep a channel's peer informed of what happens to the memory."""
        self._channels.add(channel)

    def remove(self, channel: Channel) -> None:
        """Forget a channel that was closed; with the last one the memory goes, too."""
        self._channels.discard(channel)
        if not self._channels:
            self.arena.trim(idle_seconds=0.0)

    def touch(self) -> None:
        """Shared memory is in use: look later whether it still is."""
        if self._timer is None:
            self._timer = self._loop.call_later(IDLE_SECONDS, self._trim)

    def body_memory(self, size: int, header_bytes: int) -> memoryview | None:
        """Memory to read a request's body into, such that the bytes after its header are aligned.

        None where it is better to copy later: bodies that may never arrive must not take all room.
        """
        if size > MAX_DIRECT_BODY_BYTES or self.arena.reserved_bytes > MAX_DIRECT_RESERVED_BYTES:
            return None
        try:
            block = self.arena.allocate(size + ALIGNMENT)
        except (UnavailableError, OSError):
            return None
        self.touch()
        start = -header_bytes % ALIGNMENT
        return block_bytes(block).data[start : start + size]

    def _trim(self) -> None:
        self._timer = None
        # Where no channel is left, the model is gone, and only requests on their way use memory.
        dropped = self.arena.trim(idle_seconds=IDLE_SECONDS if self._channels else 0.0)
        for channel in self._channels:
            channel.forget_segments(dropped)
            with contextlib.suppress(OSError):  # its process ended, which its instance hears, too
                channel.send_notes()
        if self.arena.reserved_bytes or any(channel.maps_memory for channel in self._channels):
            self.touch()
