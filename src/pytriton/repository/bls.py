# SPDX-License-Identifier: Apache-2.0
"""Inference that a model asks another one for ("business logic scripting").

A call is refused with the texts that Triton's Python backend has for it. Once the engine has taken
it, what the called model answers is passed on as it is, errors with their codes.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

from pytriton.errors import CancelledError, InternalError, InvalidArgumentError, ServerError
from pytriton.executor.base import Instance
from pytriton.messages import InferRequest
from pytriton.repository.deadlock import WaitGraph

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.engine.engine import Engine
    from pytriton.engine.model import Model
    from pytriton.executor.services import CallSink
    from pytriton.messages import InferResponse, InferTensor
    from pytriton.transport.worker_frames import InferCall

logger = logging.getLogger(__name__)

# Models may call one another as deep as this; a longer chain is one that does not end.
MAX_DEPTH = 64
_NEWEST = -1


class CallingInstance(Instance, Protocol):
    """An instance whose model calls others."""

    def requests_of(self, batch_id: int) -> Sequence[InferRequest]:
        """The requests of a batch; none where it does not run any more."""


class ModelCaller:
    """Makes requests to the engine of the calls of all workers."""

    def __init__(
        self, engine: Engine, loop: asyncio.AbstractEventLoop, *, max_depth: int = MAX_DEPTH
    ) -> None:
        self.engine = engine
        self.loop = loop
        self.waits = WaitGraph()
        self._max_depth = max_depth

    def call(
        self,
        caller: CallingInstance | None,
        call: InferCall,
        inputs: dict[str, InferTensor],
        sink: CallSink,
    ) -> ModelCall:
        """Start an inference for a model that `caller` runs.

        Raises:
            InternalError: It cannot be taken. The sink hears nothing.
        """
        try:
            model = self._find(call)
            request = self._make_request(caller, call, inputs, sink)
            running = ModelCall(self, request, sink)
            if caller is not None and call.blocked_batch:
                running.set_waiting(caller, call.blocked_batch)
            if model.ready_check is None:
                running.submit(model)
            else:  # the model is asked itself, and others are served meanwhile
                running.check = self.loop.create_task(running.submit_if_ready(model))
        except ServerError as error:
            raise refusal(call.model_name, error.message) from error
        return running

    def _find(self, call: InferCall) -> Model:
        try:
            model = self.engine.lookup(call.model_name, _version(call))
        except ServerError as error:
            # Which of the two halves a client sees depends on Triton's release; both say it.
            raise InternalError(f"{_not_ready(call.model_name)} {error.message}") from error
        if model.spec.decoupled and not call.is_decoupled:
            raise InternalError(
                f"Model {call.model_name} is using the decoupled. The current BLS request call "
                "doesn't support models using the decoupled transaction policy. Please use "
                "'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
                "models.'"
            )
        return model

    def _make_request(
        self,
        caller: CallingInstance | None,
        call: InferCall,
        inputs: dict[str, InferTensor],
        sink: CallSink,
    ) -> InferRequest:
        if len(inputs) != len(call.inputs):
            names = [ref.name for ref in call.inputs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidArgumentError(
                f"[request id: {call.id or '<id_unknown>'}] input '{twice}' already exists "
                "in request"
            )
        return InferRequest(
            model_name=call.model_name,
            model_version=_version(call),
            inputs=inputs,
            sink=sink,
            id=call.id,
            outputs=tuple(call.outputs) or None,
            parameters=call.parameters,
            timeout_us=call.timeout_us,
            correlation_id=call.correlation_id,
            flags=call.flags,
            received_ns=time.monotonic_ns(),
            traceparent=call.traceparent,
            depth=self._depth(caller, call),
        )

    def _depth(self, caller: CallingInstance | None, call: InferCall) -> int:
        batch_id = call.blocked_batch or call.batch
        if caller is None or not batch_id:
            return 1
        depth = 1 + max((each.depth for each in caller.requests_of(batch_id)), default=0)
        if depth > self._max_depth:
            raise InternalError(
                f"models call one another {depth} deep, of which at most {self._max_depth} "
                f"are allowed; '{caller.name}' made the last call"
            )
        return depth


class ModelCall:
    """A call that was taken: between the engine and the worker that waits for its responses."""

    def __init__(self, owner: ModelCaller, request: InferRequest, sink: CallSink) -> None:
        self.check: asyncio.Task[None] | None = None  # of the model's readiness, until it is over
        self._owner = owner
        self._request = request
        self._sink = sink
        self._waiting: tuple[CallingInstance, int] | None = None
        self._has_answer = False
        self._is_over = False
        request.sink = self

    def set_waiting(self, caller: CallingInstance, batch_id: int) -> None:
        """Say that the caller's only thread waits until the first response is there."""
        self._waiting = (caller, batch_id)

    async def submit_if_ready(self, model: Model) -> None:
        """Ask the model whether it is ready; the sink hears where it is not."""
        assert model.ready_check is not None
        name = self._request.model_name
        try:
            is_ready = await model.ready_check()
            self.check = None
            if not is_ready:
                raise InternalError(_not_ready(name))  # noqa: TRY301  answered like the others
            self.submit(model)
        except ServerError as error:
            self.on_error(refusal(name, error.message))
        except Exception as error:  # the caller waits for an answer, whatever happened
            logger.exception("model %s could not be called", name)
            self.on_error(refusal(name, f"{type(error).__name__}: {error}"))

    def submit(self, model: Model) -> None:
        """Give the request to the engine; ServerError where it is not taken."""
        owner, request = self._owner, self._request
        owner.engine.infer(request, model)
        if self._waiting is None or self._has_answer:  # the response cache answers at once
            return
        owner.waits.add(*self._waiting, request)
        if owner.waits.is_stuck(request):
            self._is_over = True  # so that the sink does not hear of it
            owner.engine.cancel(request)
            self._stop_waiting()
            count = len(request.model.instances)
            raise InternalError(
                f"the call would never be answered, as all {count} instance(s) of model "
                f"'{model.spec.name}' wait for calls that they made themselves. Models that call "
                "themselves, or one another in a circle, need more instances."
            )

    # What the engine tells

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Pass a response on; after the first one the caller's thread runs again."""
        self._stop_waiting()
        if not self._is_over:
            self._is_over = final
            self._sink.on_response(response, final=final)

    def on_error(self, error: ServerError) -> None:
        """Pass the error on that ends the call."""
        self._stop_waiting()
        if not self._is_over:
            self._is_over = True
            self._sink.on_error(error)

    # What the worker wants

    def cancel(self) -> None:
        """The worker gave it up."""
        if self.check is not None:
            self.check.cancel()
            self.check = None
            self.on_error(CancelledError(""))
        elif not self._is_over:
            self._owner.engine.cancel(self._request)

    def pause(self) -> None:
        """The worker takes responses slower than they come."""
        self._owner.engine.pause(self._request)

    def resume(self) -> None:
        """It takes them again."""
        self._owner.engine.resume(self._request)

    def __repr__(self) -> str:
        return f"<ModelCall of {self._request.model_name} over={self._is_over}>"

    def _stop_waiting(self) -> None:
        self._has_answer = True
        if self._waiting is not None:
            self._owner.waits.discard(self._waiting[0], self._request)


def refusal(model_name: str, text: str) -> InternalError:
    """The error of a call that the engine did not take, in the Python backend's words."""
    return InternalError(f"Model {model_name} - Error when running inference: {text}")


def _version(call: InferCall) -> str:
    return "" if call.model_version == _NEWEST else str(call.model_version)


def _not_ready(model_name: str) -> str:
    return f"Failed for execute the inference request. Model '{model_name}' is not ready."
