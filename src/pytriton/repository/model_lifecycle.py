# SPDX-License-Identifier: Apache-2.0
"""One model of a repository: loads, replaces and unloads its versions.

A load either replaces all changed versions or none: new versions are loaded beside the old ones,
then all are switched in one iteration of the event loop, then the old ones finish their requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytriton.engine.model import UNLOADED, Model, ModelState
from pytriton.errors import InternalError, InvalidArgumentError, ServerError, UnavailableError
from pytriton.repository.loading.load_coordinator import LoadCoordinator, failure_text
from pytriton.repository.reading.layout import FilesState, ModelPlace, Snapshot, read_files_state
from pytriton.repository.reading.overrides import Override, remove_files
from pytriton.repository.reading.source import ModelSource, read_source, read_uploaded_source
from pytriton.repository.states import DUPLICATE

if TYPE_CHECKING:
    from pytriton.repository.loading.plans import LoadedVersion

logger = logging.getLogger(__name__)

_REFUSAL = "failed to load '{}', failed to poll from model repository"


class ModelLifecycle:
    """One model, from its first load to the end. Its loads and unloads run one after the other."""

    def __init__(self, name: str, loads: LoadCoordinator) -> None:
        self.name = name
        self.last_files_state: FilesState | None = None  # at the last attempt to load it
        self._loads = loads
        self._lock = asyncio.Lock()
        self._attempts: set[asyncio.Future[None]] = set()  # loads; one runs, the others wait
        self._source: ModelSource | None = None  # of the loaded versions
        self._loaded: dict[int, LoadedVersion] = {}
        self._placeholders: dict[int, Model] = {}  # of versions that are not loaded
        self._unloading: dict[asyncio.Task[None], Collection[LoadedVersion]] = {}

    async def load(
        self,
        places: Sequence[ModelPlace],
        override: Override | None = None,
        *,
        is_limited: bool = True,
    ) -> None:
        """Load the changed versions of the model; returns when all versions are ready.

        Args:
            places: The directories that the repositories have for this name.
            override: What to load instead of the repository's files.
            is_limited: Whether the limit on concurrent loads applies.

        Raises:
            ServerError: It cannot be read or loaded; the old versions remain in service.
            UnavailableError: The load was cancelled.
        """
        attempt = asyncio.ensure_future(self._load(places, override, is_limited=is_limited))
        self._attempts.add(attempt)
        try:
            await attempt
        except asyncio.CancelledError:
            if attempt in self._attempts:  # the caller was cancelled, not the load
                raise
            raise UnavailableError(
                f"load failed for model '{self.name}': it was given up, "
                "as the model was unloaded or its files changed"
            ) from None
        finally:
            self._attempts.discard(attempt)

    async def _load(
        self, places: Sequence[ModelPlace], override: Override | None, *, is_limited: bool
    ) -> None:
        async with self._lock:
            source = await self._read(places, override)
            try:
                await self._load_source(source, is_limited=is_limited)
            except BaseException:
                if source.is_temporary:
                    remove_files(source.place.directory)
                raise
            self._loads.table.set_problem(self.name, "")

    async def unload(self) -> None:
        """Unload the model; it finishes its last requests in the background.

        Earlier loads are cancelled, so this also ends a load that hangs.
        """
        self.cancel_loads()
        async with self._lock:
            source, self._source = self._source, None
            old, self._loaded = self._loaded, {}
            self.last_files_state = None
            self._loads.table.set_problem(self.name, "")
            self._mark_unloaded(self._placeholders)
            self._unload_versions(old, source)

    def cancel_loads(self) -> None:
        """Cancel running and waiting loads; the old versions remain in service."""
        attempts, self._attempts = self._attempts, set()
        for attempt in attempts:
            attempt.cancel()

    async def stop(self, timeout_s: float | None) -> None:
        """Stop all versions; requests that are not finished in time get an error."""
        await self.unload()
        versions = [version for unloading in self._unloading.values() for version in unloading]
        # This timeout replaces an earlier, longer one; `_stop_version` logs the errors.
        stops = (version.drain_and_stop(timeout_s) for version in versions)
        await asyncio.gather(*stops, return_exceptions=True)
        if self._unloading:
            await asyncio.wait(self._unloading)

    # Reading

    async def _read(self, places: Sequence[ModelPlace], override: Override | None) -> ModelSource:
        if not places and (override is None or not override.files):
            logger.error(
                "failed to poll model '%s': model not found in any model repository.", self.name
            )
            raise InternalError(_REFUSAL.format(self.name))
        try:
            if override is not None and override.files:
                return await asyncio.to_thread(
                    read_uploaded_source, self.name, override, self._loads.settings
                )
            return await self._read_places(places, override)
        except Exception as error:
            reason = failure_text(error)
            message = error.message if isinstance(error, ServerError) else reason
            logger.error("Poll failed for model directory '%s': %s", self.name, message)  # noqa: TRY400  the message is enough
            # A mistake in what a client sent is no problem of the model in the repository.
            if override is None:
                self._loads.table.set_problem(self.name, reason)
            raise InternalError(f"{_REFUSAL.format(self.name)}: {message}") from error

    async def _read_places(
        self, places: Sequence[ModelPlace], override: Override | None
    ) -> ModelSource:
        # Stored before the files are read, so that the next poll sees changes made meanwhile.
        seen = self.last_files_state = await asyncio.to_thread(read_files_state, places)
        if not isinstance(seen, Snapshot):
            raise InvalidArgumentError(DUPLICATE)
        return await asyncio.to_thread(
            read_source,
            self.name,
            places[0],
            seen,
            self._loads.settings,
            override=None if override is None else override.config,
        )

    # Loading

    async def _load_source(self, source: ModelSource, *, is_limited: bool) -> None:
        if not source.versions:
            message = (
                "at least one version must be available under the version policy of "
                f"model '{self.name}'"
            )
            logger.error("failed to load model '%s': %s", self.name, message)
            self._loads.table.set_problem(self.name, f"Invalid argument: {message}")
            raise InvalidArgumentError(f"load failed for model '{self.name}': {message}\n")
        changed = [version for version in source.versions if not self._is_current(source, version)]
        if changed or self._loaded.keys() != source.versions.keys():
            fresh = await self._load_versions(source, changed, is_limited=is_limited)
            self._switch(source, fresh)
            logger.info("successfully loaded '%s'", self.name)
        self._source = source

    def _is_current(self, source: ModelSource, version: int) -> bool:
        """Returns whether the loaded version is the same as in the source."""
        if self._source is None or not self._serves(version):
            return False
        return source.has_same_version(self._source, version)

    def _serves(self, version: int) -> bool:
        loaded = self._loaded.get(version)
        return loaded is not None and loaded.model.state is ModelState.READY

    async def _load_versions(
        self, source: ModelSource, versions: Sequence[int], *, is_limited: bool
    ) -> dict[int, LoadedVersion]:
        """Load versions in parallel; if one fails, all are stopped."""
        if not versions:
            return {}
        placeholders = {
            each: self._add_placeholder(each) for each in versions if not self._serves(each)
        }
        loads = {
            each: asyncio.ensure_future(
                self._loads.load_version(source, each, is_limited=is_limited)
            )
            for each in versions
        }
        try:
            await asyncio.wait(loads.values())
        except BaseException:  # the server stops, or the model is unloaded
            for load in loads.values():
                load.cancel()
            await asyncio.wait(loads.values())
            self._discard_loaded(
                placeholders, {each: _outcome(load) for each, load in loads.items()}
            )
            raise
        outcomes = {each: _outcome(load) for each, load in loads.items()}
        failures = {each: reason for each in versions if (reason := _failure(outcomes[each]))}
        if failures:
            self._discard_loaded(placeholders, outcomes)
            raise InvalidArgumentError(f"load failed for model '{self.name}': {_list(failures)}")
        return {each: loaded for each, loaded in outcomes.items() if not isinstance(loaded, str)}

    def _add_placeholder(self, version: int) -> Model:
        model = self._placeholders[version] = self._loads.add_placeholder(self.name, version)
        return model

    def _mark_unloaded(self, versions: Collection[int]) -> None:
        """Let versions that failed count as unloaded."""
        for version in list(versions):
            self._add_placeholder(version).become(ModelState.UNAVAILABLE, UNLOADED)

    def _discard_loaded(
        self, placeholders: Mapping[int, Model], outcomes: Mapping[int, LoadedVersion | str]
    ) -> None:
        """Stop the versions that were loaded beside a failed one, and report the failures."""
        for version, model in placeholders.items():
            model.become(ModelState.UNAVAILABLE, _failure(outcomes[version]) or UNLOADED)
        loaded = {each: loaded for each, loaded in outcomes.items() if not isinstance(loaded, str)}
        self._unload_versions(loaded, None, were_served=False)

    def _switch(self, source: ModelSource, fresh: Mapping[int, LoadedVersion]) -> None:
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
        self._unload_versions(old, self._source)

    # Unloading

    def _unload_versions(
        self,
        old: Mapping[int, LoadedVersion],
        source: ModelSource | None,
        *,
        were_served: bool = True,
    ) -> None:
        """Give versions no new requests, and stop them when they have finished theirs."""
        for version, loaded in old.items():
            if loaded.model.state is ModelState.READY:
                loaded.model.become(ModelState.UNLOADING)
            elif were_served and version not in self._loaded:
                self._mark_unloaded([version])  # clears the reason for which it failed
            self._loads.engine.begin_draining(loaded.model)
        directory = source.place.directory if source is not None and source.is_temporary else None
        if old or directory is not None:
            versions = tuple(old.values())
            task = asyncio.ensure_future(self._stop_versions(versions, directory))
            self._unloading[task] = versions
            task.add_done_callback(self._unloading.pop)

    async def _stop_versions(
        self, versions: Collection[LoadedVersion], directory: Path | None
    ) -> None:
        timeout_s = self._loads.settings.drain_timeout_s
        try:
            await asyncio.gather(*(self._stop_version(version, timeout_s) for version in versions))
        finally:
            if directory is not None:
                remove_files(directory)

    async def _stop_version(self, version: LoadedVersion, timeout_s: float | None) -> None:
        try:
            await version.drain_and_stop(timeout_s)
        except Exception:  # no caller gets this error, and the other versions are stopped as well
            logger.exception("model '%s' could not be stopped properly", self.name)
        finally:
            self._loads.engine.end_draining(version.model)
        number = version.model.spec.version
        logger.info("successfully unloaded '%s' version %d", self.name, number)

    def __repr__(self) -> str:
        return (
            f"<ModelLifecycle {self.name} loaded={sorted(self._loaded)} "
            f"unloading={len(self._unloading)}>"
        )


def _outcome(load: asyncio.Future[LoadedVersion | str]) -> LoadedVersion | str:
    return UNLOADED if load.cancelled() else load.result()


def _failure(outcome: LoadedVersion | str) -> str:
    """Returns why a version cannot serve: the load failed, or its instances died already."""
    if isinstance(outcome, str):
        return outcome
    is_alive = outcome.model.state is ModelState.LOADING
    return "" if is_alive else f"Internal: {outcome.model.reason}"


def _list(failures: Mapping[int, str]) -> str:
    return "".join(
        f"version {version} is at UNAVAILABLE state: {reason};\n"
        for version, reason in sorted(failures.items())
    )
