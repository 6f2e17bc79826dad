# SPDX-License-Identifier: Apache-2.0
"""The instances of one model version: which of them get requests, and what becomes of the others.

`InstancePool` knows them. `InstanceOwner` is the part of a model that hears what happens to them,
and tells the scheduler, the rate limiter and whoever replaces them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pytriton.base.errors import ServerError, UnavailableError
from pytriton.serving.engine.batch_start import BatchStart
from pytriton.serving.engine.delivery import not_ready_error
from pytriton.serving.engine.model_state import (
    VersionLifecycle,
    VersionState,
    reason_for_clients,
)
from pytriton.serving.engine.scheduler import make_scheduler
from pytriton.serving.engine.stats import FailureReason, ModelStatistics

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.inference import Inference, Instance
    from pytriton.serving.engine.rate_limiter import InstanceLimits, ModelTurns, Pool
    from pytriton.serving.engine.scheduling import QueueRefusal, Scheduler
    from pytriton.serving.engine.served_model import InstanceSupervisor


class Outage:
    """The time in which a model has no instance that gets requests; it may have a limit.

    Args:
        spec: The model, with the time after which requests are refused; 0: never.
        loop: The event loop.
        on_limit: Called when this time is over.

    Attributes:
        reason: Why there is no instance.
        is_over_limit: Whether it takes too long: requests are refused until there is an instance.
    """

    def __init__(
        self, spec: ModelSpec, loop: asyncio.AbstractEventLoop, on_limit: Callable[[], None]
    ) -> None:
        self.reason = ""
        self.is_over_limit = False
        self._spec = spec
        self._loop = loop
        self._on_limit = on_limit
        self._timer: asyncio.TimerHandle | None = None
        self._since_ns = 0
        self._limit_s = 0.0

    def begin(self, reason: str) -> None:
        """Note that the last instance is gone: requests wait for another."""
        self.reason = reason
        self._since_ns = time.monotonic_ns()
        if self._spec.no_instance_timeout_s:
            self.limit(self._spec.no_instance_timeout_s)

    def limit(self, limit_s: float) -> None:
        """Let requests wait so long for an instance, unless they have a limit already."""
        if self._timer is None:
            self._limit_s = limit_s
            self._timer = self._loop.call_later(limit_s, self._on_timer)

    def _on_timer(self) -> None:
        self.is_over_limit = True
        self._on_limit()

    def end(self) -> None:
        """Wait for an instance no longer: there is one, or there will never be one."""
        self.is_over_limit = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def error(self, *, tells_reason: bool = True) -> ServerError:
        """Returns the error of a request that would have to wait for too long."""
        elapsed_s = (time.monotonic_ns() - self._since_ns) / 1e9
        spec = self._spec
        reason = reason_for_clients(self.reason, is_told=tells_reason)
        return UnavailableError(
            f"model '{spec.identifier}' version {spec.version} has had no instance for "
            f"{elapsed_s:.1f} s, and requests wait at most {self._limit_s:g} s for "
            f"one: {reason}"
        )


class InstancePool:
    """The instances of a model, and the outage if there is none that gets requests.

    Args:
        spec: The model.
        scheduler: Knows which instances have sequences, and sends requests to no others.
        loop: The event loop.
        on_outage_limit: Called when an outage takes too long.

    Attributes:
        alive: All that have not ended. Of these, some serve, which means that they get requests,
            and the others are passive, retire, are retired or lost.
        free: Those that can take a batch; they take turns, and the next one to use is first.
        retiring: Those that are stopped when they have no requests.
        missing_count: The number of those that died and will be replaced.
        outage: The time without an instance that serves.
    """

    def __init__(
        self,
        spec: ModelSpec,
        scheduler: Scheduler,
        loop: asyncio.AbstractEventLoop,
        on_outage_limit: Callable[[], None],
    ) -> None:
        self.alive: list[Instance] = []
        self.free: dict[Instance, None] = {}
        self.retiring: dict[Instance, None] = {}
        self.missing_count = 0
        self.outage = Outage(spec, loop, on_outage_limit)
        self._serving: set[Instance] = set()
        self._retired: set[Instance] = set()  # those that were stopped, and have not ended yet
        self._lost: set[Instance] = set()  # those that ended, and whose death will be reported
        self._scheduler = scheduler
        self._loop = loop

    @property
    def is_complete(self) -> bool:
        """Whether no instance is lost or will be replaced."""
        return not (self.missing_count or self._lost)

    def __repr__(self) -> str:
        return f"<InstancePool {len(self.free)} of {len(self.alive)} instances free>"

    def add(self, instance: Instance, *, is_passive: bool) -> None:
        """Add an instance; a passive one gets no requests."""
        self.alive.append(instance)
        if is_passive:
            return
        self.outage.end()
        self._serving.add(instance)
        self._scheduler.add_instance(instance)
        if instance.free_slots:  # it may have ended already, which `start` reports
            self.free[instance] = None

    # Instances that retire

    def retire(self, instance: Instance) -> None:
        """Stop an instance as soon as it has answered its requests.

        Until then it gets no more requests. Only its sequences go on until they end.
        """
        if instance not in self.alive or instance in self._retired:
            return
        self.retiring[instance] = None
        self._scheduler.retire_instance(instance)
        if not self._scheduler.holds(instance):
            self.free.pop(instance, None)
        self.serve_without(instance, f"instance {instance.name} was retired")
        self.stop_retiring_soon()

    def stop_retiring_soon(self) -> None:
        """Stop those of the retiring instances that have nothing to do any more."""
        self._loop.call_soon(self._stop_retiring)

    def _stop_retiring(self) -> None:
        for instance in list(self.retiring):
            if not instance.has_requests and not self._scheduler.holds(instance):
                self.retiring.pop(instance, None)
                self._retired.add(instance)
                self.free.pop(instance, None)
                instance.stop()

    def may_go_on(self, instance: Instance) -> bool:
        """Returns whether an instance gets more requests; looks also which ones can be stopped."""
        self.stop_retiring_soon()
        return instance not in self.retiring or self._scheduler.holds(instance)

    def is_retired(self, instance: Instance) -> bool:
        """Returns whether an instance was stopped because it retired: nobody misses it."""
        return instance in self._retired

    def forget_retired(self, instance: Instance) -> bool:
        """Forget a retired instance that has ended; returns whether it was lost before that."""
        was_lost = instance in self._lost
        self._retired.discard(instance)
        self._lost.discard(instance)
        return was_lost

    # Instances that end

    def lose(self, instance: Instance) -> None:
        """Send an instance no more batches; its death will be reported later."""
        self.free.pop(instance, None)
        self.retiring.pop(instance, None)
        self._lost.add(instance)

    def forget_lost(self, instance: Instance) -> None:
        """Forget a lost instance, because its death was reported."""
        self._lost.remove(instance)

    # Outages

    def serve_without(self, instance: Instance, reason: str) -> None:
        """Serve without an instance; without the last one, requests wait for another."""
        if instance in self._serving:
            self._serving.discard(instance)
            if not self._serving:
                self.outage.begin(reason)

    def explain_outage(self, reason: str) -> None:
        """Say why there is no instance, for those whose requests wait for one."""
        if not self._serving:
            self.outage.reason = reason

    def limit_outage(self, limit_s: float) -> None:
        """Let requests wait so long at most, if there is no instance."""
        if not self._serving:
            self.outage.limit(limit_s)

    def check_integrity(self) -> None:
        """Check that those that ended are forgotten; raises AssertionError with what is broken."""
        alive = set(self.alive)
        for name in ("free", "_serving", "retiring", "_retired", "_lost"):
            gone = set(getattr(self, name)) - alive
            assert not gone, f"{self} has {gone} in {name}, which ended"
        for instance in self.free:
            assert instance.free_slots, f"{instance} is not free"
        assert self._serving.isdisjoint(self._lost | self._retired), f"{self} serves with lost ones"


class InstanceOwner(VersionLifecycle, ABC):
    """A model as far as its instances are concerned: who serves, who is missed, who is replaced.

    What becomes of its requests, its subclass knows.
    """

    def __init__(
        self,
        spec: ModelSpec,
        loop: asyncio.AbstractEventLoop,
        supervisor: InstanceSupervisor | None,
        turns: ModelTurns | None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.statistics = ModelStatistics()
        # What each request or batch looks at is here, too.
        self._scheduler = make_scheduler(spec)
        self._pool = InstancePool(spec, self._scheduler, loop, self._refuse_waiting)
        self.instances = self._pool.alive
        self._free = self._pool.free
        self._outage = self._pool.outage
        self._supervisor = supervisor
        self._turns = turns
        self._start = BatchStart(
            spec, self.statistics, self.instances, self._free, loop, self._form_batches
        )

    @abstractmethod
    def _form_batches(self) -> None:
        """Form batches of the requests that wait."""

    @abstractmethod
    def _start_turn(self, instance: Instance) -> bool:
        """Start a batch on an instance whose turn it is; returns False if none is ready."""

    @abstractmethod
    def _refuse(self, inference: Inference, error: ServerError, reason: FailureReason) -> None:
        """End a request that waits."""

    @property
    def missing_instances(self) -> int:
        """The number of instances that have ended and will be replaced."""
        return self._pool.missing_count

    @missing_instances.setter
    def missing_instances(self, count: int) -> None:
        self._pool.missing_count = count
        self.on_changed()

    @property
    def is_ready(self) -> bool:
        """Whether it serves with all its instances; it accepts requests with fewer, too."""
        return self.state is VersionState.READY and self._pool.is_complete

    @property
    def resource_pools(self) -> AbstractSet[Pool]:
        """The resources of the rate limiter that its instances need."""
        return frozenset() if self._turns is None else self._turns.pools

    @property
    def has_ready_check(self) -> bool:
        """Whether readiness also depends on `check_ready`."""
        return self._supervisor is not None and self._supervisor.has_ready_check

    async def check_ready(self) -> bool:
        """Returns the result of the model's own readiness check; True if it has none."""
        return self._supervisor is None or await self._supervisor.check_ready()

    def give_up(self, reason: str) -> None:
        """Stop all instances for good and refuse the waiting requests."""
        self.fail(reason)
        for instance in list(self.instances):
            instance.stop()
        self.missing_instances = 0
        self._give_up_if_empty(reason)

    def _give_up_if_empty(self, reason: str) -> None:
        """Refuse the waiting requests if there is no instance and none will be started."""
        if self.instances or self._pool.missing_count:
            return
        self._outage.end()
        self.fail(reason)
        error = not_ready_error(self.spec)
        for inference in self._scheduler.take_all():
            self._refuse(inference, error, FailureReason.OTHER)

    def add_instance(
        self,
        instance: Instance,
        limits: InstanceLimits | None = None,
        *,
        is_passive: bool = False,
        is_additional: bool = False,
    ) -> None:
        """Start to use an instance, which may replace one that died.

        The rate limiter has `limits` for it; None if they are the same for all. A passive instance
        gets no requests, and an additional one replaces none.
        """
        if not is_additional:
            self.missing_instances = max(0, self._pool.missing_count - 1)
        if self._turns is not None and not is_passive:
            self._turns.add(instance, limits, self._start_turn)
        self._pool.add(instance, is_passive=is_passive)
        instance.start()
        self._start.after_iteration()

    def retire(self, instance: Instance) -> None:
        """Stop an instance as soon as it has answered its requests; it is not replaced."""
        self._pool.retire(instance)

    def on_unavailable(self, instance: Instance) -> None:
        """Send an instance no more batches; its death will be reported later."""
        if self._pool.is_retired(instance):
            return
        self._pool.lose(instance)
        self.on_changed()  # it is not ready any more
        self._pool.serve_without(instance, f"instance {instance.name} is gone")
        self._refuse_all(self._scheduler.remove_instance(instance))

    def on_died(self, instance: Instance, reason: str) -> None:
        """Forget an instance that died. Its requests have failed already."""
        self.instances.remove(instance)
        if self._pool.is_retired(instance):
            self._forget_retired(instance)
            return
        if self.state in (VersionState.LOADING, VersionState.READY):
            self.statistics.lost_instances += 1
        self.on_unavailable(instance)
        self._pool.forget_lost(instance)
        if self._turns is not None:
            self._turns.remove(instance)
        cause = f"instance {instance.name} is gone, {reason}"
        self.explain_outage(cause)
        if self._supervisor is not None and self._supervisor.replaces(instance, reason):
            self.missing_instances += 1
            return
        self.on_changed()  # it is ready without the instance
        self._give_up_if_empty(cause)

    def _forget_retired(self, instance: Instance) -> None:
        if self._pool.forget_retired(instance):
            self.on_changed()
        self._refuse_all(self._scheduler.remove_instance(instance))
        if self._turns is not None:
            self._turns.remove(instance, with_seat=True)
        if self._supervisor is not None:
            self._supervisor.on_retired(instance)
        self._give_up_if_empty(f"instance {instance.name} was retired")

    def explain_outage(self, reason: str) -> None:
        """Say why there is no instance, for those whose requests wait for one."""
        self._pool.explain_outage(reason)

    def limit_wait(self, limit_s: float) -> None:
        """Refuse requests after this time without an instance, as its start has failed."""
        self._pool.limit_outage(limit_s)

    def _refuse_waiting(self) -> None:
        """Refuse what has waited for an instance, and what comes until there is one again."""
        error = self._outage_error()
        for inference in self._scheduler.take_all():
            self._refuse(inference, error, FailureReason.OTHER)

    def _outage_error(self) -> ServerError:
        return self._outage.error(tells_reason=self.hidden is None)

    def _refuse_all(self, refusals: Iterable[QueueRefusal]) -> None:
        for refusal in refusals:
            self._refuse(refusal.inference, refusal.error, refusal.reason)
