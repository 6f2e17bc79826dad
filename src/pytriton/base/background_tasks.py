# SPDX-License-Identifier: Apache-2.0
"""Background tasks, which are referenced until they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Coroutine, Iterator
from typing import Any


class BackgroundTasks:
    """Keeps tasks alive: the event loop itself holds them only weakly."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task; it has to handle its own exceptions."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancel all running tasks."""
        for task in self._tasks:
            task.cancel()

    async def wait(self) -> None:
        """Wait until all tasks that are running now have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(list(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"<BackgroundTasks {len(self._tasks)} running>"


async def wait_through(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Wait until tasks have ended, also if the caller is cancelled meanwhile.

    It is for callers that were cancelled, and have to know what became of the tasks.
    """
    while not all(task.done() for task in tasks):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)
