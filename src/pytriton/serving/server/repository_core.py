# SPDX-License-Identifier: Apache-2.0
"""The core of a server with model repositories: loaders, worker processes, services for models.

It is separate from `pytriton.serving.server.core` so that other servers need not import it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pytriton.base.background_tasks import run_beside, wait_through
from pytriton.base.lazy_module import LazyModule
from pytriton.constants import PYTRITON_HOME
from pytriton.runtime.executor.launcher import WorkerLauncher
from pytriton.serving.repository.loading.ensemble_loader import ensemble_maker
from pytriton.serving.repository.loading.plans import WORKERS
from pytriton.serving.repository.loading.python_loader import PythonLoader
from pytriton.serving.repository.loading.sandboxes import Sandboxes
from pytriton.serving.repository.model_repositories import ModelRepositories
from pytriton.serving.repository.reading.backend_choice import BackendFolders, user_backend_folder
from pytriton.serving.repository.reading.instances import visible_gpu_ids
from pytriton.serving.repository.reading.layout import PlaceFinder
from pytriton.serving.repository.remote.finder import open_finder
from pytriton.serving.repository.remote.location import is_remote
from pytriton.serving.repository.services.custom_metrics import CustomMetrics
from pytriton.serving.repository.services.model_services import ModelServices, SharedServices
from pytriton.serving.repository.settings import ControlMode, RepositorySettings
from pytriton.serving.server.binding.bound_control import CombinedControl
from pytriton.serving.server.core import Core

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from pytriton.runtime.executor.python_process import StartedZygote
    from pytriton.serving.engine.client import ModelControl, ModelRegistrations
    from pytriton.serving.repository.model_repositories import Report
    from pytriton.serving.server.access import files as policy_files
    from pytriton.serving.server.metrics import page as metrics_page
    from pytriton.serving.server.metrics.exposition import SampleFamily
    from pytriton.serving.server.options.server_options import ServerOptions
else:
    policy_files = LazyModule("pytriton.serving.server.access.files")
    metrics_page = LazyModule("pytriton.serving.server.metrics.page")


async def make_core(
    options: ServerOptions,
    loop: asyncio.AbstractEventLoop,
    *,
    zygote: StartedZygote | None = None,
    awaits_bound_models: bool = False,
    wrap_finder: Callable[[PlaceFinder], PlaceFinder] | None = None,
) -> RepositoryCore:
    """Make a core; nothing is loaded yet.

    Args:
        options: The server's settings.
        loop: The event loop.
        zygote: The process that forks workers, if it was started already.
        awaits_bound_models: Whether an ensemble of the repositories may wait until a process has
            bound the models of its steps; else it cannot be loaded without them.
        wrap_finder: Returns a finder in place of that of the repositories, if it should be another.
    """
    sandboxes = Sandboxes(options.sandbox, kept_out_of_sandboxes(options))
    await asyncio.to_thread(sandboxes.start)
    gpu_ids = await asyncio.to_thread(visible_gpu_ids)
    settings = repository_settings(options, gpu_ids)
    finder = await _open_finder(options, settings)
    if wrap_finder is not None:
        finder = wrap_finder(finder)
    if awaits_bound_models:
        settings = msgspec.structs.replace(settings, awaits_bound_models=True)
    return RepositoryCore(options, loop, settings, finder, zygote, sandboxes)


async def _open_finder(options: ServerOptions, settings: RepositorySettings) -> PlaceFinder:
    """Open the repositories in a thread; if this is cancelled, they are closed again."""
    opening = asyncio.ensure_future(
        asyncio.to_thread(
            open_finder,
            options.repository.paths,
            os.environ,
            with_files=settings.control_mode is not ControlMode.EXPLICIT,
            retry_count=settings.retry_count,
            namespacing=options.repository.namespacing,
        )
    )
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await wait_through([opening])
        if not opening.cancelled() and opening.exception() is None:
            opening.result().close()
        raise


class RepositoryCore(Core):
    """The core of a server whose models come from repositories; other processes may bind more."""

    def __init__(
        self,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        settings: RepositorySettings,
        finder: PlaceFinder,
        zygote: StartedZygote | None = None,
        sandboxes: Sandboxes | None = None,
    ) -> None:
        super().__init__(options, loop)
        self.awaits_bound_models = settings.awaits_bound_models
        self._finder = finder
        self._launcher = WorkerLauncher(loop, zygote)
        self.loader = PythonLoader(
            self._launcher,
            lambda plan, instance: ModelServices(shared, plan.name, instance, plan.namespace),
            self.instances,
            completes_config=options.repository.auto_complete,
            backend_settings=options.repository.backend_settings,
            cluster=self.cluster_launcher,
            sandboxes=sandboxes,
        )
        self.repositories = ModelRepositories(
            settings,
            self.engine,
            {WORKERS: self.loader},
            loop,
            ensemble_maker(self.engine, self.cache),
            finder,
        )
        self._metrics = CustomMetrics(_reserved_names)
        shared = SharedServices(
            self.engine,
            self.repositories.for_models,
            self._metrics,
            loop,
            load_dependencies=self.repositories.load_dependencies,
            turns=self.turns,
        )
        self._control = CombinedControl(
            self.bound_models,
            self.repositories,
            is_explicit=settings.control_mode is ControlMode.EXPLICIT,
        )

    @property
    def control(self) -> ModelControl:
        """See `Core`."""
        return self._control

    @property
    def registrations(self) -> ModelRegistrations:
        """See `Core`."""
        return self.repositories.registrations

    @property
    def look_again(self) -> Callable[[], Awaitable[None]] | None:
        """See `Core`."""
        return self.repositories.look_again if self._finder.is_far else None

    def custom_metrics(self) -> Iterable[SampleFamily]:
        """See `Core`."""
        return metrics_page.custom_families(self._metrics)

    async def load(self, report: Report | None = None) -> None:
        """Load the models that the control mode selects, and begin to poll if so configured.

        Raises:
            ServerError: A model cannot be loaded; the others are loaded.
        """
        self.start()
        self.loader.start()
        await self.repositories.start(report)

    async def end_models(self, timeout_s: float) -> None:
        """See `Core`."""
        end = self._loop.time() + timeout_s
        # First the models of repositories: their last requests may call bound models.
        await self.repositories.stop(timeout_s)
        await super().end_models(max(0.0, end - self._loop.time()))

    async def close(self, timeout_s: float) -> None:
        """See `Core`."""
        await super().close(timeout_s)
        await self._launcher.close()
        await self.loader.close()
        await run_beside(self._finder.close)


def _reserved_names() -> frozenset[str]:
    return metrics_page.server_family_names()  # imported with the first custom metric


def kept_out_of_sandboxes(options: ServerOptions) -> list[str]:
    """Returns the paths of the server that no worker in a sandbox sees unless it is granted."""
    paths = [path for path in options.repository.paths if not is_remote(path)]
    for tls in (options.tls, options.grpc_tls):
        if tls is not None:
            paths += [tls.server_key, tls.server_cert, *([tls.root_cert] if tls.root_cert else ())]
    if options.access.config is not None:
        paths += policy_files.private_files(Path(options.access.config).absolute())
    return [*paths, str(PYTRITON_HOME), str(Path("~").expanduser())]


def repository_settings(server: ServerOptions, gpu_ids: Sequence[int]) -> RepositorySettings:
    """Returns the settings of model repositories that follow from the server's options."""
    options = server.repository
    return RepositorySettings(
        repositories=tuple(Path(path) for path in options.paths if not is_remote(path)),
        namespaces=options.paths if options.namespacing else (),
        control_mode=ControlMode(options.model_control_mode),
        startup_models=options.load_models,
        config_name=options.model_config_name,
        may_complete=options.auto_complete,
        load_limit=options.load_thread_count,
        retry_count=options.load_retry_count,
        load_timeout_s=options.load_timeout_s,
        poll_interval_s=options.repository_poll_s,
        allows_outside_links=options.allow_links,
        backend_folders=BackendFolders(
            triton=Path(options.backend_directory).expanduser(),
            user=user_backend_folder(os.environ),
        ),
        agent_directory=options.agent_directory,
        signing=options.signing,
        gpu_ids=tuple(gpu_ids),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        executor=options.executor,
        ray_start_timeout_s=server.ray.start_timeout_s,
    )
