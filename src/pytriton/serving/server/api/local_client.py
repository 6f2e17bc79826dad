# SPDX-License-Identifier: Apache-2.0
"""The engine's interface for callers in its own process; see `EngineClient`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pytriton.base.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from pytriton.serving.server.api.documents import statistics_of
from pytriton.serving.server.api.readiness import Readiness
from pytriton.serving.server.tracing.settings import TraceService

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from pytriton.serving.engine.client import Answer
    from pytriton.serving.engine.control import IndexEntry, ModelControl, ModelRegistrations
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.server.tracing.settings import TraceSettings

    ChangeLogSettings = Callable[[Mapping[str, Any]], dict[str, Any]]

_T = TypeVar("_T")


class LocalClient:
    """Calls the engine and the model control directly."""

    is_behind = False  # what is submitted is in the queue of its model at once

    def __init__(
        self,
        engine: Engine,
        control: ModelControl,
        trace_settings: TraceSettings,
        *,
        strict_readiness: bool = True,
        change_log_settings: ChangeLogSettings | None = None,
    ) -> None:
        self._engine = engine
        self._control = control
        self._traces = TraceService(engine, trace_settings)
        readiness = Readiness(engine, control, is_strict=strict_readiness)
        # The engine's own methods: another call in between would cost 0.1 us per request.
        self.lookup = engine.lookup
        self.find = engine.find
        self.ready_versions = engine.ready_versions
        self.ready_models = engine.ready_models
        self.registrations: ModelRegistrations | None = None  # set by the owner, if it has some
        self.metrics_page: Callable[[], Answer[bytes]] = bytes  # set by the owner of the metrics
        # Set if the index needs time, because repositories are far away.
        self.look_again: Callable[[], Awaitable[None]] | None = None
        self.infer = engine.infer
        self.is_serving = readiness.is_serving
        self.is_ready = readiness.server
        self.problem = readiness.server_problem
        self.is_model_ready = readiness.model
        self.change_trace_settings = self._traces.change
        self._change_log_settings = change_log_settings or _refuse_log_settings

    @property
    def is_exiting(self) -> bool:
        return self._engine.is_exiting

    def statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        return [
            statistics_of(model) for model in self._engine.models_with_statistics(name, version)
        ]

    def index(self, *, ready: bool = False) -> Answer[list[IndexEntry]]:
        if self.look_again is not None:
            return self._index_later(self.look_again(), ready=ready)
        return self._control.index(ready=ready)

    async def _index_later(self, looking: Awaitable[None], *, ready: bool) -> list[IndexEntry]:
        await looking
        return self._control.index(ready=ready)

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        await self._control.load(name, config, files)
        await self._engine.wait_until_known()

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        await self._control.unload(name, unload_dependents=unload_dependents)
        await self._engine.wait_until_known()

    async def register_model(self, name: str, url: str) -> None:
        if self.registrations is None:
            raise InvalidArgumentError("this server has no model repositories")
        await self.registrations.register(name, url)
        await self._engine.wait_until_known()

    async def unregister_model(self, name: str) -> None:
        if self.registrations is None:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        await self.registrations.unregister(name)
        await self._engine.wait_until_known()

    def change_log_settings(self, changes: Mapping[str, Any]) -> Answer[dict[str, Any]]:
        """See `EngineClient`. All front ends use the changes when this is done."""
        settings = self._change_log_settings(changes)
        settled = self._engine.settled
        if not changes or settled is None:
            return settings
        # Front ends were told already. They report only registries, so they get one more.
        self._engine.on_changed()
        return _when(settled(), settings)

    def registered_models(self) -> dict[str, str]:
        return {} if self.registrations is None else self.registrations.listed()


async def _when(settled: Awaitable[None], answer: _T) -> _T:
    await settled
    return answer


def _refuse_log_settings(_: Mapping[str, Any]) -> dict[str, Any]:
    raise UnsupportedError("this server has no log")
