# SPDX-License-Identifier: Apache-2.0
"""Looking after slow clients: one timer for all of them. How slow one is, `Pace` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

CHECK_INTERVAL_S = 1.0


class Watched(Protocol):
    """A connection whose client has to do something."""

    def check_progress(self, now: float) -> bool:
        """Whether to go on watching; ends the connection of a client that stands still."""


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
