# SPDX-License-Identifier: Apache-2.0
"""Ends the time in which requests are gathered for a batch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytriton.serving.engine.earliest_timer import EarliestTimer
from pytriton.serving.engine.start_policy import GATHER_NS

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Gathering:
    """Calls a function when requests were gathered for `GATHER_NS`.

    The timer of a gathering that ended earlier is kept and set again when it fires, so that there
    is one timer in a millisecond and not one for each batch.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._timer = EarliestTimer(loop, self._on_timer)
        self._until_ns = 0  # 0: nothing is gathered

    def begin(self) -> None:
        """Gather from now on, unless that has begun already."""
        if not self._until_ns:
            self._until_ns = time.monotonic_ns() + GATHER_NS
            self._timer.set(self._until_ns)

    def end(self) -> None:
        """Gather no more: a batch was started."""
        self._until_ns = 0

    def stop(self) -> None:
        """Stop the timer."""
        self._until_ns = 0
        self._timer.cancel()

    def _on_timer(self) -> None:
        if not self._until_ns:
            return
        if time.monotonic_ns() < self._until_ns:
            self._timer.set(self._until_ns)
        else:
            self._callback()

    def __repr__(self) -> str:
        return f"<Gathering until {self._until_ns}>"
