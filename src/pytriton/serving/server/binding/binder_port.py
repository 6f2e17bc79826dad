# SPDX-License-Identifier: Apache-2.0
"""The socket at which other processes of the same user find a server.

They bind their models to it, or get the tokens that open it, as commands do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, NamedTuple

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.errors import InternalError, UnavailableError
from pytriton.runtime.transport import rendezvous
from pytriton.runtime.transport.control import (
    AskAccess,
    CallDone,
    ControlLink,
    Join,
    ServerAccess,
    Started,
)
from pytriton.serving.server.api.authorization import Authorization, RestrictedProtocol
from pytriton.serving.server.binding.binder import BinderSession
from pytriton.serving.server.process.event_loop import ProcessWatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.repository.loading.instance_factory import InstanceFactory
    from pytriton.serving.server.binding.binder import LoadFunction

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 5.0
_RETRY_DELAY_S = 1.0  # after no file descriptor was left for a connection
# A process that joins can load and unload models, so this API's restrictions apply to it.
_API = "model-repository"


class _Listener(NamedTuple):
    socket: socket.socket
    port: int  # of the protocol's own socket
    authorization: Authorization  # the same as that protocol's


class BinderPort:
    """Listens on one socket per server port, and owns the sessions of the joined processes."""

    def __init__(
        self,
        engine: Engine,
        factory: InstanceFactory,
        authorizations: Mapping[RestrictedProtocol, Authorization],
        load_function: LoadFunction | None = None,
    ) -> None:
        self._engine = engine
        self._factory = factory
        self._authorizations = authorizations
        self._loop = loop = factory.loop
        self._load_function = load_function
        self._ports = Started(0, 0, 0)
        self._access: ServerAccess | None = None
        self._listeners: list[_Listener] = []
        self._unjoined: dict[ControlLink, asyncio.TimerHandle] = {}  # with their timeouts
        self._sessions: dict[BinderSession, ProcessWatch] = {}
        self._closing = BackgroundTasks(loop)

    def start(self, ports: Started, access: ServerAccess) -> None:
        """Start to listen for each port; if that fails, it is logged and no process can join.

        `access` is what other processes of the same user are told when they ask.
        """
        self._ports = ports
        self._access = access
        for port, protocol in (
            (ports.http_port, RestrictedProtocol.HTTP),
            (ports.grpc_port, RestrictedProtocol.GRPC),
        ):
            if not port:
                continue
            try:
                sock = rendezvous.listen(port)
            except OSError as error:
                logger.warning("Other processes cannot bind models at port %d: %s", port, error)
                continue
            sock.setblocking(False)
            listener = _Listener(sock, port, self._authorizations[protocol])
            self._listeners.append(listener)
            self._listen(listener)

    def stop_listening(self) -> None:
        """Stop to accept processes, so that another server can use these ports already."""
        for listener in self._listeners:
            self._loop.remove_reader(listener.socket.fileno())
            rendezvous.stop_listening(listener.socket, listener.port)
        self._listeners.clear()

    async def stop(self) -> None:
        """End all sessions and remove their models."""
        self.stop_listening()
        for link in list(self._unjoined):
            self._dismiss(link)
        for session in list(self._sessions):
            self._end(session)
        await self._closing.wait()

    def _listen(self, listener: _Listener) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.socket.fileno(), self._on_connection, listener)

    def _on_connection(self, listener: _Listener) -> None:
        try:
            sock, _ = listener.socket.accept()
        except (BlockingIOError, ConnectionError):
            return  # the process closed its socket
        except OSError as error:  # no file descriptor is left: trying again at once would spin
            logger.error("cannot accept a binding process, trying again: %s", error)  # noqa: TRY400  the message is enough
            self._loop.remove_reader(listener.socket.fileno())
            self._loop.call_later(_RETRY_DELAY_S, self._listen, listener)
            return
        if not rendezvous.is_same_user(sock):
            sock.close()
            return
        sock.setblocking(False)
        link = ControlLink(sock)
        self._unjoined[link] = self._loop.call_later(JOIN_TIMEOUT_S, self._dismiss, link)
        self._loop.add_reader(sock.fileno(), self._on_join, link, listener.authorization)

    def _on_join(self, link: ControlLink, authorization: Authorization) -> None:
        try:
            message = link.receive()
        except (EOFError, OSError, ValueError):
            self._dismiss(link)
            return
        if message is None:
            return
        if isinstance(message, AskAccess):
            # `_on_connection` has checked that it is a process of the same user.
            self._dismiss(link, self._access)
            return
        if not isinstance(message, Join):
            self._dismiss(link)
            return
        # No token is fine: `_on_connection` has checked that it is a process of the same user.
        token = message.token.encode()
        refusal = authorization.refusal(_API, lambda _: token) if token else None
        if refusal is not None:
            text = f"wrong access token: {refusal}"
            self._dismiss(link, CallDone(0, text, InternalError.code))
        elif self._engine.is_exiting:
            self._dismiss(link, CallDone(0, "Server exiting", UnavailableError.code))
        else:
            self._begin(link)

    def _dismiss(self, link: ControlLink, message: CallDone | ServerAccess | None = None) -> None:
        """Send a last message, if there is one, and close the connection."""
        self._stop_join_timer(link)
        if message is not None:
            with contextlib.suppress(OSError):  # the process closed its socket
                link.send(message)
        link.close()

    def _stop_join_timer(self, link: ControlLink) -> None:
        self._unjoined.pop(link).cancel()
        self._loop.remove_reader(link.fileno())

    def _begin(self, link: ControlLink) -> None:
        self._stop_join_timer(link)
        session = BinderSession(
            link,
            self._engine,
            self._factory,
            lambda _: self._end(session),
            self._load_function,
        )
        process = rendezvous.peer_process(link.socket)
        watch = self._sessions[session] = ProcessWatch(
            self._loop, process, lambda: self._end(session)
        )
        watch.start()
        session.start(self._ports)

    def _end(self, session: BinderSession) -> None:
        watch = self._sessions.pop(session, None)
        if watch is None:
            return  # it is being closed already
        watch.close()
        self._closing.start(session.close())
