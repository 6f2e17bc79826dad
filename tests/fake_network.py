# SPDX-License-Identifier: Apache-2.0
"""Connections without sockets, for tests of asyncio protocols: one end with a test, or two ends.

Bytes come in chunks of any size, and with a delay by the clock of the loop. Readers that pause,
half-closed connections and resets are what they are with real sockets.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

HIGH_WATER_BYTES = 64 << 10
LOW_WATER_BYTES = 16 << 10


def whole() -> Iterator[int]:
    return itertools.repeat(1 << 30)


def byte_by_byte() -> Iterator[int]:
    return itertools.repeat(1)


def random_sizes(seed: int, largest: int = 40) -> Iterator[int]:
    source = random.Random(seed)
    return iter(lambda: source.randint(1, largest), 0)


DELIVERIES = {
    "whole": whole,
    "byte by byte": byte_by_byte,
    "random 1": lambda: random_sizes(1),
    "random 2": lambda: random_sizes(2),
    "random 3": lambda: random_sizes(3, 7),
}


class FakeTransport:
    """A protocol's end of a connection; it behaves as uvloop's, and is strict on use after the end.

    At the other end is a test, which calls the methods of the peer, or a transport of `connect`.

    Args:
        loop: calls the protocol: a `FakeLoop`, a `FakeEventLoop`, or any other.
        protocol: the protocol; the test calls `connection_made`.
    """

    def __init__(self, loop: Any, protocol: Any) -> None:
        self.loop = loop
        self.protocol = protocol
        self.taken = bytearray()  # what the peer has
        self.unsent = bytearray()
        self.unread = bytearray()  # what the peer has sent, and the protocol has not read
        self.write_count = 0
        self.peer_reads = True
        self.is_reading = True
        self.is_closed = False
        self.is_lost = False
        self.is_aborted = False
        self.sent_eof = False
        self.read_buffer: memoryview | None = None  # shared: overwritten after each read
        self._is_paused = False

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        assert not self.is_closed, "written after close"
        assert not self.sent_eof, "written after the end of file"
        self.write_count += 1
        self.unsent += data
        self.take()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def get_extra_info(self, name: str) -> None:
        assert name == "socket"

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        assert not self.is_closed
        self.sent_eof = True

    def pause_reading(self) -> None:
        assert self.is_reading
        assert not self.is_closed
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        assert not self.is_closed
        self.is_reading = True
        self.loop.call_soon(self.deliver)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True
        self.is_reading = False
        if not self.unsent:
            self.lose()

    def abort(self) -> None:
        self.is_aborted = self.is_closed = True
        self.unsent.clear()
        self.lose()

    # What the peer does

    @property
    def saw_end(self) -> bool:
        """Whether the peer has been told that nothing more comes."""
        return self.sent_eof or self.is_closed

    def take(self, nbytes: int = 0) -> None:
        """Let the peer take so many bytes, or all if it reads."""
        if self.peer_reads:
            nbytes = len(self.unsent)
        self.taken += self.unsent[:nbytes]
        del self.unsent[:nbytes]
        if not self._is_paused and len(self.unsent) > HIGH_WATER_BYTES:
            self._is_paused = True
            self.protocol.pause_writing()
        elif self._is_paused and len(self.unsent) <= LOW_WATER_BYTES:
            self._is_paused = False
            self.protocol.resume_writing()
        if self.is_closed and not self.unsent:
            self.lose()

    def receive(self, data: bytes | bytearray) -> None:
        """Send bytes to the protocol; those that it does not read now wait."""
        self.unread += data
        self.deliver()

    def deliver(self) -> None:
        """Let the protocol read what waits, until it pauses."""
        while self.deliver_some():
            pass

    def deliver_some(self) -> bool:
        """Let the protocol read once; returns whether it did."""
        if not self.unread or not self.is_reading or self.is_lost:
            return False
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            data = bytes(self.unread)
            self.unread.clear()
            self.protocol.data_received(data)
            return True
        buffer = self.protocol.get_buffer(-1)
        size = min(len(buffer), len(self.unread))
        assert size > 0
        buffer[:size] = self.unread[:size]
        del self.unread[:size]
        self.protocol.buffer_updated(size)
        if buffer is self.read_buffer:
            buffer[:size] = bytes(size)
        return True

    def receive_eof(self) -> None:
        """Send no more to the protocol, which may still write."""
        if not self.is_lost and not self.protocol.eof_received():
            self.close()

    def lose(self, error: Exception | None = None) -> None:
        """End the connection, at once and for both sides."""
        if not self.is_lost:
            self.is_lost = self.is_closed = True
            self.loop.call_soon(self.protocol.connection_lost, error)


class _JoinedTransport(FakeTransport):
    """An end of a connection between two protocols.

    Args:
        sizes: of the chunks in which bytes reach the other end.
        delay_s: how long a chunk is under way.
    """

    def __init__(self, loop: Any, protocol: Any, sizes: Iterator[int], delay_s: float) -> None:
        super().__init__(loop, protocol)
        self.peer_reads = False
        self.peer: _JoinedTransport
        self._sizes = sizes
        self._delay_s = delay_s
        self._is_moving = False
        self._told_eof = False

    def write(self, data: Any) -> None:
        super().write(data)
        self._move_later()

    def write_eof(self) -> None:
        super().write_eof()
        self._move_later()

    def resume_reading(self) -> None:
        super().resume_reading()
        self.peer._move_later()

    def close(self) -> None:
        super().close()
        self._move_later()

    def abort(self) -> None:
        super().abort()
        self.peer.lose(ConnectionResetError(104, "Connection reset by peer"))

    def _move_later(self) -> None:
        if not self._is_moving and not self.is_aborted:
            self._is_moving = True
            self.loop.call_later(self._delay_s, self._move)

    def _move(self) -> None:
        """Move a chunk to the other end, or the end of the bytes."""
        self._is_moving = False
        peer = self.peer
        if peer.is_lost or self.is_aborted or (self.unsent and not peer.is_reading):
            return
        chunk = self.unsent[: next(self._sizes)]
        self.take(len(chunk))
        peer.receive(chunk)
        if self.unsent:
            self._move_later()
        elif self.saw_end and not self._told_eof:
            self._told_eof = True
            peer.receive_eof()


def connect(
    loop: Any,
    first: Any,
    second: Any,
    sizes: Callable[[], Iterator[int]] = whole,
    delay_s: float = 0.0,
) -> tuple[FakeTransport, FakeTransport]:
    """Connect two protocols; returns their transports.

    Args:
        loop: the loop of both.
        first: a protocol.
        second: a protocol.
        sizes: makes the sizes of the chunks of each direction: see `DELIVERIES`.
        delay_s: how long each chunk is under way, by the clock of the loop.
    """
    ends = [_JoinedTransport(loop, each, sizes(), delay_s) for each in (first, second)]
    ends[0].peer, ends[1].peer = ends[1], ends[0]
    first.connection_made(ends[0])
    second.connection_made(ends[1])
    return ends[0], ends[1]
