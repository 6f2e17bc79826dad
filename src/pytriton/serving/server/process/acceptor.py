# SPDX-License-Identifier: Apache-2.0
"""Accepts many clients in each iteration of the event loop.

uvloop's own server accepts one client per iteration, so that beside 25,000 requests a second only
200 new clients per second were accepted. This module takes 34 microseconds per client, not 24.
"""

from __future__ import annotations

import errno
import logging
import math
from typing import TYPE_CHECKING, Protocol

from pytriton.serving.server.process.descriptors import client_limit, lowest_free

if TYPE_CHECKING:
    import asyncio
    import socket

logger = logging.getLogger(__name__)

RETRY_DELAY_S = 0.1  # after there was no room for another connection
_SILENT_S = 60.0  # pauses that follow each other so soon are logged once

# Errors of `accept` that concern only one client, which has disconnected (accept(2), "Error
# handling").
_SINGLE_CLIENT_ERRORS = frozenset(
    {
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EINTR,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EPROTO,
    }
)


class ClientTaker(Protocol):
    """Takes accepted clients, and owns their sockets."""

    @property
    def max_per_iteration(self) -> int:
        """How many clients to accept in one iteration, so that connected ones do not wait long."""

    @property
    def is_full(self) -> bool:
        """Whether the processes that serve clients have no room for another."""

    def take(self, sock: socket.socket) -> None:
        """Serve a client."""


class Acceptor:
    """Accepts the clients of one listening socket, which it owns.

    It pauses while this process has no descriptors left but those reserved for the server: waiting
    clients stay in the socket's queue until others disconnect.

    Args:
        loop: The event loop.
        sock: The listening socket.
        clients: Serves the accepted clients.
        is_essential: Whether the clients may use a part of the reserve; see `client_limit`.

    Attributes:
        pause_count: How often it paused.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        clients: ClientTaker,
        *,
        is_essential: bool = False,
    ) -> None:
        self.pause_count = 0
        self._loop = loop
        self._socket = sock
        self._clients = clients
        self._is_essential = is_essential
        self._last_short_s = -math.inf
        self._retry_timer: asyncio.TimerHandle | None = None

    @property
    def is_paused(self) -> bool:
        """Whether clients have to wait now."""
        return self._retry_timer is not None

    def start(self) -> None:
        """Start to accept clients; the socket is listening already."""
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more clients; connected clients are not affected."""
        if self._socket.fileno() < 0:
            return
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _accept(self) -> None:
        """Accept waiting clients, up to a limit so that connected clients do not wait long."""
        limit = client_limit(is_essential=self._is_essential)
        for _ in range(self._clients.max_per_iteration):
            try:
                sock, _address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _SINGLE_CLIENT_ERRORS:
                    continue
                self._pause(str(error))
                return
            descriptor = sock.fileno()
            self._clients.take(sock)
            if descriptor >= limit:
                self._pause(f"the first {limit} file descriptors are in use (see `ulimit -n`)")
                return
            if self._clients.is_full:
                self._pause("the front ends have no free file descriptors (see `ulimit -n`)")
                return

    def _pause(self, reason: str) -> None:
        """Accept no clients until there is room; to try again at once would spin."""
        self.pause_count += 1
        now = self._loop.time()
        is_news = now - self._last_short_s > _SILENT_S
        self._last_short_s = now
        if is_news:
            port = self._socket.getsockname()[1]
            logger.warning(
                "new clients on port %d have to wait until others disconnect: %s", port, reason
            )
        self._loop.remove_reader(self._socket.fileno())
        self._retry_timer = self._loop.call_later(RETRY_DELAY_S, self._resume)

    def _resume(self) -> None:
        limit = client_limit(is_essential=self._is_essential)
        if self._clients.is_full or lowest_free(self._socket.fileno()) >= limit:
            self._last_short_s = self._loop.time()
            self._retry_timer = self._loop.call_later(RETRY_DELAY_S, self._resume)
            return
        self._retry_timer = None
        self.start()
