# SPDX-License-Identifier: Apache-2.0
"""Loads a version whose model runs in workers: starts its processes, makes the engine's model.

The functions at the end say what the kind of its code, and a Ray cluster, change about that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from msgspec import structs

from pytriton.base.documentation import Documentation, read_docstring
from pytriton.base.errors import InternalError, InvalidArgumentError, UnsupportedError
from pytriton.base.log_switches import LogFeed
from pytriton.base.model_spec import ModelSpec, reshapes
from pytriton.base.package import PACKAGE_FOLDER
from pytriton.runtime.executor.environment import PARAMETER, EnvironmentStore, PythonEnvironment
from pytriton.runtime.executor.inference import ModelLabels
from pytriton.runtime.executor.python_instance import PythonInstance, complete_config
from pytriton.runtime.executor.worker import ForkingProcessEndedError, Launcher, WorkerSpec
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.frames import PACKAGE_FILE, Initialize
from pytriton.runtime.transport.loop_spinner import (
    allowed_cores_of_device_workers,
    allowed_cores_of_workers,
)
from pytriton.serving.engine.config import config_to_json, spec_from_config
from pytriton.serving.engine.config_rules import validate_config, validate_contents
from pytriton.serving.engine.model import Model
from pytriton.serving.engine.sequence.sequence_inputs import (
    SequenceInputs,
    added_input_names,
    state_output_names,
)
from pytriton.serving.engine.served_model import InstanceSupervisor
from pytriton.serving.repository.loading.gpu_memory import GpuMemory
from pytriton.serving.repository.loading.python_version import PythonVersion
from pytriton.serving.repository.loading.warmup import WarmupRun
from pytriton.serving.repository.reading.backend_choice import (
    MODEL_FILE,
    PYTHON,
    BackendCode,
    CodeKind,
)
from pytriton.serving.repository.reading.config_files import (
    check_model_files,
    completed_config,
    docstring_in,
    may_complete,
)
from pytriton.serving.repository.reading.instances import (
    DEFAULT_NO_INSTANCE_TIMEOUT_S,
    NO_INSTANCE_TIMEOUT,
    completion_placement,
    read_scaling,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pytriton.runtime.executor.worker import Placement
    from pytriton.serving.engine.cache import ResponseStore
    from pytriton.serving.engine.rate_limiter import InstanceLimits, Turns
    from pytriton.serving.repository.loading.instance_scaler import ScalingSettings
    from pytriton.serving.repository.loading.plans import InstancePlan, VersionPlan
    from pytriton.serving.repository.loading.sandboxes import Sandbox, Sandboxes
    from pytriton.serving.repository.services.model_services import ModelServices

# By backend of ours. The seven processes of a test that each imported torch were ready after 39 s;
# forked by one that has imported it, after 17 s.
_PRELOADED = {"pytorch": ("torch",)}
_PRELOADED_FOR_LIBRARIES = ("pytriton.runtime.native_backend.worker",)
_FORBIDDEN_IN_NAMES = frozenset(";|&$`<>()[]{}\\\"'*?~#!")


async def no_cluster() -> Launcher:
    """Refuse to run models elsewhere, in a server that has no cluster."""
    raise UnsupportedError("this server has no Ray cluster that models could run on")


_T = TypeVar("_T")

_PARALLEL_SETTING = "TRITON_PARALLEL_INSTANCE_LOADING"
_PARALLEL_PARAMETER = "PARALLEL_INSTANCE_LOADING"  # of a model; "no" starts one instance at a time
_START_ATTEMPTS = 3


class PythonLoader:
    """Loads versions from plans; a server has one. See `VersionLoader`."""

    directory = str(PACKAGE_FOLDER / "runtime" / "python_backend")

    def __init__(
        self,
        launcher: Launcher,
        make_services: Callable[[VersionPlan, str], ModelServices],
        loop: asyncio.AbstractEventLoop,
        cache: ResponseStore | None = None,
        *,
        completes_config: bool = True,
        backend_settings: Callable[[str], dict[str, str]] = lambda _: {},
        exit_timeout_s: float = 30.0,
        turns: Turns | None = None,
        log: LogFeed | None = None,
        cluster: Callable[[], Awaitable[Launcher]] = no_cluster,
        sandboxes: Sandboxes | None = None,
    ) -> None:
        self._launcher = launcher
        self._cluster = cluster  # returns the launcher of models that run on Ray
        self._make_services = make_services  # given the model and the name of the instance
        self._loop = loop
        self._cache = cache
        self._completes_config = completes_config
        self._backend_settings = backend_settings  # those of the command line, by backend
        self._backend_files = {PYTHON: self.directory}
        self._exit_timeout_s = exit_timeout_s
        self._turns = turns
        self.log = LogFeed() if log is None else log
        self._environments = EnvironmentStore()
        self._sandboxes = sandboxes
        self._gpu_memory = GpuMemory()
        self._cleaning: asyncio.Future[None] | None = None

    async def load(self, plan: VersionPlan) -> PythonVersion:
        """Load one version; if this raises an exception, none of its processes is left."""
        if plan.on_ray:  # whose nodes have devices of their own
            return await self._load(plan)
        async with self._gpu_memory.reserve(plan.config):
            return await self._load(plan)

    async def _load(self, plan: VersionPlan) -> PythonVersion:
        code = plan.code
        assert code is not None, f"{plan.name} has no code for a worker"
        folders = (plan.version_directory, plan.model_directory, code.folder)
        check_model_files(plan.config, dict.fromkeys(folders))
        check_code(plan, code)
        self._backend_files.setdefault(code.backend, str(code.path))
        environment = await self._environment(plan)
        sandbox = await self._sandbox(plan, environment)
        launcher = await self._cluster() if plan.on_ray else self._launcher
        config = plan.config
        source = await asyncio.to_thread(_read_source, code)
        if self._completes_config and source.may_complete:
            config = await self._complete(plan, code, environment, launcher, sandbox)
        scaling = check_completed(plan, config)
        spec = spec_from_config(
            config, plan.version, plan.labels, plan.initial_states, plan.namespace
        )
        spec = with_deadline(plan, spec)
        if not spec.documentation.text:
            spec = structs.replace(spec, documentation=source.documentation)
        launch = _VersionLaunch(
            plan=plan,
            spec=spec,
            config_json=config_to_json(config),
            code=code,
            environment=environment,
            sandbox=sandbox,
            launcher=launcher,
            limits=limits_of(plan, scaling),
            memory=MemoryTrimmer(self._loop),
            labels=_labels(spec),
        )
        version = PythonVersion(
            partial(self._make_model, launch),
            partial(self._start_instance, launch),
            self._loop,
            plan.load_timeout_s,
            recovery=launcher.recovery,
            scaling=scaling,
            make_plan=plan.instances[0].numbered if scaling is not None else None,
        )
        await self._start_all(version, plan)
        return version

    @property
    def backends(self) -> dict[str, str]:
        """The backends that have been used, with their files; `python` is always there."""
        return dict(self._backend_files)

    def start(self) -> None:
        """Start to remove the files of killed servers, in the background."""
        self._cleaning = self._loop.run_in_executor(None, self._environments.remove_abandoned)

    async def close(self) -> None:
        """Remove the files that were made for models, whose versions were stopped before."""
        if self._cleaning is not None:
            await self._cleaning
        await asyncio.to_thread(self._environments.close)
        if self._sandboxes is not None:
            await asyncio.to_thread(self._sandboxes.close)

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
            self._environments.resolve,
            setting,
            str(plan.model_directory),
            unpacks=not plan.on_ray,
        )

    async def _sandbox(
        self, plan: VersionPlan, environment: PythonEnvironment | None
    ) -> Sandbox | None:
        if self._sandboxes is None:
            return None
        return await asyncio.to_thread(self._sandboxes.make, plan, environment)

    def _services(self, plan: VersionPlan, name: str, sandbox: Sandbox | None) -> ModelServices:
        services = self._make_services(plan, name)
        if sandbox is not None:
            services.may_control = sandbox.has_control
        return services

    async def _complete(
        self,
        plan: VersionPlan,
        code: BackendCode,
        environment: PythonEnvironment | None,
        launcher: Launcher,
        sandbox: Sandbox | None,
    ) -> Any:
        """Let the model complete its configuration, in a separate process."""
        name = f"{plan.name}_auto_complete"
        arguments = {
            "model_config": config_to_json(plan.config).decode(),
            "model_repository": str(plan.model_directory),
            "model_version": str(plan.version),
            "model_name": plan.name,
        }
        placement = plan.instances[0].placement if plan.on_ray else None
        text = await _retried(
            lambda: complete_config(
                launcher,
                self._worker_spec(
                    plan,
                    name,
                    {},
                    environment,
                    preloaded_modules(code),
                    None if placement is None else completion_placement(placement),
                    sandbox,
                ),
                self._initialize_frame(plan, code, arguments, []),
                self._loop,
                self._services(plan, name, sandbox),
            )
        )
        if not text:
            return plan.config
        return await asyncio.to_thread(completed_config, plan.config, text)

    def _worker_spec(
        self,
        plan: VersionPlan,
        name: str,
        variables: dict[str, str],
        environment: PythonEnvironment | None,
        preload: tuple[str, ...],
        placement: Placement | None,
        sandbox: Sandbox | None,
    ) -> WorkerSpec:
        if environment is not None:
            variables = {**environment.variables, **variables}
        if sandbox is not None:
            variables = {**sandbox.variables, **variables}
        return WorkerSpec(
            instance_name=name,
            title=f"triton_python_backend_stub {name}",
            environment=variables,
            interpreter=environment.interpreter if environment is not None else None,
            preload=preload,
            placement=placement,
            sandbox=None if sandbox is None else sandbox.policy,
            model=plan.name,
            version=plan.version,
            namespace=plan.namespace,
        )

    def _initialize_frame(
        self, plan: VersionPlan, code: BackendCode, arguments: dict[str, str], outputs: list[str]
    ) -> Initialize:
        """Returns the first message to a process of a version."""
        is_own = code.kind is CodeKind.MODEL
        return Initialize(
            code_path(plan, code),
            str(plan.version) if is_own else "",
            arguments,
            outputs,
            log=self.log.switches,
            is_library=code.kind is CodeKind.LIBRARY,
            model_directory="" if is_own else str(model_directory(plan, code)),
            backend_config=self._backend_settings(code.backend),
            polling_cores=0 if plan.on_ray else allowed_cores_of_workers(),
            device_polling_cores=0 if plan.on_ray else allowed_cores_of_device_workers(),
            has_gpus=bool(plan.gpu_ids) and not plan.on_ray,
            sharing=plan.sharing if plan.on_ray else "",
        )

    async def _start_instance(
        self, launch: _VersionLaunch, instance_plan: InstancePlan
    ) -> PythonInstance:
        """Start one instance and run its warm-up; it is not in service yet."""
        return await _retried(lambda: self._try_instance(launch, instance_plan))

    async def _try_instance(
        self, launch: _VersionLaunch, instance_plan: InstancePlan
    ) -> PythonInstance:
        services = self._services(launch.plan, instance_plan.name, launch.sandbox)
        added = SequenceInputs(launch.spec) if launch.spec.sequence is not None else None
        run = WarmupRun(self._loop, added)
        instance = await PythonInstance.launch(
            launch.launcher,
            self._worker_spec(
                launch.plan,
                instance_plan.name,
                instance_plan.environment,
                launch.environment,
                preloaded_modules(launch.code),
                instance_plan.placement,
                launch.sandbox,
            ),
            self._instance_frame(launch, instance_plan),
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

    def _instance_frame(self, launch: _VersionLaunch, plan: InstancePlan) -> Initialize:
        """Returns the first message to the process of an instance."""
        spec = launch.spec
        arguments = {
            "model_config": launch.config_json.decode(),
            "model_instance_kind": plan.kind,
            "model_instance_name": plan.name,
            "model_instance_device_id": str(plan.device_id),
            "model_repository": str(launch.plan.model_directory),
            "model_version": str(spec.version),
            "model_name": spec.name,
        }
        outputs = list(dict.fromkeys((*spec.outputs, *state_output_names(spec))))
        frame = self._initialize_frame(launch.plan, launch.code, arguments, outputs)
        frame.is_decoupled = spec.decoupled
        frame.is_batching = spec.max_batch_size > 0
        return frame

    def _make_model(self, launch: _VersionLaunch, supervisor: InstanceSupervisor) -> Model:
        """Make the engine's model of a version, without instances."""
        turns = None
        if self._turns is not None:
            turns = self._turns.join(launch.limits)
        return Model(
            launch.spec,
            self._loop,
            self._cache,
            config_json=launch.config_json,
            body_memory=launch.memory.body_memory,
            supervisor=supervisor,
            turns=turns,
        )


