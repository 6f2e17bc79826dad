# SPDX-License-Identifier: Apache-2.0
"""Where processes that a worker forked ask for a channel of their own.

A forked child may not speak on its parent's channel. It makes a pair of sockets and sends one of
them over the worker's fork socket, which parent and children share: no message on it is torn.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

from pytriton.executor.call_port import CallPort
from pytriton.transport.loop_channel import LoopChannel
from pytriton.transport.memory_channel import MemoryChannel

if TYPE_CHECKING:
    import asyncio

    from pytriton.executor.worker_services import WorkerServices
    from pytriton.transport.channel import Received
    from pytriton.transport.memory_trimmer import MemoryTrimmer

logger = logging.getLogger(__name__)

_MESSAGE_BYTES = 4096  # what a message says does not matter, only the socket that comes along
_MAX_SOCKETS = 16  # with one message


class ForkListener:
    """The server's end of a worker's fork socket, and the channels that came over it."""

    def __init__(
        self,
        sock: socket.socket,
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        services: WorkerServices,
    ) -> None:
        self._socket = sock
        self._memory = memory
        self._loop = loop
        self._services = services
        self._children: set[ForkedCaller] = set()
        sock.setblocking(False)

    @property
    def callers(self) -> int:
        """How many forked processes have a channel now."""
        return len(self._children)

    def open(self) -> None:
        """Begin to take channels."""
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def close(self) -> None:
        """Take no more channels, and give up the calls of those that came."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        for child in list(self._children):
            child.close()

    def __repr__(self) -> str:
        return f"<ForkListener callers={len(self._children)}>"

    def _on_readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES, _MAX_SOCKETS)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            self._accept(descriptor)
        if not data:  # the worker and all that it forked are gone
            self._loop.remove_reader(self._socket.fileno())

    def _accept(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        try:
            sock = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            logger.warning("something that is no socket came over a worker's fork socket")
            return
        child = ForkedCaller(sock, self._memory, self._loop, self._services, self._children)
        child.open()


class ForkedCaller:
    """A process that a worker forked: it calls, and nothing else."""

    def __init__(
        self,
        sock: socket.socket,
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        services: WorkerServices,
        siblings: set[ForkedCaller],
    ) -> None:
        self._channel = LoopChannel(
            MemoryChannel(sock, memory.arena),
            loop,
            memory,
            "a forked process",
            on_message=self._take,
            on_lost=lambda _: self.close(),
        )
        self._port = CallPort(self._channel, services)
        self._siblings = siblings

    def open(self) -> None:
        """Begin to serve its calls."""
        self._siblings.add(self)
        self._channel.start()

    def close(self) -> None:
        """End the channel and give up its calls."""
        if self not in self._siblings:
            return
        self._siblings.discard(self)
        self._port.close()
        self._channel.close()

    def _take(self, received: Received) -> None:
        self._port.take(received)
