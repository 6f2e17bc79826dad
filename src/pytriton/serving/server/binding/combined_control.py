# SPDX-License-Identifier: Apache-2.0
"""Model control of a server with models of repositories and bound models."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytriton.serving.engine.client import IndexEntry, ModelControl
    from pytriton.serving.server.binding.bound_control import BoundControl


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

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """See `ModelControl`."""
        await self._control_of(name).load(name, config, files)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """See `ModelControl`."""
        await self._control_of(name).unload(name, unload_dependents=unload_dependents)

    def is_ready(self) -> bool:
        """Returns whether every model that should be ready is ready."""
        return self._bound.is_ready() and self._repository.is_ready()

    def _control_of(self, name: str) -> ModelControl:
        return self._bound if self._is_explicit and self._bound.has(name) else self._repository
