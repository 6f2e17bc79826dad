# SPDX-License-Identifier: Apache-2.0
"""The instances of one model version: which of them get requests, and what becomes of the others.

The model reports what happens to an instance, and takes a free one for each batch. What that means
for requests, statistics and the rate limiter is up to the model.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytriton.base.errors import ServerError, UnavailableError
from pytriton.serving.engine.model_state import reason_for_clients

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.inference import Instance
    from pytriton.serving.engine.scheduling import Scheduler


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
