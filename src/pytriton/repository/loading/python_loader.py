# SPDX-License-Identifier: Apache-2.0
"""Loads a version of a Python backend model: starts its processes, makes the engine's model."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pytriton.engine.config import config_to_json, spec_from_config
from pytriton.engine.config_rules import validate_config
from pytriton.engine.model import Model
from pytriton.engine.sequence.sequence_inputs import (
    SequenceInputs,
    added_input_names,
    state_output_names,
)
from pytriton.engine.served_model import InstanceSupervisor
from pytriton.errors import InternalError, InvalidArgumentError
from pytriton.executor.environment import PARAMETER, EnvironmentStore, PythonEnvironment
from pytriton.executor.launcher import WorkerLauncher, WorkerSpec
from pytriton.executor.log_feed import LogFeed
from pytriton.executor.model_labels import ModelLabels
from pytriton.executor.python_instance import PythonInstance, complete_config
from pytriton.executor.worker import ForkingProcessEndedError
from pytriton.repository.loading.python_version import PythonVersion
from pytriton.repository.loading.warmup_run import WarmupRun
from pytriton.repository.reading.auto_complete import completed_config, may_complete
from pytriton.repository.reading.config_files import check_python_model
from pytriton.transport.memory_trimmer import MemoryTrimmer
from pytriton.transport.worker_frames import Initialize

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from pytriton.engine.cache import ResponseCache
    from pytriton.engine.model_spec import ModelSpec, Reshape, TensorSpec
    from pytriton.engine.turns import Turns
    from pytriton.repository.loading.plans import InstancePlan, VersionPlan
    from pytriton.repository.services.model_services import ModelServices

_T = TypeVar("_T")

_PARALLEL_SETTING = "TRITON_PARALLEL_INSTANCE_LOADING"
_PARALLEL_PARAMETER = "PARALLEL_INSTANCE_LOADING"  # of a model; "no" starts one instance at a time
_START_ATTEMPTS = 3
_FORBIDDEN_IN_NAMES = frozenset(";|&$`<>()[]{}\\\"'*?~#!")


class PythonLoader:
    """Loads versions from plans; a server has one. See `VersionLoader`."""

    directory = str(Path(__file__).parents[2] / "python_backend")

    def __init__(
        self,
        launcher: WorkerLauncher,
        make_services: Callable[[VersionPlan, str], ModelServices],
        loop: asyncio.AbstractEventLoop,
        cache: ResponseCache | None = None,
        *,
        completes_config: bool = True,
        exit_timeout_s: float = 30.0,
        turns: Turns | None = None,
        log: LogFeed | None = None,
    ) -> None:
        self._launcher = launcher
        self._make_services = make_services  # given the model and the name of the instance
        self._loop = loop
        self._cache = cache
        self._completes_config = completes_config
        self._exit_timeout_s = exit_timeout_s
        self._turns = turns
        self.log = LogFeed() if log is None else log
        self._environments = EnvironmentStore()
        self._cleaning: asyncio.Future[None] | None = None

    async def load(self, plan: VersionPlan) -> PythonVersion:
        """Load one version; if this raises an exception, none of its processes is left."""
        check_python_model(plan.config, (plan.version_directory, plan.model_directory))
        model_path = _model_path(plan)
        environment = await self._environment(plan)
        config = plan.config
        if self._completes_config and await asyncio.to_thread(_may_complete, model_path):
            config = await self._complete(plan, model_path, environment)
        validate_config(config, plan.gpu_ids)
        spec = spec_from_config(
            config, plan.version, plan.labels, plan.initial_states, plan.namespace
        )
        launch = _Launch(self, plan, spec, config_to_json(config), model_path, environment)
        version = PythonVersion(launch.make_model, launch.start, self._loop, plan.load_timeout_s)
        await self._start_all(version, plan)
        return version

    def start(self) -> None:
        """Start to remove the files of killed servers, in the background."""
        self._cleaning = self._loop.run_in_executor(None, self._environments.remove_abandoned)

    async def close(self) -> None:
        """Remove the files that were made for models, whose versions were stopped before."""
        if self._cleaning is not None:
            await self._cleaning
        await asyncio.to_thread(self._environments.close)

    async def _start_all(self, version: PythonVersion, plan: VersionPlan) -> None:
        """Start all instances; if one fails, all are stopped."""
        try:
            if _loads_in_parallel(plan.config):
                starts = [asyncio.ensure_future(version.add(each)) for each in plan.instances]
                try:
                    await asyncio.gather(*starts)
                finally:
                    for start in starts:
                        start.cancel()
                    await asyncio.wait(starts)
            else:
                for each in plan.instances:
                    await version.add(each)
        except BaseException:
            await version.drain_and_stop(0.0)
            raise

    async def _environment(self, plan: VersionPlan) -> PythonEnvironment | None:
        if PARAMETER not in plan.config.parameters:
            return None
        setting = plan.config.parameters[PARAMETER].string_value
        return await asyncio.to_thread(
            self._environments.resolve, setting, str(plan.model_directory)
        )

    async def _complete(
        self, plan: VersionPlan, model_path: str, environment: PythonEnvironment | None
    ) -> Any:
        """Let the model complete its configuration, in a separate process."""
        name = f"{plan.name}_auto_complete"
        arguments = {
            "model_config": config_to_json(plan.config).decode(),
            "model_name": plan.name,
        }
        text = await _retried(
            lambda: complete_config(
                self._launcher,
                self._worker_spec(name, {}, environment),
                Initialize(model_path, str(plan.version), arguments, [], log=self.log.switches),
                self._loop,
                self._make_services(plan, name),
            )
        )
        return completed_config(plan.config, text) if text else plan.config

    def _worker_spec(
        self, name: str, variables: dict[str, str], environment: PythonEnvironment | None
    ) -> WorkerSpec:
        if environment is not None:
            variables = {**environment.variables, **variables}
        return WorkerSpec(
            instance_name=name,
            title=f"triton_python_backend_stub {name}",
            environment=variables,
            interpreter=environment.interpreter if environment is not None else None,
        )

    async def start_instance(self, launch: _Launch, instance_plan: InstancePlan) -> PythonInstance:
        """Start one instance and run its warm-up; it is not in service yet."""
        return await _retried(lambda: self._start_instance(launch, instance_plan))

    async def _start_instance(self, launch: _Launch, instance_plan: InstancePlan) -> PythonInstance:
        services = self._make_services(launch.plan, instance_plan.name)
        added = SequenceInputs(launch.spec) if launch.spec.sequence is not None else None
        run = WarmupRun(self._loop, added)
        instance = await PythonInstance.launch(
            self._launcher,
            self._worker_spec(instance_plan.name, instance_plan.environment, launch.environment),
            launch.initialize_frame(instance_plan),
            launch.labels,
            launch.memory,
            self._loop,
            run,
            services,
            grace_s=self._exit_timeout_s,
            log=self.log,
        )
        services.instance = instance
        try:
            batching = launch.spec.max_batch_size > 0
            await run.run(instance, launch.plan.warmup, batching=batching)
        except BaseException:
            instance.stop()
            raise
        services.is_loading = False
        return instance

    def make_model(self, launch: _Launch, supervisor: InstanceSupervisor) -> Model:
        """Make the engine's model of a version, without instances."""
        turns = None
        if self._turns is not None:
            turns = self._turns.join(each.limits for each in launch.plan.instances)
        return Model(
            launch.spec,
            self._loop,
            self._cache,
            config_json=launch.config_json,
            body_memory=launch.memory.body_memory,
            supervisor=supervisor,
            turns=turns,
        )


