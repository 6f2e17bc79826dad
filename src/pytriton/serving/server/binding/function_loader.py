# SPDX-License-Identifier: Apache-2.0
"""Loads bound functions whose instances run elsewhere: starts processes that import them.

It is imported when the first of them is bound.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import ServerError, UnsupportedError, error_from_code
from pytriton.runtime.executor.python_instance import PythonInstance
from pytriton.runtime.executor.worker import Placement, WorkerSpec
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.frames import Initialize
from pytriton.serving.engine.model import Model
from pytriton.serving.engine.sequence.sequence_inputs import state_output_names
from pytriton.serving.repository.loading.instance_scaler import ScalingSettings
from pytriton.serving.repository.loading.plans import InstancePlan, load_within
from pytriton.serving.repository.loading.python_version import PythonVersion
from pytriton.serving.repository.loading.warmup import WarmupRun
from pytriton.serving.repository.services.model_services import WorkerLog
from pytriton.serving.server.binding.binder import BoundSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pytriton.base.log_switches import LogFeed
    from pytriton.base.messages import InferTensor, ResponseSink
    from pytriton.runtime.executor.call_server import RunningCall
    from pytriton.runtime.executor.worker import Launcher
    from pytriton.runtime.transport.control import Bind, RayInstances
    from pytriton.runtime.transport.frames import InferCallFrame, WorkerLogLine
    from pytriton.serving.engine.cache import ResponseStore
    from pytriton.serving.engine.rate_limiter import Turns
    from pytriton.serving.engine.served_model import InstanceSupervisor

logger = logging.getLogger(__name__)

# Margin above the placement timeout, so that placement reports first.
_TIMEOUT_MARGIN_S = 5.0


class FunctionLoader:
    """Loads the bound functions of a server that run elsewhere."""

    def __init__(
        self,
        launcher: Callable[[], Awaitable[Launcher]],
        loop: asyncio.AbstractEventLoop,
        cache: ResponseStore | None = None,
        *,
        turns: Turns | None = None,
        log: LogFeed | None = None,
        exit_timeout_s: float = 30.0,
    ) -> None:
        self.launcher = launcher
        self.loop = loop
        self.cache = cache
        self.turns = turns
        self.log = log
        self.exit_timeout_s = exit_timeout_s

    async def load(self, message: Bind) -> PythonVersion:
        """Load a function; if this raises an exception, none of its processes is left.

        Raises:
            ServerError: The configuration is wrong, or its instances cannot be started.
        """
        assert message.ray is not None, "its instances are in the process that binds it"
        bound = BoundSpec.read(message)
        launcher = await self.launcher()
        launch = _FunctionLaunch(self, bound, message.ray, launcher)
        version = PythonVersion(
            launch.make_model,
            launch.start,
            self.loop,
            launch.timeout_s,
            recovery=launcher.recovery,
            scaling=launch.scaling,
            make_plan=launch.plan,
        )
        plans = [launch.plan(index) for index in range(message.ray.minimum)]
        try:
            await self._start_all(version, plans, launch.timeout_s)
        except ServerError as error:
            text = f"failed to load '{bound.spec.name}' on the cluster: {error.message}"
            raise error_from_code(error.code, text) from error
        return version

    async def _start_all(
        self, version: PythonVersion, plans: list[InstancePlan], timeout_s: float
    ) -> None:
        starts = [asyncio.ensure_future(version.add(plan)) for plan in plans]
        try:
            await load_within(timeout_s, asyncio.gather(*starts))
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.wait(starts)
            await version.drain_and_stop(0.0)
            raise


class _FunctionLaunch:
    """Values that all instances of one model share."""

    def __init__(
        self, loader: FunctionLoader, bound: BoundSpec, ray: RayInstances, launcher: Launcher
    ) -> None:
        self._loader = loader
        self._bound = bound
        self._ray = ray
        self._launcher = launcher
        self._memory = MemoryTrimmer(loader.loop)
        self._labels = bound.labels()
        self._config_json = bound.config_json
        self.timeout_s = ray.start_timeout_s + _TIMEOUT_MARGIN_S

    @property
    def scaling(self) -> ScalingSettings | None:
        """How the number of instances follows the load; None: it does not."""
        ray = self._ray
        if ray.minimum == ray.maximum:
            return None
        return ScalingSettings(
            ray.minimum, ray.maximum, ray.target, ray.up_after_s, ray.down_after_s
        )

    def plan(self, index: int) -> InstancePlan:
        """Returns the plan of the instance with this number."""
        return InstancePlan(
            name=f"{self._bound.spec.name}_0_{index}",
            kind="GPU" if self._ray.num_gpus else "CPU",
            limits=self._bound.limits,
        )

    def make_model(self, supervisor: InstanceSupervisor) -> Model:
        """Make the engine's model, without instances."""
        loader = self._loader
        turns = None
        if loader.turns is not None:
            turns = loader.turns.join([self._bound.limits] * self._ray.maximum)
        return Model(
            self._bound.spec,
            loader.loop,
            loader.cache,
            config_json=self._config_json,
            is_bound=True,
            body_memory=self._memory.body_memory,
            supervisor=supervisor,
            turns=turns,
        )

    async def start(self, plan: InstancePlan) -> PythonInstance:
        """Start an instance, also to replace one that died."""
        loader = self._loader
        return await PythonInstance.launch(
            self._launcher,
            self._worker_spec(plan),
            self._initialize_frame(plan),
            self._labels,
            self._memory,
            loader.loop,
            WarmupRun(loader.loop),  # it is warmed up by its process, so that nothing is to run
            FunctionServices(plan.name, self._bound.spec.name),
            grace_s=loader.exit_timeout_s,
            log=loader.log,
        )

    def _worker_spec(self, plan: InstancePlan) -> WorkerSpec:
        ray, spec = self._ray, self._bound.spec
        placement = Placement(
            num_cpus=ray.num_cpus,
            num_gpus=ray.num_gpus,
            resources=ray.resources,
            group_size=ray.group_size,
            is_spread=ray.is_spread,
            start_timeout_s=ray.start_timeout_s,
        )
        return WorkerSpec(
            plan.name,
            f"pytriton {plan.name}",
            placement=placement,
            model=spec.name,
            version=spec.version,
        )

    def _initialize_frame(self, plan: InstancePlan) -> Initialize:
        spec = self._bound.spec
        arguments = {
            "model_config": self._config_json.decode(),
            "model_instance_kind": plan.kind,
            "model_instance_name": plan.name,
            "model_instance_device_id": "0",
            "model_repository": "",
            "model_version": str(spec.version),
            "model_name": spec.name,
        }
        if self._ray.group_size > 1:
            arguments["model_group_size"] = str(self._ray.group_size)
        outputs = list(dict.fromkeys((*spec.outputs, *state_output_names(spec))))
        return Initialize(
            "",
            "",
            arguments,
            outputs,
            is_decoupled=spec.decoupled,
            is_batching=spec.max_batch_size > 0,
            function=self._ray.function,
        )


class FunctionServices:
    """Services for the process of a function: only a log."""

    def __init__(self, instance_name: str, model_name: str) -> None:
        self._instance_name = instance_name
        self._log = WorkerLog(instance_name, model_name)

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
