# SPDX-License-Identifier: Apache-2.0
"""The responses of a model that was called with `decoupled=True`, for threads and event loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pytriton.base.lazy_module import LazyModule
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.runtime import InferenceCall

if TYPE_CHECKING:
    import asyncio
else:  # whoever waits in an event loop has imported it; it takes 3 MiB of each worker
    asyncio = LazyModule("asyncio")

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


class ResponseIterator:
    """Iterates over responses as they arrive; from `InferenceRequest.exec(decoupled=True)`.

    A `for` loop continues where the last one stopped. After the last response, the next loop begins
    with the first one again. In a coroutine, `async for` does the same without blocking the event
    loop. Cancelling a task that waits for a response cancels the call.
    """

    def __init__(self, call: InferenceCall) -> None:
        self._call = call
        self._responses: list[InferenceResponse] = []
        self._position = 0
        self._is_complete = False  # all responses were received
        self._fetch()

    def __iter__(self) -> ResponseIterator:
        if self._is_complete and self._position == len(self._responses):
            self._position = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._position == len(self._responses) and not self._is_complete:
            self._fetch()
        if self._position == len(self._responses):
            raise StopIteration("Iteration is done for the responses.")
        return self._next_response()

    def __aiter__(self) -> ResponseIterator:
        return self.__iter__()

    async def __anext__(self) -> InferenceResponse:
        if self._position == len(self._responses) and not self._is_complete:
            await when_ready(self._call, lambda _: self._fetch())
        if self._position == len(self._responses):
            raise StopAsyncIteration
        return self._next_response()

    def cancel(self) -> None:
        """Ask the called model to stop, which it may ignore; no effect after the last response."""
        if not self._is_complete:
            self._call.cancel()

    def __del__(self) -> None:
        # The remaining responses are received and dropped: the called model runs to its end.
        if not getattr(self, "_is_complete", True):
            self._call.abandon()

    def _next_response(self) -> InferenceResponse:
        response = self._responses[self._position]
        self._position += 1
        return response

    def _fetch(self) -> None:
        response = self._call.receive()
        if response is not None:
            self._responses.append(response)
        self._is_complete = response is None or self._call.is_over
