# SPDX-License-Identifier: Apache-2.0
"""Loads bound functions whose instances run elsewhere: starts processes that import them.

It is imported when the first of them is bound.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import ServerError, UnsupportedError, error_from_code
from pytriton.runtime.executor.worker import Placement, WorkerSpec
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.frames import Initialize
from pytriton.serving.repository.loading.instance_scaler import ScalingSettings
from pytriton.serving.repository.loading.plans import InstancePlan, load_within
from pytriton.serving.repository.loading.python_version import PythonVersion
from pytriton.serving.repository.services.model_services import WorkerLog
from pytriton.serving.server.binding.binder import BoundSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pytriton.base.messages import InferTensor, ResponseSink
    from pytriton.runtime.executor.call_server import RunningCall
    from pytriton.runtime.executor.python_instance import PythonInstance
    from pytriton.runtime.executor.worker import Launcher
    from pytriton.runtime.transport.control import Bind, RayInstances
    from pytriton.runtime.transport.frames import InferCallFrame, WorkerLogLine
    from pytriton.serving.repository.loading.instance_factory import InstanceFactory, VersionParts

logger = logging.getLogger(__name__)

# Margin above the placement timeout, so that placement reports first.
_TIMEOUT_MARGIN_S = 5.0


class FunctionLoader:
    """Loads the bound functions of a server that run elsewhere."""

    def __init__(
        self, launcher: Callable[[], Awaitable[Launcher]], factory: InstanceFactory
    ) -> None:
        self._launcher = launcher
        self._factory = factory

    async def load(self, message: Bind) -> PythonVersion:
        """Load a function; if this raises an exception, none of its processes is left.

        Raises:
            ServerError: The configuration is wrong, or its instances cannot be started.
        """
        ray = message.ray
        assert ray is not None, "its instances are in the process that binds it"
        bound = BoundSpec.read(message)
        launcher = await self._launcher()
        parts = bound.parts(MemoryTrimmer(self._factory.loop), ray.maximum)
        placement = _placement(ray)

        def plan_of(index: int) -> InstancePlan:
            return InstancePlan(
                name=f"{bound.spec.name}_0_{index}",
                kind="GPU" if ray.num_gpus else "CPU",
                limits=bound.limits,
                placement=placement,
            )

        timeout_s = ray.start_timeout_s + _TIMEOUT_MARGIN_S
        version = PythonVersion(
            partial(self._factory.make_model, parts),
            partial(self._start_instance, parts, launcher, ray),
            self._factory.loop,
            timeout_s,
            recovery=launcher.recovery,
            scaling=_scaling(ray),
            make_plan=plan_of,
        )
        try:
            await load_within(timeout_s, version.start([*map(plan_of, range(ray.minimum))]))
        except ServerError as error:
            text = f"failed to load '{bound.spec.name}' on the cluster: {error.message}"
            raise error_from_code(error.code, text) from error
        return version

    async def _start_instance(
        self, parts: VersionParts, launcher: Launcher, ray: RayInstances, plan: InstancePlan
    ) -> PythonInstance:
        """Start an instance, also to replace one that died; its process warms it up."""
        spec = parts.spec
        worker = WorkerSpec(
            plan.name,
            f"pytriton {plan.name}",
            placement=plan.placement,
            model=spec.name,
            version=spec.version,
        )
        frame = Initialize("", "", {}, [], function=ray.function)
        parts.complete(frame, plan)
        if ray.group_size > 1:
            frame.arguments["model_group_size"] = str(ray.group_size)
        services = FunctionServices(plan.name, spec.name)
        return await self._factory.start(parts, launcher, worker, frame, services)


def _placement(ray: RayInstances) -> Placement:
    return Placement(
        num_cpus=ray.num_cpus,
        num_gpus=ray.num_gpus,
        resources=ray.resources,
        group_size=ray.group_size,
        is_spread=ray.is_spread,
        start_timeout_s=ray.start_timeout_s,
    )


def _scaling(ray: RayInstances) -> ScalingSettings | None:
    """Returns how the number of instances follows the load; None: it does not."""
    if ray.minimum == ray.maximum:
        return None
    return ScalingSettings(ray.minimum, ray.maximum, ray.target, ray.up_after_s, ray.down_after_s)


class FunctionServices:
    """Services for the process of a function: only a log."""

    def __init__(self, instance_name: str, model_name: str) -> None:
        self._instance_name = instance_name
        self._log = WorkerLog(instance_name, model_name)

    def on_started(self, instance: PythonInstance) -> None:
        """Do nothing: no call is served."""

    def infer(
        self, call: InferCallFrame, inputs: dict[str, InferTensor], sink: ResponseSink
    ) -> RunningCall:
        """Refuse: a bound function calls other models as a client does."""
        raise UnsupportedError(f"the function of '{self._instance_name}' cannot call models")

    def serve(
        self,
        action: str,
        arguments: dict[str, Any],
        reply: Callable[[Any, str | None], None] | None,
    ) -> None:
        """Refuse: these services are for models of repositories."""
        raise UnsupportedError(f"there is no service '{action}' for bound functions")

    def log(self, line: WorkerLogLine) -> None:
        """Write a line to the server's log."""
        self._log.write(line)

    def close(self) -> None:
        """Do nothing: it has nothing."""
