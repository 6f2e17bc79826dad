# SPDX-License-Identifier: Apache-2.0
"""The core of a server that has model repositories: loaders, worker processes, what models ask for.

It is apart from `pytriton.server.core`, so that servers without repositories need not load it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pytriton.executor.launcher import WorkerLauncher
from pytriton.repository.loading.python_loader import PythonLoader
from pytriton.repository.model_repositories import ModelRepositories
from pytriton.repository.reading.instances import visible_gpu_ids
from pytriton.repository.services.custom_metrics import CustomMetrics
from pytriton.repository.services.model_services import ModelServices, SharedServices
from pytriton.repository.settings import ControlMode, RepositorySettings
from pytriton.server.binding.combined_control import CombinedControl
from pytriton.server.core import Core
from pytriton.server.metrics.page import custom_families, server_family_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytriton.engine.control import ModelControl
    from pytriton.repository.loading.backends import Loaders
    from pytriton.repository.model_repositories import Report
    from pytriton.server.metrics.exposition import Family
    from pytriton.server.options.repository_options import RepositoryOptions
    from pytriton.server.options.server_options import ServerOptions


async def make_core(options: ServerOptions, loop: asyncio.AbstractEventLoop) -> RepositoryCore:
    """Make a core; nothing is loaded yet."""
    return RepositoryCore(options, loop, await asyncio.to_thread(visible_gpu_ids))


class RepositoryCore(Core):
    """The core of a server whose models come from repositories; other processes may bind more."""

    def __init__(
        self, options: ServerOptions, loop: asyncio.AbstractEventLoop, gpu_ids: Sequence[int] = ()
    ) -> None:
        super().__init__(options, loop)
        self._launcher = WorkerLauncher(loop)
        python = PythonLoader(
            self._launcher,
            lambda model, instance: ModelServices(shared, model, instance),
            loop,
            self.cache,
            completes_config=options.repository.auto_complete,
            exit_timeout_s=options.exit_timeout_s,
        )
        settings = repository_settings(options.repository, gpu_ids)
        self.loaders: Loaders = {"python": python}  # by the names of backends
        self.repositories = ModelRepositories(settings, self.engine, self.loaders, loop)
        self._metrics = CustomMetrics(server_family_names())
        shared = SharedServices(
            self.engine,
            self.repositories.for_models,
            self._metrics,
            loop,
            begin_trace=None if self.tracing is None else self.tracing.begin_call,
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

    def custom_metrics(self) -> Iterable[Family]:
        """See `Core`."""
        return custom_families(self._metrics)

    async def load(self, report: Report | None = None) -> None:
        """Load what the control mode says should serve, and begin to look for changes.

        Args:
            report: Told how far it is, whenever that changes.

        Raises:
            ServerError: Something of it cannot be loaded; the rest serves.
        """
        self.start()
        for loader in self.loaders.values():
            loader.start()
        await self.repositories.start(report)

    async def end_models(self, timeout_s: float) -> None:
        """See `Core`."""
        end = self._loop.time() + timeout_s
        # Those of the repositories may call bound ones in their last requests.
        await self.repositories.stop(timeout_s)
        await super().end_models(max(0.0, end - self._loop.time()))

    async def close(self, timeout_s: float) -> None:
        """See `Core`."""
        await super().close(timeout_s)
        await self._launcher.close()
        for loader in self.loaders.values():
            await loader.close()


def repository_settings(options: RepositoryOptions, gpu_ids: Sequence[int]) -> RepositorySettings:
    """What model repositories are told of the server's options."""
    return RepositorySettings(
        repositories=tuple(Path(path) for path in options.paths),
        control_mode=ControlMode(options.model_control_mode),
        startup_models=options.load_models,
        config_name=options.model_config_name,
        may_complete=options.auto_complete,
        load_limit=options.load_thread_count,
        retry_count=options.load_retry_count,
        load_timeout_s=options.load_timeout_s,
        poll_interval_s=options.repository_poll_s,
        allows_outside_links=options.allow_links,
        gpu_ids=tuple(gpu_ids),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
