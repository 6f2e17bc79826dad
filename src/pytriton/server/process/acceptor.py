# SPDX-License-Identifier: Apache-2.0
"""Accepts many clients in each iteration of the event loop, and sets TCP keepalive for them.

uvloop's own server accepts one client per iteration, so that beside 25,000 requests a second only
200 new clients per second were accepted. This module takes 34 microseconds per client, not 24.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

logger = logging.getLogger(__name__)

# They bound how long other clients wait: accepting 256 clients takes about 10 ms. With TLS, 32 take
# about 25 ms, because OpenSSL needs 0.7 ms for a handshake.
MAX_PER_ITERATION = 256
MAX_TLS_PER_ITERATION = 32
RETRY_DELAY_S = 1.0  # after no file descriptor was left for a connection

# TCP keepalive: probe a client after this idle time, at this interval, and close the connection
# after this number of unanswered probes. Many routers drop idle connections after 5 minutes.
KEEPALIVE_IDLE_S = 120
KEEPALIVE_INTERVAL_S = 30
KEEPALIVE_PROBES = 4

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


class Acceptor:
    """Accepts the clients of one listening socket, which it owns."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._make_protocol = make_protocol
        self._tls = tls
        # asyncio's own transports do not set TCP_NODELAY on accepted sockets.
        nodelay = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._options = [nodelay, *keepalive_options(socket)]
        self._is_out_of_descriptors = False
        self._retry_timer: asyncio.TimerHandle | None = None
        self._opening: dict[asyncio.Task[Any], socket.socket] = {}

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
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def abandon(self) -> None:
        """Also disconnect clients that have no protocol yet, such as those in a TLS handshake."""
        self.close()
        for task in self._opening:
            task.cancel()

    @property
    def opening_count(self) -> int:
        """The number of clients that were accepted and have no protocol yet."""
        return len(self._opening)

    def _accept(self) -> None:
        """Accept waiting clients, up to a limit so that connected clients do not wait long."""
        for _ in range(MAX_PER_ITERATION if self._tls is None else MAX_TLS_PER_ITERATION):
            try:
                sock, _address = self._socket.accept()
            except BlockingIOError:
                self._is_out_of_descriptors = False
                return
            except OSError as error:
                if error.errno in _SINGLE_CLIENT_ERRORS:
                    continue
                self._pause(error)
                return
            self._open(sock)

    def _pause(self, error: OSError) -> None:
        """Retry later: without file descriptors or memory, trying again at once would spin."""
        if not self._is_out_of_descriptors:
            self._is_out_of_descriptors = True
            port = self._socket.getsockname()[1]
            logger.error("cannot accept new clients on port %d, trying again: %s", port, error)
        self._loop.remove_reader(self._socket.fileno())
        self._retry_timer = self._loop.call_later(RETRY_DELAY_S, self.start)

    def _open(self, sock: socket.socket) -> None:
        """Make a transport and a protocol for a client."""
        try:
            sock.setblocking(False)
            for level, option, value in self._options:
                sock.setsockopt(level, option, value)
        except OSError:  # raised by macOS if the client has disconnected
            sock.close()
            return
        task = self._loop.create_task(
            self._loop.connect_accepted_socket(self._make_protocol, sock, ssl=self._tls)
        )
        self._opening[task] = sock
        task.add_done_callback(self._on_opened)

    def _on_opened(self, task: asyncio.Task[Any]) -> None:
        sock = self._opening.pop(task)
        if task.cancelled():
            sock.close()
            return
        error = task.exception()
        if error is None:
            return
        sock.close()
        if isinstance(error, OSError):  # the client disconnected or does not use TLS
            logger.debug("a client could not connect: %s", error)
        else:
            logger.error("a client could not be served", exc_info=error)


def keepalive_options(names: Any) -> list[tuple[int, int, int]]:
    """Returns the socket options for keepalive that a platform's `socket` module has.

    On macOS the time before the first probe is TCP_KEEPALIVE; some platforms cannot set these times
    per socket.
    """
    options = [(names.SOL_SOCKET, names.SO_KEEPALIVE, 1)]
    idle = getattr(names, "TCP_KEEPIDLE", None) or getattr(names, "TCP_KEEPALIVE", None)
    for option, value in (
        (idle, KEEPALIVE_IDLE_S),
        (getattr(names, "TCP_KEEPINTVL", None), KEEPALIVE_INTERVAL_S),
        (getattr(names, "TCP_KEEPCNT", None), KEEPALIVE_PROBES),
    ):
        if option is not None:
            options.append((names.IPPROTO_TCP, option, value))
    return options
