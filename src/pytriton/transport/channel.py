# SPDX-License-Identifier: Apache-2.0
"""What instances and their hosts need of the connection between them, whatever carries it.

`MemoryChannel` joins two processes of one machine, which share memory. A channel between machines
would have payloads that are always inside the message, and nothing to say about memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pytriton.transport.payload import Payload, Received

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.transport.arena import Arena
    from pytriton.transport.frames import Frame

__all__ = ["Channel", "Payload", "Received"]


class Channel(Protocol):
    """One end of a connection that carries frames with tensors, in order.

    On a blocking channel `send` and `receive` wait. On another one `send` keeps what does not fit,
    until `flush`, and `receive` answers None when there is nothing.
    """

    gives_back_at_once: bool  # this end is idle: releases are sent, as no message would carry them

    def fileno(self) -> int:
        """The descriptor that tells when there is something to read, or room to write."""

    def set_blocking(self, is_blocking: bool) -> None:
        """Say whether `send` and `receive` wait."""

    def payload(self) -> Payload:
        """An empty payload for the next message."""

    def send(self, frame: Frame, payload: Payload | None = None) -> None:
        """Send a frame with the tensors that its references name.

        Raises:
            OSError: the peer is gone.
            Exception: the frame cannot be encoded, or there is no room; nothing of it was sent.
        """

    def receive(self, flags: int = 0) -> Received | None:
        """The next message.

        None where there is none and the channel does not block, or `flags` has MSG_DONTWAIT.

        Raises:
            EOFError: the peer is gone.
        """

    @property
    def has_message(self) -> bool:
        """Whether a message was read already, so that nobody says that there is one to read."""

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` has something left to do."""

    def flush(self) -> None:
        """Send what is kept, as far as there is room."""

    def close(self) -> None:
        """End the connection; twice is harmless."""

    # Shared memory

    @property
    def arena(self) -> Arena | None:
        """Where payloads put large tensors; None where all travel inside the message."""

    @property
    def maps_memory(self) -> bool:
        """Whether memory of the peer is mapped here."""

    @property
    def has_memory_update(self) -> bool:
        """Whether there is something to tell the peer about memory."""

    def send_memory_update(self) -> None:
        """Tell the peer now what would otherwise wait for the next message."""

    def forget_segments(self, segments: Iterable[int]) -> None:
        """Tell the peer, with the next message, to unmap segments that our arena dropped."""

    @property
    def reserved_bytes(self) -> int:
        """Memory that this end's arena has for messages to the peer."""

    @property
    def has_idle_memory(self) -> bool:
        """Whether `trim` will find something to give back, now or later."""

    def trim(self, idle_seconds: float) -> None:
        """Give back memory that was not used for so long, and tell the peer.

        For an end that has its arena for itself.
        """
