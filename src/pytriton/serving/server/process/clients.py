# SPDX-License-Identifier: Apache-2.0
"""Accepts clients, many in each iteration of the event loop, and makes their connections.

uvloop's own server accepts one client per iteration, so that beside 25,000 requests a second only
200 new clients per second were accepted. This module takes 34 microseconds per client, not 24.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import math
import socket
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pytriton.serving.server.process.resources import client_limit, lowest_free
from pytriton.serving.server.process.tls_connection import RAW_BYTES, TlsConnection

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from pytriton.serving.server.process.tls import TlsPort

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
# It bounds how long other clients wait: accepting 256 clients takes about 10 ms.
MAX_PER_ITERATION = 256
# TCP keepalive: probe a client after this idle time, at this interval, and close the connection
# after this number of unanswered probes. Many routers drop idle connections after 5 minutes.
KEEPALIVE_IDLE_S = 120
KEEPALIVE_INTERVAL_S = 30
KEEPALIVE_PROBES = 4
# Clients that are refused keep their sockets so long, or until so many others are refused.
_REFUSED_S = 1.0
_MAX_REFUSED = 64
ConnectionT = TypeVar("ConnectionT")


class ClientTaker(Protocol):
    """Takes accepted clients, and owns their sockets."""

    @property
    def max_per_iteration(self) -> int:
        """How many clients to accept in one iteration, so that connected ones do not wait long."""

    @property
    def is_full(self) -> bool:
        """Whether the processes that serve clients have no room for another."""

    def take(self, sock: socket.socket, ticket: object = None) -> None:
        """Serve a client, and give its ticket back when it has left, unless it has none."""


class AddressLimit:
    """Counts the clients of each address that are connected to one port."""

    def __init__(self, limit: int) -> None:
        self.limit = limit  # 0: there is none, and nothing is counted
        self.refused_count = 0
        self._counts: dict[object, int] = {}

    def admit(self, address: str) -> str | None:
        """Count a client; returns what `leave` needs, or None if its address has too many."""
        ticket = address_key(address)
        count = self._counts.get(ticket, 0)
        if count >= self.limit:
            self.refused_count += 1
            return None
        self._counts[ticket] = count + 1
        return ticket

    def leave(self, ticket: object) -> None:
        """Count that a client has left."""
        left = self._counts.get(ticket, 0) - 1
        if left > 0:
            self._counts[ticket] = left
        else:
            self._counts.pop(ticket, None)

    @property
    def most(self) -> int:
        """The number of clients of the address that has the most."""
        return max(self._counts.values(), default=0)


def address_key(address: str) -> str:
    """Returns what counts as one client: an IPv4 address, or the first half of an IPv6 address.

    Everybody with IPv6 has all addresses of a /64 network.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # not of the internet
        return address
    if parsed.version == 4:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))


