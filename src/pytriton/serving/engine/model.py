# SPDX-License-Identifier: Apache-2.0
"""One served model version: its queue, its instances, its statistics.

The scheduler decides which requests run next and where. This class asks it after each change (a
request arrived, an instance became free, a timer fired), sends batches to instances and passes
outcomes to the requests' sinks. `InstancePool` has the instances, `BatchStart` decides when to ask,
`Answers` delivers.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pytriton.base.errors import (
    UNEXPECTED,
    CancelledError,
    InternalError,
    ServerError,
)
from pytriton.base.messages import RequestPath
from pytriton.runtime.executor.inference import (
    Instance,
    Outcome,
    RunningBatch,
    burst_outcomes,
    trace_of,
)
from pytriton.serving.engine.answer_cache import AnswerCache
from pytriton.serving.engine.batch_start import EarliestTimer
from pytriton.serving.engine.batch_stats import (
    record_answers,
    record_burst,
    record_late_failures,
    record_responses,
    record_traces,
    record_usage,
    usage_of,
)
from pytriton.serving.engine.delivery import (
    Answers,
    ResponseCredit,
    deliver,
    dispatch_error,
    refuse,
)
from pytriton.serving.engine.fairness import FairShares
from pytriton.serving.engine.instance_pool import InstanceOwner
from pytriton.serving.engine.model_state import (
    TRANSITIONS,
    UNLOADED,
    IdleWait,
    VersionState,
)
from pytriton.serving.engine.scheduling import Dispatch
from pytriton.serving.engine.served_model import InstanceSupervisor, WaitsFor
from pytriton.serving.engine.stats import FailureReason

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from pytriton.base.messages import ResponseBurst
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.cache import ResponseStore
    from pytriton.serving.engine.costs import ModelCosts
    from pytriton.serving.engine.quotas import ModelQuotas
    from pytriton.serving.engine.rate_limiter import ModelTurns

__all__ = ["TRANSITIONS", "UNLOADED", "Model", "VersionState"]

logger = logging.getLogger(__name__)

_SEQUENCE_CANCELLED = "The sequence has ended: an earlier request of it was cancelled"


class Model(InstanceOwner):
    """A model version with a queue and instances. Used on the event loop's thread only.

    Args:
        spec: The specification by which requests are validated and batched.
        loop: The event loop.
        cache: Stores responses, if the model's configuration enables the response cache.
        config_json: The configuration as clients read it.
        is_bound: True for a model that a process has bound, False for one of a repository.
        body_memory: Allocates shared memory for a request body, given the size of the body and of
            the header before its tensors; returns None if no block is free.
        supervisor: Replaces instances that died; without one, they are not replaced.
        turns: Says when instances may start batches; without it, they may when they are free.
    """

    prefers_columns = False  # for a single request, a chunk takes 5 us more

    def __init__(
        self,
        spec: ModelSpec,
        loop: asyncio.AbstractEventLoop,
        cache: ResponseStore | None = None,
        *,
        config_json: bytes = b"",
        is_bound: bool = False,
        body_memory: Callable[[int, int], memoryview | None] | None = None,
        supervisor: InstanceSupervisor | None = None,
        turns: ModelTurns | None = None,
    ) -> None:
        super().__init__(spec, loop, supervisor, turns)
        self.is_bound = is_bound
        self.config_json = config_json
        self.costs: ModelCosts | None = self.statistics.costs  # None: they are not counted
        self._loop = loop
        self._body_memory = body_memory
        self._cache: AnswerCache | None = None
        if cache is not None and spec.response_cache:
            self._cache = AnswerCache(cache, spec, self.statistics)
        # Answers from the cache would overtake others of their chunk.
        is_disordered = self._cache is not None and spec.is_ordered
        self.takes_columns = spec.fits_columns and not is_disordered

        self._timer = EarliestTimer(loop, self._form_batches)
        self._answers = Answers(ResponseCredit(loop), is_ordered=spec.is_ordered)
        self._dispatch_callbacks: dict[Inference, Callable[[], None]] = {}
        self._idle = IdleWait()

    def set_quotas(self, quotas: ModelQuotas | None) -> None:
        """Limit principals from now on, and let them share the queue by their weights."""
        super().set_quotas(quotas)
        shares = None if quotas is None else FairShares(quotas.weights, self._on_displaced)
        self._scheduler.share(shares)

    def _on_displaced(self, inference: Inference) -> None:
        """Refuse a request whose place in the full queue another principal gets."""
        assert self.quotas is not None, f"{self} is not shared"
        error = self.quotas.displacement(inference)
        # Later: its client may send the next request at once, while this one is being queued.
        self._loop.call_soon(self._refuse, inference, error, FailureReason.REJECTED)

    # Lifecycle

    @property
    def is_busy(self) -> bool:
        """Whether requests are queued or running."""
        return bool(self._answers.running or len(self._scheduler))

    @property
    def running_count(self) -> int:
        """The number of requests that are being executed."""
        return self._answers.running

    async def drain(self, timeout_s: float | None = None) -> None:
        """Wait until no request is queued or running, at most for `timeout_s`."""
        if self.is_busy:
            await self._idle.wait(timeout_s)

    def stop(self) -> None:
        """Stop all instances; waiting requests get an error."""
        if self.is_busy:
            self.gave_up_requests = True
        self.withdraw()
        self.give_up(UNLOADED)
        if self._turns is not None:
            self._turns.close()
        self._outage.end()
        self._timer.cancel()
        self._start.stop()

    def __repr__(self) -> str:
        return (
            f"<Model {self.spec.name} version {self.spec.version} {self.state.value}: "
            f"{len(self._scheduler)} queued, {self._answers.running} running, "
            f"{len(self._free)} of {len(self.instances)} instances free>"
        )

    # Requests

    def body_memory(self, size: int, header_bytes: int) -> memoryview | None:
        """Allocate memory for a request body that instances can read; see `ServedModel`."""
        return self._body_memory(size, header_bytes) if self._body_memory is not None else None

    def submit(self, inference: Inference, now_ns: int, *, is_alone: bool = False) -> None:
        """Queue a validated request; raises ServerError if it is refused. See `ServedModel`."""
        self.statistics.paths[inference.request.path] += 1
        if self._cache is not None and (response := self._cache.answer(inference)) is not None:
            self._answers.pass_on_cached(inference, response)
            return
        if self._outage.is_over_limit:
            raise self._outage_error()
        self._scheduler.add(inference, now_ns)
        self.statistics.pending_count += 1
        if self._answers.is_ordered:
            self._answers.take_tickets((inference,))
        if self._free:
            (self._start.now if is_alone else self._start.soon)()
        elif inference.deadline_ns:
            self._timer.set(inference.deadline_ns)

    def submit_chunk(
        self, inferences: Sequence[Inference], now_ns: int, *, is_complete: bool = False
    ) -> None:
        self.statistics.paths[RequestPath.COLUMNS] += len(inferences)
        try:
            if self._cache is not None:
                inferences, hits = self._cache.answer_members(inferences)
                for inference, response in hits:
                    self._answers.pass_on_cached(inference, response)
                if not inferences:
                    return
            refused = self._queue_all(inferences, now_ns)
        except Exception as failure:  # noqa: BLE001  it is logged
            self._log_unexpected(failure, "it queued requests")
            self._refuse_chunk(inferences)
            return
        if not self._free:
            deadline_ns = self._scheduler.next_deadline_ns()
            if deadline_ns:
                self._timer.set(deadline_ns)
        elif is_complete:
            self._start.now()
        else:
            self._start.soon()
        for inference, error in refused.items():
            self.statistics.record_refusal(inference, error)
            refuse(inference, error)

    def _queue_all(
        self, inferences: Sequence[Inference], now_ns: int
    ) -> dict[Inference, ServerError]:
        """Queue the members of a chunk; returns those that were refused, each with its error."""
        if self._outage.is_over_limit:
            return {each: self._outage_error() for each in inferences}
        refused = self._scheduler.add_all(inferences, now_ns)
        self.statistics.pending_count += len(inferences) - len(refused)
        if self._answers.is_ordered:
            self._answers.take_tickets([each for each in inferences if each not in refused])
        return refused

    def _refuse_chunk(self, inferences: Sequence[Inference]) -> None:
        """End those of the requests that are not answered, after an unexpected error."""
        for inference in inferences:
            if not inference.is_over:
                self._scheduler.remove(inference)  # it may be in the queue or not
                error = InternalError(UNEXPECTED)
                self.statistics.record_refusal(inference, error)
                refuse(inference, error)

    def is_start_due(self, count: int) -> bool:
        return self._start.is_early(count)

    def waits_for(self, inference: Inference) -> WaitsFor | None:
        return WaitsFor(instances=self.instances, more_follow=self._pool.missing_count > 0)

    def call_when_dispatched(self, inference: Inference, callback: Callable[[], None]) -> None:
        """Call `callback` after a queued request was sent to an instance, unless it ends before."""
        self._dispatch_callbacks[inference] = callback

    def cancel(self, inference: Inference) -> None:
        """Remove a queued request; for a running one, notify the instance."""
        if inference.is_cancelled:
            return
        inference.is_cancelled = True
        if (trace := trace_of(inference)) is not None:
            trace.on_cancelled(inference.index)
        removed = self._scheduler.remove(inference)
        for each in removed:
            # Whoever cancels waits for nothing, but the requests behind it may be of other clients.
            text = "" if each is inference else _SEQUENCE_CANCELLED
            self._refuse(each, CancelledError(text), FailureReason.CANCELED)
        if not removed and inference.instance is not None:
            inference.instance.cancel(inference)

    def pause(self, inference: Inference) -> None:
        """Grant a decoupled model no more credit: the sink is behind with its responses."""
        self._answers.credit.pause(inference)

    def resume(self, inference: Inference) -> None:
        """Grant credit again: the sink has caught up."""
        self._answers.credit.resume(inference)

    # Scheduling

    def _form_batches(self) -> None:
        """Form batches; a scheduler that fails loses the requests that wait, not its model."""
        self._start.began()
        now_ns = time.monotonic_ns()
        scheduler = self._scheduler
        wake_ns = 0
        try:
            if self._turns is not None and len(scheduler):
                self._turns.wait(self._free)
            while self._free and self._turns is None:
                decision = scheduler.next(now_ns, self._free)
                if not isinstance(decision, Dispatch):
                    wake_ns = decision or 0
                    break
                self._dispatch(decision, now_ns)
            deadline_ns = scheduler.next_deadline_ns()
            if deadline_ns:
                self._refuse_all(scheduler.expire(now_ns))
                deadline_ns = scheduler.next_deadline_ns()
                wake_ns = min(filter(None, (wake_ns, deadline_ns)), default=0)
        except Exception as error:  # noqa: BLE001  it is logged
            self._log_unexpected(error, "it formed batches")
            for inference in scheduler.take_all():
                self._refuse(inference, InternalError(UNEXPECTED), FailureReason.OTHER)
            self.statistics.pending_count = len(scheduler)
            return
        if wake_ns:
            self._timer.set(wake_ns)
        if self._pool.retiring:  # their sequences may have ended
            self._pool.stop_retiring_soon()

    def check_integrity(self) -> None:
        """Check counts and queues, for tests: raises AssertionError with what is broken.

        Called between events, when the event loop has nothing to do.
        """
        scheduler, waiting = self._scheduler, len(self._scheduler)
        scheduler.check_integrity()
        pending = self.statistics.pending_count
        assert pending == waiting, f"{self} counts {pending} requests"
        self._pool.check_integrity()
        if waiting and self._free and self._turns is None and self.spec.sequence is None:
            is_due = self._start.is_scheduled or self._timer.is_set
            assert is_due, f"{self}: requests wait, instances are free, and nothing starts them"

    def _log_unexpected(self, error: Exception, activity: str) -> None:
        logger.error(
            "model %s version %s: unexpected error in the server while %s",
            self.spec.name,
            self.spec.version,
            activity,
            exc_info=error,
        )

    def _start_turn(self, instance: Instance) -> bool:
        if instance not in self._free:
            return False
        now_ns = time.monotonic_ns()
        decision = self._scheduler.next(now_ns, (instance,))
        if isinstance(decision, Dispatch):
            self._dispatch(decision, now_ns)
            return True
        if decision:
            self._timer.set(decision)
        return False

    def _dispatch(self, dispatch: Dispatch, now_ns: int) -> None:
        instance, inferences = dispatch.instance, dispatch.inferences
        if self.quotas is not None:
            self.quotas.on_dispatch(inferences, now_ns)
        count = len(inferences) - dispatch.null_count
        self.statistics.pending_count -= count
        self._answers.running += count
        try:
            instance.execute(inferences, now_ns)
        except Exception as error:  # noqa: BLE001  the requests end with this error
            self._answers.running -= count
            self._fail_dispatch(inferences, dispatch_error(self.spec.name, error), now_ns)
            return
        del self._free[instance]
        if instance.free_slots:
            self._free[instance] = None
        if self._dispatch_callbacks:
            for inference in inferences:
                callback = self._dispatch_callbacks.pop(inference, None)
                if callback is not None:
                    self._loop.call_soon(callback)

    def _fail_dispatch(self, inferences: list[Inference], error: ServerError, now_ns: int) -> None:
        batch = RunningBatch(0, inferences, now_ns, set())
        outcomes = [Outcome(position, None, error) for position in range(len(inferences))]
        for outcome in self._scheduler.finished(batch, outcomes, now_ns):
            inference = inferences[outcome.position]
            self._refuse(inference, error, FailureReason.OTHER, is_pending=False)

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
        self._dispatch_callbacks.pop(inference, None)
        self.statistics.record_failure(inference, error, time.monotonic_ns(), reason)
        self._answers.skip(inference)
        deliver(inference, Outcome(0, None, error))
        if self._idle.is_awaited and not self.is_busy:
            self._idle.end()

    # Outcomes

    def shown(self, error: ServerError, batch: RunningBatch) -> ServerError:
        """Returns what clients get of an error of an instance; see `InstanceEvents`."""
        if self.hidden is None:
            return error
        return self.hidden.shown(
            self.spec, error, [each.request.fields.id for each in batch.inferences]
        )

    def on_outcomes(
        self,
        instance: Instance,
        batch: RunningBatch,
        outcomes: list[Outcome],
        times_ns: tuple[int, int],
    ) -> None:
        """Pass outcomes on. The instance gets its next batch first, so that it does not idle."""
        now_ns = time.monotonic_ns()
        try:
            if batch.is_traced:
                record_traces(batch, outcomes, times_ns, self.statistics)
            if self.spec.iterative:
                passed_on = self._settle_round(batch, outcomes, times_ns, now_ns)
            else:
                passed_on = self._scheduler.finished(batch, outcomes, now_ns)
            if batch.is_rescheduled and len(passed_on) != len(outcomes):
                self._on_queued_again(batch, len(outcomes) - len(passed_on))
        except Exception as error:  # noqa: BLE001  it is logged
            self._log_unexpected(error, "it scheduled the answers of a batch")
            passed_on = _as_failures(batch, outcomes)
            self.statistics.pending_count = len(self._scheduler)
        try:
            self._use_again(instance)
        except Exception as error:  # noqa: BLE001  it is logged
            self._log_unexpected(error, "it looked for the next batch")
        if passed_on or batch.answered:  # it is empty if the instance only reports that it is free
            self._finish(batch, passed_on, times_ns, now_ns)

    def on_burst(
        self,
        instance: Instance,
        batch: RunningBatch,
        position: int,
        burst: ResponseBurst,
        times_ns: tuple[int, int],
    ) -> None:
        """Pass on many responses to a request, which free no instance."""
        spec = self.spec
        is_plain = spec.decoupled and not spec.iterative and spec.sequence is None
        if not is_plain or batch.is_traced or self._answers.is_ordered:
            self.on_outcomes(instance, batch, burst_outcomes(position, burst), times_ns)
            return
        inference = batch.inferences[position]
        try:
            record_burst(self.statistics, inference, burst.count, times_ns, time.monotonic_ns())
            is_counted = self.costs is not None or self.quotas is not None
            if self.spec.openai is not None and is_counted and inference.request.operation:
                usage_of(inference, self.spec.openai.text).read_burst(burst)
        except Exception as error:  # noqa: BLE001  it is logged
            self._log_unexpected(error, "it counted the answers of a batch")
            outcomes = _as_failures(batch, burst_outcomes(position, burst))
            self._answers.pass_on(batch, outcomes)
            return
        self._answers.pass_on_burst(inference, burst)

    def _settle_round(
        self, batch: RunningBatch, outcomes: list[Outcome], times_ns: tuple[int, int], now_ns: int
    ) -> list[Outcome]:
        """Count a round of an iterative model, then let the scheduler queue requests again."""
        self._record(batch, outcomes, times_ns, now_ns)
        passed_on = self._scheduler.finished(batch, outcomes, now_ns)
        record_late_failures(self.statistics, batch, outcomes, passed_on, now_ns)
        return passed_on

    def _use_again(self, instance: Instance) -> None:
        """Give an instance that has answered its next batch."""
        if self._turns is not None:
            self._turns.settle(instance)
        if instance.free_slots and (not self._pool.retiring or self._pool.may_go_on(instance)):
            self._free[instance] = None  # the last one, as they take turns
            if self.statistics.pending_count:
                self._form_batches()
        if self.spec.sequence is not None:  # its sequences may be idle now
            deadline_ns = self._scheduler.next_deadline_ns()
            if deadline_ns:
                self._timer.set(deadline_ns)

    def _on_queued_again(self, batch: RunningBatch, count: int) -> None:
        """Count requests of a batch that wait again, and start them as soon as possible."""
        self._answers.running -= count
        self.statistics.pending_count += count
        if batch.is_lost:
            self.statistics.requeued_requests += count
        self._start.after_iteration()
        if self._outage.is_over_limit:
            self._refuse_waiting()

    def _finish(
        self, batch: RunningBatch, outcomes: list[Outcome], times_ns: tuple[int, int], now_ns: int
    ) -> None:
        """Count outcomes and deliver them to the sinks of their requests."""
        try:
            if not self.spec.iterative:
                self._record(batch, outcomes, times_ns, now_ns)
            if self.spec.openai is not None and (
                self.costs is not None or batch.is_traced or self.quotas is not None
            ):
                record_usage(self.statistics, self.spec.openai.text, batch, outcomes)
        except Exception as error:  # noqa: BLE001  it is logged
            self._log_unexpected(error, "it counted the answers of a batch")
            outcomes = _as_failures(batch, outcomes)
        self._answers.pass_on(batch, outcomes)
        try:
            if self._cache is not None:
                self._cache.store(batch, outcomes)
        except Exception as error:  # noqa: BLE001  it is logged
            self._log_unexpected(error, "it stored the answers of a batch in the cache")
        if self._idle.is_awaited and not self.is_busy:
            self._idle.end()

    def _record(
        self, batch: RunningBatch, outcomes: list[Outcome], times_ns: tuple[int, int], now_ns: int
    ) -> None:
        if self.spec.decoupled:
            record_responses(self.statistics, batch, outcomes, times_ns, now_ns)
        else:
            record_answers(self.statistics, batch, outcomes, times_ns, now_ns)
            self._start.learn(len(batch.inferences), times_ns[1] - times_ns[0])


def _as_failures(batch: RunningBatch, outcomes: list[Outcome]) -> list[Outcome]:
    """Returns errors in place of all outcomes of a batch, also in place of columns."""
    error = InternalError(UNEXPECTED)
    failures = [Outcome(each.position, None, error, each.is_final) for each in outcomes]
    for run in batch.answered:
        positions = range(run.position, run.position + run.end - run.first)
        failures += [Outcome(position, None, error) for position in positions]
    batch.answered = ()
    return failures
