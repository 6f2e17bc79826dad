# SPDX-License-Identifier: Apache-2.0
"""Accepts channels from processes that a worker forked.

A forked child must not use its parent's channel. It creates a pair of sockets and sends one of them
over the worker's fork socket. Parent and children share that socket, which keeps messages whole.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

from pytriton.runtime.executor.call_server import CallServer
from pytriton.runtime.transport.loop_channel import LoopChannel
from pytriton.runtime.transport.memory_channel import MemoryChannel

if TYPE_CHECKING:
    import asyncio

    from pytriton.runtime.executor.worker_services import WorkerServices
    from pytriton.runtime.transport.arena import MemoryTrimmer
    from pytriton.runtime.transport.channel import Received

logger = logging.getLogger(__name__)

_MESSAGE_BYTES = 4096  # a message's contents do not matter, only the socket that comes with it
_MAX_SOCKETS = 16  # per message


class ForkListener:
    """The server's end of a worker's fork socket, and the channels that it received."""

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
        self._callers: set[ForkedCaller] = set()
        sock.setblocking(False)

    @property
    def callers(self) -> int:
        """The number of forked processes that have a channel now."""
        return len(self._callers)

    def open(self) -> None:
        """Start to accept channels."""
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def close(self) -> None:
        """Accept no more channels, and cancel the calls of the existing ones."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        for caller in list(self._callers):
            caller.close()

    def __repr__(self) -> str:
        return f"<ForkListener callers={len(self._callers)}>"

    def _on_readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES, _MAX_SOCKETS)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            self._accept(descriptor)
        if not data:  # the worker and all processes that it forked have ended
            self._loop.remove_reader(self._socket.fileno())

    def _accept(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        try:
            sock = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            logger.warning("a worker's fork socket passed a file descriptor that is not a socket")
            return
        caller = ForkedCaller(sock, self._memory, self._loop, self._services, self._callers)
        caller.open()


class ForkedCaller:
    """The channel of a process that a worker forked; it carries only that process's calls."""

    def __init__(
        self,
        sock: socket.socket,
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        services: WorkerServices,
        callers: set[ForkedCaller],
    ) -> None:
        self._channel = LoopChannel(
            MemoryChannel(sock, memory.arena),
            loop,
            memory,
            "a forked process",
            on_message=self._on_message,
            on_lost=lambda _: self.close(),
        )
        self._call_server = CallServer(self._channel, services)
        self._callers = callers

    def open(self) -> None:
        """Start to serve calls."""
        self._callers.add(self)
        self._channel.start()

    def close(self) -> None:
        """Close the channel and cancel its calls."""
        if self not in self._callers:
            return
        self._callers.discard(self)
        self._call_server.close()
        self._channel.close()

    def _on_message(self, received: Received) -> None:
        self._call_server.handle(received)
