# SPDX-License-Identifier: Apache-2.0
"""One model of a repository: loads, replaces and unloads its versions.

A load either replaces all changed versions or none: new versions are loaded beside the old ones,
then all are switched in one iteration of the event loop, then the old ones finish their requests.
An ensemble also follows the models of its steps: `refresh` is called after these have changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytriton.base.background_tasks import wait_through
from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    PermissionDeniedError,
    ServerError,
    UnavailableError,
    resource_error,
)
from pytriton.base.model_spec import identifier_of
from pytriton.serving.engine.model import UNLOADED, Model, VersionState
from pytriton.serving.repository.loading.ensemble_loader import StepsError
from pytriton.serving.repository.loading.load_coordinator import (
    DUPLICATE_MODEL,
    LackOfResources,
    LoadCoordinator,
    failure_of,
    failure_text,
    given_up,
    list_failures,
    outcome_of,
)
from pytriton.serving.repository.reading.config_files import version_chooser
from pytriton.serving.repository.reading.layout import (
    FetchError,
    FilesState,
    ModelPlace,
    Snapshot,
    read_files_state,
)
from pytriton.serving.repository.reading.source import (
    Override,
    SourceFiles,
    read_fetched_source,
    read_uploaded_source,
    remove_files,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pytriton.serving.repository.loading.plans import LoadedVersion

logger = logging.getLogger(__name__)


_REFUSAL = "failed to load '{}', failed to poll from model repository"


class ModelLifecycle:
    """One model, from its first load to the end. Its loads and unloads run one after the other."""

    def __init__(self, name: str, loads: LoadCoordinator, namespace: str = "") -> None:
        self.name = identifier_of(namespace, name)
        self._own_name, self._namespace = name, namespace
        self.last_files_state: FilesState | None = None  # at the last attempt to load it
        self._loads = loads
        self._lock = asyncio.Lock()
        self._attempts: set[asyncio.Future[None]] = set()  # loads; one runs, the others wait
        self._source: SourceFiles | None = None  # of the loaded versions
        self._wanted: SourceFiles | None = None  # the last one read, maybe not loaded
        self._failure: StepsError | str = ""  # of the last attempt to load it
        self._loaded: dict[int, LoadedVersion] = {}
        self._placeholders: dict[int, Model] = {}  # of versions that are not loaded
        # Versions that get no new requests, by the task that stops them.
        self._retiring: dict[asyncio.Task[None], Collection[LoadedVersion]] = {}

    async def load(
        self,
        places: Sequence[ModelPlace],
        override: Override | None = None,
        *,
        is_limited: bool = True,
    ) -> None:
        """Load the changed versions of the model; returns when all versions are ready.

        If it cannot be read or loaded, or the load is cancelled, the old versions remain in
        service.
        """
        attempt = asyncio.ensure_future(self._load(places, override, is_limited=is_limited))
        self._attempts.add(attempt)
        try:
            await attempt
        except asyncio.CancelledError:
            if attempt in self._attempts:  # the caller was cancelled, not the load
                raise
            raise given_up(self.name) from None
        finally:
            self._attempts.discard(attempt)

    async def _load(
        self, places: Sequence[ModelPlace], override: Override | None, *, is_limited: bool
    ) -> None:
        async with self._lock:
            source = self._wanted = await self._read(places, override)
            try:
                await self._load_source(source, is_limited=is_limited)
            except BaseException as error:
                source.give_up()
                if override is not None:  # as if the client had not sent it
                    self._wanted = self._source
                if isinstance(error, StepsError):
                    self._report_steps(error, is_sent=override is not None)
                    await self._follow_steps()  # the steps of what is in service may be new
                    raise InvalidArgumentError(
                        f"load failed for model '{self.name}': {error.message}\n"
                    ) from error
                raise

    async def unload(self) -> None:
        """Unload the model; it finishes its last requests in the background.

        Earlier loads are cancelled, so this also ends a load that hangs.
        """
        self.cancel_loads()
        async with self._lock:
            source, self._source, self._wanted = self._source, None, None
            old, self._loaded = self._loaded, {}
            self.last_files_state = None
            self._failure = ""
            self._loads.table.set_problem(self.name, "")
            self._mark_unloaded(self._placeholders)
            self._unload_versions(old, source)

    def forget(self) -> None:
        """Let ensembles count this model as gone; it is unloaded as soon as they have followed."""
        self._wanted = None

    @property
    def is_unwanted(self) -> bool:
        """Whether it should not serve, and no load of it runs."""
        return self._wanted is None and not self._attempts

    # Ensembles

    @property
    def wanted_config(self) -> Any | None:
        """The configuration with which it should serve; None if it was unloaded or never read."""
        return None if self._wanted is None else self._wanted.config

    @property
    def failure(self) -> StepsError | str:
        """Why it does not serve; for an ensemble that does not fit its steps, the error."""
        if self._failure:
            return self._failure
        reasons = {
            version: loaded.model.reason
            for version, loaded in self._loaded.items()
            if not self._serves(version)
        }
        return list_failures(reasons, "")

    async def refresh(self) -> None:
        """Let an ensemble follow the models of its steps.

        It is loaded again if they were replaced, and unloaded if it does not fit them any more.
        """
        async with self._lock:
            await self._follow_steps()

    async def _follow_steps(self) -> None:
        if self._wanted is None or not self._wanted.is_ensemble:
            return
        try:
            await self._load_fitting(self._wanted)
        except StepsError as error:
            self._report_steps(error)
            self._take_down(error)
        except ServerError as error:  # the old versions remain in service
            logger.error("ensemble '%s' could not be loaded again: %s", self.name, error)  # noqa: TRY400  the message is enough

    async def _load_fitting(self, wanted: SourceFiles) -> None:
        try:
            await self._load_source(wanted, is_limited=False)
        except StepsError:
            # If a load of its own has failed before, what was loaded earlier is still in service.
            if self._source is None or self._source is wanted:
                raise
            await self._load_source(self._source, is_limited=False)

    def _report_steps(self, error: StepsError, *, is_sent: bool = False) -> None:
        """Report that an ensemble does not fit its steps; it may fit them later.

        A mistake in what a client sent is no problem of the model in the repository.
        """
        is_new = is_sent or str(error) != str(self._failure)
        if not is_sent:
            self._failure = error
        is_known = bool(self._loaded or self._placeholders)
        has_left = self._source is not None and error.is_withdrawn  # the index says: unloaded
        if not is_sent and not is_known and not has_left:
            self._loads.table.set_problem(self.name, f"{error.kind}: {error.message}")
        if is_new:
            is_normal = error.is_awaited and self._loads.settings.awaits_bound_models
            level = logging.WARNING if is_normal else logging.ERROR
            logger.log(level, "%s: %s", error.kind, error.message)

    def _take_down(self, error: StepsError) -> None:
        old, self._loaded = self._loaded, {}
        # The source stays: it is loaded again when the models of its steps are back.
        self._unload_versions(old, None)
        if error.is_withdrawn:
            self._mark_unloaded(self._placeholders)
            return
        for version in {*old, *self._placeholders}:
            self._add_placeholder(version).become(VersionState.UNAVAILABLE, error.message)

    def cancel_loads(self) -> None:
        """Cancel running and waiting loads; the old versions remain in service."""
        attempts, self._attempts = self._attempts, set()
        for attempt in attempts:
            attempt.cancel()

    async def stop(self, timeout_s: float | None) -> None:
        """Stop all versions; requests that are not finished in time get an error."""
        await self.unload()
        versions = [version for running in self._retiring.values() for version in running]
        # This timeout replaces an earlier, longer one; `_stop_version` logs the errors.
        stops = (version.drain_and_stop(timeout_s) for version in versions)
        await asyncio.gather(*stops, return_exceptions=True)
        if self._retiring:
            await asyncio.wait(self._retiring)

    # Reading

    async def _read(self, places: Sequence[ModelPlace], override: Override | None) -> SourceFiles:
        name, settings = self._own_name, self._loads.settings
        if not places and (override is None or not override.files):
            logger.error(
                "failed to poll model '%s': model not found in any model repository.", name
            )
            raise InternalError(_REFUSAL.format(name))
        try:
            if override is not None and override.files:
                verifier = self._loads.verifier
                return await read_uploaded_source(
                    name, override, settings, verifier, self._namespace
                )
            return await self._read_places(places, override)
        except PermissionDeniedError:
            raise
        except Exception as error:
            lack = resource_error(error)
            reason = failure_text(error)
            known = lack or error
            message = known.message if isinstance(known, ServerError) else reason
            logger.error("Poll failed for model directory '%s': %s", name, message)  # noqa: TRY400  the message is enough
            # A mistake in what a client sent is no problem of the model in the repository.
            if override is None:
                self._loads.table.set_problem(self.name, reason)
            kind = InternalError if lack is None else UnavailableError
            raise kind(f"{_REFUSAL.format(name)}: {message}") from error

    async def _read_places(
        self, places: Sequence[ModelPlace], override: Override | None
    ) -> SourceFiles:
        former, settings = self.last_files_state, self._loads.settings
        config = None if override is None else override.config
        places = await asyncio.to_thread(lambda: [place.listed() for place in places])
        # Stored before the files are read, so that the next poll sees changes made meanwhile.
        seen = self.last_files_state = await asyncio.to_thread(read_files_state, places)
        if not isinstance(seen, Snapshot):
            raise InvalidArgumentError(DUPLICATE_MODEL)
        try:
            chooser = version_chooser(
                config, settings.config_name, is_signed=settings.signing.is_required
            )
            place = await places[0].fetch(chooser)
        except FetchError:
            self.last_files_state = former  # so that the next poll tries it again
            raise
        wanted = (self._own_name, place, seen, settings, self._loads.verifier, self._namespace)
        reach = None if override is None else override.reach
        return await asyncio.to_thread(read_fetched_source, *wanted, override=config, reach=reach)

    # Loading

    async def _load_source(self, source: SourceFiles, *, is_limited: bool) -> None:
        if not source.versions:
            message = (
                "at least one version must be available under the version policy of "
                f"model '{self.name}'"
            )
            logger.error("failed to load model '%s': %s", self.name, message)
            self._loads.table.set_problem(self.name, f"Invalid argument: {message}")
            self._failure = message
            raise InvalidArgumentError(f"load failed for model '{self.name}': {message}\n")
        if source.is_ensemble:
            self._loads.find_steps(source.identifier, source.config)
        changed = [version for version in source.versions if not self._is_current(source, version)]
        if changed or self._loaded.keys() != source.versions.keys():
            is_limited = is_limited and not source.is_ensemble  # it starts no process
            fresh = await self._load_versions(source, changed, is_limited=is_limited)
            self._switch(source, fresh)
            logger.info("successfully loaded '%s'", self.name)
        self._source = source
        self._failure = ""
        self._loads.table.set_problem(self.name, "")

    def _is_current(self, source: SourceFiles, version: int) -> bool:
        """Returns whether the loaded version is the same as in the source."""
        if self._source is None or not self._serves(version):
            return False
        if not self._loaded[version].is_current:
            return False
        return source is self._source or source.has_same_version(self._source, version)

    def _serves(self, version: int) -> bool:
        loaded = self._loaded.get(version)
        return loaded is not None and loaded.model.state is VersionState.READY

    async def _load_versions(
        self, source: SourceFiles, versions: Sequence[int], *, is_limited: bool
    ) -> dict[int, LoadedVersion]:
        """Load versions in parallel; if one fails, all are stopped."""
        if not versions:
            return {}
        placeholders = {
            each: self._add_placeholder(each) for each in versions if not self._serves(each)
        }
        is_reload = any(self._serves(each) for each in self._loaded)
        loads = {
            each: asyncio.ensure_future(
                self._loads.load_version(source, each, is_limited=is_limited, is_reload=is_reload)
            )
            for each in versions
        }
        try:
            await asyncio.wait(loads.values())
        except BaseException:  # the server stops, or the model is unloaded
            for load in loads.values():
                load.cancel()
            await wait_through(loads.values())  # the server may stop while the model is unloaded
            self._discard_loaded(
                placeholders, {each: outcome_of(load) for each, load in loads.items()}
            )
            raise
        outcomes = {each: outcome_of(load) for each, load in loads.items()}
        failures = {each: reason for each in versions if (reason := failure_of(outcomes[each]))}
        if failures:
            self._discard_loaded(placeholders, outcomes)
            self._failure = list_failures(failures, "")
            is_lack = all(isinstance(reason, LackOfResources) for reason in failures.values())
            kind = UnavailableError if is_lack else InvalidArgumentError
            raise kind(f"load failed for model '{self.name}': {list_failures(failures)}")
        return {each: loaded for each, loaded in outcomes.items() if not isinstance(loaded, str)}

    def _add_placeholder(self, version: int) -> Model:
        model = self._loads.add_placeholder(self._own_name, version, self._namespace)
        self._placeholders[version] = model
        return model

    def _mark_unloaded(self, versions: Collection[int]) -> None:
        """Let versions that failed count as unloaded."""
        for version in list(versions):
            self._add_placeholder(version).become(VersionState.UNAVAILABLE, UNLOADED)

    def _discard_loaded(
        self, placeholders: Mapping[int, Model], outcomes: Mapping[int, LoadedVersion | str]
    ) -> None:
        """Stop the versions that were loaded beside a failed one, and report the failures."""
        for version, model in placeholders.items():
            # Plain text: encoders of the index know no subclass of `str`.
            reason = str(failure_of(outcomes[version]) or UNLOADED)
            model.become(VersionState.UNAVAILABLE, reason)
        loaded = {each: loaded for each, loaded in outcomes.items() if not isinstance(loaded, str)}
        self._unload_versions(loaded, None, were_served=False)

    def _switch(self, source: SourceFiles, fresh: Mapping[int, LoadedVersion]) -> None:
        """Replace the versions in service by the new ones and drop those not in the source."""
        former, self._loaded = self._loaded, {}
        for version in source.versions:
            self._loaded[version] = fresh.get(version) or former[version]
        for version, loaded in fresh.items():
            self._loads.engine.add(loaded.model)
            self._loads.engine.set_ready(loaded.model)
            self._loads.table.put(self.name, version, loaded.model)
            self._placeholders.pop(version, None)
        self._mark_unloaded(
            [version for version in self._placeholders if version not in source.versions]
        )
        old = {
            version: loaded
            for version, loaded in former.items()
            if self._loaded.get(version) is not loaded
        }
        self._unload_versions(old, None if self._source is source else self._source)

    # Unloading

    def _unload_versions(
        self,
        old: Mapping[int, LoadedVersion],
        source: SourceFiles | None,
        *,
        were_served: bool = True,
    ) -> None:
        """Give versions no new requests, and stop them when they have finished theirs."""
        for version, loaded in old.items():
            if loaded.model.state is VersionState.READY:
                loaded.model.become(VersionState.UNLOADING)
            elif were_served and version not in self._loaded:
                self._mark_unloaded([version])  # clears the reason for which it failed
            self._loads.engine.begin_draining(loaded.model)
        directory = source.place.directory if source is not None and source.is_temporary else None
        if old or directory is not None:
            versions = tuple(old.values())
            task = asyncio.ensure_future(self._stop_all(versions, directory))
            self._retiring[task] = versions
            task.add_done_callback(self._retiring.pop)

    async def _stop_all(self, versions: Collection[LoadedVersion], directory: Path | None) -> None:
        try:
            # The last requests of ensembles may still need them.
            await asyncio.gather(*(self._loads.steps_released(each.model) for each in versions))
            await asyncio.gather(*(self._stop_version(version) for version in versions))
        finally:
            if directory is not None:
                remove_files(directory)

    async def _stop_version(self, version: LoadedVersion) -> None:
        try:
            await version.drain_and_stop(self._loads.settings.drain_timeout_s)
        except Exception:  # no caller gets this error, and the other versions are stopped as well
            logger.exception("model '%s' could not be stopped properly", self.name)
        finally:
            self._loads.engine.end_draining(version.model)
        number = version.model.spec.version
        logger.info("successfully unloaded '%s' version %d", self.name, number)
