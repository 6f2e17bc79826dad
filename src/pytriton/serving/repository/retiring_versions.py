# SPDX-License-Identifier: Apache-2.0
"""The versions of a model that get no new requests, until they have finished and are stopped."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pytriton.serving.repository.reading.overrides import remove_files

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from pytriton.serving.repository.loading.load_coordinator import LoadCoordinator
    from pytriton.serving.repository.loading.plans import LoadedVersion

logger = logging.getLogger(__name__)


class RetiringVersions:
    """Stops versions of one model in the background."""

    def __init__(self, name: str, loads: LoadCoordinator) -> None:
        self._name = name
        self._loads = loads
        self._running: dict[asyncio.Task[None], Collection[LoadedVersion]] = {}

    def start(self, versions: Collection[LoadedVersion], directory: Path | None) -> None:
        """Stop versions when they have finished their requests.

        Args:
            versions: The versions.
            directory: A temporary directory of theirs, which is removed then.
        """
        task = asyncio.ensure_future(self._stop_all(versions, directory))
        self._running[task] = versions
        task.add_done_callback(self._running.pop)

    async def end(self, timeout_s: float | None) -> None:
        """Wait until all are stopped; requests that are not finished in time get an error."""
        versions = [version for running in self._running.values() for version in running]
        # This timeout replaces an earlier, longer one; `_stop` logs the errors.
        stops = (version.drain_and_stop(timeout_s) for version in versions)
        await asyncio.gather(*stops, return_exceptions=True)
        if self._running:
            await asyncio.wait(self._running)

    async def _stop_all(self, versions: Collection[LoadedVersion], directory: Path | None) -> None:
        try:
            # The last requests of ensembles may still need them.
            await asyncio.gather(*(self._loads.steps_released(each.model) for each in versions))
            await asyncio.gather(*(self._stop(version) for version in versions))
        finally:
            if directory is not None:
                remove_files(directory)

    async def _stop(self, version: LoadedVersion) -> None:
        try:
            await version.drain_and_stop(self._loads.settings.drain_timeout_s)
        except Exception:  # no caller gets this error, and the other versions are stopped as well
            logger.exception("model '%s' could not be stopped properly", self._name)
        finally:
            self._loads.engine.end_draining(version.model)
        number = version.model.spec.version
        logger.info("successfully unloaded '%s' version %d", self._name, number)

    def __len__(self) -> int:
        return len(self._running)

    def __repr__(self) -> str:
        return f"<RetiringVersions of {self._name}: {len(self)}>"
