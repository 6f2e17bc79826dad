# SPDX-License-Identifier: Apache-2.0
"""The instances of a model version: they come, are lost, are replaced or retire."""

from __future__ import annotations

import abc
from collections import OrderedDict
from typing import TYPE_CHECKING

from pytriton.serving.engine.delivery import not_ready_error
from pytriton.serving.engine.model_state import ModelState
from pytriton.serving.engine.model_status import ModelStatus
from pytriton.serving.engine.scheduler import make_scheduler
from pytriton.serving.engine.service import ClosedQueue, Service
from pytriton.serving.engine.stats import FailureReason, ModelStatistics

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from pytriton.base.errors import ServerError
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.base import Instance
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.rate_limiter import InstanceLimits
    from pytriton.serving.engine.scheduling import Refusal, Scheduler
    from pytriton.serving.engine.served_model import InstanceSupervisor
    from pytriton.serving.engine.turns import ModelTurns


class ModelInstances(ModelStatus, abc.ABC):
    """The part of a model version that knows which instances may get requests.

    Args:
        spec: The specification of the model.
        loop: The event loop.
        supervisor: Replaces instances that died; without one, they are not replaced.
        turns: Says when instances may start batches, by resources.
    """

    def __init__(
        self,
        spec: ModelSpec,
        loop: asyncio.AbstractEventLoop,
        supervisor: InstanceSupervisor | None,
        turns: ModelTurns | None,
    ) -> None:
        super().__init__(supervisor, turns)
        self.spec = spec
        self.statistics = ModelStatistics()
        self.instances: list[Instance] = []
        self._loop = loop
        self._queue = make_scheduler(spec)
        self._scheduler: Scheduler = self._queue  # or a `ClosedQueue` before it
        self._free: OrderedDict[Instance, None] = OrderedDict()  # the next one to use is first
        self._retiring: set[Instance] = set()  # those that are stopped when they have no requests
        self._service = Service(spec, loop, self._refuse_waiting)

    @abc.abstractmethod
    def _start_turn(self, instance: Instance) -> bool:
        """Start a batch on an instance whose turn it is; returns False if none is ready."""

    @abc.abstractmethod
    def _start_soon(self) -> None:
        """Form batches when this iteration of the event loop has read its requests."""

    @abc.abstractmethod
    def _refuse(self, inference: Inference, error: ServerError, reason: FailureReason) -> None:
        """End a request that waits."""

    def add_instance(
        self,
        instance: Instance,
        limits: InstanceLimits | None = None,
        *,
        is_passive: bool = False,
        is_additional: bool = False,
    ) -> None:
        """Start to use an instance, which may replace one that died.

        Args:
            instance: The instance.
            limits: What the rate limiter knows of it; None if that is the same for all.
            is_passive: Whether it gets no requests.
            is_additional: Whether it replaces none.
        """
        if not is_additional:
            self.missing_instances = max(0, self.missing_instances - 1)
        self.instances.append(instance)
        if not is_passive:
            self._serve_with(instance, limits)
        instance.start()
        self._start_soon()

    def _serve_with(self, instance: Instance, limits: InstanceLimits | None) -> None:
        self._service.add(instance)
        self._scheduler = self._queue
        self._scheduler.add_instance(instance)
        if self._turns is not None:
            self._turns.add(instance, limits, self._start_turn)
        if instance.free_slots:  # it may have ended already, which `start` reports
            self._free[instance] = None

    def retire(self, instance: Instance) -> None:
        """Stop an instance as soon as it has answered its requests; it is not replaced.

        Until then it gets no more requests. Only its sequences go on until they end.
        """
        if instance not in self.instances or instance in self._service.retired:
            return
        self._retiring.add(instance)
        self._scheduler.retire_instance(instance)
        if not self._scheduler.holds(instance):
            self._free.pop(instance, None)
        self._service.remove(instance, f"instance {instance.name} was retired")
        self._loop.call_soon(self._stop_retiring)

    def _stop_retiring(self) -> None:
        """Stop those of the retiring instances that have nothing to do any more."""
        for instance in list(self._retiring):
            if not instance.has_requests and not self._scheduler.holds(instance):
                self._retiring.discard(instance)
                self._service.retired.add(instance)
                self._free.pop(instance, None)
                instance.stop()

    # Events of instances

    def on_unavailable(self, instance: Instance) -> None:
        """Send an instance no more batches; its death will be reported later."""
        if instance in self._service.retired:  # nobody misses it
            return
        self._free.pop(instance, None)
        self._retiring.discard(instance)
        self.lose(instance)
        self._service.remove(instance, f"instance {instance.name} is gone")
        self._refuse_all(self._scheduler.remove_instance(instance))

    def on_died(self, instance: Instance, reason: str) -> None:
        """Forget an instance that died. Its requests have failed already."""
        self.instances.remove(instance)
        if instance in self._service.retired:
            self._forget_retired(instance)
            return
        if self.state in (ModelState.LOADING, ModelState.READY):
            self.statistics.lost_instances += 1
        self.on_unavailable(instance)
        self.forget(instance)
        cause = f"instance {instance.name} is gone, {reason}"
        self.explain_outage(cause)
        if self._supervisor is not None and self._supervisor.replaces(instance, reason):
            self.missing_instances += 1
            return
        self.on_changed()  # it is ready without the instance
        self._give_up_if_empty(cause)

    def _forget_retired(self, instance: Instance) -> None:
        self._service.retired.discard(instance)
        self._refuse_all(self._scheduler.remove_instance(instance))
        if self._turns is not None:
            self._turns.remove(instance, with_seat=True)
        if self._supervisor is not None:
            self._supervisor.on_retired(instance)
        self._give_up_if_empty(f"instance {instance.name} was retired")

    # Without instances

    def explain_outage(self, reason: str) -> None:
        """Say why there is no instance, for those whose requests wait for one."""
        if not self._service.instances:
            self._service.reason = reason

    def limit_wait(self, limit_s: float) -> None:
        """Refuse requests after this time without an instance, as its start has failed."""
        self._service.limit_wait(limit_s)

    def _refuse_waiting(self) -> None:
        """Refuse what has waited for an instance, and what comes until there is one again."""
        error = self._service.error()
        for inference in self._queue.take_all():
            self._refuse(inference, error, FailureReason.OTHER)
        self._scheduler = ClosedQueue(self._queue, self._service.error)

    def give_up(self, reason: str) -> None:
        """Stop all instances for good and refuse the waiting requests."""
        self.fail(reason)
        for instance in list(self.instances):
            instance.stop()
        self.missing_instances = 0
        self._give_up_if_empty(reason)

    def _give_up_if_empty(self, reason: str) -> None:
        """Refuse the waiting requests if there is no instance and none will be started."""
        if self.instances or self.missing_instances:
            return
        self._service.stop()
        self.fail(reason)
        self._scheduler = self._queue
        error = not_ready_error(self.spec)
        for inference in self._scheduler.take_all():
            self._refuse(inference, error, FailureReason.OTHER)

    def _refuse_all(self, refusals: Iterable[Refusal]) -> None:
        for refusal in refusals:
            self._refuse(refusal.inference, refusal.error, refusal.reason)
