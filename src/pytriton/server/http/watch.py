# SPDX-License-Identifier: Apache-2.0
"""Looking after slow clients: how slow one is, and one timer for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

CHECK_INTERVAL_S = 1.0
# A client that is slower counts as standing still: one byte now and then is no progress.
MIN_BYTES_PER_S = 256


class Watched(Protocol):
    """A connection whose client has to do something."""

    def check_progress(self, now: float) -> bool:
        """Whether to go on watching; ends the connection of a client that stands still."""


class Pace:
    """Since when a client has been slower than it may be."""

    __slots__ = ("_bytes", "_since")

    def __init__(self) -> None:
        self._bytes = 0
        self._since = 0.0

    def restart(self, now: float) -> None:
        """Begin to count."""
        self._bytes = 0
        self._since = now

    def advance(self, nbytes: int, now: float) -> None:
        """So many more bytes were moved."""
        self._bytes += nbytes
        if nbytes and self._bytes >= MIN_BYTES_PER_S * (now - self._since):
            self.restart(now)

    def stalled_s(self, now: float) -> float:
        """For how long it has been too slow."""
        return now - self._since


class ProgressWatch:
    """Checks connections once a second while there are any to check."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: set[Watched] = set()
        self._has_timer = False

    def add(self, connection: Watched) -> None:
        """Look after a connection until it says that its client has caught up."""
        self._watched.add(connection)
        if not self._has_timer:
            self._has_timer = True
            self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def discard(self, connection: Watched) -> None:
        """Forget a connection."""
        self._watched.discard(connection)

    def __len__(self) -> int:
        return len(self._watched)

    def _check(self) -> None:
        now = self._loop.time()
        for connection in list(self._watched):
            if not connection.check_progress(now):
                self._watched.discard(connection)
        self._has_timer = bool(self._watched)
        if self._has_timer:
            self._loop.call_later(CHECK_INTERVAL_S, self._check)
