# SPDX-License-Identifier: Apache-2.0
"""Periodic checks for slow and for idle clients, with one timer for each kind of check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

CHECK_INTERVAL_S = 1.0
# An idle connection is closed after the timeout, or up to this fraction of it later.
CHECKS_PER_TIMEOUT = 10
MAX_IDLE_INTERVAL_S = 60.0


class Watched(Protocol):
    """A connection that waits for its client."""

    def check_progress(self, now: float) -> bool:
        """Close the connection if the client stalls; returns whether to continue checking."""


class MaybeIdle(Protocol):
    """A connection that may be idle."""

    def check_idle(self, now: float) -> None:
        """Close the connection if it was idle for too long."""


class ProgressWatch:
    """Checks connections once a second while there are any to check."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: set[Watched] = set()
        self._has_timer = False

    def add(self, connection: Watched) -> None:
        """Check a connection periodically until `check_progress` returns False."""
        self._watched.add(connection)
        if not self._has_timer:
            self._has_timer = True
            self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def discard(self, connection: Watched) -> None:
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
    """Checks all connections periodically, so that requests need not read the clock."""

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
        """Check the connections as long as there are any; never if the timeout is 0."""
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
