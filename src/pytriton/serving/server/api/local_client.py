# SPDX-License-Identifier: Apache-2.0
"""The engine's interface for callers in its own process, and what the core answers for others.

A method that is marked with `question` may also be asked by front ends in processes of their own;
see `EngineClient.ask`. If a model has its own readiness check, readiness is a coroutine; otherwise
it is known at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import msgspec

from pytriton.base.errors import (
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from pytriton.runtime.transport.control import Started
from pytriton.serving.engine.client import Answer, Files, IndexEntry, Patterns, question
from pytriton.serving.engine.model_state import UNLOADED, VersionState, reason_for_clients
from pytriton.serving.server.api.documents import statistics_of
from pytriton.serving.server.tracing.settings import TraceService

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pytriton.serving.engine.client import ModelControl, ModelRegistrations
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.api.gpu_view import MemoryByModel
    from pytriton.serving.server.tracing.settings import TraceSettings

    ChangeLogSettings = Callable[[Mapping[str, Any]], dict[str, Any]]

# Limits for the text about models that are not ready; the index has the whole text.
MAX_PROBLEMS = 20

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Requests to load models that wait or run: each may have brought files.
MAX_LOADS = 256


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
        self.loading_count = 0  # of requests to load models
        self.refused_loads = 0
        self._engine = engine
        self._control = control
        self._traces = TraceService(engine, trace_settings)
        self._is_strict = strict_readiness  # all models have to be ready
        self._change_log_settings = change_log_settings or _refuse_log_settings
        # The engine's own methods: another call in between would cost 0.1 us per request.
        self.lookup = engine.lookup
        self.find = engine.find
        self.ready_versions = engine.ready_versions
        self.ready_models = engine.ready_models
        self.infer = engine.infer
        self.observers = engine.observers
        self.report_refusal = engine.report_refusal
        self.registrations: ModelRegistrations | None = None  # set by the owner, if it has some
        # Set by the owner once GPUs are read, which needs time.
        self.gpu_memory: Callable[[], Awaitable[MemoryByModel]] | None = None
        # Set if the index needs time, because repositories are far away.
        self.look_again: Callable[[], Awaitable[None]] | None = None

    def call_after_answers(
        self, models: Sequence[ServedModel | None], callback: Callable[[], None]
    ) -> bool:
        """Returns False: a model decides itself when it starts what is in its queue."""
        return False

    @property
    def is_exiting(self) -> bool:
        return self._engine.is_exiting

    def ask(
        self, method: Callable[Concatenate[Any, _P], _T], /, *args: _P.args, **arguments: _P.kwargs
    ) -> _T:
        answer: Callable[_P, _T] = getattr(self, method.__name__)
        return answer(*args, **arguments)

    def let_answer(
        self, method: Callable[Concatenate[Any, _P], _T], answer: Callable[_P, _T]
    ) -> None:
        """Let the owner of what a question is about answer it, in the place of a method here."""
        setattr(self, method.__name__, answer)

    # Readiness

    @question()
    def is_serving(self) -> bool:
        """See `EngineClient`."""
        return self._engine.is_ready() and (not self._is_strict or self._control.is_ready())

    @question(tells_readiness=True)
    def is_ready(self) -> Answer[bool]:
        """Returns whether the server is ready; models with their own readiness check are asked."""
        if not self.is_serving():
            return False
        models = self._models_with_checks()
        return _are_all_ready(models) if models else True

    @question(tells_readiness=True)
    def problem(self) -> Answer[str]:
        """Returns why the server is not ready; an empty text if it is ready."""
        if not self.is_serving():
            return self._known_problem()
        models = self._models_with_checks()
        return _unready_text(models) if models else ""

    def _models_with_checks(self) -> list[ServedModel]:
        """Returns the models that are asked whether they are ready."""
        if not self._is_strict:
            return []
        return [each for each in self._engine.models() if each.has_ready_check and each.is_ready]

    def _known_problem(self) -> str:
        problems = [
            _entry_problem(each, tells_reason=self._engine.tells_reasons)
            for each in self._control.index()
            if _is_problem(each)
        ]
        problems += [
            f"{_named(each)} is short of instances"
            for each in self._engine.models()
            if each.state is VersionState.READY and not each.is_ready
        ]
        more = len(problems) - MAX_PROBLEMS
        if more > 0:
            problems[MAX_PROBLEMS:] = [f"and {more} more"]
        if not problems and self._engine.awaits_models:
            return "the first models are not served yet"
        return "; ".join(problems) or "the server is about to exit"

    @question(tells_readiness=True)
    def is_model_ready(self, name: str, version: str) -> Answer[bool]:
        """Returns whether a model is ready; an unknown one is not.

        Raises:
            InvalidArgumentError: The version is not a number.
        """
        if not self._engine.is_model_ready(name, version):
            return False
        model = self._engine.lookup(name, version)
        return _are_all_ready([model]) if model.has_ready_check else True

    # The server

    @question(Started)
    def ports(self) -> Answer[Started]:
        """Returns the ports of the server."""
        return Started(0, 0, 0)

    @question()
    def metrics_page(self) -> Answer[bytes]:
        """Returns the metrics in Prometheus' text format."""
        return b""

    @question()
    def record(self, action: str, body: bytes) -> Answer[Any]:
        """Start, fetch or stop a recording of requests; see `Recordings.do`."""
        raise UnsupportedError("this server records no requests")

    @question()
    def change_trace_settings(
        self, model_name: str, changes: Mapping[str, Sequence[str]]
    ) -> Answer[dict[str, list[str]]]:
        """Change the trace settings of a model, or of all without a name; returns the new ones."""
        return self._traces.change(model_name, changes)

    @question()
    def change_log_settings(self, changes: Mapping[str, Any]) -> Answer[dict[str, Any]]:
        """Change settings of the log, by their names in the protocol; returns all of them.

        All front ends use the changes when this is done.
        """
        settings = self._change_log_settings(changes)
        settled = self._engine.settled
        if not changes or settled is None:
            return settings
        # Front ends were told already. They report only registries, so they get one more.
        self._engine.on_changed()
        return _when(settled(), settings)

    # Models

    @question()
    def statistics(self, name: str = "", version: str = "") -> Answer[list[dict[str, Any]]]:
        """Returns statistics of models in Triton's layout; of all ready ones without a name."""
        return [
            statistics_of(model) for model in self._engine.models_with_statistics(name, version)
        ]

    @question(list[IndexEntry], tells_readiness=True)
    def index(self, *, ready: bool = False) -> Answer[list[IndexEntry]]:
        """Returns every known model version, or only those that are ready."""
        if self.look_again is not None or self.gpu_memory is not None:
            return self._index_later(ready=ready)
        return self._control.index(ready=ready)

    async def _index_later(self, *, ready: bool) -> list[IndexEntry]:
        if self.look_again is not None:
            await self.look_again()
        if self.gpu_memory is None:
            return self._control.index(ready=ready)
        memory = await self.gpu_memory()
        return [_with_memory(entry, memory) for entry in self._control.index(ready=ready)]

    @question()
    async def load(
        self, name: str, config: str | None, files: Files, patterns: Patterns | None = None
    ) -> None:
        """Load or reload a model; returns when every front end serves it; see `ModelControl`."""
        if self.loading_count >= MAX_LOADS:
            self.refused_loads += 1
            raise UnavailableError(
                f"expected at most {MAX_LOADS} models that are loaded at the same time, got more; "
                "try again later"
            )
        self.loading_count += 1
        try:
            await self._control.load(name, config, files, patterns)
        finally:
            self.loading_count -= 1
        await self._engine.wait_until_known()

    @question()
    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model; returns when it gets no new requests any more."""
        await self._control.unload(name, unload_dependents=unload_dependents)
        await self._engine.wait_until_known()

    @question()
    async def register_model(self, name: str, url: str) -> None:
        """Load a model from a folder that is in no repository; returns when it is ready."""
        if self.registrations is None:
            raise InvalidArgumentError("this server has no model repositories")
        await self.registrations.register(name, url)
        await self._engine.wait_until_known()

    @question()
    async def unregister_model(self, name: str) -> None:
        """Unload such a model; returns when it has stopped."""
        if self.registrations is None:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        await self.registrations.unregister(name)
        await self._engine.wait_until_known()

    @question()
    def registered_models(self) -> Answer[dict[str, str]]:
        """Returns the folders of such models, by name."""
        return {} if self.registrations is None else self.registrations.listed()


async def _when(settled: Awaitable[None], answer: _T) -> _T:
    await settled
    return answer


def _refuse_log_settings(_: Mapping[str, Any]) -> dict[str, Any]:
    raise UnsupportedError("this server has no log")


def _named(model: ServedModel) -> str:
    return f"model '{model.spec.name}' version {model.spec.version}"


def _with_memory(entry: IndexEntry, memory: MemoryByModel) -> IndexEntry:
    version = int(entry.version) if entry.version else 0
    devices = memory.get((entry.namespace, entry.name, version))
    if not devices:
        return entry
    return msgspec.structs.replace(entry, gpu_memory_bytes=sum(devices.values()))


def _is_problem(entry: IndexEntry) -> bool:
    """Returns whether a model is not ready, unless it was unloaded on purpose."""
    is_unloaded = entry.state == VersionState.UNLOADING.value or entry.reason == UNLOADED
    return bool(entry.state) and entry.state != VersionState.READY.value and not is_unloaded


def _entry_problem(entry: IndexEntry, *, tells_reason: bool) -> str:
    version = f" version {entry.version}" if entry.version else ""
    reason = reason_for_clients(entry.reason, is_told=tells_reason)
    text = f"model '{entry.name}'{version} is at {entry.state} state"
    return f"{text}: {reason}" if entry.reason else text


async def _unready_text(models: list[ServedModel]) -> str:
    results = await asyncio.gather(*(model.check_ready() for model in models))
    unready = [_named(model) for model, result in zip(models, results, strict=True) if not result]
    return "; ".join(f"{name} reports that it is not ready" for name in unready)


async def _are_all_ready(models: list[ServedModel]) -> bool:
    return all(await asyncio.gather(*(model.check_ready() for model in models)))
