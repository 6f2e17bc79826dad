# SPDX-License-Identifier: Apache-2.0
"""A server of model repositories, put together: engine, workers, repositories, front ends."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytriton.engine.cache import ResponseCache
from pytriton.engine.engine import Engine
from pytriton.engine.model import ModelState
from pytriton.executor.launcher import WorkerLauncher
from pytriton.repository.loading.python_loader import PythonLoader
from pytriton.repository.model_repositories import ModelRepositories
from pytriton.repository.services.custom_metrics import CustomMetrics
from pytriton.repository.services.model_services import ModelServices, SharedServices
from pytriton.repository.settings import ControlMode, RepositorySettings
from pytriton.server.binding.binder_port import BinderPort
from pytriton.server.binding.bound_control import BoundControl
from pytriton.server.binding.combined_control import CombinedControl
from pytriton.server.command.serving_protocol import Backend, LoadProgress, OpenPorts, Remaining
from pytriton.server.metrics.page import custom_families, server_family_names
from pytriton.server.process.devices import visible_gpu_ids
from pytriton.server.server import Server
from pytriton.server.tracing.settings import TraceSettings
from pytriton.server.tracing.tracing import Tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.engine.control import IndexEntry
    from pytriton.server.options.repository_options import RepositoryOptions
    from pytriton.server.options.server_options import ServerOptions

_PYTHON_BACKEND = Path(__file__).parent.parent / "python_backend"
_KILL_S = 0.5  # for processes to be gone that did not end in time


async def build(options: ServerOptions, loop: asyncio.AbstractEventLoop) -> RepositoryServing:
    """Make a server; nothing is loaded and no port is open yet."""
    gpu_ids = await asyncio.to_thread(visible_gpu_ids)
    return RepositoryServing(options, loop, gpu_ids)


class RepositoryServing:
    """The parts of a server. See `pytriton.server.command.serving_protocol.Serving`."""

    def __init__(
        self, options: ServerOptions, loop: asyncio.AbstractEventLoop, gpu_ids: Sequence[int] = ()
    ) -> None:
        self._loop = loop
        self._engine = engine = Engine(strict_readiness=options.strict_readiness)
        self._launcher = WorkerLauncher(loop)
        cache = ResponseCache(options.cache_bytes) if options.cache_bytes else None
        self._loader = PythonLoader(
            self._launcher,
            lambda model, instance: ModelServices(shared, model, instance),
            loop,
            cache,
            completes_config=options.repository.auto_complete,
            exit_timeout_s=options.exit_timeout_s,
        )
        settings = repository_settings(options.repository, gpu_ids)
        self._models = ModelRepositories(settings, engine, self._loader, loop)
        metrics = CustomMetrics(server_family_names())
        tracing = Tracing.start(TraceSettings.read(options.trace_settings))
        shared = SharedServices(
            engine,
            self._models.for_models,
            metrics,
            loop,
            begin_trace=None if tracing is None else tracing.begin_call,
        )
        control = CombinedControl(
            BoundControl(engine, loop),
            self._models,
            is_explicit=settings.control_mode is ControlMode.EXPLICIT,
        )
        self.server = Server(
            options, loop, engine, cache, control, partial(custom_families, metrics), tracing
        )
        self._binder_port = BinderPort(self.server, loop)

    async def load(self, report: Callable[[LoadProgress], None]) -> None:
        """Load what the control mode says should serve."""
        self._loader.start()
        await self._models.start(
            lambda finished, total, loading: report(LoadProgress(finished, total, loading))
        )

    async def open_ports(self) -> OpenPorts:
        """Listen for clients."""
        server = self.server
        await server.start()
        self._binder_port.start()
        return OpenPorts(server.http_port, server.grpc_port, server.metrics_port)

    def index(self) -> Sequence[IndexEntry]:
        """Every model version that should serve, with its state."""
        return self._models.index()

    def backends(self) -> Sequence[Backend]:
        """What runs models."""
        return [Backend("python", str(_PYTHON_BACKEND))]

    def begin_exit(self) -> None:
        """Report from now on that the server is not ready, but go on serving."""
        self._engine.begin_exit()

    def remaining(self) -> Remaining:
        """What is still to be waited for."""
        http, grpc = self.server.connection_counts
        models = [*self._engine.models(), *self._engine.leaving]
        return Remaining(
            http_connections=http,
            grpc_connections=grpc,
            busy_models=sum(model.is_busy for model in models),
            live_models=sum(model.state is not ModelState.UNAVAILABLE for model in models),
        )

    async def stop(self, timeout_s: float) -> bool:
        """Take no new requests, finish those in flight, end everything; True if all did in time."""
        end = self._loop.time() + timeout_s
        self._binder_port.stop_listening()
        self.server.refuse_requests()
        ending = asyncio.ensure_future(self._end_models(end))
        is_in_time = bool((await asyncio.wait({ending}, timeout=timeout_s + _KILL_S))[0])
        if is_in_time:
            ending.result()
        await self.server.end_connections(end - self._loop.time())
        await self._launcher.close()
        await self._loader.close()
        return is_in_time and self._loop.time() <= end + _KILL_S

    async def abandon(self) -> None:
        """End at once, whatever is in flight."""
        await self.stop(0)

    async def _end_models(self, end: float) -> None:
        # Those of the repositories may call bound ones in their last requests.
        await self._models.stop(end - self._loop.time())
        await self.server.drain(max(0.0, end - self._loop.time()))
        await self._binder_port.stop()


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
        may_leave_by_links=options.allow_links,
        gpu_ids=tuple(gpu_ids),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