class _VersionLaunch(msgspec.Struct, kw_only=True):
    """The common parts of all instances of one version."""

    plan: VersionPlan
    spec: ModelSpec
    config_json: bytes
    code: BackendCode
    environment: PythonEnvironment | None
    sandbox: Sandbox | None
    launcher: Launcher
    limits: list[InstanceLimits]  # of all instances that it may have at a time
    memory: MemoryTrimmer
    labels: ModelLabels


def _labels(spec: ModelSpec) -> ModelLabels:
    return ModelLabels(
        spec.name,
        str(spec.version),
        [*spec.inputs, *added_input_names(spec)],
        batching=spec.max_batch_size > 0,
        is_model_file=True,
        state_outputs=state_output_names(spec),
        input_reshapes=reshapes(spec.inputs),
        output_reshapes=reshapes(spec.outputs),
        ragged_inputs=[name for name, each in spec.inputs.items() if each.is_ragged],
        keeps_inputs=spec.is_idempotent,
        output_names=tuple(spec.outputs),
    )


async def _retried(start: Callable[[], Awaitable[_T]]) -> _T:
    """Start a process; retry a few times if it ended because the process that forks it did."""
    for _ in range(_START_ATTEMPTS - 1):
        with contextlib.suppress(ForkingProcessEndedError):
            return await start()
    return await start()


