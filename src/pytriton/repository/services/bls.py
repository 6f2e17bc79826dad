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
from pytriton.messages import InferRequest
from pytriton.repository.services.deadlock import Wait, WaitGraph, WaitingInstance

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.engine.engine import Engine
    from pytriton.engine.model import Model
    from pytriton.engine.model_spec import ModelSpec
    from pytriton.executor.worker_services import CallSink
    from pytriton.messages import InferResponse, InferTensor, TraceContext
    from pytriton.transport.worker_frames import InferCall

logger = logging.getLogger(__name__)

# Models may call one another as deep as this; a longer chain is one that does not end.
MAX_DEPTH = 64
_NEWEST = -1
# After what time to look where the engine sent a call that it may have sent to the wrong instance:
# one whose coroutines all wait for this call.
_PLACING_S = 0.005


class BeginTrace(Protocol):
    """How the trace of a call is begun, where requests are traced."""

    def __call__(self, request: InferRequest, spec: ModelSpec, parent: TraceContext) -> None:
        """Trace a request under the span of the one that it is made for."""


class CallingInstance(WaitingInstance, Protocol):
    """An instance whose model calls others."""

    def requests_of(self, batch_id: int) -> Sequence[InferRequest]:
        """The requests of a batch; none where it does not run any more."""


class ModelCaller:
    """Makes requests to the engine of the calls of all workers."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        *,
        max_depth: int = MAX_DEPTH,
        begin_trace: BeginTrace | None = None,
    ) -> None:
        self.engine = engine
        self.loop = loop
        self.waits = WaitGraph()
        self._max_depth = max_depth
        self._begin_trace = begin_trace

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
            if call.trace is not None and self._begin_trace is not None:
                self._begin_trace(request, model.spec, call.trace)
            running = ModelCall(self, request, _wait(caller, call))
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

    def __init__(self, owner: ModelCaller, request: InferRequest, wait: Wait | None) -> None:
        self.check: asyncio.Task[None] | None = None  # of the model's readiness, until it is over
        self._owner = owner
        self._request = request
        self._sink = request.sink
        self._wait = wait  # until the first response is there
        self._has_answer = False
        self._is_over = False
        request.sink = self

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
        if self._wait is None or self._has_answer:  # the response cache answers at once
            return
        owner.waits.add(self._wait, request)
        if owner.waits.is_stuck(request):
            raise self._give_up()
        if owner.waits.has_blocked_slot(request.model.instances):
            owner.loop.call_later(_PLACING_S, self._refuse_once_placed)

    def _refuse_once_placed(self) -> None:
        """The same for a request that may have gone where nothing moves before it is answered."""
        if self._request.instance is None and not self._has_answer:
            self._owner.loop.call_later(_PLACING_S, self._refuse_once_placed)
        else:
            self.refuse_if_stuck()

    def refuse_if_stuck(self) -> None:
        """Fail the call if it would never be answered; the sink hears it."""
        if not self._has_answer and self._owner.waits.is_stuck(self._request):
            error = self._give_up()
            self._sink.on_error(refusal(self._request.model_name, error.message))

    def _give_up(self) -> InternalError:
        self._is_over = True  # so that the sink does not hear of it
        request = self._request
        self._owner.engine.cancel(request)
        self._stop_waiting()
        count = len(request.model.instances)
        error = InternalError(
            f"the call would never be answered, as all {count} instance(s) of model "
            f"'{request.model_name}' wait for calls that they made themselves. Models that call "
            "themselves, or one another in a circle, need more instances."
        )
        if request.trace is not None:
            request.trace.on_refused(error)
        return error

    # What the engine tells

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Pass a response on; after the first one the caller's thread runs again."""
        self._stop_waiting()
        if not self._is_over:
            self._is_over = final
            self._sink.on_response(response, final=final)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Pass an error on, as a response."""
        self._stop_waiting()
        if not self._is_over:
            self._is_over = final
            self._sink.on_error(error, final=final)

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
        if self._wait is None:
            return
        owner = self._owner
        others = owner.waits.discard(self._wait, self._request)
        self._wait = None
        for other in others:
            if owner.waits.is_stuck(other):
                assert isinstance(other.sink, ModelCall)
                owner.loop.call_soon(other.sink.refuse_if_stuck)


def refusal(model_name: str, text: str) -> InternalError:
    """The error of a call that the engine did not take, in the Python backend's words."""
    return InternalError(f"Model {model_name} - Error when running inference: {text}")


def _wait(caller: CallingInstance | None, call: InferCall) -> Wait | None:
    """What waits for a call; None where that is not known."""
    if caller is None:
        return None
    if call.blocks_loop:
        return Wait(caller, 0, is_blocking=True)
    if call.blocked_batch:
        return Wait(caller, call.blocked_batch, is_blocking=True)
    return Wait(caller, call.batch, is_blocking=False) if call.batch else None


def _version(call: InferCall) -> str:
    return "" if call.model_version == _NEWEST else str(call.model_version)


def _not_ready(model_name: str) -> str:
    return f"Failed for execute the inference request. Model '{model_name}' is not ready."
