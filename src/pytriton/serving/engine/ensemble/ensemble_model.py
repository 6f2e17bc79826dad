# SPDX-License-Identifier: Apache-2.0
"""A served ensemble: a model without instances, whose requests run through the models of its steps.

Each request has an `EnsembleRequest`; the order of the steps is decided in `run`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytriton.base.errors import InternalError, ServerError
from pytriton.base.messages import (
    DeviceWish,
    ExecutionTimes,
    InferResponse,
    InferTensor,
    RequestPath,
)
from pytriton.base.model_spec import ModelSpec, Reshape, reshapes, sequence_parameters
from pytriton.runtime.executor.device_blocks import may_give, taking_of
from pytriton.runtime.executor.inference import Instance, Outcome, RunningBatch, trace_of
from pytriton.serving.engine.answer_cache import AnswerCache
from pytriton.serving.engine.batch_stats import record_pace
from pytriton.serving.engine.delivery import deliver, not_ready_error
from pytriton.serving.engine.ensemble.column_run import ColumnRuns, takes_step_chunks
from pytriton.serving.engine.ensemble.ensemble_request import (
    EnsembleRequest,
    RunningStep,
)
from pytriton.serving.engine.ensemble.graph import EnsembleGraph, Plan, Step, make_plan
from pytriton.serving.engine.model_state import IdleWait, VersionLifecycle, VersionState
from pytriton.serving.engine.served_model import ManagedModel, WaitsFor
from pytriton.serving.engine.stats import BatchRecord, FailureReason, ModelStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.cache import ResponseStore
    from pytriton.serving.engine.costs import ModelCosts
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.ensemble.run import EnsembleAnswer
    from pytriton.serving.engine.rate_limiter import Pool


def record_success(
    statistics: ModelStatistics,
    inferences: Sequence[Inference],
    compute_ns: Sequence[int],
    now_ns: int,
) -> None:
    """Count requests that succeeded, each as one execution.

    `compute_ns` has the input, infer and output times of the steps of each of them, summed.
    """
    input_ns, infer_ns, output_ns = compute_ns
    now_ms = time.time_ns() // 1_000_000
    requests = [inference.request for inference in inferences]
    for request, last in dict(zip(requests, inferences, strict=True)).items():  # members share one
        rows = request.rows or 1
        record = BatchRecord(
            rows,
            0,
            input_ns,
            input_ns + infer_ns,
            input_ns + infer_ns + output_ns,
            1,
            rows,
            now_ns - request.received_ns,
        )
        count = requests.count(request)
        statistics.record_alike(record, count, now_ms)
        latencies, request_ns = statistics.latencies, record.succeeded_ns
        if latencies is not None:
            is_slow = request_ns >= latencies.slow.limit_ns
            if request.fields.id or is_slow or trace_of(last) is not None:
                seen = (
                    [each for each in inferences if each.request is request] if is_slow else (last,)
                )
                latencies.on_identified(seen, request_ns, 0, sum(compute_ns), now_ns)


class Reshaping:
    """Converts the shapes of tensors where a request enters and leaves an ensemble."""

    __slots__ = ("_batching", "_inputs", "_outputs")

    def __init__(self, spec: ModelSpec) -> None:
        self._batching = spec.max_batch_size > 0
        self._inputs = reshapes(spec.inputs)
        self._outputs = reshapes(spec.outputs)

    def __bool__(self) -> bool:
        """Whether any tensor is reshaped."""
        return bool(self._inputs or self._outputs)

    def inputs(self, tensors: dict[str, InferTensor]) -> dict[str, InferTensor]:
        """Returns the inputs of a valid request as the steps get them."""
        if not self._inputs:
            return tensors
        return {name: self._convert(tensor, self._inputs) for name, tensor in tensors.items()}

    def outputs(self, tensors: list[InferTensor]) -> list[InferTensor]:
        """Returns outputs as clients get them.

        Raises InternalError if the steps made an output of another size than configured.
        """
        if not self._outputs:
            return tensors
        return [self._convert(tensor, self._outputs) for tensor in tensors]

    def _convert(self, tensor: InferTensor, reshapes: Mapping[str, Reshape]) -> InferTensor:
        reshape = reshapes.get(tensor.name)
        if reshape is None:
            return tensor
        shape = reshape.convert(tensor.shape, batching=self._batching)
        if shape is None:
            raise InternalError(
                f"output tensor shape does not match size of output for '{tensor.name}'"
            )
        return InferTensor(tensor.name, tensor.dtype, shape, tensor.data, tensor.strings)


class StepGate:
    """Limits how many requests of one step run at a time, over all requests of its ensemble.

    `start` starts one that has waited; it may end before this returns.
    """

    __slots__ = ("_is_starting", "_limit", "_running", "_start", "_waiting")

    def __init__(self, limit: int, start: Callable[[RunningStep], None]) -> None:
        self._limit = limit
        self._start = start
        self._running: set[RunningStep] = set()
        self._waiting: dict[RunningStep, None] = {}  # in order
        self._is_starting = False

    def enter(self, each: RunningStep) -> bool:
        """Returns whether a request may run now; otherwise it waits."""
        if len(self._running) < self._limit:
            self._running.add(each)
            return True
        self._waiting[each] = None
        return False

    def leave(self, each: RunningStep) -> None:
        """Note that a request has ended; the next one starts."""
        self._running.discard(each)
        if self._is_starting:  # the loop below goes on: a call for each would nest too deep
            return
        self._is_starting = True
        try:
            while self._waiting and len(self._running) < self._limit:
                following = next(iter(self._waiting))
                del self._waiting[following]
                self._running.add(following)
                self._start(following)
        finally:
            self._is_starting = False

    def give_up(self, each: RunningStep) -> bool:
        """Remove a request that waits; returns whether it did."""
        if each not in self._waiting:
            return False
        del self._waiting[each]
        return True


def make_gates(graph: EnsembleGraph, start: Callable[[RunningStep], None]) -> dict[int, StepGate]:
    """Returns the gates of the steps whose number of requests a decoupled step decides."""
    if not graph.max_inflight:
        return {}
    return {
        step.index: StepGate(graph.max_inflight, start)
        for step in graph.steps
        if graph.depth(step.inputs[0].tensor) > 0
    }


_MAX_PLANS = 256


class EnsembleModel(VersionLifecycle):
    """A version of an ensemble. Used on the event loop's thread only.

    It finds the models of its steps in `engine`.
    """

    prefers_columns = False  # for a single request, a chunk takes more time
    instances: Sequence[Instance] = ()
    missing_instances = 0

    def __init__(
        self,
        spec: ModelSpec,
        graph: EnsembleGraph,
        engine: Engine,
        cache: ResponseStore | None = None,
        *,
        config_json: bytes = b"",
    ) -> None:
        super().__init__()
        self.spec = spec
        self.graph = graph
        self.is_bound = False
        self.config_json = config_json
        self.statistics = ModelStatistics()
        self.costs: ModelCosts | None = None  # its steps have theirs
        self._engine = engine
        self._cache: AnswerCache | None = None
        if cache is not None and spec.response_cache:
            self._cache = AnswerCache(cache, spec, self.statistics)
        self._plans: dict[frozenset[str] | None, Plan] = {}  # by the requested outputs
        self._requests: dict[Inference, EnsembleRequest] = {}
        self._gates = make_gates(graph, self._submit_held_step)
        self._reshaping = Reshaping(spec)
        # Those used last. A request that runs may still use one that is being unloaded.
        self._models: dict[int, ManagedModel] = {}
        for step in graph.steps:
            self.find(step)
        self._idle = IdleWait()
        self._columns = ColumnRuns(self)

    # Lifecycle

    @property
    def is_ready(self) -> bool:
        """Whether it serves and all its steps are ready."""
        return self.state is VersionState.READY and all(
            model is not None and model.is_ready for model in map(self.find, self.graph.steps)
        )

    @property
    def has_ready_check(self) -> bool:
        """Whether readiness also depends on checks of its steps."""
        return any(
            model is not None and model.has_ready_check
            for model in map(self.find, self.graph.steps)
        )

    async def check_ready(self) -> bool:
        """Returns whether the checks of all steps that have one succeed."""
        for model in list(map(self.find, self.graph.steps)):
            if model is not None and model.has_ready_check and not await model.check_ready():
                return False
        return True

    @property
    def resource_pools(self) -> AbstractSet[Pool]:
        """The resources of the rate limiter that its steps need."""
        return self._pools_of(self.graph.steps)

    def _pools_of(self, steps: Iterable[Step]) -> AbstractSet[Pool]:
        models = map(self.find, steps)
        return {pool for model in models if model is not None for pool in model.resource_pools}

    @property
    def is_busy(self) -> bool:
        """Whether requests are running."""
        return bool(self._requests or self._columns.running)

    @property
    def running_count(self) -> int:
        """The number of requests that are running."""
        return len(self._requests) + self._columns.running

    async def drain(self, timeout_s: float | None = None) -> None:
        """Wait until no request is running, at most for `timeout_s`."""
        if self.is_busy:
            await self._idle.wait(timeout_s)

    def stop(self) -> None:
        """End all requests that are still running with an error."""
        if self.is_busy:
            self.gave_up_requests = True
        self.withdraw()
        for request in list(self._requests.values()):
            request.fail(not_ready_error(self.spec))
        self._models.clear()

    def __repr__(self) -> str:
        return (
            f"<EnsembleModel {self.spec.name} version {self.spec.version} {self.state.value}: "
            f"{len(self._requests)} running, {len(self.graph.steps)} steps>"
        )

    # Requests

    def body_memory(self, size: int, header_bytes: int) -> memoryview | None:
        """Allocate memory for a request body that the first step can read."""
        for step in self.graph.steps:
            if any(each.tensor in self.graph.inputs for each in step.inputs):
                model = self.find(step)
                return None if model is None else model.body_memory(size, header_bytes)
        return None

    def submit(self, inference: Inference, now_ns: int, *, is_alone: bool = False) -> None:
        """Start a validated request."""
        self.statistics.paths[inference.request.path] += 1
        if self._cache is not None and (response := self._cache.answer(inference)) is not None:
            deliver(inference, Outcome(0, response))
            return
        inference.queued_ns = now_ns
        plan = self._plan(inference.request.outputs)
        inputs = self._reshaping.inputs(inference.request.inputs)
        self._requests[inference] = request = EnsembleRequest(self, plan, inference, now_ns)
        request.start(self.graph.inputs, inputs)

    def _plan(self, outputs: tuple[str, ...] | None) -> Plan:
        key = None if outputs is None else frozenset(outputs)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:  # clients choose the outputs
                self._plans.clear()
            plan = self._plans[key] = make_plan(self.graph, outputs)
        return plan

    @property
    def takes_columns(self) -> bool:
        """See `ServedModel`: if the steps follow one another and all of them take columns."""
        if self._cache is not None or self._gates or not self._plan(None).chain:
            return False
        if self._reshaping:
            return False
        models = map(self.find, self.graph.steps)
        return all(model is not None and takes_step_chunks(model) for model in models)

    def submit_chunk(
        self, inferences: Sequence[Inference], now_ns: int, *, is_complete: bool = False
    ) -> None:
        self.statistics.paths[RequestPath.COLUMNS] += len(inferences)
        for inference in inferences:
            inference.queued_ns = now_ns
        chunk = inferences[0].chunk
        assert chunk is not None
        plan = self._plan(chunk.signature.outputs)
        self._columns.start(plan, inferences, is_complete=is_complete)

    def is_start_due(self, count: int) -> bool:
        """See `ServedModel`: whether the first step would start."""
        chain = self._plan(None).chain
        model = self.find(chain[0]) if chain else None
        return model is not None and model.is_start_due(count)

    def cancel(self, inference: Inference) -> None:
        """Cancel the steps of a request."""
        if inference.is_cancelled:
            return
        inference.is_cancelled = True
        if (trace := trace_of(inference)) is not None:
            trace.on_cancelled(inference.index)
        request = self._requests.get(inference)
        if request is not None:
            request.cancel()
        elif inference.chunk is not None:
            self._columns.cancel(inference)

    def pause(self, inference: Inference) -> None:
        """Let decoupled steps wait: the client is behind with its responses."""
        self._set_paused(inference, is_paused=True)

    def resume(self, inference: Inference) -> None:
        """Let them continue."""
        self._set_paused(inference, is_paused=False)

    def _set_paused(self, inference: Inference, *, is_paused: bool) -> None:
        inference.is_paused = is_paused
        request = self._requests.get(inference)
        if request is not None:
            request.update_pause()

    def call_when_dispatched(self, inference: Inference, callback: Callable[[], None]) -> None:
        """Call back when a step of a request was started, or when another step waits."""
        request = self._requests.get(inference)
        if request is not None:
            request.watch(callback)

    def waits_for(self, inference: Inference) -> WaitsFor | None:
        """See `QueueOwner`: the open steps of a request."""
        request = self._requests.get(inference)
        steps = () if request is None else request.open_inferences
        return WaitsFor(requests=steps) if steps else None

    # Steps

    def find(self, step: Step) -> ManagedModel | None:
        """Returns the model of a step, if it is ready."""
        model = self._engine.find(step.model_name, step.version)
        if model is not None:
            self._models[step.index] = model
        return model

    def device_wish(self, plan: Plan, step: Step) -> DeviceWish | None:
        """Returns which outputs of a step the step that reads them takes in GPU memory.

        One that several steps read is none of them: each may write to what it gets.
        """
        producer = self.find(step)
        if producer is None or not may_give(producer.spec):
            return None
        names_by_gpu: dict[bytes, list[str]] = {}
        for name, tensor in step.outputs.items():
            readers = plan.readers.get(tensor, ())
            if len(readers) != 1 or tensor in plan.shared:
                continue
            model = self.find(readers[0])
            taking = None if model is None else taking_of(model.spec, model.instances)
            if taking is not None and not taking.reason:
                names_by_gpu.setdefault(taking.gpu, []).append(name)
        if not names_by_gpu:
            return None
        gpu, names = next(iter(names_by_gpu.items()))
        return DeviceWish(gpu, tuple(names))

    def submit_step(self, step: RunningStep) -> None:
        """Submit a step to its model, now or when those before it have ended."""
        gate = self._gates.get(step.call.step.index)
        if gate is None or gate.enter(step):
            self._submit_step(step)
        else:
            step.hold(1)

    def _submit_step(self, running: RunningStep) -> None:
        step = running.call.step
        model = self.find(step)
        if model is None:
            last = self._models.get(step.index)
            if last is not None and last.state is VersionState.UNLOADING:
                model = last
        running.model = model
        if model is not None and self._engine.observers.are_there:
            running.begin_trace(model.spec, self._engine.observers)
        if model is None:
            self._engine.submit(running.inference)  # it refuses the request with the reason
        else:
            self._engine.submit_to(model, running.inference)

    def _submit_held_step(self, step: RunningStep) -> None:
        step.hold(-1)
        self._submit_step(step)

    def on_step_ended(self, step: RunningStep) -> None:
        """Let the next one run that waits for the same step."""
        gate = self._gates.get(step.call.step.index)
        if gate is not None:
            gate.leave(step)

    @property
    def may_pause_sources(self) -> bool:
        """Whether a decoupled step may wait for a later one: not if it keeps what that needs."""
        sources = self._pools_of(step for step in self.graph.steps if step.decoupled)
        return sources.isdisjoint(self._pools_of(self.graph.steps[index] for index in self._gates))

    def give_up_step(self, step: RunningStep) -> bool:
        """Forget a step that waits for those before it; returns whether it did."""
        gate = self._gates.get(step.call.step.index)
        return gate is not None and gate.give_up(step)

    # Answers

    def on_answer(self, request: EnsembleRequest, answer: EnsembleAnswer) -> None:
        """Pass an answer on to the client."""
        inference = request.inference
        response = None
        if answer.outputs is not None:
            try:
                outputs = self._reshaping.outputs(answer.outputs)
            except ServerError as error:
                request.is_over = False  # it ends with the error instead
                request.fail(error)
                return
            response = InferResponse(
                self.spec.name, str(self.spec.version), inference.request.fields.id, outputs
            )
            if answer.outputs and request.plan.has_steps:
                asked = inference.request
                response.parameters = sequence_parameters(
                    asked.fields.correlation_id, asked.fields.flags
                )
            latencies = self.statistics.latencies
            if latencies is not None:
                record_pace(latencies, inference, 1, time.monotonic_ns())
            inference.response_count += 1
        if answer.is_final:
            self._record(request)
            self._forget(inference)
        deliver(inference, Outcome(0, response, None, answer.is_final))
        if inference.cache_key is not None and answer.is_final and self._cache is not None:
            self._store(self._cache, inference, response)

    def on_failed(self, request: EnsembleRequest, error: ServerError) -> None:
        """End a request with an error, which names the ensemble."""
        self._forget(request.inference)
        self._end_with(request.inference, error)

    def _end_with(self, inference: Inference, error: ServerError) -> None:
        origin = error.origin
        if error.message:
            error = type(error)(f"in ensemble '{self.spec.name}', {error.message}")
            error.origin = origin
        now_ns = time.monotonic_ns()
        self.statistics.record_failure(inference, error, now_ns, FailureReason.OTHER)
        deliver(inference, Outcome(0, None, error))

    def _forget(self, inference: Inference) -> None:
        del self._requests[inference]
        self._check_idle()

    def _check_idle(self) -> None:
        if not self.is_busy:
            self._idle.end()

    def _record(self, request: EnsembleRequest) -> None:
        """Count a request that succeeded."""
        inference = request.inference
        now_ns = time.monotonic_ns()
        record_success(self.statistics, [inference], request.compute_ns, now_ns)
        if inference.trace is not None:
            inference.trace.add_execution(
                0,
                1,
                ExecutionTimes(
                    inference.queued_ns, request.started_ns, request.started_ns, now_ns, now_ns
                ),
            )

    # Chunks

    def on_members_answered(
        self, members: Sequence[Inference], compute_ns: tuple[int, int, int]
    ) -> None:
        """Count members of a chunk whose answers are passed on now."""
        record_success(self.statistics, members, compute_ns, time.monotonic_ns())
        self._check_idle()

    def fail_member(self, member: Inference, error: ServerError) -> None:
        """End a member of a chunk with an error, which names the ensemble."""
        self._end_with(member, error)
        self._check_idle()

    def continue_member(
        self,
        member: Inference,
        plan: Plan,
        values: dict[str, InferTensor],
        done: int,
        compute_ns: tuple[int, int, int],
    ) -> None:
        """Run the rest of the steps of a member as those of an ordinary request."""
        request = EnsembleRequest(self, plan, member, member.queued_ns)
        request.compute_ns = list(compute_ns)
        self._requests[member] = request
        request.resume(self.graph.inputs, values, plan.chain[:done])

    def _store(
        self, cache: AnswerCache, inference: Inference, response: InferResponse | None
    ) -> None:
        if response is not None:  # a cached answer does not say anything about sequences
            response = InferResponse("", "", "", response.outputs)
        cache.store(RunningBatch(0, [inference], 0, set()), [Outcome(0, response)])
