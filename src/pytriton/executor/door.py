# SPDX-License-Identifier: Apache-2.0
"""Where processes that a worker forked ask for a channel of their own.

A forked child may not speak on its parent's channel. It makes a pair of sockets and sends one of
them through the door, which parent and children share because a message on it is never torn.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING

from pytriton.executor.call_port import CallPort
from pytriton.transport.channel import Channel
from pytriton.transport.unsent import UnsentSender

if TYPE_CHECKING:
    import asyncio

    from pytriton.executor.memory_keeper import MemoryKeeper
    from pytriton.executor.services import WorkerServices
    from pytriton.transport.channel import Payload
    from pytriton.transport.frames import Frame

logger = logging.getLogger(__name__)

_MESSAGE_BYTES = 4096  # what a message says does not matter, only the socket that comes along
_MAX_SOCKETS = 16  # with one message


class Door:
    """The server's end of a worker's door, and the channels that came through it."""

    def __init__(
        self,
        sock: socket.socket,
        keeper: MemoryKeeper,
        loop: asyncio.AbstractEventLoop,
        services: WorkerServices,
    ) -> None:
        self._socket = sock
        self._keeper = keeper
        self._loop = loop
        self._services = services
        self._children: set[ForkedCaller] = set()
        sock.setblocking(False)

    @property
    def callers(self) -> int:
        """How many forked processes have a channel now."""
        return len(self._children)

    def open(self) -> None:
        """Let callers in."""
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def close(self) -> None:
        """Let nobody in any more, and give up the calls of those inside."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        for child in list(self._children):
            child.close()

    def __repr__(self) -> str:
        return f"<Door callers={len(self._children)}>"

    def _on_readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES, _MAX_SOCKETS)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            self._let_in(descriptor)
        if not data:  # the worker and all that it forked are gone
            self._loop.remove_reader(self._socket.fileno())

    def _let_in(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        try:
            sock = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            logger.warning("something that is no socket came through a worker's door")
            return
        child = ForkedCaller(sock, self._keeper, self._loop, self._services, self._children)
        child.open()


class ForkedCaller:
    """A process that a worker forked: it calls, and nothing else."""

    def __init__(
        self,
        sock: socket.socket,
        keeper: MemoryKeeper,
        loop: asyncio.AbstractEventLoop,
        services: WorkerServices,
        siblings: set[ForkedCaller],
    ) -> None:
        sock.setblocking(False)
        self._channel = Channel(sock, keeper.arena)
        self._port = CallPort(self._channel, keeper, services, self._send)
        self._keeper = keeper
        self._loop = loop
        self._siblings = siblings
        self._unsent = UnsentSender(loop, self._channel.link, lambda _: self.close())

    def open(self) -> None:
        """Begin to serve its calls."""
        self._siblings.add(self)
        self._keeper.add(self._channel)
        self._loop.add_reader(self._channel.fileno(), self._on_readable)

    def close(self) -> None:
        """End the channel and give up its calls."""
        if self not in self._siblings:
            return
        self._siblings.discard(self)
        self._port.close()
        self._loop.remove_reader(self._channel.fileno())
        self._unsent.stop()
        self._channel.close()
        self._keeper.remove(self._channel)

    def _send(self, frame: Frame, payload: Payload | None) -> None:
        with contextlib.suppress(OSError):  # it is gone, which the reader hears, too
            self._channel.send(frame, payload)
        if self._channel.link.has_unsent:
            self._unsent.watch()

    def _on_readable(self) -> None:
        if self not in self._siblings:
            return
        try:
            received = self._channel.receive()
            if received is not None:
                if received.uses_blocks:
                    self._keeper.touch()
                self._port.take(received)
                if self._channel.link.has_message:
                    self._loop.call_soon(self._on_readable)
        except EOFError:
            self.close()
        except Exception:  # what it asked for is lost, so it would wait for ever
            logger.exception("a message of a forked process could not be read")
            self.close()