def _loads_in_parallel(config: Any) -> bool:
    if os.environ.get(_PARALLEL_SETTING) == "0":
        return False
    if _PARALLEL_PARAMETER not in config.parameters:
        return True
    return bool(config.parameters[_PARALLEL_PARAMETER].string_value.lower() != "no")


def check_code(plan: VersionPlan, code: BackendCode) -> None:
    """Refuse code that no worker can run."""
    is_own = code.kind is CodeKind.MODEL
    if is_own and code.path.suffix != ".py":
        filename = plan.config.default_model_filename
        raise InternalError(f"Model name must end with '.py'. Model name is \"{filename}\".")
    # A rule of Triton's Python backend.
    if code.kind is not CodeKind.LIBRARY and not code.is_ours:
        for instance in plan.instances:
            if _FORBIDDEN_IN_NAMES.intersection(instance.name):
                raise InvalidArgumentError("Invalid stub name: contains invalid characters")
    if is_own and not code.path.is_file():
        raise InternalError(f"Python model file not found in '{code.path}'")


def model_directory(plan: VersionPlan, code: BackendCode) -> Path:
    """Returns the directory that `get_model_dir` shows to the code of a backend."""
    if code.is_ours or code.kind is CodeKind.LIBRARY:
        return plan.version_directory
    # As in Triton, it is the directory of the model's file, which may be further down.
    return (plan.version_directory / (plan.config.default_model_filename or MODEL_FILE)).parent


