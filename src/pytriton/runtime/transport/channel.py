# SPDX-License-Identifier: Apache-2.0
"""The interface of the connection between instances and their hosts, and a reader that may wait.

`MemoryChannel` connects two processes of one machine, which share memory. `StreamChannel` connects
machines: it sends all payloads inside the message and has no updates about memory.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Protocol

from pytriton.runtime.transport.arena import IDLE_SECONDS
from pytriton.runtime.transport.payload import Payload, Received

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytriton.runtime.transport.arena import Arena
    from pytriton.runtime.transport.frames import Frame
    from pytriton.runtime.transport.loop_spinner import MessagePoller

__all__ = ["Channel", "Payload", "Received"]


class Channel(Protocol):
    """One end of a connection that carries frames with tensors, in order.

    On a blocking channel `send` and `receive` wait. On a non-blocking one `send` queues the data
    that does not fit until `flush`, and `receive` returns None if there is no message.

    It promises that each message arrives once, as a whole and in order, or the connection ends; and
    that the memory of received tensors stays as it is while any array or view of it is alive. Any
    thread may send, one thread receives. It does not change a frame other than its `memory`, nor
    tensors, does not wait for answers, and knows nothing of batches. Memory of a tensor that was
    sent by reference belongs to the receiver until it has released it.
    """

    releases_at_once: bool  # True while this end is idle: no other message would carry releases

    def fileno(self) -> int:
        """Returns the file descriptor to poll for reading and writing."""

    def set_blocking(self, is_blocking: bool) -> None:
        """Set whether `send` and `receive` wait."""

    def payload(self) -> Payload:
        """Returns an empty payload for the next message."""

    def send(self, frame: Frame, payload: Payload | None = None) -> bool:
        """Send a frame with the tensors that its references name.

        Returns:
            Whether there is queued data for `flush`, as `has_unsent` says it.

        Raises:
            OSError: The peer has closed the connection.
            Exception: The frame cannot be encoded, or there is no memory; nothing was sent.
        """

    def receive(self, flags: int = 0) -> Received | None:
        """Returns the next message.

        None if there is none and the channel does not block, or `flags` has MSG_DONTWAIT.

        Raises:
            EOFError: The peer has closed the connection.
        """

    @property
    def has_message(self) -> bool:
        """Whether a message is buffered already, so that polling does not report it."""

    @property
    def has_failed(self) -> bool:
        """Whether the connection was reset; of packets, reading tells that before all else."""

    @property
    def has_unsent(self) -> bool:
        """Whether there is queued data for `flush`."""

    def flush(self) -> None:
        """Send queued data, as much as fits."""

    @property
    def has_unread(self) -> bool:
        """Whether the peer has not read everything yet; False if that is not known."""

    def close(self) -> None:
        """Close the connection; may be called twice."""

    def take_descriptors(self, count: int) -> list[int]:
        """Returns the descriptors of the payload of the last message; the caller owns them."""

    # Shared memory

    @property
    def arena(self) -> Arena | None:
        """The arena for large tensors; None if all tensors are sent inside the message."""

    @property
    def maps_memory(self) -> bool:
        """Whether memory of the peer is mapped here, or that of a third process there."""

    @property
    def has_memory_update(self) -> bool:
        """Whether there is an update about memory to send to the peer."""

    def send_memory_update(self) -> None:
        """Send the memory update now instead of with the next message."""

    def queue_dropped_segments(self, segments: Iterable[int]) -> None:
        """Tell the peer, with the next message, to unmap segments that our arena dropped."""

    @property
    def reserved_bytes(self) -> int:
        """The memory that this end's arena has reserved for messages to the peer."""

    @property
    def has_idle_memory(self) -> bool:
        """Whether `trim` has memory to give back, now or later."""

    def trim(self, idle_seconds: float) -> None:
        """Give back memory that was unused for `idle_seconds`, and tell the peer.

        Only for an end that does not share its arena with other channels.
        """


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
            # Without memory to give back there is nothing to wake up for, and `receive` sleeps.
            while channel.has_memory_update or self._uses_memory():
                if channel.has_message or self._poll.poll(IDLE_SECONDS * 1000):
                    break
                self._trim()
            received = channel.receive()
            assert received is not None, "the socket blocks"
            return received
        finally:
            channel.releases_at_once = False