class _Launch:
    """What all instances of one version share."""

    def __init__(
        self,
        loader: PythonLoader,
        plan: VersionPlan,
        spec: ModelSpec,
        config_json: bytes,
        model_path: str,
        environment: PythonEnvironment | None,
    ) -> None:
        self._loader = loader
        self._model_path = model_path
        self.plan = plan
        self.spec = spec
        self.config_json = config_json
        self.environment = environment
        self.memory = MemoryTrimmer(loader._loop)  # noqa: SLF001  a part of the loader
        self.labels = ModelLabels(
            spec.name,
            str(spec.version),
            [*spec.inputs, *added_input_names(spec)],
            batching=spec.max_batch_size > 0,
            is_model_file=True,
            state_outputs=state_output_names(spec),
            in_sequences=spec.sequence is not None,
            input_reshapes=_reshapes(spec.inputs),
            output_reshapes=_reshapes(spec.outputs),
            ragged_inputs=[name for name, each in spec.inputs.items() if each.is_ragged],
        )

    def make_model(self, supervisor: InstanceSupervisor) -> Model:
        """Make the engine's model; its supervisor starts and replaces the instances."""
        return self._loader.make_model(self, supervisor)

    async def start(self, plan: InstancePlan) -> PythonInstance:
        """Start an instance, also to replace one that died."""
        return await self._loader.start_instance(self, plan)

    def initialize_frame(self, plan: InstancePlan) -> Initialize:
        """Returns the first message to the instance's process."""
        spec = self.spec
        arguments = {
            "model_config": self.config_json.decode(),
            "model_instance_kind": plan.kind,
            "model_instance_name": plan.name,
            "model_instance_device_id": str(plan.device_id),
            "model_repository": str(self.plan.model_directory),
            "model_version": str(spec.version),
            "model_name": spec.name,
        }
        return Initialize(
            self._model_path,
            str(spec.version),
            arguments,
            list(dict.fromkeys((*spec.outputs, *state_output_names(spec)))),
            spec.decoupled,
            spec.max_batch_size > 0,
            log=self._loader.log.switches,
        )


def _reshapes(tensors: Mapping[str, TensorSpec]) -> dict[str, Reshape]:
    return {name: each.reshape for name, each in tensors.items() if each.reshape is not None}


async def _retried(start: Callable[[], Awaitable[_T]]) -> _T:
    """Start a process; retry a few times if it ended because the process that forks it did."""
    for _ in range(_START_ATTEMPTS - 1):
        with contextlib.suppress(ForkingProcessEndedError):
            return await start()
    return await start()


def _model_path(plan: VersionPlan) -> str:
    filename = plan.config.default_model_filename or "model.py"
    if not filename.endswith(".py"):
        raise InternalError(f"Model name must end with '.py'. Model name is \"{filename}\".")
    for instance in plan.instances:
        if _FORBIDDEN_IN_NAMES.intersection(instance.name):
            raise InvalidArgumentError("Invalid stub name: contains invalid characters")
    path = plan.version_directory / filename
    if not path.is_file():
        raise InternalError(f"Python model file not found in '{path}'")
    return str(path)


def _may_complete(model_path: str) -> bool:
    with open(model_path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        return may_complete(file.read())


def _loads_in_parallel(config: Any) -> bool:
    if os.environ.get(_PARALLEL_SETTING) == "0":
        return False
    if _PARALLEL_PARAMETER not in config.parameters:
        return True
    return bool(config.parameters[_PARALLEL_PARAMETER].string_value.lower() != "no")
