# SPDX-License-Identifier: Apache-2.0
"""The responses of one request, from the engine's thread to the iterators that callers read.

A decoupled model is paused while its caller has many responses to fetch, so the memory that they
take is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pytriton.base.errors import ServerError
from pytriton.inprocess.errors import (
    InvalidArgumentError,
    TritonError,
    UnavailableError,
    public_error,
)
from pytriton.inprocess.interrupts import without_interrupts
from pytriton.inprocess.request import InferenceResponse
from pytriton.inprocess.tensor import output_tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pytriton.base.messages import InferResponse
    from pytriton.inprocess.engine_thread import EngineThread
    from pytriton.inprocess.model import Model
    from pytriton.runtime.executor.inference import Inference

_MOST_WAITING = 16  # unfetched responses; then the model is paused
_FEW_WAITING = 4  # then it continues


class Arrival(NamedTuple):
    """A response or an error of the engine."""

    response: InferResponse | None
    error: ServerError | None
    is_final: bool


class InprocessExchange:
    """The sink of one request, and what its caller does with the request.

    Args:
        engine: The engine.
        model: The model, as the caller knows it.
        request_id: The id of the request.
        memory: The memory that outputs are wanted in; see `InferenceRequest`.
    """

    __slots__ = (
        "_engine",
        "_is_discarded",
        "_is_paused",
        "_memory",
        "_model",
        "_request_id",
        "arrivals",
        "inference",
        "is_awaited",
        "on_arrival",
    )

    def __init__(
        self, engine: EngineThread, model: Model, request_id: str | None, memory: Any
    ) -> None:
        self._engine = engine
        self._model = model
        self._request_id = request_id
        self._memory = memory
        self._is_paused = False
        self._is_discarded = False
        self.is_awaited: bool = False  # its caller runs the engine's loop until something comes
        self.inference: Inference | None = None
        self.arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self.on_arrival: Callable[[], None] | None = None  # called on the engine's thread

    # ResponseSink, on the engine's thread

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """See `ResponseSink`."""
        self._arrive(Arrival(response, None, final))

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """See `ResponseSink`."""
        self._arrive(Arrival(None, error, final))

    def on_refused(self, error: ServerError) -> None:
        """See `ResponseSink`."""
        self._arrive(Arrival(None, error, True))

    def _arrive(self, arrival: Arrival) -> None:
        if arrival.is_final:  # before the caller has it, who may send the next request at once
            self.inference = None  # they refer to each other, which would keep large tensors
            self._is_paused = False
            self._engine.end_request()
        if not self._is_discarded:
            self.arrivals.put(arrival)
        if not arrival.is_final and self.arrivals.qsize() >= _MOST_WAITING and not self._is_paused:
            self._is_paused = True
            if self.inference is not None:
                self.inference.pause()
            if self.arrivals.qsize() <= _FEW_WAITING:  # the caller did not see that it is paused
                self._resume()
        on_arrival = self.on_arrival  # the caller's thread forgets it with the last response
        if self.is_awaited:
            self._engine.shared_loop.interrupt()
        elif on_arrival is not None:
            on_arrival()

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if self.inference is not None:
                self.inference.resume()

    def _cancel(self) -> None:
        if self.inference is not None:
            self.inference.cancel()

    def _discard(self) -> None:
        self._is_discarded = True
        while not self.arrivals.empty():
            self.arrivals.get()
        self._resume()

    # On the caller's thread

    def take(self, *, waits: bool) -> InferenceResponse:
        """Returns the next response.

        Raises:
            queue.Empty: There is none, and `waits` is False.
            UnavailableError: This is a forked child of the process that sent the request.
        """
        if self._engine.is_inherited:
            raise UnavailableError(
                "the request belongs to the process that this one was forked from"
            )
        arrivals = self.arrivals
        shared_loop = self._engine.shared_loop
        if waits and arrivals.empty():
            self.is_awaited = True
            try:
                shared_loop.run_until(self._has_come)
            finally:
                self.is_awaited = False
        arrival = arrivals.get(block=waits)
        if waits and arrival.is_final:
            shared_loop.park_soon()
        if self._is_paused and self.arrivals.qsize() <= _FEW_WAITING:
            with contextlib.suppress(ServerError):  # the server has stopped
                self._engine.post(self._resume)
        try:
            return self._public(arrival)
        except TritonError as error:  # the outputs cannot be where the caller wants them
            return InferenceResponse(
                self._model, self._request_id, error=error, final=arrival.is_final
            )

    def _has_come(self) -> bool:
        return not self.arrivals.empty()

    def cancel(self) -> None:
        """Cancel the request, which then ends with an error, if it is not over."""
        if not self._engine.is_inherited:
            with contextlib.suppress(ServerError):  # the server has stopped
                self._engine.post(self._cancel)

    def discard(self) -> None:
        """Let the request go on without its caller: nobody will fetch the responses to come."""
        if not self._engine.is_inherited:
            with contextlib.suppress(ServerError):  # the server has stopped
                self._engine.post(self._discard)

    def _public(self, arrival: Arrival) -> InferenceResponse:
        response = arrival.response
        if response is None:
            return InferenceResponse(
                self._model,
                self._request_id,
                error=None if arrival.error is None else public_error(arrival.error),
                final=arrival.is_final,
            )
        outputs = {output.name: output_tensor(output) for output in response.outputs}
        if self._memory is not None:
            outputs = {name: tensor.to_device(self._memory) for name, tensor in outputs.items()}
        return InferenceResponse(
            self._model.answered_by(response.model_name, response.model_version),
            response.id or self._request_id,
            dict(response.parameters or ()),
            outputs,
            final=arrival.is_final,
        )


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
    without_interrupts(None, exchange.discard)


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
            exchange.on_arrival = self._wake  # the program may drop its reference to this iterator
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