class Acceptor:
    """Accepts the clients of one listening socket, which it owns.

    It pauses while this process has no descriptors left but those reserved for the server: waiting
    clients stay in the socket's queue until others disconnect. Essential clients may use a part of
    the reserve; see `client_limit`.

    Clients of an address with too many connections get the `refusal`, and are disconnected.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        clients: ClientTaker,
        *,
        is_essential: bool = False,
        addresses: AddressLimit | None = None,
        refusal: bytes = b"",
    ) -> None:
        self.addresses = AddressLimit(0) if addresses is None else addresses
        self._refusal = refusal
        self._refused: deque[socket.socket] = deque()  # they may still read it
        self.pause_count = 0
        self._loop = loop
        self._socket = sock
        self._clients = clients
        self._is_essential = is_essential
        self._last_short_s = -math.inf
        self._retry_timer: asyncio.TimerHandle | None = None

    @property
    def descriptor(self) -> int:
        """That of the listening socket."""
        return self._socket.fileno()

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
        while self._refused:
            self._refused.popleft().close()

    def _accept(self) -> None:
        """Accept waiting clients, up to a limit so that connected clients do not wait long."""
        limit = client_limit(is_essential=self._is_essential)
        for _ in range(self._clients.max_per_iteration):
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _SINGLE_CLIENT_ERRORS:
                    continue
                self._pause(str(error))
                return
            ticket = None
            if self.addresses.limit:
                ticket = self.addresses.admit(address[0])
                if ticket is None:
                    self._refuse(sock)
                    continue
            descriptor = sock.fileno()
            self._clients.take(sock, ticket)
            if descriptor >= limit:
                self._pause(f"the first {limit} file descriptors are in use (see `ulimit -n`)")
                return
            if self._clients.is_full:
                self._pause("the front ends have no free file descriptors (see `ulimit -n`)")
                return

    def _refuse(self, sock: socket.socket) -> None:
        """Tell a client why it is not served, and disconnect it."""
        try:
            sock.setblocking(False)
            if self._refusal:
                sock.send(self._refusal)
                sock.shutdown(socket.SHUT_WR)
        except OSError:  # it has disconnected
            sock.close()
            return
        # If it was closed now, the client could not read this after it has sent its request.
        self._refused.append(sock)
        if len(self._refused) > _MAX_REFUSED:
            self._refused.popleft().close()
        self._loop.call_later(_REFUSED_S, self._end_refused, sock)

    def _end_refused(self, sock: socket.socket) -> None:
        sock.close()
        if self._refused and self._refused[0] is sock:
            self._refused.popleft()

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


class ClientOpener:
    """Serves the accepted clients of one protocol in this process."""

    is_full = False  # the acceptor itself looks at the descriptors of this process

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        tls: TlsPort | None = None,
    ) -> None:
        self.max_per_iteration = MAX_PER_ITERATION
        self._loop = loop
        self._handshakes: ConnectionSet[TlsConnection] = ConnectionSet()
        self._handshakes.on_changed = self._on_handshake
        self._handshakes.on_left = self._leave
        self._make_protocol = make_protocol
        if tls is not None:
            self._make_protocol = self._encrypted(make_protocol, tls)
        # asyncio's own transports do not set TCP_NODELAY on accepted sockets.
        nodelay = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._options = [nodelay, *keepalive_options(socket)]
        self._opening: dict[asyncio.Task[Any], tuple[socket.socket, object]] = {}
        self.on_changed: Callable[[], None] | None = None  # called when `opening_count` has fallen
        # Called with the ticket of a client that has left before it had a protocol.
        self.on_left: Callable[[Any], None] | None = None

    @property
    def opening_count(self) -> int:
        """The number of clients that were accepted and have no protocol yet."""
        return len(self._opening) + len(self._handshakes)

    def _encrypted(
        self, make_protocol: Callable[[], asyncio.BaseProtocol], tls: TlsPort
    ) -> Callable[[], asyncio.BaseProtocol]:
        raw = memoryview(bytearray(RAW_BYTES))

        return lambda: TlsConnection(self._loop, tls, make_protocol, raw, self._handshakes)

    def _on_handshake(self) -> None:
        if self.on_changed is not None:
            self.on_changed()

    def take(self, sock: socket.socket, ticket: object = None) -> None:
        """Make a transport and a protocol for a client; a `ConnectionSet` returns its ticket."""
        try:
            sock.setblocking(False)
            for level, option, value in self._options:
                sock.setsockopt(level, option, value)
        except OSError:  # raised by macOS if the client has disconnected
            sock.close()
            self._leave(ticket)
            return
        make_protocol = self._make_protocol
        if ticket is not None:
            make_protocol = partial(self._make_counted, ticket)
        task = self._loop.create_task(self._loop.connect_accepted_socket(make_protocol, sock))
        self._opening[task] = (sock, ticket)
        task.add_done_callback(self._on_opened)

    def _make_counted(self, ticket: object) -> asyncio.BaseProtocol:
        protocol = self._make_protocol()
        protocol.client_ticket = ticket  # type: ignore[attr-defined]  # both protocols have it
        return protocol

    def _leave(self, ticket: object) -> None:
        if ticket is not None and self.on_left is not None:
            self.on_left(ticket)

    def abandon(self) -> None:
        """Disconnect clients that have no protocol yet, such as those in a TLS handshake."""
        for task in self._opening:
            task.cancel()
        for connection in list(self._handshakes):
            connection.abort()

    def _on_opened(self, task: asyncio.Task[Any]) -> None:
        sock, ticket = self._opening.pop(task)
        if self.on_changed is not None:
            self.on_changed()
        if task.cancelled():
            sock.close()
            self._leave(ticket)
            return
        error = task.exception()
        if error is None:
            return
        sock.close()
        self._leave(ticket)
        if isinstance(error, OSError):  # the client disconnected
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


class ConnectionSet(dict[ConnectionT, None]):
    """Open connections, oldest first; it calls `on_changed` after one was opened or closed."""

    on_changed: Callable[[], None] | None = None
    on_left: Callable[[Any], None] | None = None  # with the ticket of a client, if it has one

    def add(self, connection: ConnectionT) -> None:
        """Add a connection that was opened."""
        self[connection] = None
        if self.on_changed is not None:
            self.on_changed()

    def discard(self, connection: ConnectionT) -> None:
        """Remove a connection that was closed."""
        self.pop(connection, None)
        if self.on_left is not None:
            ticket = getattr(connection, "client_ticket", None)
            if ticket is not None:
                self.on_left(ticket)
        if self.on_changed is not None:
            self.on_changed()
