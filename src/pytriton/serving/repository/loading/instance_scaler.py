# SPDX-License-Identifier: Apache-2.0
"""Starts and retires instances of a model version as its load asks for.

`ScalingPolicy` decides how many there should be; `InstanceScaler` acts.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from pytriton.base.errors import ServerError
from pytriton.serving.engine.model import VersionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.runtime.executor.worker import Recovery
    from pytriton.serving.repository.loading.plans import InstancePlan
    from pytriton.serving.repository.loading.python_version import PythonVersion

FIRST_RETRY_S = 5.0  # after a start that failed; each further one in a row doubles it
MAX_RETRY_S = 120.0


class ScalingSettings(msgspec.Struct, frozen=True):
    """Between which numbers of instances a model is scaled, and when.

    Attributes:
        minimum: It never has fewer instances.
        maximum: It never wants more.
        target: How many full batches should wait or run for each slot of an instance.
        up_after_s: More instances are started after more were wanted for so long.
        down_after_s: Instances are ended after fewer were wanted for so long.
    """

    minimum: int = 1
    maximum: int = 1
    target: float = 1.0
    up_after_s: float = 2.0
    down_after_s: float = 120.0


class InstanceLoad(msgspec.Struct, frozen=True):
    """The load of a model's instances at one moment.

    Attributes:
        pending: The number of requests that wait.
        running: The number of requests that are being executed.
        ready: The number of instances that serve.
        starting: The number of instances that are being started, or wait for a place.
        capacity: How many requests an instance executes at a time: full batches in all its slots.
    """

    pending: int = 0
    running: int = 0
    ready: int = 0
    starting: int = 0
    capacity: int = 1


class ScalingPolicy:
    """Follows the load of one model: up soon, down late, so that it does not go up and down.

    Attributes:
        wanted: The number of instances that the load has asked for; `decide` updates it.
    """

    def __init__(self, settings: ScalingSettings) -> None:
        self.settings = settings
        self.wanted = settings.minimum
        self._more_since_s: float | None = None  # since when more than `wanted` are needed
        # The needs within the time after which instances are ended, without those that a later one
        # exceeds, each with its time: the first one is the highest.
        self._peaks: deque[tuple[float, int]] = deque()
        self._failures_in_a_row = 0
        self._retry_s = -math.inf  # no start before this time

    def decide(self, now_s: float, load: InstanceLoad) -> int:
        """Returns how many instances there should be, those that are being started included."""
        need = self.need(load)
        self._note(now_s, need)
        self.wanted = min(self.wanted, self._peaks[0][1])
        if need <= self.wanted:
            self._more_since_s = None
        else:
            if self._more_since_s is None:
                self._more_since_s = now_s
            if now_s - self._more_since_s >= self.settings.up_after_s:
                self._more_since_s = None
                self.wanted = need
        present = load.ready + load.starting
        return min(self.wanted, present) if now_s < self._retry_s else self.wanted

    def need(self, load: InstanceLoad) -> int:
        """Returns how many instances this load needs, within the limits."""
        settings = self.settings
        requests = load.pending + load.running
        need = math.ceil(requests / (max(1, load.capacity) * settings.target))
        return min(max(need, settings.minimum), settings.maximum)

    def on_start_failed(self, now_s: float) -> float:
        """Ask for no more instances for some time; returns for how long."""
        delay_s = min(FIRST_RETRY_S * 2.0 ** min(self._failures_in_a_row, 16), MAX_RETRY_S)
        self._failures_in_a_row += 1
        self._retry_s = now_s + delay_s
        return delay_s

    def on_recovery(self) -> None:
        """Try at once: there may be a place now. If that fails, the pauses go on to grow."""
        self._retry_s = -math.inf

    def on_started(self) -> None:
        """There was a place for another instance, and it works."""
        self._failures_in_a_row = 0
        self._retry_s = -math.inf

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing changes while the load stays as low as it is."""
        return self.wanted == self.settings.minimum and self._more_since_s is None

    def _note(self, now_s: float, need: int) -> None:
        peaks = self._peaks
        while peaks and peaks[-1][1] <= need:
            peaks.pop()
        peaks.append((now_s, need))
        while now_s - peaks[0][0] >= self.settings.down_after_s and len(peaks) > 1:
            peaks.popleft()


logger = logging.getLogger(__name__)

BUSY_INTERVAL_S = 0.5
IDLE_INTERVAL_S = 2.0


