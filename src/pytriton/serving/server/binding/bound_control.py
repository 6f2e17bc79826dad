# SPDX-License-Identifier: Apache-2.0
"""Lists, unloads and loads models that other processes have bound, also beside repositories.

Such a model has no directory from which it could be loaded. Unloading refuses its requests but
keeps its instances, loading accepts requests again. The process that bound it is not involved.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.serving.engine.client import Files, IndexEntry, Patterns
from pytriton.serving.engine.model import UNLOADED, VersionState

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from pytriton.serving.engine.client import ModelControl
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.served_model import ManagedModel

logger = logging.getLogger(__name__)


class BoundControl:
    """Lists, unloads and loads bound models. See `ModelControl`."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._draining = BackgroundTasks(loop)

    def has(self, name: str) -> bool:
        """Returns whether a model of that name is bound."""
        return any(model.spec.name == name for model in self._models())

    def _models(self) -> Iterator[ManagedModel]:
        return (model for model in self._engine.models() if model.is_bound)

    def _versions(self, name: str) -> list[ManagedModel]:
        return [model for model in self._models() if model.spec.name == name]

    # ModelControl

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        """Returns every bound model version, or only those that are ready."""
        return [
            IndexEntry(model.spec.name, str(model.spec.version), model.state.value, model.reason)
            for model in self._models()
            if model.state is VersionState.READY or not ready
        ]

    async def load(
        self, name: str, config: str | None, files: Files, patterns: Patterns | None = None
    ) -> None:
        """Serve an unloaded model again; does nothing if the model is served."""
        versions = self._versions(name)
        if not versions:
            raise InternalError(f"failed to load '{name}', failed to poll from model repository")
        overrides = ["config"] * (config is not None) + [f"file:{path}" for path in files]
        if overrides:
            raise InvalidArgumentError(
                f"expected no load parameters for model '{name}', whose configuration and code "
                f"come from the process that bound it, got {', '.join(overrides)}"
            )
        for model in versions:
            self._restore(model)
        lost = [model for model in versions if model.state is not VersionState.READY]
        if lost:
            raise InvalidArgumentError(f"load failed for model '{name}': {_describe(lost)}")

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Give a model no new requests; it finishes its requests in the background."""
        for model in self._versions(name):
            if model.state is VersionState.READY:
                model.become(VersionState.UNLOADING)
                self._draining.start(self._finish(model))

    def is_ready(self) -> bool:
        """Returns whether every model is ready, except for those that were unloaded."""
        return all(model.is_ready or model.is_withdrawn for model in self._models())

    async def _finish(self, model: ManagedModel) -> None:
        await model.drain()
        if model.state is VersionState.UNLOADING:  # it was not loaded again meanwhile
            model.become(VersionState.UNAVAILABLE, UNLOADED)
            logger.info(
                "successfully unloaded '%s' version %d", model.spec.name, model.spec.version
            )

    def _restore(self, model: ManagedModel) -> None:
        if not model.is_withdrawn:
            return
        if model.state is VersionState.UNLOADING:
            model.become(VersionState.UNAVAILABLE, UNLOADED)
        model.become(VersionState.LOADING)
        if not model.instances:
            model.become(VersionState.UNAVAILABLE, "all its instances are gone")
            return
        self._engine.set_ready(model)
        logger.info("successfully loaded '%s'", model.spec.name)


def _describe(models: list[ManagedModel]) -> str:
    return "".join(
        f"version {model.spec.version} is at {model.state.value} state: {model.reason};\n"
        for model in models
    )


class CombinedControl:
    """Passes each call to the control of the model; bound models hide those of repositories.

    If the control mode is not explicit, the repository's control refuses loads of all models.
    """

    def __init__(self, bound: BoundControl, repository: ModelControl, *, is_explicit: bool) -> None:
        self._bound = bound
        self._repository = repository
        self._is_explicit = is_explicit

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        """Returns every known model version, or only those that are ready."""
        entries = [
            entry
            for entry in self._repository.index(ready=ready)
            if entry.namespace or not self._bound.has(entry.name)
        ]
        return sorted(
            [*entries, *self._bound.index(ready=ready)],
            key=lambda entry: (entry.namespace, entry.name),
        )

    async def load(
        self, name: str, config: str | None, files: Files, patterns: Patterns | None = None
    ) -> None:
        """See `ModelControl`."""
        await self._control_of(name).load(name, config, files, patterns)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """See `ModelControl`."""
        await self._control_of(name).unload(name, unload_dependents=unload_dependents)

    def is_ready(self) -> bool:
        """Returns whether every model that should be ready is ready."""
        return self._bound.is_ready() and self._repository.is_ready()

    def _control_of(self, name: str) -> ModelControl:
        return self._bound if self._is_explicit and self._bound.has(name) else self._repository
