# SPDX-License-Identifier: Apache-2.0
"""A channel on an event loop: calls back with received messages, and sends without waiting."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pytriton.runtime.transport.frames import Execute
from pytriton.runtime.transport.loop_spinner import (
    DEVICE_SPIN_NS,
    SPIN_NS,
    SpinPolicy,
    make_spinner,
)
from pytriton.runtime.transport.peer_account import ProtocolError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    from pytriton.runtime.transport.arena import MemoryTrimmer
    from pytriton.runtime.transport.channel import Channel, Payload, Received
    from pytriton.runtime.transport.frames import Frame

logger = logging.getLogger(__name__)
_MAX_READ_MESSAGES = 32  # in one iteration of the loop, whose other work must not wait for longer
_MAX_PATIENCE = 8
# Of a peer that has ended: more than a socket holds. A process that it left behind may go on.
_MAX_LAST_MESSAGES = 1 << 14


class LoopChannel:
    """Reads messages when they arrive, and sends queued data when there is room.

    Args:
        channel: The channel, which becomes non-blocking.
        loop: The event loop that watches it.
        memory: The arena of the channel's payloads.
        name: The name of the peer, for the log.
        on_message: Called with each message. EOFError: the message ends the connection.
            ProtocolError: the message contradicts earlier ones, so the connection is lost. Any
            other exception is a mistake of this process: it is logged, and the connection goes on.
        on_lost: Called once when the connection is lost, with EOFError if the peer closed it,
            OSError if sending failed, or another exception if a message could not be read (that
            message is lost). The channel is still open then.
    """

    def __init__(
        self,
        channel: Channel,
        loop: asyncio.AbstractEventLoop,
        memory: MemoryTrimmer,
        name: str,
        *,
        on_message: Callable[[Received], object],
        on_lost: Callable[[Exception], None],
    ) -> None:
        self.channel = channel
        self.payload = channel.payload  # makes an empty payload for the next message
        self.is_open = True
        self.reads_ahead = False  # True: several messages may be read in one loop iteration
        self._loop = loop
        self._memory = memory
        self._name = name
        self._on_message = on_message
        self._on_lost = on_lost
        self._is_watched = False
        self._is_lost = False
        self._is_broken = False  # a last message could not be read; those after it count no more
        self._read_messages = 1
        # How many messages came alone since a second one was looked for, and after how many to look
        # again. It doubles while there is none: looking for nothing costs 4 us.
        self._lone_reads = 0
        self._patience = 1
        self._spinner = make_spinner(loop)
        self._has_lone_batch = False  # the last batch that was sent is one request
        self._spin_ns = SPIN_NS  # for the answer to the last batch, and for the request after it
        self._answer_policy = SpinPolicy()
        self._request_policy = SpinPolicy()
        channel.set_blocking(False)

    @property
    def maps_memory(self) -> bool:
        """Whether memory of the peer is mapped here, or that of a third process there."""
        return self.channel.maps_memory

    def start(self) -> None:
        """Start to read."""
        self._memory.add(self)
        self._is_watched = True
        self._loop.add_reader(self.channel.fileno(), self._on_readable)
        self._watch_unsent()  # of messages that were sent before

    def send(self, frame: Frame, payload: Payload | None = None) -> None:
        """Send a frame, now or when there is room in the socket.

        Raises:
            Exception: The frame cannot be encoded, or there is no memory for its tensors. A lost
                connection is reported later, by `on_lost`.
        """
        channel = self.channel
        try:
            is_unsent = channel.send(frame, payload)
        except (OSError, ProtocolError) as error:
            # Later, because callers do not expect `on_lost` before this returns.
            self._loop.call_soon(self._report_lost, error)
            return
        if payload is not None and payload.blocks:
            self._memory.touch()
        if is_unsent:
            self._watch_unsent()
        if self._spinner is not None and type(frame) is Execute:
            self._has_lone_batch = len(frame.rows) == 1
            if self._has_lone_batch:
                self._spin_ns = DEVICE_SPIN_NS if frame.devices else SPIN_NS
                self._spinner.spin_soon(self._answer_policy, self._spin_ns)

    def drop_segments(self, segments: Collection[int]) -> None:
        """Tell the peer now which segments were dropped, and send other updates about memory."""
        channel = self.channel
        channel.queue_dropped_segments(segments)
        try:
            channel.send_memory_update()
        except (OSError, ProtocolError) as error:
            self._loop.call_soon(self._report_lost, error)
            return
        self._watch_unsent()

    def read_to_end(self) -> None:
        """Process the messages that the peer sent before it ended; `on_lost` is not called."""
        self._is_lost = True
        # Linux first reports once that the connection was reset, then returns the received data.
        if self._read_all():
            self._read_all()

    def stop_watching(self) -> None:
        """Stop reading and sending."""
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self.channel.fileno())
            self._loop.remove_writer(self.channel.fileno())

    def close(self) -> None:
        """Close the connection; may be called twice."""
        if not self.is_open:
            return
        self.stop_watching()
        self.is_open = False
        self._spinner = None  # it has a descriptor, and this object may be kept longer
        self.channel.close()
        self._memory.remove(self)

    def __repr__(self) -> str:
        return f"<LoopChannel {self._name} open={self.is_open} {self.channel!r}>"

    def _on_readable(self) -> None:
        try:
            if self._is_watched:  # it may have ended since this callback was scheduled
                self._read()
            if self._is_watched and self.channel.has_failed:
                # uvloop reports a socket with an error once, and does not watch it any more.
                self._read_all()
                raise EOFError  # noqa: TRY301  as if it had been read
        except EOFError as error:
            self._report_lost(error)
        except Exception as error:
            if not isinstance(error, ProtocolError):
                logger.exception("%s: a message could not be read", self._name)
            self._report_lost(error)

    def _read(self) -> None:
        # Responses that are read in one loop iteration are sent in one write. But a single response
        # must not wait for others. So the limit grows only while more messages are ready.
        for count in range(self._read_messages):
            received = self.channel.receive()
            if received is None:
                self._read_messages = 1
                self._lone_reads = 0
                self._patience = min(2 * self._patience, _MAX_PATIENCE) if count < 2 else 1
                return
            if received.blocks:
                self._memory.touch()
            self._process(received)
            if not self._is_watched:  # the message made its receiver close the channel
                return
        if self._has_lone_batch and self._spinner is not None:
            # The response was written, so the client may send its next request soon.
            self._has_lone_batch = False
            self._spinner.spin_soon(self._request_policy, self._spin_ns)
        if self.reads_ahead:
            self._lone_reads += 1
            if self._read_messages > 1 or self._lone_reads >= self._patience:
                self._read_messages = min(2 * self._read_messages, _MAX_READ_MESSAGES)
        if self.channel.has_message:
            # It was read from the socket already, so the loop would not report it.
            self._loop.call_soon(self._on_readable)

    def _read_all(self) -> bool:
        """Read all messages; returns whether the end of the connection was reached."""
        try:
            for _ in range(_MAX_LAST_MESSAGES):
                is_read = self.is_open and not self._is_broken
                received = self.channel.receive() if is_read else None
                if received is None:
                    break
                if received.blocks:
                    self._memory.touch()
                self._process(received)
        except EOFError:
            return True
        except ProtocolError as error:
            self._is_broken = True
            self._log_breach(error)
        except Exception:
            self._is_broken = True
            logger.exception("%s: its last message could not be read", self._name)
        return False

    def _log_breach(self, error: ProtocolError) -> None:
        logger.error("%s: a message could not be read, which ends it: %s", self._name, error)

    def _process(self, received: Received) -> None:
        try:
            self._on_message(received)
        except (EOFError, ProtocolError):
            raise
        except Exception:
            logger.exception(
                "%s: unexpected error in the server while it processed a message (%s)",
                self._name,
                type(received.frame).__name__,
            )

    def _watch_unsent(self) -> None:
        if self._is_watched and self.channel.has_unsent:
            self._loop.add_writer(self.channel.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        try:
            self.channel.flush()
        except OSError as error:
            self._report_lost(error)
            return
        if not self.channel.has_unsent:
            self._loop.remove_writer(self.channel.fileno())

    def _report_lost(self, error: Exception) -> None:
        # Reading and sending may both find that the peer is gone; its owner hears of it once.
        if self.is_open and not self._is_lost:
            self._is_lost = True
            if isinstance(error, ProtocolError):
                self._log_breach(error)
            self.stop_watching()
            self._on_lost(error)
