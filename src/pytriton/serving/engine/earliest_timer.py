# SPDX-License-Identifier: Apache-2.0
"""A timer that can be set several times and fires once, at the earliest of those times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class EarliestTimer:
    """Calls a function at the earliest of the times that it was set to, and never before it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._timer: asyncio.TimerHandle | None = None
        self._at_ns = 0

    def set(self, at_ns: int) -> None:
        """Fire at `at_ns` (of `time.monotonic_ns`), unless an earlier time is set already."""
        if self._timer is not None and not self._timer.cancelled():
            if self._at_ns <= at_ns:
                return
            self._timer.cancel()
        self._at_ns = at_ns
        delay_s = max(0, at_ns - time.monotonic_ns()) / 1e9
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def cancel(self) -> None:
        """Stop the timer; it can be set again."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        # The event loop's timers have a resolution of 1 ms and may fire up to 1 ms too early.
        if time.monotonic_ns() < self._at_ns:
            self.set(self._at_ns)
        else:
            self._callback()
