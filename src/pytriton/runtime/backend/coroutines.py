# SPDX-License-Identifier: Apache-2.0
"""The thread of a process on which the coroutines of its model run."""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pytriton.base.lazy_module import LazyModule

if TYPE_CHECKING:
    import asyncio

    from pytriton.base import background_tasks
else:  # most models have no coroutines, and asyncio takes 3 MiB of each worker
    asyncio = LazyModule("asyncio")
    background_tasks = LazyModule("pytriton.base.background_tasks")

_POOL_THREADS = 64  # for functions that coroutines pass to `run_in_executor`
_STOP_DEADLINE_S = 5.0

P = ParamSpec("P")
T = TypeVar("T")


class CoroutineThread:
    """Runs coroutines concurrently; the thread starts with the first one and runs until `stop`."""

    def __init__(self, on_start: Callable[[int], None]) -> None:
        self.is_stopped = False
        self._on_start = on_start  # called with the thread's id
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: background_tasks.BackgroundTasks | None = None

    def submit(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine without waiting; it must handle its own exceptions."""
        self._started_loop().call_soon_threadsafe(self._start, coroutine)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started_loop()).result()

    def stop(self) -> None:
        """Cancel running coroutines and end the thread, unless a coroutine blocks it."""
        self.is_stopped = True
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._cancel_tasks(), self._loop)
        self._thread.join(_STOP_DEADLINE_S)

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._tasks = background_tasks.BackgroundTasks(self._loop)
                self._loop.set_default_executor(
                    _ContextPool(_POOL_THREADS, thread_name_prefix="pytriton-pool")
                )
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="pytriton-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        self._on_start(threading.get_ident())
        loop.run_forever()
        loop.close()

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        assert self._tasks is not None
        self._tasks.start(coroutine)

    async def _cancel_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        asyncio.get_running_loop().stop()


class _ContextPool(ThreadPoolExecutor):
    """Threads that inherit the context of the submitting task, and with it the current batch."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        context = contextvars.copy_context()
        work = functools.partial(fn, *args, **kwargs)
        return super().submit(lambda: context.run(work))
