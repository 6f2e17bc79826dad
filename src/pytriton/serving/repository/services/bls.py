# SPDX-License-Identifier: Apache-2.0
"""Inference calls from one model to another ("business logic scripting", BLS).

A call is refused with the messages of Triton's Python backend. After the engine has accepted it,
the responses of the called model are passed on unchanged, errors with their codes.

Calls that wait for one another in a cycle are refused, too. A model waits for its call in one of
two ways. Either a thread is blocked that the instance also needs for other batches. Or a coroutine
awaits the call: other batches continue, but this batch still counts as one of those that the
instance may run at a time, until one of its calls is answered. A request to an ensemble waits for
the requests to the models of its steps. `WaitGraph` stores which batch waits for which request;
whether a request is queued or running, it reads from the request. Whatever it cannot know, such as
a thread that a model started, counts as able to continue, and a call then waits without a limit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pytriton.base.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    ServerError,
    error_for_clients,
)
from pytriton.base.messages import (
    InferRequest,
    InferResponse,
    InferTensor,
    RequestFields,
    ResponseSink,
)
from pytriton.runtime.executor.device_blocks import may_give, use_of
from pytriton.runtime.executor.inference import Inference, Instance
from pytriton.serving.engine.ensemble.ensemble_rules import version_text
from pytriton.serving.engine.served_model import ServedModel, WaitsFor, queue_owner

if TYPE_CHECKING:
    import asyncio

    from pytriton.runtime.transport.frames import InferCallFrame
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.observers import Watch
    from pytriton.serving.engine.rate_limiter import InstanceTurns


class BlockedBatch(msgspec.Struct, frozen=True):
    """The batch that waits for a call.

    If `is_blocking` is set, a thread waits without which neither this batch nor any later one can
    continue; with batch 0, no batch can.
    """

    instance: Instance
    batch_id: int
    is_blocking: bool


class WaitGraph:
    """Which batches of which instances wait for which requests.

    Args:
        turns: The turns of a rate limiter: an instance may also wait for resources.
    """

    def __init__(self, turns: InstanceTurns | None = None) -> None:
        self._turns = turns
        self._blocking: dict[Instance, dict[Inference, int]] = {}
        self._awaited: dict[Instance, dict[int, dict[Inference, None]]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no batch waits for a request."""
        return not self._blocking and not self._awaited

    def add(self, wait: BlockedBatch, inference: Inference) -> None:
        """Add a wait for a request that the engine has accepted."""
        if wait.is_blocking:
            self._blocking.setdefault(wait.instance, {})[inference] = wait.batch_id
        else:
            batches = self._awaited.setdefault(wait.instance, {})
            batches.setdefault(wait.batch_id, {})[inference] = None

    def discard(self, wait: BlockedBatch, inference: Inference) -> list[Inference]:
        """Remove a wait; returns requests that may be deadlocked from now on.

        Until now the batch could have continued when this request was answered. That has happened,
        and if its coroutines still await other requests, maybe none of these can be answered.
        """
        batches = self._awaited.get(wait.instance, {})
        if wait.is_blocking:
            _remove(self._blocking, wait.instance, inference)
            return [next(iter(inferences)) for inferences in batches.values()]
        _remove(batches, wait.batch_id, inference)
        if not batches:
            self._awaited.pop(wait.instance, None)
        return list(batches.get(wait.batch_id, ()))[:1]

    def is_deadlocked(self, inference: Inference) -> bool:
        """Returns whether all that `inference` waits for can only continue after `inference`."""
        seen = {inference}
        pending = [inference]
        full: set[Instance] = set()  # each is checked once; many requests may wait for it
        while pending:
            blockers = self._blockers(pending.pop(), full)
            if blockers is None:
                return False
            new = [each for each in blockers if each not in seen]
            seen.update(new)
            pending += new
        return True

    def may_block_later(self, instances: Collection[Instance]) -> bool:
        """Returns whether to check a waiting request again when its owner has passed it on.

        It may go to an instance that cannot start it. An owner without instances may pass it on to
        a model that has some.
        """
        if not instances:
            return True
        if not self._blocking:
            return False
        return any(each in self._blocking and each.free_slots for each in instances)

    def _blockers(self, inference: Inference, full: set[Instance]) -> Collection[Inference] | None:
        """Returns requests of which one must be answered before `inference` can continue.

        None means that it can continue in any case. Instances in `full` are skipped.
        """
        if inference.instance is not None:
            return self._batch_blockers(inference.instance, inference.batch_id)
        owner = queue_owner(inference)
        awaited = None if owner is None else owner.waits_for(inference)
        if awaited is None or awaited.more_follow or inference.deadline_ns:
            return None
        if not awaited.instances:
            return awaited.requests or None
        blockers: list[Inference] = []
        for instance in awaited.instances:
            if instance not in full:
                slot_blockers = self._slot_blockers(instance) or self._holders_calls(instance)
                if not slot_blockers:
                    return None
                blockers += slot_blockers
                full.add(instance)
        return blockers

    def _batch_blockers(self, instance: Instance, batch_id: int) -> Collection[Inference] | None:
        """Returns the same for a running batch."""
        blocking = self._blocking.get(instance, {})
        # A batch before the blocking one has returned from `execute`; other threads answer it.
        blockers = [each for each, first in blocking.items() if first <= batch_id]
        return blockers or self._awaited.get(instance, {}).get(batch_id)

    def _slot_blockers(self, instance: Instance) -> Collection[Inference] | None:
        """Returns the same for the next batch that an instance starts."""
        if blocking := self._blocking.get(instance):
            return blocking
        batches = self._awaited.get(instance)
        if batches is None or instance.free_slots:
            return None
        blockers: list[Inference] = []
        for batch_id in instance.executing_batches:
            if batch_id not in batches:
                return None
            blockers += batches[batch_id]
        return blockers or None  # an instance that runs no batch ends and fails its requests

    def _holders_calls(self, instance: Instance) -> Collection[Inference] | None:
        """Returns the same if an instance has a free slot, but batches that wait hold resources."""
        if self._turns is None:
            return None
        calls: list[Inference] = []
        for holder in self._turns.blockers(instance, self._waiting_count):
            calls += self._blocking.get(holder, ())
            for inferences in self._awaited.get(holder, {}).values():
                calls += inferences
        return calls or None

    def _waiting_count(self, instance: Instance) -> int:
        """Returns how many of an instance's batches wait for calls."""
        return sum(
            bool(self._batch_blockers(instance, batch_id))
            for batch_id in instance.executing_batches
        )

    def __len__(self) -> int:
        awaited = (each for batches in self._awaited.values() for each in batches.values())
        return sum(map(len, self._blocking.values())) + sum(map(len, awaited))

    def __repr__(self) -> str:
        return f"<WaitGraph {len(self)} calls wait>"


