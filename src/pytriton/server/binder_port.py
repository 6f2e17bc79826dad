# SPDX-License-Identifier: Apache-2.0
"""Where other processes of the same user join a server to bind models of their own."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

from pytriton.errors import InternalError, UnavailableError
from pytriton.server.authorization import Authorization, Protocol
from pytriton.server.binder import BinderSession
from pytriton.transport import rendezvous
from pytriton.transport.control import ControlLink, Done, Join, Started

if TYPE_CHECKING:
    from pytriton.server.server import Server

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 5.0
# What joining amounts to: loading and unloading models.
_API = "model-repository"


class BinderPort:
    """Listens beside the server's ports, and keeps the sessions of those who joined."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._authorization = Authorization(server.options.http_restricted, Protocol.HTTP)
        self._listeners: list[tuple[socket.socket, int]] = []
        self._sessions: set[BinderSession] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to listen beside each port; where that fails, only the parent binds models."""
        for port in filter(None, (self._server.http_port, self._server.grpc_port)):
            try:
                listener = rendezvous.listen(port)
            except OSError as error:
                logger.warning("Other processes cannot bind models: %s", error)
                continue
            listener.setblocking(False)
            self._loop.add_reader(listener.fileno(), self._on_connection, listener)
            self._listeners.append((listener, port))

    async def stop(self) -> None:
        """Take the models of all who joined away."""
        for listener, port in self._listeners:
            self._loop.remove_reader(listener.fileno())
            rendezvous.stop_listening(listener, port)
        self._listeners.clear()
        for session in list(self._sessions):
            self._end(session)
        if self._closing:
            await asyncio.wait(self._closing)

    def _on_connection(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return  # it left again
        if not rendezvous.is_same_user(sock):
            sock.close()
            return
        sock.setblocking(False)
        link = ControlLink(sock)
        late = self._loop.call_later(JOIN_TIMEOUT_S, self._turn_away, link)
        self._loop.add_reader(sock.fileno(), self._on_join, link, late)

    def _on_join(self, link: ControlLink, late: asyncio.TimerHandle) -> None:
        try:
            message = link.receive()
        except (EOFError, OSError, ValueError):
            late.cancel()
            self._turn_away(link)
            return
        if message is None:
            return
        late.cancel()
        self._loop.remove_reader(link.fileno())
        if not isinstance(message, Join):
            link.close()
            return
        refusal = self._authorization.refusal(_API, lambda _: message.token.encode())
        if refusal is not None:
            link.send(Done(0, f"wrong or missing access token: {refusal}", InternalError.code))
            link.close()
            return
        self._begin(link)

    def _begin(self, link: ControlLink) -> None:
        server = self._server
        if server.engine.is_exiting:
            link.send(Done(0, "Server exiting", UnavailableError.code))
            link.close()
            return
        session = BinderSession(
            link,
            server.engine,
            self._loop,
            server.cache,
            lambda _: self._end(session),
        )
        self._sessions.add(session)
        link.send(Started(server.http_port, server.grpc_port, server.metrics_port))
        session.start()

    def _end(self, session: BinderSession) -> None:
        if session in self._sessions:
            self._sessions.discard(session)
            task = self._loop.create_task(session.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _turn_away(self, link: ControlLink) -> None:
        self._loop.remove_reader(link.fileno())
        link.close()
