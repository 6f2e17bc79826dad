# SPDX-License-Identifier: Apache-2.0
"""What is known of every model: its versions with their states, or why it has none. Pure.

A version's state is that of its engine model, which also has the transitions: there is no second
record of it that could differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from pytriton.engine.control import IndexEntry
from pytriton.engine.model import ModelState

DUPLICATE = "model appears in two or more repositories"


class VersionState(Protocol):
    """The part of an engine model that is read here."""

    @property
    def state(self) -> ModelState:
        """Where it is in its life."""

    @property
    def reason(self) -> str:
        """Why it does not serve."""

    @property
    def is_ready(self) -> bool:
        """Whether it serves with all that it should have."""

    @property
    def is_withdrawn(self) -> bool:
        """Whether somebody wanted it out of service."""


class StateTable:
    """The states of all models that were ever to be loaded."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, VersionState]] = {}
        self._problems: dict[str, str] = {}  # of models without a version to blame

    def put(self, name: str, version: int, state: VersionState) -> None:
        """A version got a new engine model."""
        self._versions.setdefault(name, {})[version] = state

    def set_problem(self, name: str, reason: str) -> None:
        """A model could not even be read; an empty reason takes that back."""
        if reason:
            self._problems[name] = reason
        else:
            self._problems.pop(name, None)

    def is_ready(self) -> bool:
        """Whether all that should serve does; what was unloaded should not."""
        states = (state for versions in self._versions.values() for state in versions.values())
        return all(state.is_ready or state.is_withdrawn for state in states) and not any(
            not self._serves(name) for name in self._problems
        )

    def rows(self, places: Mapping[str, Collection[object]], *, ready: bool) -> list[IndexEntry]:
        """The index, by name and version.

        Args:
            places: Where each model of the repositories lies.
            ready: Whether to list only what serves.
        """
        names = sorted({*places, *self._versions, *self._problems})
        rows = (row for name in names for row in self._rows_of(name, len(places.get(name, ()))))
        return [row for row in rows if row.state == ModelState.READY.value or not ready]

    def _rows_of(self, name: str, place_count: int) -> Iterable[IndexEntry]:
        versions = self._versions.get(name, {})
        for version, state in sorted(versions.items()):
            yield IndexEntry(name, str(version), state.state.value, state.reason)
        problem = DUPLICATE if place_count > 1 else self._problems.get(name, "")
        # A model that serves in spite of it is for its loader and for the log to complain of.
        if problem and not self._serves(name):
            yield IndexEntry(name, state=ModelState.UNAVAILABLE.value, reason=problem)
        elif not versions:
            yield IndexEntry(name)

    def _serves(self, name: str) -> bool:
        versions = self._versions.get(name, {}).values()
        return any(state.state is ModelState.READY for state in versions)

    def __repr__(self) -> str:
        return f"<StateTable {len(self._versions)} models, {len(self._problems)} not readable>"
