# SPDX-License-Identifier: Apache-2.0
"""Decides which models of a server's repositories are loaded, as control mode and clients ask."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.background_tasks import run_beside, take_error
from pytriton.base.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ServerError,
    UnavailableError,
)
from pytriton.serving.engine.client import Files, IndexEntry, Patterns
from pytriton.serving.repository.loading.ensemble_loader import StepsError
from pytriton.serving.repository.model_set import ModelSet
from pytriton.serving.repository.reading.config_files import CONFIG_FILE, read_ensemble
from pytriton.serving.repository.reading.layout import (
    LocalFinder,
    ModelPlace,
    PlaceFinder,
    RenamedPlace,
    check_model_name,
    find_models,
    read_files_state,
    version_directories,
)
from pytriton.serving.repository.reading.reach import Reach
from pytriton.serving.repository.reading.source import read_override
from pytriton.serving.repository.settings import ControlMode, RepositorySettings

if TYPE_CHECKING:
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.repository.loading.ensemble_loader import MakeEnsemble
    from pytriton.serving.repository.loading.load_coordinator import LoadDependencies
    from pytriton.serving.repository.loading.plans import Loaders


class Registration(msgspec.Struct, frozen=True):
    """A model that a client has added."""

    name: str
    url: str  # the folder, as the client wrote it
    places: dict[str, ModelPlace]  # of this model, and of others in its repository


def read_registration(name: str, url: str) -> Registration:
    """Find the directory of a model."""
    folder = Path(url)
    if not folder.is_absolute() or not folder.is_dir():
        raise InvalidArgumentError(f"failed to register '{url}', repository not found")
    if (folder / CONFIG_FILE).is_file() or version_directories(folder):
        return Registration(name, url, {name: RenamedPlace(folder.parent, folder)})
    places = {each: found[0] for each, found in find_models([folder]).items()}
    if not places:
        raise InternalError(f"failed to load '{name}', failed to poll from model repository")
    ensembles = (each for each, place in places.items() if read_ensemble([place]) is not None)
    chosen = places.pop(next(ensembles, next(iter(places))))
    own = RenamedPlace(chosen.repository, chosen.directory)
    return Registration(name, url, {**places, name: own})


class Registrations:
    """The models that clients have added, by name."""

    def __init__(self, control: ModelRepositories) -> None:
        self._control = control
        self._found: dict[str, Registration] = {}
        self._pending: dict[str, str] = {}  # folders of those that are being added
        self._leaving: dict[str, asyncio.Task[None]] = {}  # those that are being removed

    def listed(self) -> dict[str, str]:
        """Returns the folders of all models that were added, by name."""
        return {name: found.url for name, found in sorted(self._found.items())}

    def merged(self, places: dict[str, list[ModelPlace]]) -> dict[str, list[ModelPlace]]:
        """Returns the directories of all models, with those of these."""
        if not self._found:
            return places
        merged = {name: list(found) for name, found in places.items()}
        for found in self._found.values():
            for name, place in found.places.items():
                if name != found.name:
                    merged.setdefault(name, []).append(place)
        for found in self._found.values():  # the name is the client's, who means this model
            merged[found.name] = [found.places[found.name]]
        return merged

    async def register(self, name: str, url: str) -> None:
        """Load a model from a folder; returns when it is ready.

        If it cannot be loaded, no trace of it is left.
        """
        if not self._control.is_explicit:
            raise InvalidArgumentError(
                "repository registration is not allowed if model control mode is not EXPLICIT"
            )
        check_model_name(name)
        self._check_new(name, url)
        self._pending[name] = url
        try:
            found = await asyncio.to_thread(read_registration, name, url)
            self._found[name] = found
            await self._load(found)
        finally:
            del self._pending[name]

    def _check_new(self, name: str, url: str) -> None:
        folders = {**self.listed(), **self._pending}
        if os.path.normpath(url) in map(os.path.normpath, folders.values()):
            raise AlreadyExistsError(f"model repository '{url}' has already been registered")
        if name in folders or self._control.knows(name):
            raise AlreadyExistsError(f"model '{name}' has already been loaded")

    async def _load(self, found: Registration) -> None:
        try:
            await self._control.load(found.name, None, {})
        except BaseException:  # also if the server stops
            with contextlib.suppress(ServerError):
                await self._remove(found)
            raise

    async def unregister(self, name: str) -> None:
        """Unload a model that was added; returns when it has stopped, after its last requests."""
        found = self._found.get(name)
        if found is None:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        await self._remove(found)

    async def _remove(self, found: Registration) -> None:
        """Unload a model, once for all who ask for it at the same time.

        Its name is free when nothing is left of it. A later caller must not remove the next
        model of this name.
        """
        leaving = self._leaving.get(found.name)
        if leaving is None:
            if self._found.get(found.name) is not found:
                return  # another call has removed it, which ended its load
            leaving = asyncio.ensure_future(self._unload(found))
            self._leaving[found.name] = leaving
            leaving.add_done_callback(lambda _: self._leaving.pop(found.name))
        await asyncio.shield(leaving)

    async def _unload(self, found: Registration) -> None:
        await self._control.unload(found.name, unload_dependents=True)
        await self._control.forget([*found.places])
        del self._found[found.name]


logger = logging.getLogger(__name__)


_MIN_TIMEOUT_S = 1.0  # before the next poll starts beside one that does not end


class RepositoryPoller:
    """Polls repeatedly, with an interval between the end of a poll and the next one.

    A poll that does not end, because a model hangs while it is loaded, does not stop later polls.
    """

    def __init__(
        self,
        interval_s: float,
        poll: Callable[[], Awaitable[None]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._interval_s = interval_s
        self._poll = poll
        self._sleep = sleep
        self._task: asyncio.Task[None] | None = None
        self._polls: dict[asyncio.Task[None], None] = {}

    def start(self) -> None:
        """Start; the first poll comes after the first interval."""
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Stop polling and cancel running polls."""
        tasks = [*self._polls, self._task] if self._task is not None else []
        self._task = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            await self._sleep(self._interval_s)
            poll = asyncio.ensure_future(self._poll_once())
            self._polls[poll] = None
            poll.add_done_callback(self._polls.pop)
            await asyncio.wait({poll}, timeout=max(self._interval_s, _MIN_TIMEOUT_S))

    async def _poll_once(self) -> None:
        try:
            await self._poll()
        except ServerError as error:
            logger.warning("the repositories could not be polled: %s", error.message)
        except Exception:  # the next poll may succeed
            logger.exception("the repositories could not be polled")


