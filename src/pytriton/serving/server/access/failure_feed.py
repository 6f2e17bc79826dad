# SPDX-License-Identifier: Apache-2.0
"""Tells other processes of the server about wrong credentials, so that all of them slow one down.

Clients come to any front end, and each decides by itself: to ask the core would make every new
credential wait for another process, and to give each front end a part of the limit would stop a
client with one connection after that part. So each counts what the others have seen as well, which
the core passes on. Tries one after the other count as in one process. Those that are sent at the
same time to several front ends pass as long as the news takes, about a millisecond; then all of
them have been counted, everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytriton.serving.server.access.throttle import address_group

if TYPE_CHECKING:
    import asyncio

    from pytriton.serving.server.access.control import AccessControl

# Between two messages: a flood of wrong credentials costs the core a hundred messages a second.
INTERVAL_S = 0.01


class FailureFeed:
    """Gathers the wrong credentials that one process has counted, by address.

    The first is passed on with the end of this iteration of the event loop, those that follow soon
    together.

    Args:
        loop: the event loop.
        control: counts them in this process.
        send: passes them on, as numbers by address.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        control: AccessControl,
        send: Callable[[dict[str, int]], None],
    ) -> None:
        self._loop = loop
        self._send = send
        self._counts: Counter[str] = Counter()
        self._is_due = False  # they are passed on soon
        self._timer: asyncio.TimerHandle | None = None
        self._control = control
        control.on_failure = self._on_failure

    def _on_failure(self, address: str) -> None:
        self._counts[address_group(address)] += 1
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        counts, self._counts = self._counts, Counter()
        self._is_due = bool(counts)
        if counts:
            self._timer = self._loop.call_later(INTERVAL_S, self._pass_on)
            self._send(dict(counts))

    def stop(self) -> None:
        """Pass on nothing more; this may be called twice."""
        self._control.on_failure = None
        if self._timer is not None:
            self._timer.cancel()
