# SPDX-License-Identifier: Apache-2.0
"""Loads a version whose model runs in workers: starts its processes, makes the engine's model.

`GpuMemory` refuses what GPUs have no room for. The functions at the end say what the kind of its
code, and a Ray cluster, change about that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import structs

from pytriton.base.background_tasks import call_driver
from pytriton.base.documentation import Documentation, read_docstring
from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
)
from pytriton.base.nvml import find_gpus
from pytriton.base.package import PACKAGE_FOLDER
from pytriton.base.protos import model_config_pb2
from pytriton.runtime.executor.environment import PARAMETER, EnvironmentStore, PythonEnvironment
from pytriton.runtime.executor.python_instance import complete_config
from pytriton.runtime.executor.worker import ForkingProcessEndedError, Launcher, WorkerSpec
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.frames import PACKAGE_FILE, Initialize
from pytriton.runtime.transport.loop_spinner import (
    allowed_cores_of_device_workers,
    allowed_cores_of_workers,
)
from pytriton.serving.engine.config import config_to_json, spec_from_config
from pytriton.serving.engine.config_rules import validate_config, validate_contents
from pytriton.serving.repository.loading.instance_factory import InstanceFactory, VersionParts
from pytriton.serving.repository.loading.python_version import PythonVersion
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
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from pytriton.base.model_spec import ModelSpec
    from pytriton.base.nvml import NvmlReader
    from pytriton.runtime.executor.python_instance import PythonInstance
    from pytriton.runtime.executor.worker import Placement
    from pytriton.serving.engine.rate_limiter import InstanceLimits
    from pytriton.serving.repository.loading.instance_scaler import ScalingSettings
    from pytriton.serving.repository.loading.plans import InstancePlan, VersionPlan
    from pytriton.serving.repository.loading.sandboxes import Sandbox, Sandboxes
    from pytriton.serving.repository.services.model_services import ModelServices


logger = logging.getLogger(__name__)

GPU_MEMORY = "GPU_MEMORY_MIB"
_MIB = 1 << 20
_ASK_TIMEOUT_S = 5.0  # a driver that hangs must not keep models from being loaded


def needed_memory(config: Any) -> dict[int, int]:
    """Returns the bytes that the instances of a model need on each device.

    Only instances on GPUs count. Those of a group with several devices count on each of them.

    Raises:
        InvalidArgumentError: The parameter is no number.
    """
    if GPU_MEMORY not in config.parameters:
        return {}
    text = config.parameters[GPU_MEMORY].string_value
    if not text.isdecimal() or int(text) == 0:
        raise InvalidArgumentError(
            f"expected a whole number of MiB above 0 as parameter {GPU_MEMORY} of model "
            f"'{config.name}', got '{text}'"
        )
    needed: dict[int, int] = {}
    for group in config.instance_group:
        if group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU:
            for gpu in group.gpus:
                needed[gpu] = needed.get(gpu, 0) + group.count * int(text) * _MIB
    return needed


class GpuMemory:
    """Admits loads as long as devices have room for them.

    Models that are loaded at the same time must fit together, whether they have taken their memory
    already or not. So what was free when the first of them began counts, less what all need, or
    what is free now if that is more, as others were unloaded.
    """

    def __init__(self, find: Callable[[], NvmlReader | None] = find_gpus) -> None:
        self._find = find
        self._reader: NvmlReader | None = None
        self._asking = asyncio.Lock()
        self._has_looked = False
        self._reserved: dict[int, int] = {}  # by device: what the loads under way need
        self._free_at_first: dict[int, int] = {}  # when the first of them began
        # What models need that were loaded while the driver was asked: reserved until it is again.
        self._ended: list[Mapping[int, int]] = []

    @contextlib.asynccontextmanager
    async def reserve(self, config: Any) -> AsyncIterator[None]:
        """Keep the memory that a model needs free of others while it is loaded.

        Raises:
            UnavailableError: A device has less free memory than the model needs.
            InvalidArgumentError: The configuration does not say it in a number.
        """
        needed = needed_memory(config)
        if not needed:
            yield
            return
        free = await self._free()
        needed = {gpu: size for gpu, size in needed.items() if gpu in free}
        self._check(config, needed, free)
        for gpu, size in needed.items():
            if not self._reserved.get(gpu):
                self._free_at_first[gpu] = free[gpu]
            self._reserved[gpu] = self._reserved.get(gpu, 0) + size
        is_loaded = False
        try:
            yield
            is_loaded = True
        finally:
            if is_loaded and self._asking.locked():
                self._ended.append(needed)  # what is being read may not show its memory yet
            else:
                self._end(needed, is_loaded=is_loaded)

    def _end(self, needed: Mapping[int, int], *, is_loaded: bool) -> None:
        for gpu, size in needed.items():
            self._reserved[gpu] -= size
            if is_loaded:  # the others that are under way find so much less
                self._free_at_first[gpu] -= size

    def _check(self, config: Any, needed: Mapping[int, int], free: Mapping[int, int]) -> None:
        for gpu, size in sorted(needed.items()):
            room = free[gpu]
            others = self._reserved.get(gpu, 0)
            if others:
                room = min(room, max(self._free_at_first[gpu], room) - others)
            if size > room:
                each = int(config.parameters[GPU_MEMORY].string_value)
                count = size // (each * _MIB)
                instances = "1 instance" if count == 1 else f"{count} instances"
                loading = f", and {others // _MIB} MiB are kept for models that are being loaded"
                raise UnavailableError(
                    f"{instances} of model '{config.name}' on GPU {gpu} would need "
                    f"{size // _MIB} MiB of its memory ({GPU_MEMORY}: {each}), but "
                    f"{free[gpu] // _MIB} MiB are free{loading if others else ''}"
                )

    async def _free(self) -> dict[int, int]:
        """Returns the free bytes of each device; none if NVML is absent or does not answer."""
        async with self._asking:
            for needed in self._ended:
                self._end(needed, is_loaded=True)
            self._ended.clear()
            try:
                return await asyncio.wait_for(call_driver(self._read), _ASK_TIMEOUT_S)
            except Exception as error:  # noqa: BLE001  whatever a driver does, models are loaded
                logger.warning("free GPU memory cannot be read, so nothing is refused: %r", error)
                return {}

    def _read(self) -> dict[int, int]:
        if not self._has_looked:
            self._reader = self._find()
            self._has_looked = True
        return {} if self._reader is None else self._reader.free_bytes()


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
        factory: InstanceFactory,
        *,
        completes_config: bool = True,
        backend_settings: Callable[[str], dict[str, str]] = lambda _: {},
        cluster: Callable[[], Awaitable[Launcher]] = no_cluster,
        sandboxes: Sandboxes | None = None,
    ) -> None:
        self._launcher = launcher
        self._cluster = cluster  # returns the launcher of models that run on Ray
        self._make_services = make_services  # given the model and the name of the instance
        self._factory = factory
        self._completes_config = completes_config
        self._backend_settings = backend_settings  # those of the command line, by backend
        self._backend_files = {PYTHON: self.directory}
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
        processes = await self._processes(plan)
        code, config = processes.code, plan.config
        source = await asyncio.to_thread(_read_source, code)
        if self._completes_config and source.may_complete:
            config = await self._complete(processes)
        scaling = check_completed(plan, config)
        spec = spec_from_config(
            config, plan.version, plan.labels, plan.initial_states, plan.namespace
        )
        spec = with_deadline(plan, spec)
        if not spec.documentation.text:
            spec = structs.replace(spec, documentation=source.documentation)
        parts = VersionParts(
            spec=spec,
            config_json=config_to_json(config),
            limits=limits_of(plan, scaling),
            memory=MemoryTrimmer(self._factory.loop),
        )
        version = PythonVersion(
            partial(self._factory.make_model, parts),
            lambda each: _retried(lambda: self._start_instance(processes, parts, each)),
            self._factory.loop,
            plan.load_timeout_s,
            recovery=processes.launcher.recovery,
            scaling=scaling,
            make_plan=plan.instances[0].numbered if scaling is not None else None,
        )
        await version.start(plan.instances, in_parallel=_loads_in_parallel(plan.config))
        return version

    @property
    def backends(self) -> dict[str, str]:
        """The backends that have been used, with their files; `python` is always there."""
        return dict(self._backend_files)

    def start(self) -> None:
        """Start to remove the files of killed servers, in the background."""
        loop = self._factory.loop
        self._cleaning = loop.run_in_executor(None, self._environments.remove_abandoned)

    async def close(self) -> None:
        """Remove the files that were made for models, whose versions were stopped before."""
        if self._cleaning is not None:
            await self._cleaning
        await asyncio.to_thread(self._environments.close)
        if self._sandboxes is not None:
            await asyncio.to_thread(self._sandboxes.close)

    async def _processes(self, plan: VersionPlan) -> _VersionProcesses:
        """Check the code of a version, and find what its processes are started with."""
        code = plan.code
        assert code is not None, f"{plan.name} has no code for a worker"
        folders = (plan.version_directory, plan.model_directory, code.folder)
        check_model_files(plan.config, dict.fromkeys(folders))
        check_code(plan, code)
        self._backend_files.setdefault(code.backend, str(code.path))
        environment = sandbox = None
        if PARAMETER in plan.config.parameters:
            environment = await asyncio.to_thread(
                self._environments.resolve,
                plan.config.parameters[PARAMETER].string_value,
                str(plan.model_directory),
                unpacks=not plan.on_ray,
            )
        if self._sandboxes is not None:
            sandbox = await asyncio.to_thread(self._sandboxes.make, plan, environment)
        launcher = await self._cluster() if plan.on_ray else self._launcher
        return _VersionProcesses(plan, code, environment, sandbox, launcher)

    def _services(self, processes: _VersionProcesses, name: str) -> ModelServices:
        services = self._make_services(processes.plan, name)
        if processes.sandbox is not None:
            services.may_control = processes.sandbox.has_control
        return services

    async def _complete(self, processes: _VersionProcesses) -> Any:
        """Let the model complete its configuration, in a separate process."""
        plan = processes.plan
        name = f"{plan.name}_auto_complete"
        arguments = {
            "model_config": config_to_json(plan.config).decode(),
            "model_repository": str(plan.model_directory),
            "model_version": str(plan.version),
            "model_name": plan.name,
        }
        placement = plan.instances[0].placement if plan.on_ray else None
        if placement is not None:
            placement = completion_placement(placement)
        text = await _retried(
            lambda: complete_config(
                processes.launcher,
                processes.worker_spec(name, {}, placement),
                self._first_message(processes, arguments),
                self._factory.loop,
                self._services(processes, name),
            )
        )
        if not text:
            return plan.config
        return await asyncio.to_thread(completed_config, plan.config, text)

    async def _start_instance(
        self, processes: _VersionProcesses, parts: VersionParts, plan: InstancePlan
    ) -> PythonInstance:
        """Start one instance and run its warm-up; it is not in service yet."""
        services = self._services(processes, plan.name)
        frame = self._first_message(processes, {})
        parts.complete(frame, plan, str(processes.plan.model_directory))
        instance = await self._factory.start(
            parts,
            processes.launcher,
            processes.worker_spec(plan.name, plan.environment, plan.placement),
            frame,
            services,
            processes.plan.warmup,
        )
        services.is_loading = False
        return instance

    def _first_message(self, processes: _VersionProcesses, arguments: dict[str, str]) -> Initialize:
        """Returns the first message to a process of a version, as far as its code decides it."""
        plan, code = processes.plan, processes.code
        is_own = code.kind is CodeKind.MODEL
        return Initialize(
            code_path(plan, code),
            str(plan.version) if is_own else "",
            arguments,
            [],
            log=self._factory.log.switches,
            is_library=code.kind is CodeKind.LIBRARY,
            model_directory="" if is_own else str(model_directory(plan, code)),
            backend_config=self._backend_settings(code.backend),
            polling_cores=0 if plan.on_ray else allowed_cores_of_workers(),
            device_polling_cores=0 if plan.on_ray else allowed_cores_of_device_workers(),
            has_gpus=bool(plan.gpu_ids) and not plan.on_ray,
            sharing=plan.sharing if plan.on_ray else "",
        )


class _VersionProcesses(NamedTuple):
    """What all processes of one version are started with."""

    plan: VersionPlan
    code: BackendCode
    environment: PythonEnvironment | None
    sandbox: Sandbox | None
    launcher: Launcher

    def worker_spec(
        self, name: str, variables: dict[str, str], placement: Placement | None
    ) -> WorkerSpec:
        """Returns what the launcher has to know of one of them."""
        environment, sandbox = self.environment, self.sandbox
        if environment is not None:
            variables = {**environment.variables, **variables}
        if sandbox is not None:
            variables = {**sandbox.variables, **variables}
        return WorkerSpec(
            instance_name=name,
            title=f"triton_python_backend_stub {name}",
            environment=variables,
            interpreter=environment.interpreter if environment is not None else None,
            preload=preloaded_modules(self.code),
            placement=placement,
            sandbox=None if sandbox is None else sandbox.policy,
            model=self.plan.name,
            version=self.plan.version,
            namespace=self.plan.namespace,
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
