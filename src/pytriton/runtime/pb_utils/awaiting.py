# SPDX-License-Identifier: Apache-2.0
"""Event loop futures for calls of other models; no thread waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pytriton.runtime.pb_utils.runtime import InferenceCall

T = TypeVar("T")


def when_ready(call: InferenceCall, read: Callable[[InferenceCall], T]) -> asyncio.Future[T]:
    """Returns a future for `read(call)`, which is called once `receive` would not wait.

    Cancelling the future cancels the call.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def finish() -> None:
        if result.done():
            return
        try:
            result.set_result(read(call))
        except Exception as error:  # noqa: BLE001  raised where the future is awaited
            result.set_exception(error)

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:  # the loop was closed, so nothing awaits the result
            call.abandon()

    def cancel_call_if_cancelled(_: asyncio.Future[T]) -> None:
        if result.cancelled():
            call.cancel()
            call.abandon()

    result.add_done_callback(cancel_call_if_cancelled)
    call.notify(wake)
    return result
