# SPDX-License-Identifier: Apache-2.0
"""Decides which models of a server's repositories are loaded, as control mode and clients ask."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytriton.engine.control import IndexEntry
from pytriton.errors import InternalError, ServerError, UnavailableError
from pytriton.repository.loading.load_coordinator import LoadCoordinator
from pytriton.repository.model_lifecycle import ModelLifecycle
from pytriton.repository.poller import Poller
from pytriton.repository.reading.layout import (
    ModelPlace,
    check_model_name,
    find_models,
    read_files_state,
)
from pytriton.repository.reading.overrides import read_override
from pytriton.repository.settings import ControlMode, RepositorySettings

if TYPE_CHECKING:
    from pytriton.engine.engine import Engine
    from pytriton.repository.loading.backends import Loaders

logger = logging.getLogger(__name__)

ALL_MODELS = "*"
# Called with the number of finished models, their total number, and the names being loaded.
Report = Callable[[int, int, Sequence[str]], None]


class ModelRepositories:
    """Loads and unloads models on the event loop. Implements `ModelControl`."""

    def __init__(
        self,
        settings: RepositorySettings,
        engine: Engine,
        loaders: Loaders,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._settings = settings
        self._loads = LoadCoordinator(settings, engine, loaders, loop)
        self._models: dict[str, ModelLifecycle] = {}
        self._operations: set[asyncio.Task[None]] = set()
        self._poller = Poller(settings.poll_interval_s, self.poll_once)
        self._is_stopping = False

    async def start(self, report: Report | None = None) -> None:
        """Load the models that should serve from the start, and begin to poll if so configured.

        Args:
            report: Called with the progress whenever it changes.

        Raises:
            InternalError: A repository cannot be read, or a model cannot be loaded; the other
                models are loaded.
        """
        places = await self._find()
        names: Sequence[str] = list(places)
        if self._settings.control_mode is ControlMode.EXPLICIT:
            names = self._settings.startup_models
            names = list(places) if ALL_MODELS in names else names
        is_complete = await self._load_all({name: places.get(name, ()) for name in names}, report)
        if self._settings.control_mode is ControlMode.POLL:
            self._poller.start()
        if not is_complete:
            raise InternalError("failed to load all models")

    async def stop(self, timeout_s: float | None = None) -> None:
        """Cancel all loads and stop all models, which have `timeout_s` to finish their requests."""
        self._is_stopping = True
        await self._poller.stop()
        running = list(self._operations)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        await asyncio.gather(*(lifecycle.stop(timeout_s) for lifecycle in self._models.values()))

    # ModelControl

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        """Returns every known model version, or only those that are ready."""
        try:
            places = find_models(self._settings.repositories)
        except ServerError as error:
            logger.warning("the index lists loaded models only: %s", error.message)
            places = {}
        return self._loads.table.rows(places, ready=ready)

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload a model; returns when it is ready.

        Raises:
            ServerError: It cannot be loaded; the old versions remain in service.
        """
        await self._run(self._load(name, config, files, is_limited=True))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model; for an unknown model this does nothing.

        Raises:
            ServerError: The control mode does not allow this, or the server stops.
        """
        self._check_control()
        lifecycle = self._models.get(name)
        if lifecycle is not None:
            await self._run(lifecycle.unload())

    def is_ready(self) -> bool:
        """Returns whether every model that should be ready is ready."""
        return self._loads.table.is_ready()

    @property
    def for_models(self) -> ControlForModels:
        """The control that models get, without the limit on concurrent loads."""
        return ControlForModels(self)

    async def load_unlimited(
        self, name: str, config: str | None, files: Mapping[str, bytes]
    ) -> None:
        """Like `load`, without the limit: the caller may be a model that counts against it."""
        await self._run(self._load(name, config, files, is_limited=False))

    def _check_control(self) -> None:
        if self._settings.control_mode is not ControlMode.EXPLICIT:
            raise UnavailableError(
                "explicit model load / unload is not allowed in model control mode "
                f"'{self._settings.control_mode.value}'; start the server with "
                "--model-control-mode=explicit"
            )

    async def _load(
        self, name: str, config: str | None, files: Mapping[str, bytes], *, is_limited: bool
    ) -> None:
        self._check_control()
        check_model_name(name)
        try:
            override = read_override(config, files)
        except ServerError as error:
            logger.error("Poll failed for model directory '%s': %s", name, error.message)  # noqa: TRY400  the message is enough
            raise InternalError(
                f"failed to load '{name}', failed to poll from model repository: {error.message}"
            ) from error
        places = await self._find()
        await self._lifecycle(name).load(places.get(name, ()), override, is_limited=is_limited)

    async def _run(self, operation: Coroutine[Any, Any, None]) -> None:
        """Run an operation to its end, also if its caller is cancelled."""
        if self._is_stopping:
            operation.close()
            raise UnavailableError("Server exiting")
        task = asyncio.ensure_future(operation)
        self._operations.add(task)
        task.add_done_callback(self._forget)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise UnavailableError("Server exiting") from None
            raise

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._operations.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved; it was logged already

    def _lifecycle(self, name: str) -> ModelLifecycle:
        lifecycle = self._models.get(name)
        if lifecycle is None:
            lifecycle = self._models[name] = ModelLifecycle(name, self._loads)
        return lifecycle

    async def _find(self) -> dict[str, list[ModelPlace]]:
        return await asyncio.to_thread(find_models, self._settings.repositories)

    async def _load_all(
        self, places: Mapping[str, Sequence[ModelPlace]], report: Report | None = None
    ) -> bool:
        """Load models in parallel and log failures; returns whether all were loaded."""
        finished = 0

        def report_progress() -> None:
            if report is not None:
                report(finished, len(places), self._loads.loading)

        async def load(name: str) -> bool:
            nonlocal finished
            try:
                await self._lifecycle(name).load(places[name])
            except ServerError:
                return False
            except Exception:
                logger.exception("model '%s' could not be loaded", name)
                return False
            finally:
                finished += 1
                report_progress()
            return True

        self._loads.on_progress = report_progress
        try:
            return all(await asyncio.gather(*(load(name) for name in places)))
        finally:
            self._loads.on_progress = None

    async def poll_once(self) -> None:
        """Load models that are new or changed, unload those whose files were removed.

        A model that could not be loaded is tried again when its files change. So is a model that is
        still being loaded, because its load may hang.

        Raises:
            InternalError: A repository cannot be read; nothing was changed.
        """
        places = await self._find()
        known = {name: lifecycle.last_files_state for name, lifecycle in self._models.items()}
        changed = await asyncio.to_thread(
            lambda: [name for name in places if known.get(name) != read_files_state(places[name])]
        )
        for name in changed:
            self._lifecycle(name).cancel_loads()
        gone = [name for name, seen in known.items() if seen is not None and name not in places]
        await asyncio.gather(*(self._models[name].unload() for name in gone))
        await self._load_all({name: places[name] for name in changed})

    def __repr__(self) -> str:
        return (
            f"<ModelRepositories {self._settings.control_mode.value}: "
            f"{len(self._models)} models, {len(self._operations)} operations>"
        )


class ControlForModels:
    """Loads and unloads models for other models, without a limit on loads. See `ModelControl`."""

    def __init__(self, models: ModelRepositories) -> None:
        self._models = models
        self.index = models.index
        self.unload = models.unload
        self.is_ready = models.is_ready
        self.load = models.load_unlimited
