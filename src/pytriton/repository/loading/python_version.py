# SPDX-License-Identifier: Apache-2.0
"""A loaded version of a Python backend model: its instances, which are replaced when they crash."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import msgspec

from pytriton.background_tasks import BackgroundTasks
from pytriton.engine.model import ModelState
from pytriton.errors import ServerError
from pytriton.executor.worker import ForkingProcessEndedError
from pytriton.repository.loading.load_timeout import load_within
from pytriton.repository.loading.restart_policy import GiveUp, RestartPolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pytriton.engine.model import Model
    from pytriton.engine.served_model import InstanceSupervisor
    from pytriton.executor.base import Instance, WorkerInstance
    from pytriton.repository.loading.plans import InstancePlan

logger = logging.getLogger(__name__)


class _Member(msgspec.Struct, eq=False):
    """An instance in service, and the plan it was started with."""

    instance: WorkerInstance
    plan: InstancePlan


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
    ) -> None:
        self._model = make_model(self)
        self._start = start
        self._loop = loop
        self._restart_timeout_s = restart_timeout_s  # 0: no limit
        self._policy = policy or RestartPolicy()
        self._clock = clock
        self._members: dict[Instance, _Member] = {}  # those that are alive
        self._running_processes: set[asyncio.Future[None]] = set()
        self._restarts = BackgroundTasks(loop)
        self._is_stopped = False
        self._is_given_up = False

    @property
    def model(self) -> Model:
        """The engine's model."""
        return self._model

    async def add(self, plan: InstancePlan) -> None:
        """Start an instance and put it in service."""
        instance = await self._start(plan)
        self._running_processes.add(instance.ended)
        instance.ended.add_done_callback(self._running_processes.discard)
        if self._is_stopped or self._is_given_up:
            instance.stop()
            return
        self._members[instance] = _Member(instance, plan)
        instance.set_events(self._model)
        self._model.add_instance(instance, plan.limits, is_passive=plan.is_passive)

    async def drain_and_stop(self, timeout_s: float | None = None) -> None:
        """Wait at most `timeout_s` until its requests are finished, then stop the instances."""
        await self._model.drain(timeout_s)
        self._is_stopped = True
        self._restarts.cancel()
        self._model.stop()
        await self._restarts.wait()
        if self._running_processes:
            await asyncio.wait(self._running_processes)

    def __repr__(self) -> str:
        return f"<PythonVersion {self._model!r} restarting={len(self._restarts)}>"

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
        if self._is_stopped or self._model.state is ModelState.UNAVAILABLE:
            return False
        return self._restart(member.plan, reason, is_crash=member.instance.is_to_blame)

    def _restart(self, plan: InstancePlan, reason: str, *, is_crash: bool = True) -> bool:
        now_s = self._clock()
        decision = self._policy.on_exit(now_s, reason) if is_crash else self._policy.on_loss(now_s)
        if isinstance(decision, GiveUp):
            logger.error("Stub process '%s' is not healthy: %s", plan.name, decision.reason)
            self._loop.call_soon(self._give_up, decision.reason)
            return True  # until `_give_up` runs, which refuses its requests with the reason
        logger.warning(
            "Stub process '%s' is not healthy: %s. Model '%s' version %s is not ready until it is "
            "started again, in %g s",
            plan.name,
            reason.removesuffix("."),
            self._model.spec.name,
            self._model.spec.version,
            decision.delay_s,
        )
        self._restarts.start(self._replace(plan, decision.delay_s))
        return True

    async def _replace(self, plan: InstancePlan, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        try:
            await load_within(self._restart_timeout_s, self.add(plan))
        except ForkingProcessEndedError as error:
            self._restart(plan, error.message, is_crash=False)
        except ServerError as error:
            self._restart(plan, error.message)
        except Exception as error:  # a bug here must not leave the model without instances
            logger.exception("%s could not be started again", plan.name)
            self._restart(plan, f"{type(error).__name__}: {error}")
        else:
            logger.info("Stub process '%s' serves again", plan.name)

    def _give_up(self, reason: str) -> None:
        if self._is_stopped or self._model.state not in (ModelState.LOADING, ModelState.READY):
            return
        self._is_given_up = True
        self._restarts.cancel()
        self._model.give_up(reason)
