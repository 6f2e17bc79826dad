# SPDX-License-Identifier: Apache-2.0
"""Background tasks, which are referenced until they end, and ways to await other work."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundTasks:
    """Keeps tasks alive: the event loop itself holds them only weakly."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task; it has to handle its own exceptions."""
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
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


def take_error(task: asyncio.Future[Any]) -> None:
    """Mark the exception of a task as retrieved: nobody may wait for it, and that is no mistake."""
    if not task.cancelled():
        task.exception()


async def run_beside(work: Callable[[], object]) -> None:
    """Run what waits in a thread, or here if the system has none left.

    It is for the end of a server, when nobody but signals needs the event loop.
    """
    try:
        running = asyncio.get_running_loop().run_in_executor(None, work)
    except RuntimeError:  # as `threading` reports it
        work()
    else:
        await running


async def within(timeout_s: float, work: Awaitable[T]) -> T:
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


async def _within(timeout_s: float, work: Awaitable[T]) -> T:
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


async def call_driver(function: Callable[[], T]) -> T:
    """Returns what a function returns, or raises what it raises.

    `asyncio.to_thread` has other threads: the interpreter waits for them when it exits.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if answer.done():  # nobody waits any more
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]  # it is the function's

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:  # noqa: BLE001  it is passed on
            error = raised
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name="driver", daemon=True).start()
    return await answer
