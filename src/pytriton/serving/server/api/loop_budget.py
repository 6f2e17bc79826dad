# SPDX-License-Identifier: Apache-2.0
"""Limits how much work of some milliseconds one iteration of the event loop does.

One such piece of work delays nobody, but many connections may each have one at the same time. The
loop then does a part of them in each iteration, and answers other clients in between.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

# Less JSON than this is handled at once: to wait would cost more than it saves.
MEDIUM_BYTES = 16 << 10
BUDGET_S = 0.02  # per iteration; the last piece of work may exceed it


class LoopBudget:
    """Runs pieces of work in the order of the calls, a few in each iteration of the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()
        self._is_counting = False  # work was done in this iteration, which began at `_since`
        self._since = 0.0

    def is_free(self) -> bool:
        """Returns whether the caller may do its work now, in this iteration."""
        if self._is_counting:
            return not self._waiting and self._clock() - self._since < BUDGET_S
        self._begin()
        return True

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do the work in a later iteration; returns or raises what it does."""
        future: asyncio.Future[Result] = self._loop.create_future()
        self._waiting.append((future, work))
        if not self._is_counting:
            self._begin()
        return await future

    def _begin(self) -> None:
        self._is_counting = True
        self._since = self._clock()
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        """Do waiting work until the budget of this iteration is spent."""
        self._is_counting = False
        if not self._waiting:
            return
        self._begin()
        while self._waiting and self._clock() - self._since < BUDGET_S:
            future, work = self._waiting.popleft()
            if future.done():  # its client has disconnected
                continue
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001  it is raised where the result is awaited
                future.set_exception(error)

    def __repr__(self) -> str:
        return f"<LoopBudget {len(self._waiting)} waiting>"
