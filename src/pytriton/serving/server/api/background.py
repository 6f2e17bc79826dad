# SPDX-License-Identifier: Apache-2.0
"""Threads for work whose cost depends on the client: few at once, so that memory stays bounded.

A thread helps only if its function releases the interpreter lock, or works in short pieces: zlib
does, numpy mostly does, JSON parsers and `bytes.join` do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

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

        def work() -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                result.set_result(function(*arguments))
            except BaseException as error:  # noqa: BLE001  the caller gets it
                result.set_exception(error)

        try:
            submitted = self._threads.submit(work)
        except RuntimeError as error:
            # The pool keeps the function, and a thread that works on another may have taken it.
            if result.cancel():
                raise UnavailableError(
                    f"the server has no thread for a large request: {error}"
                ) from error
        else:
            submitted.add_done_callback(lambda done: done.cancelled() and result.cancel())
        return await asyncio.wrap_future(result, loop=self._loop)

    def close(self) -> None:
        """Drop waiting functions. Running ones finish, and their results are discarded."""
        self._threads.shutdown(wait=False, cancel_futures=True)
