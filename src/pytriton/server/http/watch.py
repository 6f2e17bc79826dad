# SPDX-License-Identifier: Apache-2.0
"""Looking after slow and idle clients, with one timer each for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

CHECK_INTERVAL_S = 1.0
# An idle connection is ended after the timeout, and at most one of these parts of it later.
CHECKS_PER_TIMEOUT = 10
MAX_IDLE_INTERVAL_S = 60.0


class Watched(Protocol):
    """A connection whose client has to do something."""

    def check_progress(self, now: float) -> bool:
        """Whether to go on watching; ends the connection of a client that stands still."""


class MaybeIdle(Protocol):
    """A connection that may have nothing to do."""

    def check_idle(self, now: float) -> None:
        """End the connection if it was idle for too long."""


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


class IdleWatch:
    """Looks at all connections every now and then, so that requests need not look at the clock."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connections: Collection[MaybeIdle],
        timeout_s: float,
    ) -> None:
        self._loop = loop
        self._connections = connections
        self._interval_s = min(timeout_s / CHECKS_PER_TIMEOUT, MAX_IDLE_INTERVAL_S)
        self._has_timer = False

    def start(self) -> None:
        """Look at the connections as long as there are any; a timeout of 0 means never."""
        if not self._has_timer and self._interval_s:
            self._has_timer = True
            self._loop.call_later(self._interval_s, self._check)

    def _check(self) -> None:
        self._has_timer = False
        now = self._loop.time()
        for connection in list(self._connections):
            connection.check_idle(now)
        if self._connections:
            self.start()
