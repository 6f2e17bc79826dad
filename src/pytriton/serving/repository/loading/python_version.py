# SPDX-License-Identifier: Apache-2.0
"""A loaded version of a Python backend model: its instances, which are replaced when they crash.

`RestartPolicy` decides when, and when no more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.errors import ServerError, UnavailableError
from pytriton.runtime.executor.worker import ForkingProcessEndedError, Recovery, ResourceLackError
from pytriton.serving.engine.model import Model, VersionState
from pytriton.serving.repository.loading.instance_scaler import InstanceScaler, ScalingSettings
from pytriton.serving.repository.loading.plans import InstancePlan, LoadTimeoutError, load_within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from collections.abc import Set as AbstractSet

    from pytriton.runtime.executor.inference import Instance, WorkerInstance
    from pytriton.serving.engine.served_model import InstanceSupervisor

FIRST_DELAY_S = 0.2  # before the second restart in a row; the first is immediate
MAX_DELAY_S = 30.0
MAX_FORK_DELAY_S = 1.0  # after the process that forks workers ended, which starts again at once
CRASH_LIMIT = 5
CRASH_PERIOD_S = 60.0
LACK_DELAY_S = 0.25  # such a start fails at once, so trying it again costs little
SAME_EVENT_S = 1.0  # instances lost within this time are assumed to have one common cause


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart the instance after this delay."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not restart: it crashes too often. The model is unavailable until it is loaded again."""

    reason: str


class RestartPolicy:
    """Decides for the instances of one model version; the crashes of all are counted together.

    The first restart is immediate; the delay of each further one is twice the last. After a period
    without a crash the count starts from zero.
    """

    def __init__(self, crash_limit: int = CRASH_LIMIT) -> None:
        self._crash_limit = crash_limit
        self._crashes_s: deque[float] = deque(maxlen=crash_limit)
        self._restarts_in_a_row = 0
        self._losses_in_a_row = 0
        self._last_loss_s = 0.0

    def on_loss(self, now_s: float, max_delay_s: float = MAX_DELAY_S) -> Restart:
        """Decide after the process that forks instances ended, which is not the model's fault.

        This does not count as a crash. Instances that are lost together are restarted together,
        with a delay if it happens repeatedly.
        """
        elapsed_s = now_s - self._last_loss_s
        if elapsed_s >= CRASH_PERIOD_S:
            self._losses_in_a_row = 0
        if not self._losses_in_a_row or elapsed_s >= SAME_EVENT_S:
            self._losses_in_a_row += 1
            self._last_loss_s = now_s
        return Restart(min(_delay_s(self._losses_in_a_row - 1), max_delay_s))

    def on_lack(self) -> Restart:
        """Decide after the machine had no resources for a start, which is not the model's fault.

        It is tried until there are resources again.
        """
        return Restart(LACK_DELAY_S)

    def on_exit(self, now_s: float, cause: str) -> Restart | GiveUp:
        """Decide after an instance ended unexpectedly."""
        if self._crashes_s and now_s - self._crashes_s[-1] >= CRASH_PERIOD_S:
            self._crashes_s.clear()
            self._restarts_in_a_row = 0
        self._crashes_s.append(now_s)
        if len(self._crashes_s) == self._crash_limit:
            elapsed_s = now_s - self._crashes_s[0]
            if elapsed_s < CRASH_PERIOD_S:
                return GiveUp(
                    f"its instances ended {self._crash_limit} times within {elapsed_s:.1f} s "
                    f"and are not started again; the last time: {cause}"
                )
        delay_s = _delay_s(self._restarts_in_a_row)
        self._restarts_in_a_row += 1
        return Restart(delay_s)

    def __repr__(self) -> str:
        return (
            f"<RestartPolicy {len(self._crashes_s)} of {self._crash_limit} crashes, "
            f"{self._restarts_in_a_row} restarts in a row>"
        )


def _delay_s(earlier_restarts: int) -> float:
    if not earlier_restarts:
        return 0.0
    # Bounded, because the power would become huge if instances crash for years.
    doublings = min(earlier_restarts - 1, 16)
    return min(FIRST_DELAY_S * 2.0**doublings, MAX_DELAY_S)


logger = logging.getLogger(__name__)

# How long requests wait for an instance whose start failed for a reason outside of the model.
FAILED_START_WAIT_S = 5.0


class _ServingInstance(msgspec.Struct, eq=False):
    """An instance in service, and the plan it was started with."""

    instance: WorkerInstance
    plan: InstancePlan
    is_retiring: bool = False


