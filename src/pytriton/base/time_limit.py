# SPDX-License-Identifier: Apache-2.0
"""A time limit for something that is awaited."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


async def within(timeout_s: float, work: Awaitable[_T]) -> _T:
    """Await something that is cancelled after `timeout_s`.

    `asyncio.wait_for` of Python 3.10 and 3.11 runs it in a task of its own. If this task has ended
    and the caller is cancelled before it hears of that, it goes on as if it were not.

    Raises:
        asyncio.TimeoutError: It was cancelled, as it took longer.
    """
    if sys.version_info >= (3, 11):
        async with asyncio.timeout(timeout_s):
            return await work
    return await _within(timeout_s, work)


async def _within(timeout_s: float, work: Awaitable[_T]) -> _T:
    """Do it as Python 3.10 can: a cancellation that comes after the time is taken for its end."""
    task = asyncio.current_task()
    assert task is not None, "it is awaited by a task"
    is_late = False

    def end() -> None:
        nonlocal is_late
        is_late = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(timeout_s, end)
    try:
        return await work
    except asyncio.CancelledError:
        if is_late:
            raise asyncio.TimeoutError from None
        raise
    finally:
        timer.cancel()
