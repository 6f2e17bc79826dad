# SPDX-License-Identifier: Apache-2.0
"""A channel on an event loop: messages come as calls, and whoever sends never waits."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    from pytriton.transport.channel import Channel, Payload, Received
    from pytriton.transport.frames import Frame
    from pytriton.transport.memory_trimmer import MemoryTrimmer

logger = logging.getLogger(__name__)

_MAX_ROUND_MESSAGES = 32


class LoopChannel:
    """Reads a channel when there is something to read, and sends what did not fit at once.

    Args:
        channel: does not block from now on.
        loop: that watches it.
        memory: the arena of the channel's payloads.
        name: of the peer, for the log.
        on_message: gets each message.
        on_lost: hears once that nothing comes any more: with EOFError where the peer closed its
            end, OSError where nothing can be sent to it, another exception where what it said could
            not be read, which is lost then. The channel is still open.
    """

    def __init__(
        self,
        channel: Channel,
        loop: asyncio.AbstractEventLoop,
        memory: MemoryTrimmer,
        name: str,
        *,
        on_message: Callable[[Received], None],
        on_lost: Callable[[Exception], None],
    ) -> None:
        self.channel = channel
        self.is_open = True
        self.reads_ahead = False  # several messages may come at once
        self._loop = loop
        self._memory = memory
        self._name = name
        self._on_message = on_message
        self._on_lost = on_lost
        self._is_watched = False
        self._is_lost = False
        self._round_messages = 1
        channel.set_blocking(False)

    @property
    def maps_memory(self) -> bool:
        """Whether memory of the peer is mapped here."""
        return self.channel.maps_memory

    def start(self) -> None:
        """Begin to read."""
        self._memory.add(self)
        self._is_watched = True
        self._loop.add_reader(self.channel.fileno(), self._on_readable)
        self._watch_unsent()

    def payload(self) -> Payload:
        """An empty payload for the next message."""
        return self.channel.payload()

    def send(self, frame: Frame, payload: Payload | None = None) -> None:
        """Send a frame, now or when there is room.

        Raises:
            Exception: the frame cannot be encoded, or there is no room for its tensors; that the
                peer is gone is told later, by `on_lost`.
        """
        channel = self.channel
        try:
            channel.send(frame, payload)
        except OSError as error:
            # Later, as the caller does not expect to hear of it before this returns.
            self._loop.call_soon(self._lose, error)
            return
        if payload is not None and payload.blocks:
            self._memory.touch()
        if channel.has_unsent:
            self._watch_unsent()

    def drop_segments(self, segments: Collection[int]) -> None:
        """Tell the peer now which segments of the arena are gone, and what else was released."""
        channel = self.channel
        channel.forget_segments(segments)
        try:
            channel.send_memory_update()
        except OSError as error:
            self._loop.call_soon(self._lose, error)
            return
        self._watch_unsent()

    def read_to_end(self) -> None:
        """Take what the peer said before it ended; nothing is told of its loss."""
        self._is_lost = True
        # Linux says once that a connection was reset before it hands out what came until then.
        if self._read_all():
            self._read_all()

    def stop_watching(self) -> None:
        """Neither read nor send any more."""
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self.channel.fileno())
            self._loop.remove_writer(self.channel.fileno())

    def close(self) -> None:
        """End the connection; twice is harmless."""
        if not self.is_open:
            return
        self.stop_watching()
        self.is_open = False
        self.channel.close()
        self._memory.remove(self)

    def __repr__(self) -> str:
        return f"<LoopChannel {self._name} open={self.is_open} {self.channel!r}>"

    def _on_readable(self) -> None:
        try:
            if self._is_watched:
                self._read()
        except EOFError as error:
            self._lose(error)
        except Exception as error:
            logger.exception("%s: a message could not be read", self._name)
            self._lose(error)

    def _read(self) -> None:
        # What is read in one round of the loop leaves in one write. A response that comes alone
        # must not wait for others, so the rounds grow only while more is there than they take.
        for _ in range(self._round_messages):
            received = self.channel.receive()
            if received is None:
                self._round_messages = 1
                return
            if received.uses_blocks:
                self._memory.touch()
            self._on_message(received)
            if not self._is_watched:
                return
        if self.reads_ahead:
            self._round_messages = min(2 * self._round_messages, _MAX_ROUND_MESSAGES)
        if self.channel.has_message:
            self._loop.call_soon(self._on_readable)

    def _read_all(self) -> bool:
        """Whether the end was reached."""
        try:
            while self.is_open and (received := self.channel.receive()) is not None:
                if received.uses_blocks:
                    self._memory.touch()
                self._on_message(received)
        except EOFError:
            return True
        except Exception:
            logger.exception("%s: its last message could not be read", self._name)
        return False

    def _watch_unsent(self) -> None:
        if self._is_watched and self.channel.has_unsent:
            self._loop.add_writer(self.channel.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        try:
            self.channel.flush()
        except OSError as error:
            self._lose(error)
            return
        if not self.channel.has_unsent:
            self._loop.remove_writer(self.channel.fileno())

    def _lose(self, error: Exception) -> None:
        if self.is_open and not self._is_lost:
            self._is_lost = True
            self.stop_watching()
            self._on_lost(error)
