# SPDX-License-Identifier: Apache-2.0
"""One request of an ensemble while it runs: submits its steps and passes its answers on."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from pytriton.base.errors import CancelledError, InvalidArgumentError, ServerError
from pytriton.base.messages import (
    InferRequest,
    InferResponse,
    InferTensor,
)
from pytriton.runtime.executor import device_regions
from pytriton.runtime.executor.device_blocks import use_of
from pytriton.runtime.executor.inference import Inference
from pytriton.runtime.transport.payload import unshareable
from pytriton.serving.engine.ensemble.run import EnsembleRun, StepCall, StuckError
from pytriton.serving.engine.served_model import ManagedModel, queue_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from pytriton.base.messages import DeviceWish
    from pytriton.base.model_spec import ModelSpec
    from pytriton.serving.engine.ensemble.ensemble_model import EnsembleModel
    from pytriton.serving.engine.ensemble.graph import Plan, Step
    from pytriton.serving.engine.observers import Observers


class EnsembleRequest:
    """Connects the run of a request with the models of its steps and with its client."""

    __slots__ = (
        "_calls",
        "_held",
        "_is_advancing",
        "_owner",
        "_run",
        "_steps",
        "_watchers",
        "compute_ns",
        "has_device_tensors",
        "inference",
        "is_over",
        "plan",
        "started_ns",
    )

    def __init__(
        self, owner: EnsembleModel, plan: Plan, inference: Inference, started_ns: int
    ) -> None:
        self.plan = plan
        self.inference = inference
        self.started_ns = started_ns
        self.is_over = False
        self.has_device_tensors = False  # a step was asked for some in GPU memory
        self.compute_ns = [0, 0, 0]  # input, infer and output times of all steps, summed
        self._owner = owner
        self._run = EnsembleRun(plan)
        self._calls: deque[StepCall] = deque()  # those to submit
        self._is_advancing = False
        self._steps: dict[RunningStep, None] = {}  # those without a final response
        self._held = 0  # the number of those that wait for their turn
        self._watchers: list[Callable[[], None]] = []

    def start(self, names: Collection[str], inputs: Mapping[str, InferTensor]) -> None:
        """Submit the first steps; `names` are the inputs of the ensemble, `inputs` the given."""
        self._advance(self._run.start(inputs, names))

    def resume(
        self, names: Collection[str], values: Mapping[str, InferTensor], done: Iterable[Step]
    ) -> None:
        """Continue after the steps that are done; `values` are the tensors still needed."""
        self._advance(self._run.resume(values, done, names))

    def _advance(self, calls: list[StepCall]) -> None:
        """Submit steps, then pass on what can be answered now."""
        self._calls += calls
        if self._is_advancing:  # a step was answered at once: the loop below goes on with it
            return
        self._is_advancing = True
        try:
            while not self.is_over:
                self._submit_calls()
                self._pass_answers_on()
                if not self._calls:
                    break
        finally:
            self._is_advancing = False

    def _submit_calls(self) -> None:
        has_new = bool(self._calls)
        while self._calls and not self.is_over:
            step = RunningStep(self, self._calls.popleft())
            self._steps[step] = None
            self._owner.submit_step(step)
        if has_new and self._watchers:
            self.notify_watchers()

    def _pass_answers_on(self) -> None:
        if self.is_over:
            return
        try:
            answers = self._run.take_answers()
        except StuckError:
            request_id = self.inference.request.fields.id or "<id_unknown>"
            self.fail(
                InvalidArgumentError(
                    f"[request id: {request_id}] unexpected deadlock, at least one output is not "
                    "set while no more ensemble steps can be made"
                )
            )
            return
        for answer in answers:
            if self.is_over:
                return
            self.is_over = answer.is_final
            self._owner.on_answer(self, answer)

    def device_wish(self, step: Step) -> DeviceWish | None:
        """Returns which outputs of a step the steps after it take in GPU memory."""
        wish = self._owner.device_wish(self.plan, step)
        self.has_device_tensors |= wish is not None
        return wish

    def fail(self, error: ServerError) -> None:
        """End with an error; steps that still run are cancelled, and their answers dropped."""
        if self.is_over:
            return
        self.is_over = True
        self._calls.clear()
        self._cancel_steps()
        self._owner.on_failed(self, error)

    def _cancel_steps(self) -> None:
        for step in list(self._steps):
            if self._owner.give_up_step(step):
                self._held -= 1
                del self._steps[step]
                step.inference.end()
            else:
                step.inference.cancel()

    # Called by steps

    def on_step_response(
        self, step: RunningStep, response: InferResponse | None, *, final: bool
    ) -> None:
        """Take a response of a step."""
        if final:
            self._end_step(step)
        if self.is_over:
            return
        if self.inference.is_cancelled:
            self.fail(CancelledError(""))
            return
        outputs = None if response is None else response.outputs
        if outputs and step.inference.cache_key is not None:
            # The cache copies them after this. Until then, no step may write to them.
            for output in outputs:
                output.data = unshareable(output.data)
        self._advance(self._run.respond(step.call, outputs, is_final=final))

    def on_step_error(self, step: RunningStep, error: ServerError, *, final: bool) -> None:
        """Take an error of a step: it ends the request."""
        if final:
            self._end_step(step)
        if self.inference.is_cancelled:
            error = CancelledError("")
        self.fail(error)

    def _end_step(self, step: RunningStep) -> None:
        if step not in self._steps:  # its last response was taken, but led to an error
            return
        del self._steps[step]
        step.add_times(self.compute_ns)
        self._owner.on_step_ended(step)

    # Called for the client

    def cancel(self) -> None:
        """Cancel the steps; the request ends when those that run have ended."""
        self._cancel_steps()
        if not self._steps:
            self.fail(CancelledError(""))

    def update_pause(self) -> None:
        """Let decoupled steps wait while the client or a step after them is behind."""
        is_paused = self.is_paused
        for step in self._steps:
            inference = step.inference
            if step.call.step.decoupled and inference.is_paused != is_paused:
                if is_paused:
                    inference.pause()
                else:
                    inference.resume()

    @property
    def is_paused(self) -> bool:
        """Whether decoupled steps are to send no more responses for now."""
        is_behind = self._held > 0 and self._owner.may_pause_sources
        return is_behind or self.inference.is_paused

    def hold(self, change: int) -> None:
        """Note that a step waits for its turn (1), or does so no more (-1)."""
        self._held += change
        if not self.is_over:
            self.update_pause()

    # Deadlocks

    @property
    def open_inferences(self) -> list[Inference]:
        """The requests to models that it waits for."""
        return [step.inference for step in self._steps]

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back once when it waits for other requests than now, or when one of them runs."""
        self._watchers.append(callback)
        for inference in self.open_inferences:
            owner = queue_owner(inference)
            if inference.instance is None and owner is not None:
                owner.call_when_dispatched(inference, self.notify_watchers)

    def notify_watchers(self) -> None:
        """Call those that watch."""
        watchers, self._watchers = self._watchers, []
        for callback in watchers:
            if not self.is_over:
                callback()


