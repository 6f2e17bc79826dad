# SPDX-License-Identifier: Apache-2.0
"""Waits for messages on a channel with a blocking socket; meanwhile gives unused memory back."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from pytriton.runtime.transport.arena import IDLE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.runtime.transport.channel import Channel, Received
    from pytriton.runtime.transport.loop_spinner import MessagePoller


class IdleReader:
    """Reads messages for a thread that is otherwise idle.

    It polls the socket and does not change its timeout: other threads may be sending on it.

    Args:
        channel: A channel with a blocking socket.
        uses_memory: Returns whether `trim` has memory to give back, now or later.
        trim: Gives back memory that was unused for `IDLE_SECONDS`, and tells the peer.

    Attributes:
        poller: Polls for a while before the thread sleeps; None: it sleeps at once.
    """

    def __init__(
        self, channel: Channel, uses_memory: Callable[[], bool], trim: Callable[[], None]
    ) -> None:
        self._channel = channel
        self._uses_memory = uses_memory
        self._trim = trim
        self.poller: MessagePoller | None = None
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)

    def receive(self) -> Received:
        """Returns the next message; raises EOFError if the peer closed the connection."""
        channel = self._channel
        channel.releases_at_once = True
        if self.poller is not None and not channel.has_message:
            self.poller.poll()
        try:
            while channel.has_memory_update or self._uses_memory():
                if channel.has_message or self._poll.poll(IDLE_SECONDS * 1000):
                    break
                self._trim()
            received = channel.receive()
            assert received is not None, "the socket blocks"
            return received
        finally:
            channel.releases_at_once = False