def code_path(plan: VersionPlan, code: BackendCode) -> str:
    """Returns the path of the code, as the process of an instance finds it."""
    if not plan.on_ray:
        return str(code.path)
    path = code.path.absolute()  # processes there have another working directory
    if path.is_relative_to(PACKAGE_FOLDER):
        return f"{PACKAGE_FILE}{path.relative_to(PACKAGE_FOLDER)}"
    return str(path)


def preloaded_modules(code: BackendCode) -> tuple[str, ...]:
    """Returns the modules that are imported once for all processes that run this kind of code."""
    if code.kind is CodeKind.LIBRARY:
        return _PRELOADED_FOR_LIBRARIES
    return _PRELOADED.get(code.backend, ()) if code.is_ours else ()


class _SourceFacts(NamedTuple):
    """What the text of the code says, without running it."""

    may_complete: bool = True  # the configuration; a library decides that itself
    documentation: Documentation = Documentation()


def _read_source(code: BackendCode) -> _SourceFacts:
    """Read the text of the code, in a thread; that of a backend says nothing about its models."""
    if code.kind is CodeKind.LIBRARY:
        return _SourceFacts()
    text = code.path.read_text(encoding="utf-8", errors="replace")
    docstring = docstring_in(text) if code.backend == PYTHON else None
    return _SourceFacts(may_complete(text), read_docstring(docstring))


def check_completed(plan: VersionPlan, config: Any) -> ScalingSettings | None:
    """Check a completed configuration; returns how the model is scaled, None: it is not."""
    if not plan.on_ray:
        validate_config(config, plan.gpu_ids)
        return None
    validate_contents(config)
    return read_scaling(config)


def with_deadline(plan: VersionPlan, spec: ModelSpec) -> ModelSpec:
    """Returns the specification with a deadline for requests that find no instance on Ray."""
    if not plan.on_ray or NO_INSTANCE_TIMEOUT in plan.config.parameters:
        return spec
    return structs.replace(spec, no_instance_timeout_s=DEFAULT_NO_INSTANCE_TIMEOUT_S)


def limits_of(plan: VersionPlan, scaling: ScalingSettings | None) -> list[InstanceLimits]:
    """Returns the limits of all instances that a version may have at a time."""
    if scaling is not None:
        return [plan.instances[0].limits] * scaling.maximum
    return [each.limits for each in plan.instances]
