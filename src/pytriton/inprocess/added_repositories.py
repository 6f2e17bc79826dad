# SPDX-License-Identifier: Apache-2.0
"""Model repositories that a program adds to a running server, and removes again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pytriton.base.errors import AlreadyExistsError, InvalidArgumentError
from pytriton.serving.repository.reading.layout import (
    ModelPlace,
    PlaceFinder,
    RenamedPlace,
    check_model_name,
    find_models,
)


class AddedRepositories:
    """Finds the models of a server's own repositories, and of those that were added.

    A model of an added repository may have another name than its folder.

    Args:
        own: The server's own repositories, which may be removed, too.
    """

    def __init__(self, own: Iterable[str] = ()) -> None:
        self._own: PlaceFinder | None = None
        self._own_folders = frozenset(Path(path).absolute() for path in own)
        self._removed: frozenset[Path] = frozenset()  # of its own ones
        self._added: dict[Path, Mapping[str, str]] = {}  # the names of models, by folder

    def wrap(self, finder: PlaceFinder) -> PlaceFinder:
        """Returns a finder for all of them."""
        self._own = finder
        return self

    def add(self, path: str, names: Mapping[str, str]) -> None:
        """Add a repository; nothing is loaded.

        Args:
            path: The repository's folder.
            names: The names of models by the names of their folders, where they differ.

        Raises:
            InvalidArgumentError: There is no such folder, or a name is none.
            AlreadyExistsError: The server has it.
        """
        folder = Path(path).absolute()
        if not folder.is_dir():
            raise InvalidArgumentError(f"failed to register '{path}', repository not found")
        if folder in self._added or folder in self._own_folders - self._removed:
            raise AlreadyExistsError(f"model repository '{path}' has already been registered")
        for name in names.values():
            check_model_name(name)
        self._added = {**self._added, folder: dict(names)}

    def remove(self, path: str) -> None:
        """Forget a repository; its models stay loaded.

        Raises:
            InvalidArgumentError: The server does not have it.
        """
        folder = Path(path).absolute()
        if folder in self._own_folders - self._removed:
            self._removed |= {folder}
            return
        if folder not in self._added:
            raise InvalidArgumentError(f"failed to unregister '{path}', repository not found")
        self._added = {each: names for each, names in self._added.items() if each != folder}

    # PlaceFinder

    @property
    def problem(self) -> str:
        """See `PlaceFinder`."""
        return self._finder.problem

    @property
    def is_far(self) -> bool:
        """See `PlaceFinder`."""
        return self._finder.is_far

    def find(self) -> dict[str, list[ModelPlace]]:
        """See `PlaceFinder`."""
        return self._with_added(self._finder.find())

    def known(self) -> dict[str, list[ModelPlace]]:
        """See `PlaceFinder`."""
        return self._with_added(self._finder.known())

    def close(self) -> None:
        """See `PlaceFinder`."""
        self._finder.close()

    @property
    def _finder(self) -> PlaceFinder:
        assert self._own is not None, "it wraps a finder before it is used as one"
        return self._own

    def _with_added(self, found: dict[str, list[ModelPlace]]) -> dict[str, list[ModelPlace]]:
        places: dict[str, list[ModelPlace]] = {}
        for name, each in found.items():
            remaining = [
                place for place in each if place.repository.absolute() not in self._removed
            ]
            if remaining:
                places[name] = remaining
        for folder, names in self._added.items():
            for name, (place, *_) in find_models([folder]).items():
                if name in names:
                    place = RenamedPlace(place.repository, place.directory)  # noqa: PLW2901
                places.setdefault(names.get(name, name), []).append(place)
        return places
