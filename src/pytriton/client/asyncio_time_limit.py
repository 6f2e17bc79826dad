# SPDX-License-Identifier: Apache-2.0
"""A time limit for what an asyncio task does, which never loses a cancellation of the task.

`asyncio.wait_for` does, before Python 3.12: a task that is cancelled in the very moment in which
what it waits for is there goes on as if nothing had been said. `asyncio.timeout` came with 3.11.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any


class AsyncioTimeLimit:
    """Holds inside of a block, which ends with `asyncio.TimeoutError` when the time is up.

    Args:
        limit_s: time allowed.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._is_over = False

    def __enter__(self) -> None:
        self._task: Any = asyncio.current_task()
        self._cancelled_before = _count(self._task, "cancelling")
        self._alarm = asyncio.get_running_loop().call_later(self._limit_s, self._end)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._alarm.cancel()
        if not self._is_over:
            return
        cancelled = _count(self._task, "uncancel")
        if kind is asyncio.CancelledError and cancelled <= self._cancelled_before:
            raise asyncio.TimeoutError from error

    def _end(self) -> None:
        self._is_over = True
        self._task.cancel()


def _count(task: Any, method: str) -> int:
    """How often a task was cancelled, as its method says; 0 in Python 3.10, which has none."""
    count = getattr(task, method, None)
    return 0 if count is None else count()
