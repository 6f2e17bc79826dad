# SPDX-License-Identifier: Apache-2.0
"""Accepting clients: many in each round of the event loop, and how dead ones are noticed.

uvloop's own server accepts one client in each round, so that beside 25,000 requests a second only
200 new clients got in. Accepting here costs 34 microseconds a client instead of 24.
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

# Bounds for how long others wait: 256 clients take about 10 ms, 32 with their TLS handshakes, which
# OpenSSL needs 0.7 ms each for, about 25.
MAX_PER_ROUND = 256
MAX_TLS_PER_ROUND = 32
REST_S = 1.0  # after the system had no descriptor left for a connection

# A client that is silent for so long is asked by the system whether it is still there, and given up
# after this number of questions without an answer. Many routers forget connections after 5 minutes.
KEEPALIVE_IDLE_S = 120
KEEPALIVE_INTERVAL_S = 30
KEEPALIVE_PROBES = 4

# What `accept` says of one client that has left again (accept(2), "Error handling").
_OF_ONE_CLIENT = frozenset(
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
        # asyncio's own transports do not set TCP_NODELAY on sockets that were accepted.
        nodelay = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._options = [nodelay, *keepalive_options(socket)]
        self._is_out_of_descriptors = False
        self._rest: asyncio.TimerHandle | None = None
        self._opening: dict[asyncio.Task[Any], socket.socket] = {}

    def start(self) -> None:
        """Begin to accept; the socket listens already."""
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more clients; those that were accepted go on."""
        if self._socket.fileno() < 0:
            return
        if self._rest is not None:
            self._rest.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def abandon(self) -> None:
        """End the clients that are not connected yet, such as those in the middle of TLS."""
        self.close()
        for task in self._opening:
            task.cancel()

    @property
    def opening_count(self) -> int:
        """How many clients were accepted and have no protocol yet."""
        return len(self._opening)

    def _accept(self) -> None:
        """Accept those who wait, up to a bound: they must not keep others from being served."""
        for _ in range(MAX_PER_ROUND if self._tls is None else MAX_TLS_PER_ROUND):
            try:
                sock, _address = self._socket.accept()
            except BlockingIOError:
                self._is_out_of_descriptors = False
                return
            except OSError as error:
                if error.errno in _OF_ONE_CLIENT:
                    continue
                self._take_a_rest(error)
                return
            self._open(sock)

    def _take_a_rest(self, error: OSError) -> None:
        """Asking again at once would ask for ever: no descriptor is left, or no memory."""
        if not self._is_out_of_descriptors:
            self._is_out_of_descriptors = True
            port = self._socket.getsockname()[1]
            logger.error("new clients of port %d have to wait: %s", port, error)
        self._loop.remove_reader(self._socket.fileno())
        self._rest = self._loop.call_later(REST_S, self.start)

    def _open(self, sock: socket.socket) -> None:
        """Hand a client over to a transport and a protocol of its own."""
        try:
            sock.setblocking(False)
            for level, option, value in self._options:
                sock.setsockopt(level, option, value)
        except OSError:  # macOS says so of a client that has left again
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
        if isinstance(error, OSError):  # it left, or does not speak TLS
            logger.debug("a client could not connect: %s", error)
        else:
            logger.error("a client could not be served", exc_info=error)


def keepalive_options(names: Any) -> list[tuple[int, int, int]]:
    """What to set on a socket, from the names that a platform's `socket` module has.

    macOS calls the time before the first question TCP_KEEPALIVE; some platforms have no such times
    for one socket.
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
