# SPDX-License-Identifier: Apache-2.0
"""How a gRPC connection reads while a large message comes: straight into the message's memory.

Otherwise it reads as an ordinary protocol does: one that provides the buffers costs 2 to 3 us more
for each read, which is 4 % of a small call.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytriton.wire.http2 import Connection, Event

READ_BYTES = 256 << 10


class ReadConnection(Protocol):
    """The connection that is read for."""

    http2: Connection

    def handle(self, events: list[Event], received_ns: int) -> None:
        """Do what follows from what was read."""

    def data_received(self, data: bytes | memoryview) -> None:
        """Take bytes that were read as usual."""

    def end_large_reads(self) -> None:
        """Read as before, for no large message comes any more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""

    def eof_received(self) -> bool:
        """The client sends no more."""

    def pause_writing(self) -> None:
        """The client takes answers slower than they come."""

    def resume_writing(self) -> None:
        """Most of what waited was sent."""


class LargeMessageReader(asyncio.BufferedProtocol):
    """Stands in for a connection at its transport as long as large messages come."""

    def __init__(self, connection: ReadConnection, read_buffer: memoryview) -> None:
        self._connection = connection
        self._read_buffer = read_buffer  # of all connections: used up before the next read
        self._is_filling = False  # the next read goes to where its bytes belong

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the transport: where to read to."""
        room = self._connection.http2.get_buffer()
        self._is_filling = room is not None
        return self._read_buffer if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the transport when something was read."""
        connection = self._connection
        if self._is_filling:
            now_ns = time.monotonic_ns()
            connection.handle(connection.http2.buffer_updated(nbytes, now_ns), now_ns)
            return
        had_buffers = connection.http2.has_buffers
        connection.data_received(self._read_buffer[:nbytes])
        if not had_buffers and not connection.http2.has_buffers:
            connection.end_large_reads()

    # What does not concern reading

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport when the connection is gone."""
        self._connection.connection_lost(exc)

    def eof_received(self) -> bool:
        """Called by the transport when the client sends no more."""
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        """Called by the transport when the client takes answers slower than they come."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Called by the transport when most of what waited was sent."""
        self._connection.resume_writing()
