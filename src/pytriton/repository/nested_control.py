# SPDX-License-Identifier: Apache-2.0
"""The control of models that models get, which never waits for a turn to load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytriton.engine.control import IndexEntry

if TYPE_CHECKING:
    from pytriton.repository.model_repositories import ModelRepositories


class NestedControl:
    """Passes on what models ask of the repositories. See `ModelControl`."""

    def __init__(self, models: ModelRepositories) -> None:
        self._models = models

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        """See `ModelControl`."""
        return self._models.index(ready=ready)

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """See `ModelControl`."""
        await self._models.load_nested(name, config, files)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """See `ModelControl`."""
        await self._models.unload(name, unload_dependents=unload_dependents)

    def is_ready(self) -> bool:
        """See `ModelControl`."""
        return self._models.is_ready()