def _remove(table: dict[Any, dict[Inference, Any]], key: Any, inference: Inference) -> None:
    """Remove a request from one of the table's sets, and the set if it is empty then."""
    inferences = table.get(key)
    if inferences is not None:
        inferences.pop(inference, None)
        if not inferences:
            del table[key]


logger = logging.getLogger(__name__)

# The maximum depth of calls; a longer chain is assumed to be an endless recursion.
MAX_DEPTH = 64


class CallingInstance(Instance, Protocol):
    """An instance whose model calls others."""

    def call_depth_of(self, batch_id: int) -> int:
        """Returns how deep the calls are that a batch was made by; 0 if it does not run."""

    def principal_of(self, batch_id: int) -> str:
        """Returns who has sent the requests of a batch; empty if they are of several."""


class ModelCaller:
    """InstanceTurns the calls of all workers into requests to the engine."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        *,
        max_depth: int = MAX_DEPTH,
        turns: InstanceTurns | None = None,
    ) -> None:
        self.engine = engine
        self.loop = loop
        self.waits = WaitGraph(turns)
        self.has_rate_limiter = turns is not None
        self._max_depth = max_depth

    def call(
        self,
        caller: CallingInstance | None,
        call: InferCallFrame,
        inputs: dict[str, InferTensor],
        sink: ResponseSink,
        namespace: str = "",
    ) -> RunningBlsCall:
        """Start an inference for a model that `caller` runs; the sink receives all results.

        A model of the caller's own namespace is preferred, as in ensembles; Triton refuses a name
        that is in several namespaces.
        """
        running = RunningBlsCall(
            self, call.model_name, sink, _wait(caller, call), keeps_errors=call.keeps_errors
        )
        try:
            name = self.engine.nearest(call.model_name, namespace) if namespace else call.model_name
            model = self._find(call, name)
            request = self._make_request(caller, call, inputs)
            request.model_name = name
            if not may_give(model.spec):
                request.device_wish = None
        except ServerError as error:
            running.on_refused(error)
            return running
        trace = None
        if call.trace is not None:
            trace = self.engine.observers.begin_call(request, model.spec, call.trace, sink)
        running.start(model, request, trace)
        return running

    def _find(self, call: InferCallFrame, name: str) -> ServedModel:
        try:
            model = self.engine.lookup(name, version_text(call.model_version))
        except ServerError as error:
            if call.keeps_errors:
                raise
            # Newer releases of Triton use the first half, older ones the second; clients get both.
            raise InternalError(f"{error.message}. {_not_ready(call.model_name)}") from error
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
        call: InferCallFrame,
        inputs: dict[str, InferTensor],
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
            model_version=version_text(call.model_version),
            inputs=inputs,
            fields=RequestFields(
                call.id,
                call.parameters,
                call.priority,
                call.timeout_us,
                call.correlation_id,
                call.flags,
                self._principal(caller, call),
            ),
            outputs=tuple(call.outputs) or None,
            received_ns=time.monotonic_ns(),
            call_depth=self._depth(caller, call),
            device=use_of(inputs) if call.device else None,
            device_wish=call.device_wish,
        )

    def _principal(self, caller: CallingInstance | None, call: InferCallFrame) -> str:
        batch_id = call.blocked_batch or call.batch
        return "" if caller is None or not batch_id else caller.principal_of(batch_id)

    def _depth(self, caller: CallingInstance | None, call: InferCallFrame) -> int:
        batch_id = call.blocked_batch or call.batch
        if caller is None or not batch_id:
            return 1
        depth = 1 + caller.call_depth_of(batch_id)
        if depth > self._max_depth:
            raise InternalError(
                f"models call one another {depth} deep, of which at most {self._max_depth} "
                f"are allowed; '{caller.name}' made the last call"
            )
        return depth


class RunningBlsCall:
    """One call: connects the engine and the worker that waits for the responses."""

    def __init__(
        self,
        owner: ModelCaller,
        model_name: str,
        sink: ResponseSink,
        wait: BlockedBatch | None,
        *,
        keeps_errors: bool = False,
    ) -> None:
        self._owner = owner
        self._model_name = model_name
        self._keeps_errors = keeps_errors
        self._sink = sink
        self._wait = wait  # until the first response has come
        self._check: asyncio.Task[None] | None = None  # the readiness check, while it runs
        self._inference: Inference | None = None  # set after the engine accepted the request
        self._has_answer = False
        self._is_over = False

    def start(self, model: ServedModel, request: InferRequest, trace: Watch | None) -> None:
        """Submit the request to the engine, after the model's own readiness check if it has one."""
        if trace is not None:
            self._sink = trace
        if model.has_ready_check:  # in a task, so that the event loop does not wait for it
            work = self._submit_if_ready(model, request, trace)
            self._check = self._owner.loop.create_task(work)
        else:
            self._submit(request, trace)

    async def _submit_if_ready(
        self, model: ServedModel, request: InferRequest, trace: Watch | None
    ) -> None:
        try:
            is_ready = await model.check_ready()
            self._check = None
            if is_ready:
                self._submit(request, trace)
            else:
                self.on_refused(InternalError(_not_ready(self._model_name)))
        except Exception as error:  # noqa: BLE001  the caller must get a response in any case
            self.on_refused(
                error_for_clients(error, f"it began a call of model {self._model_name}")
            )

    def _submit(self, request: InferRequest, trace: Watch | None) -> None:
        owner = self._owner
        # A caller that waits alone has nobody to share a batch with: its call starts at once.
        inference = Inference(request, self, trace)
        owner.engine.submit(inference, is_alone=owner.waits.is_empty)
        if self._has_answer:  # it was refused, or answered from the response cache
            return
        self._inference = inference
        if self._wait is not None:
            owner.waits.add(self._wait, inference)
            self.refuse_if_deadlocked()

    def refuse_if_deadlocked(self) -> None:
        """Refuse the call if it would never be answered."""
        inference = self._inference
        owner = None if inference is None else queue_owner(inference)
        if inference is None or owner is None or self._has_answer:
            return
        waits = self._owner.waits
        awaited = owner.waits_for(inference) or WaitsFor()
        if waits.is_deadlocked(inference):
            self._give_up(inference, len(awaited.instances))
        elif inference.instance is None and waits.may_block_later(awaited.instances):
            owner.call_when_dispatched(inference, self.refuse_if_deadlocked)

    def _give_up(self, inference: Inference, count: int) -> None:
        waiting = (
            f"all {count} instance(s) of model '{self._model_name}' wait"
            if count
            else f"all instances of a step of ensemble '{self._model_name}' wait"
        )
        self._is_over = True  # so that the error of the cancelled request is not passed on
        inference.cancel()
        self._stop_waiting()
        text = (
            f"the call would never be answered, as {waiting} for calls that they made themselves. "
            "Models that call themselves, or one another in a circle, need more instances."
        )
        if self._owner.has_rate_limiter:
            text += " While they call, they hold their resources of the rate limiter."
        self._sink.on_refused(refusal(self._model_name, text))

    # Called by the engine

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Pass a response on; after the first one the caller does not wait any more."""
        self._stop_waiting()
        if not self._is_over:
            self._sink.on_response(response, final=final)
            self._is_over = final

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        self._stop_waiting()
        if not self._is_over:
            self._is_over = final
            self._sink.on_error(error, final=final)

    def on_refused(self, error: ServerError) -> None:
        """Pass a refusal on, with the Python backend's message unless it is wanted as it is."""
        self._stop_waiting()
        if not self._is_over:
            self._is_over = True
            known = error if self._keeps_errors else refusal(self._model_name, error.message)
            self._sink.on_refused(known)

    # Called for the worker

    def cancel(self) -> None:
        if self._check is not None:
            self._check.cancel()
            self._check = None
            self.on_error(CancelledError(""))
        elif self._inference is not None:
            self._inference.cancel()

    def pause(self) -> None:
        """Let the called model wait: the worker is behind with its responses."""
        if self._inference is not None:
            self._inference.pause()

    def resume(self) -> None:
        """Let the called model continue."""
        if self._inference is not None:
            self._inference.resume()

    def _stop_waiting(self) -> None:
        self._has_answer = True
        if self._wait is None or self._inference is None:
            return
        owner = self._owner
        others = owner.waits.discard(self._wait, self._inference)
        self._wait = None
        for other in others:
            if owner.waits.is_deadlocked(other):
                assert isinstance(other.sink, RunningBlsCall)
                owner.loop.call_soon(other.sink.refuse_if_deadlocked)


def refusal(model_name: str, text: str) -> InternalError:
    """Returns the Python backend's error for a call that the engine refused."""
    return InternalError(f"Model {model_name} - Error when running inference: {text}")


def _wait(caller: CallingInstance | None, call: InferCallFrame) -> BlockedBatch | None:
    """Returns which batch waits for a call; None if that is not known."""
    if caller is None:
        return None
    if call.blocks_loop:
        return BlockedBatch(caller, 0, is_blocking=True)
    if call.blocked_batch:
        return BlockedBatch(caller, call.blocked_batch, is_blocking=True)
    return BlockedBatch(caller, call.batch, is_blocking=False) if call.batch else None


def _not_ready(model_name: str) -> str:
    return f"Failed for execute the inference request. Model '{model_name}' is not ready."
