# SPDX-License-Identifier: Apache-2.0
"""What connections may use that have not proved a token: places, and lines of the log."""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

MAX_STRANGERS = 64
_LINE_INTERVAL_S = 1.0


class Strangers:
    """Connections that have said nothing that proves who they are.

    If there are too many, the oldest has to go. A worker proves itself within milliseconds, so that
    it gets in however many connections others open and keep silent.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sockets: dict[socket.socket, None] = {}  # a set that keeps their order
        self._next_line_s = 0.0
        self._unsaid = 0

    def __len__(self) -> int:
        return len(self._sockets)

    def add(self, sock: socket.socket) -> None:
        """Take a new connection; who reads from the oldest one may find that it has ended."""
        if len(self._sockets) >= MAX_STRANGERS:
            oldest = next(iter(self._sockets))
            del self._sockets[oldest]
            with contextlib.suppress(OSError):  # the other end has closed it
                oldest.shutdown(socket.SHUT_RDWR)
        self._sockets[sock] = None

    def remove(self, sock: socket.socket) -> None:
        """Forget a connection that is known now, or closed."""
        self._sockets.pop(sock, None)

    def warn(self, text: str) -> None:
        """Log what is wrong with a stranger; a flood of them must not become one of lines."""
        now_s = self._clock()
        if now_s < self._next_line_s:
            self._unsaid += 1
            return
        more = f" (and {self._unsaid} others before)" if self._unsaid else ""
        logger.warning("%s%s", text, more)
        self._unsaid = 0
        self._next_line_s = now_s + _LINE_INTERVAL_S

    def __repr__(self) -> str:
        return f"<Strangers {len(self)}>"
