# SPDX-License-Identifier: Apache-2.0
"""One served model version: its queue, its instances, its account. It decides nothing itself.

The batcher says what runs next; this class asks it whenever something changed (a request came, an
instance became free, a time was reached), hands batches to instances and passes outcomes on to the
requests' sinks.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from typing import TYPE_CHECKING

from pytriton.engine.alarm import Alarm
from pytriton.engine.answer_cache import AnswerCache
from pytriton.engine.batcher import make_batcher
from pytriton.engine.early_start import EarlyStart
from pytriton.engine.granting import is_grant_due
from pytriton.engine.model_state import TRANSITIONS, UNLOADED, ModelState
from pytriton.engine.ordering import OrderedRelease
from pytriton.engine.recording import record_answers, record_responses, record_traces
from pytriton.engine.rescheduling import split_rescheduled
from pytriton.engine.stats import FailureReason, ModelStatistics
from pytriton.errors import CancelledError, InternalError, ServerError, UnavailableError
from pytriton.executor.base import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pytriton.engine.cache import ResponseCache
    from pytriton.engine.model_spec import ModelSpec
    from pytriton.executor.base import Instance, RunningBatch
    from pytriton.messages import InferRequest

__all__ = ["TRANSITIONS", "UNLOADED", "Model", "ModelState"]

logger = logging.getLogger(__name__)

# A decoupled model that is at work already gets what comes within this time as one batch.
_GATHER_NS = 1_000_000

_SEQUENCE_START = 1


class Model:
    """A model version as the engine serves it. Lives on the event loop's thread."""

    def __init__(
        self, spec: ModelSpec, loop: asyncio.AbstractEventLoop, cache: ResponseCache | None = None
    ) -> None:
        self.spec = spec
        self.is_bound = False  # by a process, and not from a repository
        self.config_json = b""  # as clients read it
        # Memory that instances can read, for a body of so many bytes whose tensors begin after a
        # header; None where there is none, or the model has none at all.
        self.body_memory: Callable[[int, int], memoryview | None] | None = None
        # Asked when an instance is gone: whether another one comes in its place.
        self.is_replaced: Callable[[Instance, str], bool] | None = None
        # The model's own word on whether it is ready, where it has one to say.
        self.ready_check: Callable[[], Awaitable[bool]] | None = None
        self.missing_instances = 0  # that are gone and will be replaced
        self.statistics = ModelStatistics()
        self.state = ModelState.LOADING
        self.reason = ""
        self.instances: list[Instance] = []
        self._loop = loop
        self._cache: AnswerCache | None = None
        if cache is not None and spec.response_cache:
            self._cache = AnswerCache(cache, spec, self.statistics)
        self._batcher = make_batcher(spec)
        self._sequences = itertools.count(1)  # ids of those that clients gave none
        self._free: dict[Instance, None] = {}  # an ordered set: the longest idle one comes first
        self._running = 0  # requests handed to instances and not answered finally
        self._is_pump_due = False
        self._early_start = EarlyStart()
        self._alarm = Alarm(loop, self._pump)
        self._order: OrderedRelease[tuple[InferRequest, Outcome]] | None = None
        # The responses of a decoupled model come in any order anyway.
        if spec.batcher is not None and spec.batcher.preserve_ordering and not spec.decoupled:
            self._order = OrderedRelease()
        self._on_idle: asyncio.Future[None] | None = None
        self._gathers = spec.decoupled and spec.batcher is not None and spec.max_batch_size > 1

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
    def is_busy(self) -> bool:
        """Whether requests wait or run."""
        return bool(self._running or len(self._batcher))

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
        if not self._running and not len(self._batcher):
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
            f"{len(self._batcher)} queued, {self._running} running, "
            f"{len(self._free)} of {len(self.instances)} instances free>"
        )

    # Requests

    def submit(self, request: InferRequest, now_ns: int) -> None:
        """Queue a validated request; ServerError where it cannot be taken."""
        if self._cache is not None and self._answer_from_cache(self._cache, request):
            return
        if self.spec.iterative:
            request.correlation_id = request.correlation_id or next(self._sequences)
            request.flags = _SEQUENCE_START
        self._batcher.add(request, now_ns)
        self.statistics.pending_count += 1
        if self._order is not None:
            request.ticket = self._order.take_ticket()
        if not self._free:
            if request.deadline_ns:
                self._alarm.set(request.deadline_ns)
        elif self._gathers and not next(iter(self._free)).is_idle:
            self._alarm.set(now_ns + _GATHER_NS)
        elif self._early_start.is_worth_it(len(self._batcher)):
            self._pump()
        else:
            self._pump_soon()

    def cancel(self, request: InferRequest) -> None:
        """The client gave up: a queued request goes at once, a running one's model is told."""
        if request.is_cancelled:
            return
        request.is_cancelled = True
        if request.trace is not None:
            request.trace.on_cancelled()
        if self._batcher.remove(request):
            self._refuse(request, CancelledError(""), FailureReason.CANCELED)
            return
        if request.instance is not None:
            request.instance.cancel(request)

    def pause(self, request: InferRequest) -> None:
        """The sink takes no more responses for now; a decoupled model that runs ahead must wait."""
        request.is_paused = True

    def resume(self, request: InferRequest) -> None:
        """The sink takes responses again."""
        request.is_paused = False
        self._grant(request)

    def _grant_unless_paused(self, request: InferRequest) -> None:
        if not request.is_paused:
            self._grant(request)

    def _grant(self, request: InferRequest) -> None:
        if request.taken_count and request.instance is not None:
            request.instance.grant(request, request.taken_count)
            request.taken_count = 0

    # Deciding

    def _pump_soon(self) -> None:
        # Requests that arrive in the same round of the event loop share a batch.
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pump_due = False
        now_ns = time.monotonic_ns()
        batcher = self._batcher
        wake_ns = 0
        while self._free:
            decision = batcher.next(now_ns)
            if not isinstance(decision, list):
                wake_ns = decision or 0
                break
            self._dispatch(decision, now_ns)
        deadline_ns = batcher.next_deadline_ns()
        if deadline_ns:
            for request in batcher.expire(now_ns):
                error = UnavailableError("Request timeout expired")
                self._refuse(request, error, FailureReason.REJECTED)
            deadline_ns = batcher.next_deadline_ns()
            wake_ns = (
                min(wake_ns, deadline_ns) if wake_ns and deadline_ns else wake_ns or deadline_ns
            )
        if wake_ns:
            self._alarm.set(wake_ns)

    def _dispatch(self, requests: list[InferRequest], now_ns: int) -> None:
        instance = next(iter(self._free))
        self.statistics.pending_count -= len(requests)
        self._running += len(requests)
        try:
            instance.execute(requests, now_ns)
        except Exception as error:  # noqa: BLE001  whatever it was, the requests are answered
            self._running -= len(requests)
            answer = self._as_server_error(error)
            for request in requests:
                self._refuse(request, answer, FailureReason.OTHER, is_pending=False)
            return
        del self._free[instance]
        if instance.free_slots:
            self._free[instance] = None

    def _as_server_error(self, error: Exception) -> ServerError:
        if isinstance(error, ServerError):
            return error
        logger.error("model %s: a batch could not be sent", self.spec.name, exc_info=error)
        return InternalError(
            f"Failed to send the request(s) to model '{self.spec.name}', "
            f"message: {type(error).__name__}: {error}"
        )

    def _refuse(
        self,
        request: InferRequest,
        error: ServerError,
        reason: FailureReason,
        *,
        is_pending: bool = True,
    ) -> None:
        if is_pending:
            self.statistics.pending_count -= 1
        self.statistics.record_failures(1, time.monotonic_ns() - request.received_ns, reason)
        if self._order is not None:
            for released in self._order.skip(request.ticket):
                self._deliver(*released)
        self._pass_on(request, Outcome(0, None, error))
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
        if instance.free_slots:
            self._free[instance] = None
            if len(self._batcher):
                self._pump()
        if batch.needs_care:
            record_traces(batch, outcomes, times_ns)
            outcomes = self._reschedule(batch, outcomes)
        if not outcomes:  # only the instance became free
            return
        self._record(batch, outcomes, times_ns)
        if self._order is None:
            for outcome in outcomes:
                self._deliver(batch.requests[outcome.position], outcome)
        else:
            self._deliver_in_order(self._order, batch, outcomes)
        if self._cache is not None:
            self._cache.store(batch, outcomes)
        if self._on_idle is not None:
            self._check_idle()

    def _record(
        self, batch: RunningBatch, outcomes: list[Outcome], times_ns: tuple[int, int]
    ) -> None:
        if self.spec.decoupled:
            record_responses(self.statistics, batch, outcomes, times_ns)
            return
        record_answers(self.statistics, batch, outcomes, times_ns)
        self._early_start.learn(len(batch.requests), times_ns[1] - times_ns[0])

    def _deliver_in_order(
        self,
        order: OrderedRelease[tuple[InferRequest, Outcome]],
        batch: RunningBatch,
        outcomes: list[Outcome],
    ) -> None:
        for outcome in outcomes:
            request = batch.requests[outcome.position]
            for released in order.complete(request.ticket, (request, outcome)):
                self._deliver(*released)

    def on_died(self, instance: Instance, reason: str) -> None:
        """An instance is gone, and its requests were failed."""
        self.instances.remove(instance)
        self._free.pop(instance, None)
        if self.is_replaced is not None and self.is_replaced(instance, reason):
            self.missing_instances += 1
            return
        self.give_up_if_empty(f"instance {instance.name} is gone, {reason}")

    def give_up_if_empty(self, reason: str) -> None:
        """Without an instance, and with none to come, nothing that waits can be served."""
        if self.instances:
            return
        if self.state in (ModelState.LOADING, ModelState.READY):
            self.become(ModelState.UNAVAILABLE, reason)
        error = UnavailableError(
            f"Request for unknown model: '{self.spec.name}' version {self.spec.version} "
            "is not at ready state"
        )
        for request in self._batcher.take_all():
            self._refuse(request, error, FailureReason.OTHER)

    def _deliver(self, request: InferRequest, outcome: Outcome) -> None:
        if outcome.is_final:
            self._running -= 1
        self._pass_on(request, outcome)
        if not outcome.is_final:
            request.taken_count += 1
            if request.response_count == 1:
                # The second waits until the first was written, which takes two rounds: where the
                # model was at work again before, the client got its turn 1 to 5 ms later.
                self._loop.call_soon(self._loop.call_soon, self._grant_unless_paused, request)
            elif is_grant_due(request, outcome):
                self._grant_unless_paused(request)

    def _reschedule(self, batch: RunningBatch, outcomes: list[Outcome]) -> list[Outcome]:
        """Queue requests again that their model wants to execute once more; the other outcomes."""
        others, again = split_rescheduled(outcomes, is_iterative=self.spec.iterative)
        now_ns = time.monotonic_ns()
        for position in again:
            request = batch.requests[position]
            request.instance, request.flags, request.taken_count = None, 0, 0
            self._running -= 1
            self._batcher.add(request, now_ns)
            self.statistics.pending_count += 1
            self._pump_soon()
        return others

    def _pass_on(self, request: InferRequest, outcome: Outcome) -> None:
        try:
            if outcome.error is not None:
                request.sink.on_error(outcome.error, final=outcome.is_final)
            else:
                request.sink.on_response(outcome.response, final=outcome.is_final)
        except Exception:  # the other requests of its batch are owed their answers
            logger.exception("model %s: a response could not be delivered", self.spec.name)

    def _check_idle(self) -> None:
        is_idle = not self._running and not len(self._batcher)
        if is_idle and self._on_idle is not None and not self._on_idle.done():
            self._on_idle.set_result(None)

    def _answer_from_cache(self, cache: AnswerCache, request: InferRequest) -> bool:
        response = cache.answer(request)
        if response is None:
            return False
        outcome = Outcome(0, response)
        if self._order is None:
            self._pass_on(request, outcome)
        else:
            self._running += 1  # until those before it are answered
            ticket = self._order.take_ticket()
            for released in self._order.complete(ticket, (request, outcome)):
                self._deliver(*released)
        return True