class RunningStep:
    """A request to the model of a step, and the sink of its responses."""

    __slots__ = ("_request", "call", "inference", "model")

    def __init__(self, request: EnsembleRequest, call: StepCall) -> None:
        self._request = request
        self.call = call
        self.model: ManagedModel | None = None  # set when it is submitted
        inference = request.inference
        whole, step = inference.request, call.step
        wish = request.device_wish(step) if device_regions.has_keeping() else None
        self.inference = Inference(
            InferRequest(
                model_name=step.model_name,
                inputs=call.inputs,
                model_version=step.version,
                fields=whole.fields,
                outputs=tuple(step.outputs),
                received_ns=time.monotonic_ns(),
                call_depth=whole.call_depth,
                # Also if the instance that wanted them so has ended meanwhile.
                device=use_of(call.inputs) if request.has_device_tensors else None,
                device_wish=wish,
            ),
            self,
            is_paused=step.decoupled and request.is_paused,
        )
        call.inputs = {}  # the request has them

    def begin_trace(self, spec: ModelSpec, observers: Observers) -> None:
        """Trace it as a child of the request's span, if the request is traced."""
        whole = self._request.inference.trace
        if whole is None:
            return
        for _, parent in whole.contexts(0, 1, is_model_file=True):
            traced = observers.begin_call(self.inference.request, spec, parent, self)
            if traced is not None:
                self.inference.sink = self.inference.trace = traced

    def hold(self, change: int) -> None:
        """Tell the request that this step waits for its turn (1), or does so no more (-1)."""
        self._request.hold(change)

    def add_times(self, compute_ns: list[int]) -> None:
        """Add the times of the batch in which it ran; a cached answer has none."""
        if self.model is None or not self.inference.queued_ns:
            return
        record = self.model.statistics.last_batch
        if record is not None:
            compute_ns[0] += record.infer_start_ns - record.input_start_ns
            compute_ns[1] += record.output_start_ns - record.infer_start_ns
            compute_ns[2] += record.end_ns - record.output_start_ns

    # Called by the engine

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Pass a response to the request."""
        self._request.on_step_response(self, response, final=final)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Pass an error to the request."""
        self._request.on_step_error(self, error, final=final)

    def on_refused(self, error: ServerError) -> None:
        """Pass a refusal to the request, for which it is an error."""
        self._request.on_step_error(self, error, final=True)
