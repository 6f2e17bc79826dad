# SPDX-License-Identifier: Apache-2.0
"""One model of a repository: loads its versions, puts new ones in the place of old ones, ends them.

A load either changes all versions that it has to, or none: new versions are loaded beside the old
ones, then all are switched in one round of the event loop, then the old ones finish their requests.
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
from pytriton.repository.reading.layout import ModelPlace, Sighting, Snapshot, look_at
from pytriton.repository.reading.overrides import Override, remove_files
from pytriton.repository.reading.source import ModelSource, read_sent_source, read_source
from pytriton.repository.states import DUPLICATE

if TYPE_CHECKING:
    from pytriton.repository.loading.plans import LoadedVersion

logger = logging.getLogger(__name__)

_REFUSAL = "failed to load '{}', failed to poll from model repository"


class ModelLifecycle:
    """One model, from its first load to its end. Its loads and unloads take turns."""

    def __init__(self, name: str, loads: LoadCoordinator) -> None:
        self.name = name
        self.last_tried: Sighting | None = None  # of the repository's files
        self._loads = loads
        self._turn = asyncio.Lock()
        self._attempts: set[asyncio.Future[None]] = set()  # loads, the first one has its turn
        self._source: ModelSource | None = None  # of what serves
        self._loaded: dict[int, LoadedVersion] = {}
        self._waiting: dict[int, Model] = {}  # versions that do not serve; the engine knows them
        self._retiring: dict[asyncio.Task[None], Collection[LoadedVersion]] = {}

    async def load(
        self,
        places: Sequence[ModelPlace],
        override: Override | None = None,
        *,
        is_limited: bool = True,
    ) -> None:
        """Load the model, or what changed of it; returns when it serves.

        Args:
            places: Where repositories have it.
            override: What to load instead.
            is_limited: Whether to wait until few enough other versions are being loaded.

        Raises:
            ServerError: It cannot be read or loaded; what served before still does.
            UnavailableError: It was given up meanwhile.
        """
        attempt = asyncio.ensure_future(self._load(places, override, is_limited=is_limited))
        self._attempts.add(attempt)
        try:
            await attempt
        except asyncio.CancelledError:
            if attempt in self._attempts:  # who waits for it was cancelled
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
        async with self._turn:
            source = await self._read(places, override)
            try:
                await self._load_source(source, is_limited=is_limited)
            except BaseException:
                if source.is_temporary:
                    remove_files(source.place.directory)
                raise
            self._loads.table.set_problem(self.name, "")

    async def unload(self) -> None:
        """Take the model out of service; its last requests are finished meanwhile.

        Loads that were asked for before are given up: one that hangs can be ended by this.
        """
        self.give_up_loading()
        async with self._turn:
            source, self._source = self._source, None
            leaving, self._loaded = self._loaded, {}
            self.last_tried = None
            self._loads.table.set_problem(self.name, "")
            self._withdraw(self._waiting)
            self._retire(leaving, source)

    def give_up_loading(self) -> None:
        """End the loads that run or wait; what served before still does."""
        attempts, self._attempts = self._attempts, set()
        for attempt in attempts:
            attempt.cancel()

    async def stop(self, timeout_s: float | None) -> None:
        """End all versions; what is not finished in time is answered with an error."""
        await self.unload()
        versions = [version for retiring in self._retiring.values() for version in retiring]
        # Whatever time they were given before, they have this one now; errors are logged there.
        ends = (version.retire(timeout_s) for version in versions)
        await asyncio.gather(*ends, return_exceptions=True)
        if self._retiring:
            await asyncio.wait(self._retiring)

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
                    read_sent_source, self.name, override, self._loads.settings
                )
            return await self._read_places(places, override)
        except Exception as error:
            reason = failure_text(error)
            message = error.message if isinstance(error, ServerError) else reason
            logger.error("Poll failed for model directory '%s': %s", self.name, message)  # noqa: TRY400  known by its text
            # What a client sent says nothing about the model in the repository.
            if override is None:
                self._loads.table.set_problem(self.name, reason)
            raise InternalError(f"{_REFUSAL.format(self.name)}: {message}") from error

    async def _read_places(
        self, places: Sequence[ModelPlace], override: Override | None
    ) -> ModelSource:
        # Noted before it is read: what changes meanwhile is seen the next time.
        seen = self.last_tried = await asyncio.to_thread(look_at, places)
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
        """Whether a version serves just what the source has."""
        if self._source is None or not self._serves(version):
            return False
        return source.has_same_version(self._source, version)

    def _serves(self, version: int) -> bool:
        loaded = self._loaded.get(version)
        return loaded is not None and loaded.model.state is ModelState.READY

    async def _load_versions(
        self, source: ModelSource, versions: Sequence[int], *, is_limited: bool
    ) -> dict[int, LoadedVersion]:
        """Load versions side by side; where one fails, none is left."""
        if not versions:
            return {}
        held = {each: self._hold_place(each) for each in versions if not self._serves(each)}
        loads = {
            each: asyncio.ensure_future(
                self._loads.load_version(source, each, is_limited=is_limited)
            )
            for each in versions
        }
        try:
            await asyncio.wait(loads.values())
        except BaseException:  # the server ends, or the model is unloaded
            for load in loads.values():
                load.cancel()
            await asyncio.wait(loads.values())
            self._clear_away(held, {each: _outcome(load) for each, load in loads.items()})
            raise
        outcomes = {each: _outcome(load) for each, load in loads.items()}
        failures = {each: reason for each in versions if (reason := _failure(outcomes[each]))}
        if failures:
            self._clear_away(held, outcomes)
            raise InvalidArgumentError(f"load failed for model '{self.name}': {_list(failures)}")
        return {each: loaded for each, loaded in outcomes.items() if not isinstance(loaded, str)}

    def _hold_place(self, version: int) -> Model:
        model = self._waiting[version] = self._loads.hold_place(self.name, version)
        return model

    def _withdraw(self, versions: Collection[int]) -> None:
        """Have versions that failed count as unloaded."""
        for version in list(versions):
            self._hold_place(version).become(ModelState.UNAVAILABLE, UNLOADED)

    def _clear_away(
        self, held: Mapping[int, Model], outcomes: Mapping[int, LoadedVersion | str]
    ) -> None:
        """End what was loaded beside something that failed, and say what did."""
        for version, model in held.items():
            model.become(ModelState.UNAVAILABLE, _failure(outcomes[version]) or UNLOADED)
        loaded = {each: loaded for each, loaded in outcomes.items() if not isinstance(loaded, str)}
        self._retire(loaded, None, were_served=False)

    def _switch(self, source: ModelSource, fresh: Mapping[int, LoadedVersion]) -> None:
        """Serve new versions from now on, and only those that the source has."""
        former, self._loaded = self._loaded, {}
        for version in source.versions:
            self._loaded[version] = fresh.get(version) or former[version]
        for version, loaded in fresh.items():
            self._loads.engine.add(loaded.model)
            self._loads.engine.set_ready(loaded.model)
            self._loads.table.put(self.name, version, loaded.model)
            self._waiting.pop(version, None)
        self._withdraw([version for version in self._waiting if version not in source.versions])
        leaving = {
            version: loaded
            for version, loaded in former.items()
            if self._loaded.get(version) is not loaded
        }
        self._retire(leaving, self._source)

    # Ending

    def _retire(
        self,
        leaving: Mapping[int, LoadedVersion],
        source: ModelSource | None,
        *,
        were_served: bool = True,
    ) -> None:
        """Give versions no new requests, and end them when they have answered those they have."""
        for version, loaded in leaving.items():
            if loaded.model.state is ModelState.READY:
                loaded.model.become(ModelState.UNLOADING)
            elif were_served and version not in self._loaded:
                self._withdraw([version])  # the engine shows why it failed, which is over now
            self._loads.engine.begin_draining(loaded.model)
        directory = source.place.directory if source is not None and source.is_temporary else None
        if leaving or directory is not None:
            versions = tuple(leaving.values())
            task = asyncio.ensure_future(self._end(versions, directory))
            self._retiring[task] = versions
            task.add_done_callback(self._retiring.pop)

    async def _end(self, versions: Collection[LoadedVersion], directory: Path | None) -> None:
        timeout_s = self._loads.settings.drain_timeout_s
        try:
            await asyncio.gather(*(self._end_version(version, timeout_s) for version in versions))
        finally:
            if directory is not None:
                remove_files(directory)

    async def _end_version(self, version: LoadedVersion, timeout_s: float | None) -> None:
        try:
            await version.retire(timeout_s)
        except Exception:  # nobody waits for this, and the others are ended as well
            logger.exception("'%s' did not end as it should", self.name)
        finally:
            self._loads.engine.end_draining(version.model)
        number = version.model.spec.version
        logger.info("successfully unloaded '%s' version %d", self.name, number)

    def __repr__(self) -> str:
        return (
            f"<ModelLifecycle {self.name} loaded={sorted(self._loaded)} "
            f"retiring={len(self._retiring)}>"
        )


def _outcome(load: asyncio.Future[LoadedVersion | str]) -> LoadedVersion | str:
    return UNLOADED if load.cancelled() else load.result()


def _failure(outcome: LoadedVersion | str) -> str:
    """Why a version cannot be served; one whose instances are gone already cannot, either."""
    if isinstance(outcome, str):
        return outcome
    is_alive = outcome.model.state is ModelState.LOADING
    return "" if is_alive else f"Internal: {outcome.model.reason}"


def _list(failures: Mapping[int, str]) -> str:
    return "".join(
        f"version {version} is at UNAVAILABLE state: {reason};\n"
        for version, reason in sorted(failures.items())
    )
