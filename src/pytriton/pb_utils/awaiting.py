# SPDX-License-Identifier: Apache-2.0
"""Futures of an event loop for calls of other models: no thread waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pytriton.pb_utils.runtime import InferenceCall

T = TypeVar("T")


def when_ready(call: InferenceCall, take: Callable[[InferenceCall], T]) -> asyncio.Future[T]:
    """What `take` makes of a call once `receive` does not wait; cancelled, it gives the call up."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def finish() -> None:
        if result.done():
            return
        try:
            result.set_result(take(call))
        except Exception as error:  # noqa: BLE001  whoever awaits it gets it
            result.set_exception(error)

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:  # the loop was closed, and nobody awaits anything
            call.abandon()

    def give_up_if_cancelled(_: asyncio.Future[T]) -> None:
        if result.cancelled():
            call.cancel()
            call.abandon()

    result.add_done_callback(give_up_if_cancelled)
    call.notify(wake)
    return result
