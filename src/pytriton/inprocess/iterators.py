# SPDX-License-Identifier: Apache-2.0
"""Iterators over the responses of one request, for threads and for event loops."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from pytriton.inprocess.errors import InvalidArgumentError
from pytriton.inprocess.interrupts import without_interrupts

if TYPE_CHECKING:
    from typing import Any

    from pytriton.inprocess.request import InferenceResponse
    from pytriton.inprocess.responses import InprocessExchange

_AT_THE_SAME_TIME = "cannot call GetNextResponse concurrently: another thread or task waits for it"


def _raise_error_of(response: InferenceResponse) -> None:
    if response.error is not None:
        response.error.args = (*response.error.args[:1], response)
        raise response.error


class ResponseIterator(Iterator["InferenceResponse"]):
    """Yields the responses of a request, up to the final one. `Model.infer` returns it.

    If responses are errors, they are raised, unless the caller wants it otherwise; the second of
    the error's `args` is the response.
    """

    def __init__(
        self, exchange: InprocessExchange, *, raises: bool, response_queue: Any | None = None
    ) -> None:
        self._exchange = exchange
        self._raises = raises
        self._is_over = False
        self._turn = threading.Lock()
        self._fetched: queue.SimpleQueue[InferenceResponse] | None = None
        if response_queue is not None:
            self._fetched = queue.SimpleQueue()
            fetching = threading.Thread(
                target=_fetch_all, args=(exchange, response_queue, self._fetched), daemon=True
            )
            fetching.start()

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        if self._is_over:
            raise StopIteration
        if not self._turn.acquire(blocking=False):
            raise InvalidArgumentError(_AT_THE_SAME_TIME)
        try:
            if self._fetched is None:
                response = self._exchange.take(waits=True)
            else:
                response = self._fetched.get()
            self._is_over = response.final
        finally:
            self._turn.release()
        if self._raises:
            _raise_error_of(response)
        return response

    def cancel(self) -> None:
        """Ask to end the request soon: one that waits ends with an error, a running model decides.

        The last response comes in any case. Nothing happens if it has come.
        """
        self._exchange.cancel()

    def __del__(self) -> None:
        if not self._is_over and self._fetched is None:
            _discard(self._exchange)


def _discard(exchange: InprocessExchange) -> None:
    """Discard a request whose iterator is freed.

    Python drops what a signal handler raises meanwhile, and a paused model would wait for ever.
    """
    without_interrupts(_do_nothing, exchange.discard)


def _do_nothing() -> None:
    """Let the function go on: it takes some microseconds."""


def _fetch_all(exchange: InprocessExchange, *queues: Any) -> None:
    """Put every response into queues; they decide how many wait there."""
    is_over = False
    while not is_over:
        response = exchange.take(waits=True)
        is_over = response.final
        for each in queues:
            each.put(response)


class AsyncResponseIterator(AsyncIterator["InferenceResponse"]):
    """Yields the responses of a request to a coroutine. `Model.async_infer` returns it.

    It may be used by any event loop, one task at a time. If responses are errors, they are raised,
    unless the caller wants it otherwise; the second of the error's `args` is the response.
    """

    def __init__(
        self, exchange: InprocessExchange, *, raises: bool, response_queue: Any | None = None
    ) -> None:
        self._exchange = exchange
        self._raises = raises
        self._is_over = False
        self._is_waiting = False
        self._waiter: asyncio.Future[None] | None = None
        self._fetched: asyncio.Queue[InferenceResponse] | None = None
        if response_queue is None:
            exchange.on_arrival = functools.partial(_wake, weakref.ref(self))
        else:
            exchange.on_arrival = self._wake  # nobody else may refer to this iterator
            self._fetched = asyncio.Queue()
            self._fetching = asyncio.ensure_future(self._fetch_all(response_queue, self._fetched))

    def __aiter__(self) -> AsyncResponseIterator:
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._is_over:
            raise StopAsyncIteration
        if self._is_waiting:
            raise InvalidArgumentError(_AT_THE_SAME_TIME)
        self._is_waiting = True
        try:
            if self._fetched is None:
                response = await self._take()
            else:
                response = await self._fetched.get()
            self._is_over = response.final
        finally:
            self._is_waiting = False
        if self._raises:
            _raise_error_of(response)
        return response

    def cancel(self) -> None:
        """Ask to end the request soon: one that waits ends with an error, a running model decides.

        The last response comes in any case. Nothing happens if it has come.
        """
        self._exchange.cancel()

    def __del__(self) -> None:
        if not self._is_over and self._fetched is None:
            _discard(self._exchange)

    async def _take(self) -> InferenceResponse:
        loop = asyncio.get_running_loop()
        while True:
            # Before looking, so that a response that comes meanwhile wakes it.
            self._waiter = waiter = loop.create_future()
            try:
                return self._exchange.take(waits=False)
            except queue.Empty:
                await waiter
            finally:
                self._waiter = None

    def _wake(self) -> None:
        """Wake the task that waits; called on the engine's thread."""
        waiter = self._waiter
        if waiter is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                waiter.get_loop().call_soon_threadsafe(_set, waiter)

    async def _fetch_all(self, *queues: asyncio.Queue[InferenceResponse]) -> None:
        is_over = False
        while not is_over:
            response = await self._take()
            is_over = response.final
            for each in queues:
                await each.put(response)
        self._exchange.on_arrival = None


def _wake(reference: weakref.ref[AsyncResponseIterator]) -> None:
    iterator = reference()
    if iterator is not None:
        iterator._wake()  # noqa: SLF001  a part of it


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