class InstanceScaler:
    """Looks at the load of one version twice a second, and less often while it has nothing to do.

    A start that waits for a free place is left waiting until the instance is not wanted any more:
    a cluster that adds nodes on demand sees it.
    `make_plan` returns the plan of the instance with a number from 0. `recovery` tells when a start
    that failed should be tried again at once.
    """

    def __init__(
        self,
        settings: ScalingSettings,
        make_plan: Callable[[int], InstancePlan],
        version: PythonVersion,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        *,
        recovery: Recovery,
    ) -> None:
        self._policy = ScalingPolicy(settings)
        self._make_plan = make_plan
        self._version = version
        self._loop = loop
        self._clock = clock
        self._recovery = recovery
        self._recoveries = recovery.count
        self._starts: dict[str, asyncio.Task[None]] = {}  # by instance, the newest one last
        self._cancelled: set[asyncio.Task[None]] = set()  # starts that have not ended yet
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    @property
    def is_short(self) -> bool:
        """Whether there are fewer instances than the load has asked for."""
        load = self.load()
        return load.ready + load.starting < self._policy.wanted

    def start(self) -> None:
        """Begin to look at the load; may be called twice."""
        if self._timer is None and not self._is_stopped:
            self._timer = self._loop.call_later(BUSY_INTERVAL_S, self._on_timer)

    def stop(self) -> None:
        """Start no more instances, and give up those that are being started."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        while self._starts:
            self._cancel_start()

    async def wait(self) -> None:
        """Wait until the starts that were given up have ended."""
        if self._cancelled:
            await asyncio.wait(self._cancelled)

    def _on_timer(self) -> None:
        self._timer = None
        is_ready = self._version.model.state is VersionState.READY
        has_load = is_ready and self.adapt()
        if not self._is_stopped:
            interval_s = BUSY_INTERVAL_S if has_load or not is_ready else IDLE_INTERVAL_S
            self._timer = self._loop.call_later(interval_s, self._on_timer)

    def adapt(self) -> bool:
        """Start or end instances; returns whether there is something to look at again soon."""
        if self._recoveries != self._recovery.count:
            self._recoveries = self._recovery.count
            self._policy.on_recovery()
        load = self.load()
        before = self._policy.wanted
        number = self._policy.decide(self._clock(), load)
        if self._policy.wanted != before:
            self._log_change(before, load)
        surplus = load.ready + load.starting - number
        for _ in range(-surplus):
            self._start_one()
        for _ in range(surplus):
            self._end_one()
        return bool(load.pending or load.running or surplus or not self._policy.is_at_rest)

    def load(self) -> InstanceLoad:
        """Returns the load of the instances."""
        version, model = self._version, self._version.model
        serving = version.serving
        spec = model.spec
        has_batches = spec.batcher is not None or spec.sequence is not None
        batch_size = max(1, spec.max_batch_size) if has_batches else 1
        slots = min((instance.concurrency for instance in serving), default=1)
        return InstanceLoad(
            pending=model.statistics.pending_count,
            running=model.running_count,
            ready=len(serving),
            starting=len(self._starts) + model.missing_instances,
            capacity=batch_size * slots,
        )

    # Up

    def _start_one(self) -> None:
        taken = {*self._version.names, *self._starts}
        index = 0
        while (plan := self._make_plan(index)).name in taken:
            index += 1
        self._starts[plan.name] = self._loop.create_task(self._start(plan))

    async def _start(self, plan: InstancePlan) -> None:
        try:
            await self._version.start_another(plan)
        except ServerError as error:
            self._on_failure(plan, error.message)
        except Exception as error:  # a bug here must not end the scaling
            logger.exception("%s could not be started", plan.name)
            self._on_failure(plan, f"{type(error).__name__}: {error}")
        else:
            self._starts.pop(plan.name, None)
            self._policy.on_started()
            self._version.model.statistics.scale_ups += 1
            logger.info("instance '%s' serves, because of the load", plan.name)

    def _on_failure(self, plan: InstancePlan, reason: str) -> None:
        self._starts.pop(plan.name, None)
        delay_s = self._policy.on_start_failed(self._clock())
        logger.warning(
            "instance '%s' could not be started for the load, which is tried again after %g s at "
            "the earliest: %s",
            plan.name,
            delay_s,
            reason,
        )

    # Down

    def _end_one(self) -> None:
        """End what costs least: a start, then an idle instance, then the newest one."""
        if self._starts:
            self._cancel_start()
            return
        if self._version.cancel_replacement():
            return
        newest_first = list(self._version.serving)[::-1]
        idle = [instance for instance in newest_first if not instance.has_requests]
        self._version.retire((idle or newest_first)[0])
        self._version.model.statistics.scale_downs += 1

    def _cancel_start(self) -> None:
        """Give up the newest start."""
        name, task = self._starts.popitem()
        self._cancelled.add(task)
        task.add_done_callback(self._cancelled.discard)
        task.cancel()
        logger.info("instance '%s' is not started any more, because of the load", name)

    def _log_change(self, before: int, load: InstanceLoad) -> None:
        spec = self._version.model.spec
        logger.info(
            "Model '%s' version %s is scaled from %d to %d instances: %d requests wait, %d are "
            "being executed",
            spec.identifier,
            spec.version,
            before,
            self._policy.wanted,
            load.pending,
            load.running,
        )
