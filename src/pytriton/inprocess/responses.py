# SPDX-License-Identifier: Apache-2.0
"""The responses of one request on their way from the engine's thread to the caller.

A decoupled model is paused while its caller has many responses to fetch, so the memory that they
take is bounded.
"""

from __future__ import annotations

import contextlib
import queue
from typing import TYPE_CHECKING, NamedTuple

from pytriton.base.errors import ServerError
from pytriton.inprocess.errors import TritonError, UnavailableError, public_error
from pytriton.inprocess.request import InferenceResponse
from pytriton.inprocess.tensor import output_tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pytriton.base.messages import InferResponse
    from pytriton.inprocess.engine_thread import EngineThread
    from pytriton.inprocess.model import Model
    from pytriton.runtime.executor.inference import Inference

_MOST_WAITING = 16  # responses that nobody has fetched; then the model is paused
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
        if not self._is_discarded:
            self.arrivals.put(arrival)
        if arrival.is_final:
            self.inference = None  # they refer to each other, which would keep large tensors
            self._is_paused = False
            self._engine.end_request()
        elif self.arrivals.qsize() >= _MOST_WAITING and not self._is_paused:
            self._is_paused = True
            if self.inference is not None:
                self.inference.pause()
            if self.arrivals.qsize() <= _FEW_WAITING:  # the caller did not see that it is paused
                self._resume()
        if self.is_awaited:
            self._engine.shared_loop.interrupt()
        elif self.on_arrival is not None:
            self.on_arrival()

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
