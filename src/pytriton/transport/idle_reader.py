# SPDX-License-Identifier: Apache-2.0
"""Waits for messages on a channel whose socket blocks, and gives memory back meanwhile."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from pytriton.transport.arena import IDLE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.transport.channel import Channel, Received


class IdleReader:
    """Reads for a thread that has nothing else to do.

    It polls the socket and never changes its timeout: other threads may be sending on it.

    Args:
        channel: whose socket blocks.
        uses_memory: whether `trim` will have something to give back, now or later.
        trim: gives back memory that was not used for `IDLE_SECONDS`, and tells the peer so.
    """

    def __init__(
        self, channel: Channel, uses_memory: Callable[[], bool], trim: Callable[[], None]
    ) -> None:
        self._channel = channel
        self._uses_memory = uses_memory
        self._trim = trim
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)

    def receive(self) -> Received:
        """The next message; EOFError when the peer is gone."""
        channel = self._channel
        channel.gives_back_at_once = True
        try:
            while channel.has_memory_update or self._uses_memory():
                if channel.has_message or self._poll.poll(IDLE_SECONDS * 1000):
                    break
                self._trim()
            received = channel.receive()
            assert received is not None, "the socket blocks"
            return received
        finally:
            channel.gives_back_at_once = False