class PythonVersion:
    """The engine's model of a version, and its worker processes."""

    is_current = True  # it does not depend on other models

    def __init__(
        self,
        make_model: Callable[[InstanceSupervisor], Model],
        start: Callable[[InstancePlan], Awaitable[WorkerInstance]],
        loop: asyncio.AbstractEventLoop,
        restart_timeout_s: float = 0.0,
        policy: RestartPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        recovery: Recovery | None = None,
        scaling: ScalingSettings | None = None,
        make_plan: Callable[[int], InstancePlan] | None = None,
    ) -> None:
        self._model = make_model(self)
        self._start = start
        self._loop = loop
        self._restart_timeout_s = restart_timeout_s  # 0: no limit
        self._policy = policy or RestartPolicy()
        self._clock = clock
        self._recovery = recovery or Recovery()
        self._members: dict[Instance, _ServingInstance] = {}  # those that are alive
        self._running_processes: set[asyncio.Future[None]] = set()
        self._restarts = BackgroundTasks(loop)
        self._replacements: dict[str, asyncio.Task[None]] = {}  # those of them that are scaled
        self._reasons: dict[str, str] = {}  # why instances are missing
        self._names: set[str] = set()  # of instances, until their processes have ended
        self._is_stopped = False
        self._is_given_up = False
        self._scaler: InstanceScaler | None = None  # None: the number does not change
        if scaling is not None:
            assert make_plan is not None, "a scaled model needs plans for more instances"
            self._scaler = InstanceScaler(
                scaling, make_plan, self, loop, clock, recovery=self._recovery
            )

    @property
    def model(self) -> Model:
        """The engine's model."""
        return self._model

    async def start(self, plans: Sequence[InstancePlan], *, in_parallel: bool = True) -> None:
        """Start its first instances; if one fails, all are stopped."""
        try:
            if not in_parallel:
                for plan in plans:
                    await self.add(plan)
                return
            starts = [asyncio.ensure_future(self.add(plan)) for plan in plans]
            try:
                await asyncio.gather(*starts)
            finally:
                for start in starts:
                    start.cancel()
                await asyncio.wait(starts)
        except BaseException:
            await self.drain_and_stop(0.0)
            raise

    async def add(self, plan: InstancePlan, *, is_additional: bool = False) -> WorkerInstance:
        """Start an instance and put it in service; it replaces another unless `is_additional`."""
        self._names.add(plan.name)
        instance = await self._start(plan)
        self._running_processes.add(instance.ended)
        instance.ended.add_done_callback(self._running_processes.discard)
        if self._is_stopped or self._is_given_up:
            instance.stop()
            return instance
        self._members[instance] = _ServingInstance(instance, plan)
        instance.set_events(self._model)
        self._model.add_instance(
            instance, plan.limits, is_passive=plan.is_passive, is_additional=is_additional
        )
        # Now, as the task that waits for this hears of it later: its instance is missed no longer.
        self._replacements.pop(plan.name, None)
        if self._scaler is not None:
            self._scaler.start()
        return instance

    async def drain_and_stop(self, timeout_s: float | None = None) -> None:
        """Wait at most `timeout_s` until its requests are finished, then stop the instances."""
        if self._scaler is not None:
            self._scaler.stop()
        await self._model.drain(timeout_s)
        self._is_stopped = True
        self._restarts.cancel()
        self._model.stop()
        await self._restarts.wait()
        if self._scaler is not None:
            await self._scaler.wait()
        if self._running_processes:
            await asyncio.wait(self._running_processes)

    @property
    def has_ready_check(self) -> bool:
        """Whether the model has its own readiness check."""
        return any(member.instance.has_ready_check for member in self._members.values())

    async def check_ready(self) -> bool:
        """Returns whether the readiness checks of all instances succeed."""
        checks = [member.instance.check_ready() for member in self._members.values()]
        return all(await asyncio.gather(*checks))

    def replaces(self, instance: Instance, reason: str) -> bool:
        """Returns whether an instance that died will be replaced."""
        member = self._members.pop(instance)
        if self._is_stopped or self._model.state is VersionState.UNAVAILABLE:
            return False
        if self._scaler is not None and not self._scaler.is_short:
            self._release_name(member)
            return False
        return self._restart(member.plan, reason, is_crash=member.instance.is_to_blame)

    def on_retired(self, instance: Instance) -> None:
        """Forget an instance that was to be ended."""
        self._release_name(self._members.pop(instance))

    # What is scaled: see `InstanceScaler`

    @property
    def serving(self) -> list[WorkerInstance]:
        """The instances that get requests, the newest one last."""
        return [
            member.instance
            for member in self._members.values()
            if not member.is_retiring and not member.plan.is_passive
        ]

    @property
    def names(self) -> AbstractSet[str]:
        """The names of all instances that are being started, serve, or have not ended yet."""
        return self._names

    async def start_another(self, plan: InstancePlan) -> None:
        """Start one more instance and put it in service; may be cancelled."""
        try:
            await load_within(self._restart_timeout_s, self.add(plan, is_additional=True))
        except BaseException:
            self._names.discard(plan.name)
            raise

    def retire(self, instance: WorkerInstance) -> None:
        """End an instance when it has answered its requests."""
        member = self._members[instance]
        member.is_retiring = True
        logger.info("instance '%s' retires", member.plan.name)
        self._model.retire(instance)

    def cancel_replacement(self) -> bool:
        """Start one instance less of those that replace others; returns False if there is none."""
        if not self._replacements:
            return False
        name, task = self._replacements.popitem()
        task.add_done_callback(lambda _: self._names.discard(name))
        task.cancel()
        self._model.missing_instances -= 1
        return True

    def _release_name(self, member: _ServingInstance) -> None:
        """Let another instance have the name of one that will not be replaced."""
        name = member.plan.name
        member.instance.ended.add_done_callback(lambda _: self._names.discard(name))

    # Replacement

    def _restart(self, plan: InstancePlan, reason: str, *, is_crash: bool = True) -> bool:
        now_s = self._clock()
        policy = self._policy
        decision = policy.on_exit(now_s, reason) if is_crash else policy.on_loss(now_s)
        return self._restart_as(decision, plan, reason, is_crash=is_crash)

    def _restart_as(
        self, decision: Restart | GiveUp, plan: InstancePlan, reason: str, *, is_crash: bool
    ) -> bool:
        self._model.explain_outage(f"instance {plan.name} is gone, {reason}")
        if isinstance(decision, GiveUp):
            logger.error("Stub process '%s' is not healthy: %s", plan.name, decision.reason)
            self._loop.call_soon(self._give_up, decision.reason)
            return True  # until `_give_up` runs, which refuses its requests with the reason
        # A start that fails as the last one did is no news.
        level = logging.DEBUG if self._reasons.get(plan.name) == reason else logging.WARNING
        self._reasons[plan.name] = reason
        logger.log(
            level,
            "Stub process '%s' is not healthy: %s. Model '%s' version %s is not ready until it is "
            "started again, in %g s",
            plan.name,
            reason.removesuffix("."),
            self._model.spec.name,
            self._model.spec.version,
            decision.delay_s,
        )
        task = self._restarts.start(self._replace(plan, decision.delay_s, is_crash=is_crash))
        if self._scaler is not None:
            self._replacements[plan.name] = task
        return True

    async def _replace(self, plan: InstancePlan, delay_s: float, *, is_crash: bool) -> None:
        # What crashes by itself does so wherever it runs.
        await (asyncio.sleep(delay_s) if is_crash else self._recovery.pause(delay_s))
        try:
            instance = await load_within(self._restart_timeout_s, self.add(plan))
            self._reasons.pop(plan.name, None)
        except ResourceLackError as error:
            self._model.limit_wait(FAILED_START_WAIT_S)
            self._restart_as(self._policy.on_lack(), plan, error.message, is_crash=False)
        except LoadTimeoutError as error:
            # In a cluster, most of the time may have passed without a free place.
            self._restart(plan, error.message, is_crash=plan.placement is None)
        except ForkingProcessEndedError as error:
            self._model.limit_wait(FAILED_START_WAIT_S)
            decision = self._policy.on_loss(self._clock(), MAX_FORK_DELAY_S)
            self._restart_as(decision, plan, error.message, is_crash=False)
        except UnavailableError as error:
            if plan.placement is None:
                self._model.limit_wait(FAILED_START_WAIT_S)
            self._restart(plan, error.message, is_crash=False)
        except ServerError as error:
            self._restart(plan, error.message)
        except Exception as error:  # a bug here must not leave the model without instances
            logger.exception("%s could not be started again", plan.name)
            self._restart(plan, f"{type(error).__name__}: {error}")
        else:
            place = f", on node '{instance.node}' (process {instance.pid})" if instance.node else ""
            logger.info("Stub process '%s' serves again%s", plan.name, place)

    def _give_up(self, reason: str) -> None:
        if self._is_stopped or self._model.state not in (VersionState.LOADING, VersionState.READY):
            return
        self._is_given_up = True
        self._restarts.cancel()
        if self._scaler is not None:
            self._scaler.stop()
        self._model.give_up(reason)
