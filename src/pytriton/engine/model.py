# SPDX-License-Identifier: Apache-2.0
"""One served model version: its queue, its instances, its account.

The scheduler says what runs next and where; this class asks it whenever something changed (a
request came, an instance became free, a time was reached), hands batches to instances and passes
outcomes on to the requests' sinks.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from pytriton.engine.alarm import Alarm
from pytriton.engine.answer_cache import AnswerCache
from pytriton.engine.delivery import deliver, error_of_sending
from pytriton.engine.model_state import TRANSITIONS, UNLOADED, ModelState
from pytriton.engine.ordering import OrderedRelease
from pytriton.engine.recording import record_answers, record_responses, record_traces
from pytriton.engine.response_credit import ResponseCredit
from pytriton.engine.scheduler import Dispatch, make_scheduler
from pytriton.engine.start_policy import GATHER_NS, Start, StartPolicy
from pytriton.engine.stats import FailureReason, ModelStatistics
from pytriton.errors import CancelledError, ServerError, UnavailableError
from pytriton.executor.base import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.engine.cache import ResponseCache
    from pytriton.engine.model_spec import ModelSpec
    from pytriton.engine.served_model import InstanceSupervisor
    from pytriton.executor.base import Instance, RunningBatch
    from pytriton.executor.inference import Inference

__all__ = ["TRANSITIONS", "UNLOADED", "Model", "ModelState"]


class Model:
    """A model version with a queue and instances. Lives on the event loop's thread.

    Args:
        spec: What requests are checked against, and how they are batched.
        loop: The event loop.
        cache: Where responses are kept if the model's configuration asks for that.
        config_json: The configuration as clients read it.
        is_bound: Whether a process has bound it; otherwise a repository has it.
        body_memory: Allocates shared memory for a request body, given the size of the body and of
            the header before its tensors; returns None if no block is free.
        supervisor: Who replaces instances; without one, what is gone is gone.
    """

    def __init__(
        self,
        spec: ModelSpec,
        loop: asyncio.AbstractEventLoop,
        cache: ResponseCache | None = None,
        *,
        config_json: bytes = b"",
        is_bound: bool = False,
        body_memory: Callable[[int, int], memoryview | None] | None = None,
        supervisor: InstanceSupervisor | None = None,
    ) -> None:
        self.spec = spec
        self.is_bound = is_bound
        self.config_json = config_json
        self.missing_instances = 0  # that are gone and will be replaced
        self.statistics = ModelStatistics()
        self.state = ModelState.LOADING
        self.reason = ""
        self.instances: list[Instance] = []
        self._loop = loop
        self._body_memory = body_memory
        self._supervisor = supervisor
        self._cache: AnswerCache | None = None
        if cache is not None and spec.response_cache:
            self._cache = AnswerCache(cache, spec, self.statistics)
        self._scheduler = make_scheduler(spec)
        self._start_policy = StartPolicy(spec)
        self._free: dict[Instance, None] = {}  # an ordered set: the longest idle one comes first
        self._running = 0  # requests handed to instances and not answered finally
        self._credit = ResponseCredit(loop)
        self._is_pump_due = False
        self._alarm = Alarm(loop, self._pump)
        self._order: OrderedRelease[tuple[Inference, Outcome]] | None = None
        # The responses of a decoupled model come in any order anyway.
        if spec.batcher is not None and spec.batcher.preserve_ordering and not spec.decoupled:
            self._order = OrderedRelease()
        self._on_idle: asyncio.Future[None] | None = None
        self._when_placed: dict[Inference, Callable[[], None]] = {}

    # Life

    def become(self, state: ModelState, reason: str = "") -> None:
        """Change the state; a change that the table does not have is a bug here."""
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state
        self.reason = reason

    @property
    def is_ready(self) -> bool:
        """Whether it serves with all its instances; requests are taken with fewer, too."""
        return self.state is ModelState.READY and not self.missing_instances

    @property
    def is_withdrawn(self) -> bool:
        """Whether it was taken out of service on purpose, so that nobody waits for it."""
        return self.state is ModelState.UNLOADING or self.reason == UNLOADED

    @property
    def has_ready_check(self) -> bool:
        """Whether `check_ready` has to be asked whether it is ready."""
        return self._supervisor is not None and self._supervisor.has_ready_check

    async def check_ready(self) -> bool:
        """The model's own word on whether it is ready; one without a word is."""
        return self._supervisor is None or await self._supervisor.check_ready()

    @property
    def is_busy(self) -> bool:
        """Whether requests wait or run."""
        return bool(self._running or len(self._scheduler))

    @property
    def running_count(self) -> int:
        """How many requests instances work on now."""
        return self._running

    def add_instance(self, instance: Instance) -> None:
        """Take an instance into service, maybe in the place of one that is gone."""
        self.missing_instances = max(0, self.missing_instances - 1)
        self.instances.append(instance)
        self._free[instance] = None
        instance.start()
        self._pump_soon()

    async def drain(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is queued or running, at most for so long."""
        if not self.is_busy:
            return
        if self._on_idle is None or self._on_idle.done():
            self._on_idle = self._loop.create_future()
        await asyncio.wait([self._on_idle], timeout=timeout_s)

    def stop(self) -> None:
        """End all instances; what still waits is answered."""
        if self.state is ModelState.READY:
            self.become(ModelState.UNLOADING)
        if self.state is not ModelState.UNAVAILABLE:
            self.become(ModelState.UNAVAILABLE, UNLOADED)
        for instance in list(self.instances):
            instance.stop()
        self._alarm.cancel()

    def __repr__(self) -> str:
        return (
            f"<Model {self.spec.name} version {self.spec.version} {self.state.value}: "
            f"{len(self._scheduler)} queued, {self._running} running, "
            f"{len(self._free)} of {len(self.instances)} instances free>"
        )

    # Requests

    def body_memory(self, size: int, header_bytes: int) -> memoryview | None:
        """Memory that instances can read, for a request body; see `ServedModel`."""
        return self._body_memory(size, header_bytes) if self._body_memory is not None else None

    def submit(self, inference: Inference, now_ns: int) -> None:
        """Queue a validated request; ServerError where it cannot be taken."""
        if self._cache is not None and self._answer_from_cache(self._cache, inference):
            return
        self._scheduler.add(inference, now_ns)
        self.statistics.pending_count += 1
        if self._order is not None:
            inference.ticket = self._order.take_ticket()
        if not self._free:
            if inference.deadline_ns:
                self._alarm.set(inference.deadline_ns)
            return
        start = self._start_policy.decide(len(self._scheduler), next(iter(self._free)))
        if start is Start.THIS_ROUND:
            self._pump_soon()
        elif start is Start.NOW:
            self._pump()
        else:
            self._alarm.set(now_ns + GATHER_NS)

    def when_placed(self, inference: Inference, callback: Callable[[], None]) -> None:
        """Call back once a queued request was handed to an instance; never if it ends before."""
        self._when_placed[inference] = callback

    def cancel(self, inference: Inference) -> None:
        """The client gave up: a queued request goes at once, a running one's model is told."""
        if inference.is_cancelled:
            return
        inference.is_cancelled = True
        if inference.trace is not None:
            inference.trace.on_cancelled()
        if self._scheduler.remove(inference):
            self._refuse(inference, CancelledError(""), FailureReason.CANCELED)
            return
        if inference.instance is not None:
            inference.instance.cancel(inference)

    def pause(self, inference: Inference) -> None:
        """The sink takes no more responses for now; a decoupled model that runs ahead must wait."""
        self._credit.pause(inference)

    def resume(self, inference: Inference) -> None:
        """The sink takes responses again."""
        self._credit.resume(inference)

    # Deciding

    def _pump_soon(self) -> None:
        # Requests that arrive in the same round of the event loop share a batch.
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pump_due = False
        now_ns = time.monotonic_ns()
        scheduler = self._scheduler
        wake_ns = 0
        while self._free:
            if not next(iter(self._free)).free_slots:  # it is about to be reported as gone
                del self._free[next(iter(self._free))]
                continue
            decision = scheduler.next(now_ns, self._free)
            if not isinstance(decision, Dispatch):
                wake_ns = decision or 0
                break
            self._dispatch(decision.instance, decision.inferences, now_ns)
        deadline_ns = scheduler.next_deadline_ns()
        if deadline_ns:
            for inference in scheduler.expire(now_ns):
                error = UnavailableError("Request timeout expired")
                self._refuse(inference, error, FailureReason.REJECTED)
            deadline_ns = scheduler.next_deadline_ns()
            wake_ns = (
                min(wake_ns, deadline_ns) if wake_ns and deadline_ns else wake_ns or deadline_ns
            )
        if wake_ns:
            self._alarm.set(wake_ns)

    def _dispatch(self, instance: Instance, inferences: list[Inference], now_ns: int) -> None:
        self.statistics.pending_count -= len(inferences)
        self._running += len(inferences)
        try:
            instance.execute(inferences, now_ns)
        except Exception as error:  # noqa: BLE001  whatever it was, the requests are answered
            self._running -= len(inferences)
            answer = error_of_sending(self.spec.name, error)
            for inference in inferences:
                self._refuse(inference, answer, FailureReason.OTHER, is_pending=False)
            return
        del self._free[instance]
        if instance.free_slots:
            self._free[instance] = None
        if self._when_placed:
            self._tell_placed(inferences)

    def _tell_placed(self, inferences: list[Inference]) -> None:
        for inference in inferences:
            callback = self._when_placed.pop(inference, None)
            if callback is not None:
                self._loop.call_soon(callback)

    def _refuse(
        self,
        inference: Inference,
        error: ServerError,
        reason: FailureReason,
        *,
        is_pending: bool = True,
    ) -> None:
        if is_pending:
            self.statistics.pending_count -= 1
        self._when_placed.pop(inference, None)
        self.statistics.record_failures(
            1, time.monotonic_ns() - inference.request.received_ns, reason
        )
        if self._order is not None:
            for released in self._order.skip(inference.ticket):
                self._deliver(*released)
        deliver(inference, Outcome(0, None, error))
        if self._on_idle is not None:
            self._check_idle()

    # Events of instances

    def on_outcomes(
        self,
        instance: Instance,
        batch: RunningBatch,
        outcomes: list[Outcome],
        times_ns: tuple[int, int],
    ) -> None:
        """Pass outcomes on, after the instance got its next batch: it need not wait for us."""
        if batch.is_traced:
            record_traces(batch, outcomes, times_ns)
        passed_on = self._scheduler.finished(batch, outcomes, time.monotonic_ns())
        again_count = len(outcomes) - len(passed_on)  # queued to be executed once more
        self._running -= again_count
        self.statistics.pending_count += again_count
        if instance.free_slots:
            self._free[instance] = None
            if len(self._scheduler):
                self._pump()
        elif again_count:
            self._pump_soon()
        if passed_on:  # otherwise the instance just became free
            self._settle(batch, passed_on, times_ns)

    def _settle(
        self, batch: RunningBatch, outcomes: list[Outcome], times_ns: tuple[int, int]
    ) -> None:
        """Count outcomes and give them to whom they are for."""
        if self.spec.decoupled:
            record_responses(self.statistics, batch, outcomes, times_ns)
        else:
            record_answers(self.statistics, batch, outcomes, times_ns)
            self._start_policy.learn(len(batch.inferences), times_ns[1] - times_ns[0])
        if self._order is None:
            for outcome in outcomes:
                self._deliver(batch.inferences[outcome.position], outcome)
        else:
            self._deliver_in_order(self._order, batch, outcomes)
        if self._cache is not None:
            self._cache.store(batch, outcomes)
        if self._on_idle is not None:
            self._check_idle()

    def _deliver_in_order(
        self,
        order: OrderedRelease[tuple[Inference, Outcome]],
        batch: RunningBatch,
        outcomes: list[Outcome],
    ) -> None:
        for outcome in outcomes:
            inference = batch.inferences[outcome.position]
            for released in order.complete(inference.ticket, (inference, outcome)):
                self._deliver(*released)

    def on_died(self, instance: Instance, reason: str) -> None:
        """An instance is gone, and its requests were failed."""
        self.instances.remove(instance)
        self._free.pop(instance, None)
        if self._supervisor is not None and self._supervisor.replaces(instance, reason):
            self.missing_instances += 1
            return
        self._give_up_if_empty(f"instance {instance.name} is gone, {reason}")

    def give_up(self, reason: str) -> None:
        """End all instances, with none to come, and refuse what waits."""
        if self.state in (ModelState.LOADING, ModelState.READY):
            self.become(ModelState.UNAVAILABLE, reason)
        for instance in list(self.instances):
            instance.stop()
        self.missing_instances = 0
        self._give_up_if_empty(reason)

    def _give_up_if_empty(self, reason: str) -> None:
        """Without an instance, and with none to come, nothing that waits can be served."""
        if self.instances or self.missing_instances:
            return
        if self.state in (ModelState.LOADING, ModelState.READY):
            self.become(ModelState.UNAVAILABLE, reason)
        error = UnavailableError(
            f"Request for unknown model: '{self.spec.name}' version {self.spec.version} "
            "is not at ready state"
        )
        for inference in self._scheduler.take_all():
            self._refuse(inference, error, FailureReason.OTHER)

    def _deliver(self, inference: Inference, outcome: Outcome) -> None:
        if outcome.is_final:
            self._running -= 1
        deliver(inference, outcome)
        if not outcome.is_final:
            self._credit.on_taken(inference, outcome)

    def _check_idle(self) -> None:
        if not self.is_busy and self._on_idle is not None and not self._on_idle.done():
            self._on_idle.set_result(None)

    def _answer_from_cache(self, cache: AnswerCache, inference: Inference) -> bool:
        response = cache.answer(inference)
        if response is None:
            return False
        outcome = Outcome(0, response)
        if self._order is None:
            deliver(inference, outcome)
        else:
            self._running += 1  # until those before it are answered
            ticket = self._order.take_ticket()
            for released in self._order.complete(ticket, (inference, outcome)):
                self._deliver(*released)
        return True
