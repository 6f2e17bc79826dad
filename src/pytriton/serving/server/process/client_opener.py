# SPDX-License-Identifier: Apache-2.0
"""Makes transports and protocols for accepted clients, and sets TCP keepalive for them."""

from __future__ import annotations

import asyncio
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

# TCP keepalive: probe a client after this idle time, at this interval, and close the connection
# after this number of unanswered probes. Many routers drop idle connections after 5 minutes.
KEEPALIVE_IDLE_S = 120
KEEPALIVE_INTERVAL_S = 30
KEEPALIVE_PROBES = 4


class ClientOpener:
    """Serves the accepted clients of one protocol in this process."""

    is_full = False  # the acceptor itself looks at the descriptors of this process

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.max_per_iteration = MAX_PER_ITERATION if tls is None else MAX_TLS_PER_ITERATION
        self._loop = loop
        self._make_protocol = make_protocol
        self._tls = tls
        # asyncio's own transports do not set TCP_NODELAY on accepted sockets.
        nodelay = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._options = [nodelay, *keepalive_options(socket)]
        self._opening: dict[asyncio.Task[Any], socket.socket] = {}
        self.on_changed: Callable[[], None] | None = None  # called when `opening_count` has fallen

    @property
    def opening_count(self) -> int:
        """The number of clients that were accepted and have no protocol yet."""
        return len(self._opening)

    def take(self, sock: socket.socket) -> None:
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

    def abandon(self) -> None:
        """Disconnect clients that have no protocol yet, such as those in a TLS handshake."""
        for task in self._opening:
            task.cancel()

    def _on_opened(self, task: asyncio.Task[Any]) -> None:
        sock = self._opening.pop(task)
        if self.on_changed is not None:
            self.on_changed()
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
