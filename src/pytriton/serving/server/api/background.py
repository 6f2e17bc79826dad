# SPDX-License-Identifier: Apache-2.0
"""Work whose cost depends on the client: threads for long work, a budget of the loop for the rest.

A thread helps only if its function releases the interpreter lock, or works in short pieces: zlib
does, numpy mostly does, JSON parsers and `bytes.join` do not. Threads are few, so that memory stays
bounded. Work of some milliseconds stays on the event loop, which does a part of it in each
iteration and answers other clients in between.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from pytriton.base.errors import UnavailableError

Result = TypeVar("Result")

# JSON bodies and compressed data larger than this are not handled on the event loop; this size
# takes 20 ms in the worst case.
SMALL_BYTES = 256 << 10
WORKERS = 2  # of each kind


class Background:
    """Runs functions in threads, in the order of the calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, workers: int = WORKERS) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=name)

    async def run(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Returns or raises what the function does; if cancelled while waiting, it never runs.

        Raises:
            UnavailableError: The system has no thread for it.
        """
        result: Future[Result] = Future()
        waiting = [partial(function, *arguments)]

        def work() -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                result.set_result(waiting.pop()())
            except BaseException as error:  # noqa: BLE001  the caller gets it
                result.set_exception(error)

        try:
            submitted = self._threads.submit(work)
        except RuntimeError as error:
            # The pool keeps `work`, and a thread that works on another may have taken it.
            if result.cancel():
                waiting.clear()  # else its tensors stay until a thread can be started
                raise UnavailableError(
                    f"the server has no thread for a large request: {error}"
                ) from error
        else:
            submitted.add_done_callback(lambda done: done.cancelled() and result.cancel())
        return await asyncio.wrap_future(result, loop=self._loop)

    def close(self) -> None:
        """Drop waiting functions. Running ones finish, and their results are discarded."""
        self._threads.shutdown(wait=False, cancel_futures=True)


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