ALL_MODELS = "*"
_LOOK_TIMEOUT_S = 5.0
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
        make_ensemble: MakeEnsemble,
        finder: PlaceFinder | None = None,
    ) -> None:
        self._settings = settings
        self._finder = finder or LocalFinder(settings.repositories, settings.namespaces)
        self._models = ModelSet(settings, engine, loaders, loop, make_ensemble)
        self._loads = self._models.loads
        self._asked: set[str] = set()  # models that clients have loaded, not only ensembles
        self._operations: dict[asyncio.Task[None], None] = {}
        self._poller = RepositoryPoller(settings.poll_interval_s, self.poll_once)
        self._looking: asyncio.Task[Any] | None = None
        self._is_stopping = False
        self.registrations = Registrations(self)

    async def start(self, report: Report | None = None) -> None:
        """Load the models that should serve from the start, and begin to poll if so configured.

        Raises InternalError if a repository cannot be read, or a model cannot be loaded; the other
        models are loaded. `report` is called with the progress whenever it changes.
        """
        places = await self._find()
        names: Sequence[str] = list(places)
        is_explicit = self._settings.control_mode is ControlMode.EXPLICIT
        if is_explicit:
            if ALL_MODELS not in self._settings.startup_models:
                named = (self._named(each, places) for each in self._settings.startup_models)
                names = [identifier for found in named for identifier in found]
            self._asked.update(names)
        is_complete = await self._load_all(names, places, report, with_steps=is_explicit)
        if self._settings.control_mode is ControlMode.POLL:
            self._poller.start()
        if self._finder.problem:
            raise InternalError(self._finder.problem)
        if not is_complete:
            raise InternalError("failed to load all models")

    async def stop(self, timeout_s: float | None = None) -> None:
        """Cancel all loads and stop all models, which have `timeout_s` to finish their requests."""
        self._is_stopping = True
        if self._looking is not None:
            self._looking.cancel()
        await self._poller.stop()
        self._loads.verifier.stop()
        running = list(self._operations)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        await self._models.stop(timeout_s)
        if self._loads.verifier.has_copies:
            await run_beside(self._loads.verifier.close)

    # ModelControl

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        """Returns every known model version, or only those that are ready."""
        try:
            places = self.registrations.merged(self._finder.known())
        except ServerError as error:
            logger.warning("the index lists loaded models only: %s", error.message)
            places = {}
        rows = self._loads.table.rows(places, ready=ready)
        if not self._settings.namespaces:
            return rows
        return sorted(map(self._with_namespace, rows), key=lambda row: (row.namespace, row.name))

    def _with_namespace(self, row: IndexEntry) -> IndexEntry:
        namespace, name = self._models.names.split(row.name)
        return msgspec.structs.replace(row, name=name, namespace=namespace)

    async def look_again(self) -> None:
        """Let the index know what repositories far away have now; callers share one listing.

        It gives up after some seconds: the index has what was known before then.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._find())
            self._looking.add_done_callback(take_error)  # the index says what is wrong
        await asyncio.wait({self._looking}, timeout=_LOOK_TIMEOUT_S)

    async def load(
        self, name: str, config: str | None, files: Files, patterns: Patterns | None = None
    ) -> None:
        """Load or reload a model; returns when it is ready.

        With namespaces, the models of this name in all repositories are loaded. If it cannot be
        loaded, the old versions remain in service.
        """
        reach = None if patterns is None else Reach(patterns)
        await self._run(self._load(name, config, files, reach, is_limited=True))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model; for an unknown model this does nothing.

        Ensembles with steps of this model leave the service first. With `unload_dependents`, the
        models of an ensemble's steps are unloaded, too, unless other models need them.
        """
        self._check_control()
        known = self._models.names.among(name, self._models.lifecycles)
        if known:
            await self._run(self._unload(known, unload_dependents=unload_dependents))

    def is_ready(self) -> bool:
        """Returns whether every model that should be ready is ready."""
        return self._loads.table.is_ready() and not self._finder.problem

    # For models that clients add; see `Registrations`

    @property
    def is_explicit(self) -> bool:
        """Whether clients may load models."""
        return self._settings.control_mode is ControlMode.EXPLICIT

    def knows(self, name: str) -> bool:
        """Returns whether a model of this name is served, or should have been."""
        return name in self._models.lifecycles or self._models.is_bound(name)

    async def forget(self, names: Sequence[str]) -> None:
        """Wait until models that were unloaded have stopped, and drop all records of them."""
        await self._run(self._models.forget(names))

    @property
    def load_dependencies(self) -> LoadDependencies:
        """Which models wait for the loads of others; models that load others are added to it."""
        return self._models.load_dependencies

    @property
    def for_models(self) -> ControlForModels:
        """The control that models get, without the limit on concurrent loads."""
        return ControlForModels(self)

    async def load_unlimited(
        self,
        name: str,
        config: str | None,
        files: Mapping[str, bytes],
        patterns: Sequence[str] | None = None,
    ) -> None:
        """Like `load`, without the limit: the caller may be a model that counts against it."""
        reach = None if patterns is None else Reach(patterns)
        await self._run(self._load(name, config, files, reach, is_limited=False))

    def _check_control(self) -> None:
        if self._settings.control_mode is not ControlMode.EXPLICIT:
            raise UnavailableError(
                "explicit model load / unload is not allowed in model control mode "
                f"'{self._settings.control_mode.value}'; start the server with "
                "--model-control-mode=explicit"
            )

    async def _load(
        self,
        name: str,
        config: str | None,
        files: Mapping[str, bytes],
        reach: Reach | None = None,
        *,
        is_limited: bool,
    ) -> None:
        self._check_control()
        check_model_name(name)
        if reach is not None:
            reach.check_files(name, files)
        try:
            override = read_override(config, files, reach)
        except ServerError as error:
            logger.error("Poll failed for model directory '%s': %s", name, error.message)  # noqa: TRY400  the message is enough
            raise InternalError(
                f"failed to load '{name}', failed to poll from model repository: {error.message}"
            ) from error
        places = await self._find()
        names = self._named(name, places)
        if len(names) > 1 and files:
            raise InvalidArgumentError(
                f"There are {len(names)} models '{name}' in the repositories, files can replace "
                "only one."
            )
        self._asked.update(names)
        outcomes = await self._models.load(
            names,
            places,
            overrides={} if override is None else dict.fromkeys(names, override),
            with_steps=True,
            is_limited=is_limited,
            reach=reach,
        )
        failures = [failure for each in names if (failure := outcomes[each]) is not None]
        if failures:
            raise _joined(failures)

    def _named(self, name: str, places: Mapping[str, Sequence[ModelPlace]]) -> list[str]:
        """Returns the models that a load by name means; an unknown name stands for itself."""
        return sorted(self._models.names.among(name, places)) or [name]

    async def _unload(self, names: Sequence[str], *, unload_dependents: bool) -> None:
        self._asked.difference_update(names)
        gone = set(names)
        if unload_dependents:
            for name in names:
                gone |= self._models.superfluous_steps(name, self._asked)
        await self._models.unload(gone)

    async def _run(self, operation: Coroutine[Any, Any, None]) -> None:
        """Run an operation to its end, also if its caller is cancelled."""
        if self._is_stopping:
            operation.close()
            raise UnavailableError("Server exiting")
        task = asyncio.ensure_future(operation)
        self._operations[task] = None
        task.add_done_callback(self._forget)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise UnavailableError("Server exiting") from None
            raise

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._operations.pop(task, None)
        if not task.cancelled():
            task.exception()  # marks it as retrieved; it was logged already

    async def _find(self) -> dict[str, list[ModelPlace]]:
        return self.registrations.merged(await asyncio.to_thread(self._finder.find))

    async def _load_all(
        self,
        names: Sequence[str],
        places: Mapping[str, Sequence[ModelPlace]],
        report: Report | None = None,
        *,
        with_steps: bool = False,
    ) -> bool:
        """Load models; returns whether all were loaded. Failures are logged."""
        finished, total = 0, len(names)

        def on_progress(finished_now: int, total_now: int) -> None:
            nonlocal finished, total
            finished, total = finished_now, total_now
            report_progress()

        def report_progress() -> None:
            if report is not None:
                report(finished, total, self._loads.loading)

        self._loads.on_progress = report_progress
        try:
            outcomes = await self._models.load(
                names, places, with_steps=with_steps, on_progress=on_progress
            )
        finally:
            self._loads.on_progress = None
        return all(self._is_no_failure(outcomes[name]) for name in names)

    def _is_no_failure(self, outcome: BaseException | None) -> bool:
        """Returns whether a model was loaded, or only waits for a process to bind another."""
        if outcome is None:
            return True
        cause = outcome.__cause__
        awaits = self._settings.awaits_bound_models
        return awaits and isinstance(cause, StepsError) and cause.is_awaited

    async def poll_once(self) -> None:
        """Load models that are new or changed, unload those whose files were removed.

        A model that could not be loaded is tried again when its files change. So is a model that is
        still being loaded, because its load may hang. If a repository cannot be read, nothing is
        changed.
        """
        places = await self._find()
        lifecycles = self._models.lifecycles
        known = {name: lifecycle.last_files_state for name, lifecycle in lifecycles.items()}
        changed = await asyncio.to_thread(
            lambda: [name for name in places if known.get(name) != read_files_state(places[name])]
        )
        for name in changed:
            self._models.lifecycle(name).cancel_loads()
        gone = [name for name, seen in known.items() if seen is not None and name not in places]
        await self._models.unload(gone)
        await self._load_all(changed, places)


def _joined(failures: Sequence[BaseException]) -> BaseException:
    """Returns the failures of models of the same name as one."""
    first = failures[0]
    if len(failures) > 1 and isinstance(first, ServerError):
        texts = [each.message for each in failures if isinstance(each, ServerError)]
        return type(first)("".join(texts))
    return first


class ControlForModels:
    """Loads and unloads models for other models, without a limit on loads. See `ModelControl`."""

    def __init__(self, models: ModelRepositories) -> None:
        self._models = models
        self.index = models.index
        self.unload = models.unload
        self.is_ready = models.is_ready
        self.load = models.load_unlimited
