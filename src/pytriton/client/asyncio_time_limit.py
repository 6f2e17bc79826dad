# SPDX-License-Identifier: Apache-2.0
"""A timeout for a block of code in an asyncio task, which never loses a cancellation of the task.

Before Python 3.12, `asyncio.wait_for` loses the cancellation of a task if the result arrives at the
same moment. `asyncio.timeout` exists only from Python 3.11 on.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any


class AsyncioTimeLimit:
    """Ends the `with` block with `asyncio.TimeoutError` after the timeout.

    Args:
        limit_s: the timeout.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._has_expired = False

    def __enter__(self) -> None:
        self._task: Any = asyncio.current_task()
        self._cancelled_before = _count(self._task, "cancelling")
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._end)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        if not self._has_expired:
            return
        cancelled = _count(self._task, "uncancel")
        if kind is asyncio.CancelledError and cancelled <= self._cancelled_before:
            raise asyncio.TimeoutError from error

    def _end(self) -> None:
        self._has_expired = True
        self._task.cancel()


def _count(task: Any, method: str) -> int:
    """Calls a method that returns the number of cancellations; 0 in Python 3.10, which has none."""
    count = getattr(task, method, None)
    return 0 if count is None else count()
