# SPDX-License-Identifier: Apache-2.0
"""A server of model repositories: its core, its ports, and the port for binding processes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from pytriton.serving.engine.model import VersionState
from pytriton.serving.server.binding.binder_port import BinderPort
from pytriton.serving.server.command.lifecycle import (
    LoadedBackend,
    LoadProgress,
    OpenPorts,
    Remaining,
)
from pytriton.serving.server.process.tls import check_tls
from pytriton.serving.server.repository_core import RepositoryCore, make_core
from pytriton.serving.server.server import NetworkServer, authorizations, prepare_front_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.runtime.executor.python_process import StartedZygote
    from pytriton.serving.engine.client import IndexEntry
    from pytriton.serving.engine.served_model import ManagedModel
    from pytriton.serving.server.command.lifecycle import Build
    from pytriton.serving.server.options.server_options import ServerOptions

_KILL_S = 0.5  # for processes to end that were killed after the timeout


async def build(
    options: ServerOptions,
    loop: asyncio.AbstractEventLoop,
    zygote: StartedZygote | None = None,
    *,
    workers: StartedZygote | None = None,
    awaits_bound_models: bool = False,
) -> RepositoryServing:
    """Make a server; nothing is loaded and no port is open yet. See `make_core`."""
    check_tls((options.tls, options.grpc_tls))  # before models are loaded, which may take long
    core = await make_core(options, loop, zygote=workers, awaits_bound_models=awaits_bound_models)
    return RepositoryServing(core, options, loop, zygote)


def prepare(options: ServerOptions, workers: StartedZygote | None = None) -> Build:
    """Fork the process that forks front ends, before there is an event loop or a thread."""
    return partial(build, zygote=prepare_front_ends(options), workers=workers)


class RepositoryServing:
    """The parts of a server; see `ServerLifecycle`."""

    def __init__(
        self,
        core: RepositoryCore,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        zygote: StartedZygote | None = None,
    ) -> None:
        self.core = core
        self.server = NetworkServer(core, options, loop, zygote)
        self._loop = loop
        self._binder_port = BinderPort(
            core.engine, core.instances, authorizations(options), core.load_function
        )

    async def load(self, report: Callable[[LoadProgress], None]) -> None:
        """Load the models that the control mode selects."""
        await self.core.load(
            lambda finished, total, loading: report(LoadProgress(finished, total, loading))
        )

    async def open_ports(self) -> OpenPorts:
        """Listen for clients."""
        await self.server.start()
        ports = self.server.ports
        self._binder_port.start(ports, self.server.access)
        return OpenPorts(
            ports.http_port, ports.grpc_port, ports.metrics_port, *self.server.cloud_ports
        )

    def index(self) -> Sequence[IndexEntry]:
        """Returns every model version that should serve, with its state."""
        return self.core.repositories.index()

    def backends(self) -> Sequence[LoadedBackend]:
        """Returns the backends."""
        return [LoadedBackend(*each) for each in sorted(self.core.loader.backends.items())]

    def begin_exit(self) -> None:
        """Report from now on that the server is not ready, but continue to serve."""
        self.core.engine.begin_exit()

    def reload_certificates(self) -> None:
        """Read the files of encrypted ports again."""
        self.server.reload_certificates()

    def let_clients_leave(self) -> None:
        """Serve on, but ask all clients to use other connections."""
        self.server.let_clients_leave()

    def remaining(self) -> Remaining:
        """Returns the connections and models that have not ended yet."""
        http, grpc = self.server.connection_counts
        models = self._models()
        return Remaining(
            http_connections=http,
            grpc_connections=grpc,
            busy_models=sum(model.is_busy for model in models),
            live_models=sum(model.state is not VersionState.UNAVAILABLE for model in models),
        )

    async def stop(self, timeout_s: float) -> bool:
        """Refuse new requests, finish those in flight, stop everything; True if all was in time."""
        end = self._loop.time() + timeout_s
        self._binder_port.stop_listening()
        self.server.refuse_requests()
        models = self._models()
        ending = asyncio.ensure_future(self._end_models(timeout_s))
        is_in_time = bool((await asyncio.wait({ending}, timeout=timeout_s + _KILL_S))[0])
        if is_in_time:
            ending.result()
        await self.server.end_connections(end - self._loop.time())
        await self.core.close(end - self._loop.time())
        if any(model.gave_up_requests for model in models):
            return False
        return is_in_time and self._loop.time() <= end + _KILL_S

    def _models(self) -> list[ManagedModel]:
        """Returns the models that may have requests."""
        return [*self.core.engine.models(), *self.core.engine.draining]

    async def abandon(self) -> None:
        """Stop at once, without waiting for requests in flight."""
        await self.stop(0)

    async def _end_models(self, timeout_s: float) -> None:
        await self.core.end_models(timeout_s)
        await self._binder_port.stop()
