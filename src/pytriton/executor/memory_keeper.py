# SPDX-License-Identifier: Apache-2.0
"""Gives shared memory back when a model has not used it for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.transport.arena import IDLE_SECONDS, Arena

if TYPE_CHECKING:
    import asyncio

    from pytriton.transport.channel import Channel


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
        """Forget a channel that was closed."""
        self._channels.discard(channel)

    def touch(self) -> None:
        """Shared memory is in use: look later whether it still is."""
        if self._timer is None:
            self._timer = self._loop.call_later(IDLE_SECONDS, self._trim)

    def _trim(self) -> None:
        self._timer = None
        dropped = self.arena.trim()
        for channel in self._channels:
            channel.forget_segments(dropped)
            channel.send_notes()
        if self._channels and (
            self.arena.reserved_bytes or any(channel.maps_memory for channel in self._channels)
        ):
            self.touch()
