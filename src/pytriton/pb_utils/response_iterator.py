# SPDX-License-Identifier: Apache-2.0
"""The responses of a model that was called with `decoupled=True`."""

from __future__ import annotations

from pytriton.pb_utils.awaiting import when_ready
from pytriton.pb_utils.response import InferenceResponse
from pytriton.pb_utils.runtime import InferenceCall


class ResponseIterator:
    """Responses as they come, from `InferenceRequest.exec(decoupled=True)`.

    A `for` loop goes on where the last one stopped. Once all responses were seen, the next loop
    begins with the first one again. In a coroutine, `async for` does the same and lets the event
    loop run while it waits; a task that is cancelled meanwhile cancels the call.
    """

    def __init__(self, call: InferenceCall) -> None:
        self._call = call
        self._responses: list[InferenceResponse] = []
        self._position = 0
        self._is_complete = False  # all responses are here
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
        return self._take()

    def __aiter__(self) -> ResponseIterator:
        return self.__iter__()

    async def __anext__(self) -> InferenceResponse:
        if self._position == len(self._responses) and not self._is_complete:
            await when_ready(self._call, lambda _: self._fetch())
        if self._position == len(self._responses):
            raise StopAsyncIteration
        return self._take()

    def cancel(self) -> None:
        """Ask the called model to stop; it decides. Does nothing once all responses came."""
        if not self._is_complete:
            self._call.cancel()

    def __del__(self) -> None:
        # The rest is let through unread: the called model finishes what it was asked for.
        if not getattr(self, "_is_complete", True):
            self._call.abandon()

    def _take(self) -> InferenceResponse:
        response = self._responses[self._position]
        self._position += 1
        return response

    def _fetch(self) -> None:
        response = self._call.receive()
        if response is not None:
            self._responses.append(response)
        self._is_complete = response is None or self._call.is_over
