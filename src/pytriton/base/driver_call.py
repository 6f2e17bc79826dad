# SPDX-License-Identifier: Apache-2.0
"""Calls of drivers and other libraries that may never return, from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
