# SPDX-License-Identifier: Apache-2.0
"""Finds the models of repositories: here those in local folders; see also `repository.remote`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pytriton.serving.repository.reading.layout import ModelPlace, find_models


class PlaceFinder(Protocol):
    """Finds models."""

    @property
    def problem(self) -> str:
        """Why a repository could never be read so far; an empty text if all were."""

    @property
    def is_far(self) -> bool:
        """Whether `find` waits for a network, so that `known` may be older."""

    def find(self) -> dict[str, list[ModelPlace]]:
        """Returns the places of all models by identifier. It may wait for the network.

        Raises:
            InternalError: A repository cannot be read.
        """

    def known(self) -> dict[str, list[ModelPlace]]:
        """Like `find`, but without waiting: of repositories far away, what was found last."""

    def close(self) -> None:
        """Remove what was made for the models; may be called twice."""


class LocalFinder:
    """Finds models in local folders."""

    problem = ""
    is_far = False

    def __init__(self, repositories: Sequence[Path], namespaces: Sequence[str] = ()) -> None:
        self._repositories = tuple(repositories)
        self._namespaces = tuple(namespaces)

    def find(self) -> dict[str, list[ModelPlace]]:
        """See `PlaceFinder`."""
        return find_models(self._repositories, self._namespaces)

    known = find

    def close(self) -> None:
        """See `PlaceFinder`."""

    def __repr__(self) -> str:
        return f"<LocalFinder {self._repositories!r}>"
