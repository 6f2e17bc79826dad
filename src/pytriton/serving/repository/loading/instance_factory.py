# SPDX-License-Identifier: Apache-2.0
"""Makes the engine's models of one server, and starts the worker processes of their instances.

What runs in these processes, and on which machine, loaders decide; bound functions have a model,
but no process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from pytriton.base.lazy_module import LazyModule
from pytriton.base.log_switches import LogFeed
from pytriton.base.model_spec import ModelSpec, reshapes
from pytriton.runtime.executor.inference import ModelLabels
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.serving.engine.model import Model
from pytriton.serving.engine.rate_limiter import InstanceLimits
from pytriton.serving.engine.sequence.sequence_inputs import (
    SequenceInputs,
    added_input_names,
    state_output_names,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.runtime.executor import python_instance
    from pytriton.runtime.executor.call_server import WorkerServices
    from pytriton.runtime.executor.python_instance import PythonInstance
    from pytriton.runtime.executor.worker import Launcher, WorkerSpec
    from pytriton.runtime.transport.frames import Initialize
    from pytriton.serving.engine.cache import ResponseStore
    from pytriton.serving.engine.rate_limiter import InstanceTurns
    from pytriton.serving.engine.served_model import InstanceSupervisor
    from pytriton.serving.repository.loading import warmup
    from pytriton.serving.repository.loading.plans import InstancePlan, WarmupSample

    class InstanceServices(WorkerServices, Protocol):
        """The services of a worker, which get to know the instance that calls them."""

        def on_started(self, instance: PythonInstance) -> None:
            """The instance exists, and has run no batch yet."""

else:  # for workers, which a server of bound functions does not have
    python_instance = LazyModule("pytriton.runtime.executor.python_instance")
    warmup = LazyModule("pytriton.serving.repository.loading.warmup")


class VersionParts(msgspec.Struct, kw_only=True, frozen=True):
    """What a model and all its instances have in common."""

    spec: ModelSpec
    config_json: bytes
    memory: MemoryTrimmer
    limits: Sequence[InstanceLimits]  # of all instances that it may have at a time
    is_bound: bool = False

    @property
    def labels(self) -> ModelLabels:
        """What instances need to know of the model."""
        spec = self.spec
        return ModelLabels(
            spec.name,
            str(spec.version),
            [*spec.inputs, *added_input_names(spec)],
            batching=spec.max_batch_size > 0,
            is_model_file=not self.is_bound,
            state_outputs=state_output_names(spec),
            input_reshapes=reshapes(spec.inputs),
            output_reshapes=reshapes(spec.outputs),
            ragged_inputs=[name for name, each in spec.inputs.items() if each.is_ragged],
            keeps_inputs=spec.is_idempotent,
            output_names=tuple(spec.outputs),
        )

    def complete(self, frame: Initialize, plan: InstancePlan, directory: str = "") -> None:
        """Add to the first message to a process what follows from the model and its instance."""
        spec = self.spec
        frame.arguments.update(
            model_config=self.config_json.decode(),
            model_instance_kind=plan.kind,
            model_instance_name=plan.name,
            model_instance_device_id=str(plan.device_id),
            model_repository=directory,
            model_version=str(spec.version),
            model_name=spec.name,
        )
        frame.output_names = list(dict.fromkeys((*spec.outputs, *state_output_names(spec))))
        frame.is_decoupled = spec.decoupled
        frame.is_batching = spec.max_batch_size > 0


class InstanceFactory:
    """Makes models and instances with what all those of a server share."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cache: ResponseStore | None = None,
        turns: InstanceTurns | None = None,
        *,
        log: LogFeed | None = None,
        exit_timeout_s: float = 30.0,
    ) -> None:
        self.loop = loop
        self.log = LogFeed() if log is None else log
        self._cache = cache
        self._turns = turns
        self._exit_timeout_s = exit_timeout_s

    def make_model(
        self, parts: VersionParts, supervisor: InstanceSupervisor | None = None
    ) -> Model:
        """Make the engine's model of a version, without instances."""
        turns = None
        if self._turns is not None:  # last: the model gives back what it takes
            turns = self._turns.join(parts.limits)
        return Model(
            parts.spec,
            self.loop,
            self._cache,
            config_json=parts.config_json,
            is_bound=parts.is_bound,
            body_memory=parts.memory.body_memory,
            supervisor=supervisor,
            turns=turns,
        )

    async def start(
        self,
        parts: VersionParts,
        launcher: Launcher,
        worker: WorkerSpec,
        frame: Initialize,
        services: InstanceServices,
        samples: Sequence[WarmupSample] = (),
    ) -> PythonInstance:
        """Start an instance and run its warm-up; it is not in service yet."""
        spec = parts.spec
        added = SequenceInputs(spec) if spec.sequence is not None else None
        run = warmup.WarmupRun(self.loop, added)
        instance = await python_instance.PythonInstance.launch(
            launcher,
            worker,
            frame,
            parts.labels,
            parts.memory,
            self.loop,
            run,
            services,
            grace_s=self._exit_timeout_s,
            log=self.log,
        )
        services.on_started(instance)
        try:
            await run.run(instance, samples, batching=spec.max_batch_size > 0)
        except BaseException:
            instance.stop()
            raise
        return instance
