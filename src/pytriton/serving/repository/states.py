# SPDX-License-Identifier: Apache-2.0
"""The states of all models: those of their versions, or why a model has no version.

A version's state is read from its engine model, so that there is no second record of it that could
differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.engine.model import VersionState

if TYPE_CHECKING:
    from pytriton.serving.engine.served_model import ManagedModel

DUPLICATE = "model appears in two or more repositories"


class StateTable:
    """The states of all models that were loaded or should have been."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, ManagedModel]] = {}
        self._problems: dict[str, str] = {}  # of models that could not be read

    def put(self, name: str, version: int, state: ManagedModel) -> None:
        """Set the engine model of a version."""
        self._versions.setdefault(name, {})[version] = state

    def set_problem(self, name: str, reason: str) -> None:
        """Store why a model could not be read; an empty reason clears it."""
        if reason:
            self._problems[name] = reason
        else:
            self._problems.pop(name, None)

    def forget(self, name: str) -> None:
        """Drop a model that is not there any more."""
        self._versions.pop(name, None)
        self._problems.pop(name, None)

    def is_ready(self) -> bool:
        """Returns whether all models are ready, except for those unloaded on purpose."""
        states = (state for versions in self._versions.values() for state in versions.values())
        return all(state.is_ready or state.is_withdrawn for state in states) and not any(
            not self._serves(name) for name in self._problems
        )

    def rows(self, places: Mapping[str, Collection[object]], *, ready: bool) -> list[IndexEntry]:
        """Returns the index, sorted by name and version."""
        names = sorted({*places, *self._versions, *self._problems})
        rows = (row for name in names for row in self._rows_of(name, len(places.get(name, ()))))
        return [row for row in rows if row.state == VersionState.READY.value or not ready]

    def _rows_of(self, name: str, place_count: int) -> Iterable[IndexEntry]:
        versions = self._versions.get(name, {})
        for version, state in sorted(versions.items()):
            yield IndexEntry(name, str(version), state.state.value, state.reason)
        problem = DUPLICATE if place_count > 1 else self._problems.get(name, "")
        # The problem of a model that still serves is only logged.
        if problem and not self._serves(name):
            yield IndexEntry(name, state=VersionState.UNAVAILABLE.value, reason=problem)
        elif not versions:
            yield IndexEntry(name)

    def _serves(self, name: str) -> bool:
        versions = self._versions.get(name, {}).values()
        return any(state.state is VersionState.READY for state in versions)
