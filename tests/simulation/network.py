# SPDX-License-Identifier: Apache-2.0
"""Clients of the simulated network: their ends of connections, as asyncio transports.

Bytes arrive in pieces, with delays, in order; a connection can be reset, half-closed, cut after a
number of bytes, or read slowly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.files import (
    STREAM_BYTES,
    ListenerFile,
    Message,
    NamedMemory,
    TcpFile,
    connect,
)
from tests.simulation.machine import SECOND_NS, Event, Machine

_LOOPBACK_NS = 20_000


class ServerEnd(TcpFile):
    """The server's end of a client's connection."""

    latency_ns = _LOOPBACK_NS
    jitter_ns = 60_000
    split_share = 0.0  # of what is sent, which arrives in pieces

    def send(self, data: bytes, files: tuple = ()) -> int:
        if self.split_share and len(data) > 1 and self.random.random() < self.split_share:
            data = data[: 1 + int(self.random.random() * (len(data) - 1))]
        return TcpFile.send(self, data, files)


class ClientEnd(ServerEnd):
    """A client's end, which calls its protocol when something arrives."""

    def __init__(self, machine: Machine, name: str, transport: ClientTransport) -> None:
        super().__init__(machine, name)
        self.transport = transport
        self.references = 1

    def _arrive(self, message: Message) -> None:
        if self.references:
            self.inbox.append(message)
            self.transport.deliver()

    def changed(self) -> None:
        if self.references:
            self.transport.on_changed()


class ClientTransport:
    """A client's connection; it has the methods of an asyncio transport."""

    def __init__(
        self, machine: Machine, name: str, protocol: Any, on_lost: Callable[[], object]
    ) -> None:
        self.machine = machine
        self.protocol = protocol
        self.on_lost = on_lost
        self.end = ClientEnd(machine, f"{name} client", self)
        self._unsent: deque[memoryview] = deque()
        self._is_reading = True
        self._is_closing = False
        self._is_paused = False
        self._saw_end = False
        self._sends_end = False
        self.is_lost = False
        self.sent_bytes = 0
        self.received_bytes = 0

    # Reading

    def deliver(self) -> None:
        end = self.end
        while self._is_reading and end.inbox and not self.is_lost:
            data, _ = end._take(1 << 30)
            self.received_bytes += len(data)
            self.protocol.data_received(data)
        self.on_changed()

    def on_changed(self) -> None:
        end = self.end
        if self.is_lost:
            return
        if end.is_reset:
            self._lose(ConnectionResetError(104, "Connection reset by peer"))
        elif end.saw_end and not end.inbox and not self._saw_end:
            self._saw_end = True
            if not self.protocol.eof_received():
                self.close()
        elif self._unsent:
            self._flush()

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.machine.call_later(0, self.deliver)

    # Writing

    def write(self, data: Any) -> None:
        if self.is_lost or self._is_closing:
            return
        data = bytes(data)
        if not self._unsent and not self._sends_end:
            try:
                sent = self.end.send(data)
            except BlockingIOError:
                self._unsent.append(memoryview(data))
            except OSError as error:
                self._lose(error)
            else:
                self.sent_bytes += sent
                if sent < len(data) and not self.is_lost:
                    self._unsent.append(memoryview(data)[sent:])  # no copy
                    self._flush()
        else:
            self._unsent.append(memoryview(data))
            self._flush()
        if self._unsent and not self._is_paused and not self.is_lost:
            self._is_paused = True
            self.protocol.pause_writing()

    def _flush(self) -> None:
        unsent = self._unsent
        while unsent and not self.is_lost:
            try:
                sent = self.end.send(unsent[0])
            except BlockingIOError:
                return
            except OSError as error:
                self._lose(error)
                return
            self.sent_bytes += sent
            if sent == len(unsent[0]):
                unsent.popleft()
            else:
                unsent[0] = unsent[0][sent:]
        if self.is_lost:
            return
        if self._is_paused:
            self._is_paused = False
            self.protocol.resume_writing()
        if self._is_closing:
            self._lose(None)
        elif self._sends_end:
            self.end.shut_down()

    def write_eof(self) -> None:
        self._sends_end = True
        if not self._unsent:
            self.end.shut_down()

    # The end

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing and not self.is_lost:
            self._is_closing = True
            if not self._unsent:
                self._lose(None)

    def abort(self) -> None:
        if not self.is_lost:
            self.end.reset()
            self._lose(None)

    def break_off(self) -> None:
        """Lose the connection on its way: both ends are reset."""
        if not self.is_lost:
            self.end.reset()
            self._lose(ConnectionResetError(104, "Connection reset by peer"))

    def _lose(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost = self._is_closing = True
        self._unsent.clear()
        self.end.references = 0
        self.end.on_closed()
        self.on_lost()
        self.machine.call_later(0, self.protocol.connection_lost, error)


class Network:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.connections: dict[ClientTransport, None] = {}

    def connect(
        self,
        name: str,
        protocol: Any,
        port: int,
        split_share: float = 0.0,
        buffer_bytes: int = STREAM_BYTES,
    ) -> ClientTransport:
        """Connect a client; its protocol hears of it later, or of the refusal.

        Args:
            name: decides the delays of the connection, with the seed.
            protocol: of the client, as for asyncio.
            port: of the server.
            split_share: of what is sent, which arrives in pieces.
            buffer_bytes: of what the client has not read.
        """
        machine, connections = self.machine, self.connections
        transport = ClientTransport(
            machine, name, protocol, lambda: connections.pop(transport, None)
        )
        connections[transport] = None
        transport.end.split_share = split_share
        transport.end.capacity = buffer_bytes
        machine.call_later(_LOOPBACK_NS, self._open, transport, name, port)
        return transport

    def _open(self, transport: ClientTransport, name: str, port: int) -> None:
        if transport.is_lost:
            return
        listener: ListenerFile | None = self.machine.listeners.get(port)
        if listener is None or len(listener.waiting) >= listener.backlog:
            transport._lose(ConnectionRefusedError(111, "Connection refused"))
            return
        end = ServerEnd(self.machine, f"{name} server")
        end.split_share = transport.end.split_share
        connect(self.machine, transport.end, end)
        end.references += 1  # of the queue
        listener.waiting.append(end)
        listener.changed()
        transport.protocol.connection_made(transport)
        transport.deliver()


class ClientWorld:
    """The world around one client: the clock, timers, and connections to a server."""

    def __init__(
        self,
        network: Network,
        number: int,
        ports: dict[Any, int],
        split_share: float = 0.0,
        buffer_bytes: int = STREAM_BYTES,
    ) -> None:
        self._network = network
        self._machine = network.machine
        self._number = number
        self._ports = ports
        self._split_share = split_share
        self._buffer_bytes = buffer_bytes
        self._count = 0

    def now(self) -> float:
        return self._machine.now_ns / SECOND_NS

    def call_later(self, delay_s: float, function: Callable[..., object], *args: Any) -> Event:
        return self._machine.call_later(max(0, round(delay_s * SECOND_NS)), function, *args)

    def connect(self, port: Any, protocol: Any) -> None:
        self._count += 1
        name = f"client {self._number} connection {self._count}"
        self._network.connect(
            name, protocol, self._ports[port], self._split_share, self._buffer_bytes
        )

    def memory(self, key: str, size: int) -> NamedMemory:
        return NamedMemory(self._machine, key, size)
