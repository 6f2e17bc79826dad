# SPDX-License-Identifier: Apache-2.0
"""Non-blocking connections to the server, plain or encrypted, and waiting for them.

Waiting uses epoll where it exists, else `selectors`.
"""

from __future__ import annotations

import select
import selectors
import socket
import ssl
from collections.abc import Callable
from typing import Any

from pytriton.client.kserve.address import Tls
from pytriton.tools.perf.errors import GeneratorError

CONNECT_TIMEOUT_S = 5.0
# A connection that has nothing to read or no room to write now.
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

Receive = Callable[[int], bytes]

WRITABLE = 4  # as epoll has it
_MAX_EVENTS = 256
_SHORT_S = 0.02  # a wait that has to be exact
Callback = Callable[[int], None]


class Dialer:
    """The way to a server.

    Args:
        host: Its host.
        port: Its port.
        tls: How connections are encrypted; None: they are not.
        protocols: What is offered with TLS, as `h2` for gRPC.
    """

    def __init__(self, host: str, port: int, tls: Tls | None, protocols: list[str]) -> None:
        self._host = host
        self._port = port
        self._context = None if tls is None else tls_context(tls, protocols)

    def open(self) -> socket.socket:
        """Connect, and make the connection one that does not block.

        Raises:
            OSError: it cannot be made.
        """
        plain = socket.create_connection((self._host, self._port), CONNECT_TIMEOUT_S)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened = plain
            if self._context is not None:
                opened = self._context.wrap_socket(plain, server_hostname=self._host)
            opened.setblocking(False)
        except BaseException:
            plain.close()
            raise
        return opened


def receiver(connection: socket.socket) -> Receive:
    """What reads from a connection; of an encrypted one, also what is decrypted already."""
    if not isinstance(connection, ssl.SSLSocket):
        return connection.recv
    encrypted = connection

    def receive(size: int) -> bytes:
        data = encrypted.recv(size)
        while encrypted.pending():  # the operating system would not say that this can be read
            data += encrypted.recv(size)
        return data

    return receive


def tls_context(tls: Tls, protocols: list[str]) -> ssl.SSLContext:
    """The settings of encrypted connections.

    Raises:
        GeneratorError: a file of the settings cannot be used.
    """
    if tls.key_file is not None and tls.key_type.upper() != "PEM":
        raise GeneratorError(f"expected a private key in PEM, got {tls.key_type}: {tls.key_file}")
    try:
        context = tls.context()
    except (OSError, ValueError) as error:
        files = (tls.ca_file, tls.certificate_file, tls.key_file)
        named = ", ".join(name for name in files if name)
        raise GeneratorError(f"expected certificates and keys in {named}: {error}") from error
    context.set_alpn_protocols(protocols)
    return context


class SocketPoller:
    """Calls back what has something to read, or wants to write and can."""

    def __init__(self) -> None:
        self.callbacks: dict[int, Callback] = {}
        self._epoll: Any = select.epoll() if hasattr(select, "epoll") else None
        self._selector = None if self._epoll is not None else selectors.DefaultSelector()

    def add(self, fd: int, callback: Callback) -> None:
        self.callbacks[fd] = callback
        if self._epoll is not None:
            self._epoll.register(fd, select.EPOLLIN)
        else:
            assert self._selector is not None
            self._selector.register(fd, selectors.EVENT_READ)

    def want_write(self, fd: int, *, wants: bool) -> None:
        """Say whether the callback is also wanted when the connection can be written."""
        if self._epoll is not None:
            self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wants else 0))
        else:
            assert self._selector is not None
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wants else 0)
            self._selector.modify(fd, events)

    def remove(self, fd: int) -> None:
        del self.callbacks[fd]
        if self._epoll is not None:
            self._epoll.unregister(fd)
        else:
            assert self._selector is not None
            self._selector.unregister(fd)

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        """Wait at most so long, maybe a little less; pairs of a connection and what it can do."""
        if self._epoll is None:
            return self._poll_selector(seconds)
        # epoll's own limit counts milliseconds and rounds up, which is too coarse for rates.
        if 0 < seconds < _SHORT_S:
            select.select([self._epoll.fileno()], [], [], seconds)
            seconds = 0
        elif seconds > 0:
            seconds -= _SHORT_S / 2  # the rest is a short one
        found: list[tuple[int, int]] = self._epoll.poll(seconds, _MAX_EVENTS)
        return found

    def _poll_selector(self, seconds: float) -> list[tuple[int, int]]:
        assert self._selector is not None
        return [
            (key.fd, WRITABLE if events & selectors.EVENT_WRITE else 0)
            for key, events in self._selector.select(seconds)
        ]

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
        if self._selector is not None:
            self._selector.close()
