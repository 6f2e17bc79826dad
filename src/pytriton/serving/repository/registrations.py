# SPDX-License-Identifier: Apache-2.0
"""Models that a client adds while the server runs, each from a folder of its own.

The client chooses the model's name. The folder is the model's directory, or a repository with that
directory; if it has several models, an ensemble gets the name, and the others keep theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pytriton.base.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ServerError,
)
from pytriton.serving.repository.reading.config_files import CONFIG_FILE, read_ensemble
from pytriton.serving.repository.reading.layout import (
    ModelPlace,
    RenamedPlace,
    check_model_name,
    find_models,
    version_directories,
)

if TYPE_CHECKING:
    from pytriton.serving.repository.model_repositories import ModelRepositories


class Registration(msgspec.Struct, frozen=True):
    """A model that a client has added."""

    name: str
    url: str  # the folder, as the client wrote it
    places: dict[str, ModelPlace]  # of this model, and of others in its repository


def read_registration(name: str, url: str) -> Registration:
    """Find the directory of a model."""
    folder = Path(url)
    if not folder.is_absolute() or not folder.is_dir():
        raise InvalidArgumentError(f"failed to register '{url}', repository not found")
    if (folder / CONFIG_FILE).is_file() or version_directories(folder):
        return Registration(name, url, {name: RenamedPlace(folder.parent, folder)})
    places = {each: found[0] for each, found in find_models([folder]).items()}
    if not places:
        raise InternalError(f"failed to load '{name}', failed to poll from model repository")
    ensembles = (each for each, place in places.items() if read_ensemble([place]) is not None)
    chosen = places.pop(next(ensembles, next(iter(places))))
    own = RenamedPlace(chosen.repository, chosen.directory)
    return Registration(name, url, {**places, name: own})


class Registrations:
    """The models that clients have added, by name."""

    def __init__(self, control: ModelRepositories) -> None:
        self._control = control
        self._found: dict[str, Registration] = {}
        self._pending: dict[str, str] = {}  # folders of those that are being added
        self._leaving: dict[str, asyncio.Task[None]] = {}  # those that are being removed

    def listed(self) -> dict[str, str]:
        """Returns the folders of all models that were added, by name."""
        return {name: found.url for name, found in sorted(self._found.items())}

    def merged(self, places: dict[str, list[ModelPlace]]) -> dict[str, list[ModelPlace]]:
        """Returns the directories of all models, with those of these."""
        if not self._found:
            return places
        merged = {name: list(found) for name, found in places.items()}
        for found in self._found.values():
            for name, place in found.places.items():
                if name != found.name:
                    merged.setdefault(name, []).append(place)
        for found in self._found.values():  # the name is the client's, who means this model
            merged[found.name] = [found.places[found.name]]
        return merged

    async def register(self, name: str, url: str) -> None:
        """Load a model from a folder; returns when it is ready.

        If it cannot be loaded, no trace of it is left.
        """
        if not self._control.is_explicit:
            raise InvalidArgumentError(
                "repository registration is not allowed if model control mode is not EXPLICIT"
            )
        check_model_name(name)
        self._check_new(name, url)
        self._pending[name] = url
        try:
            found = await asyncio.to_thread(read_registration, name, url)
            self._found[name] = found
            await self._load(found)
        finally:
            del self._pending[name]

    def _check_new(self, name: str, url: str) -> None:
        folders = {**self.listed(), **self._pending}
        if os.path.normpath(url) in map(os.path.normpath, folders.values()):
            raise AlreadyExistsError(f"model repository '{url}' has already been registered")
        if name in folders or self._control.knows(name):
            raise AlreadyExistsError(f"model '{name}' has already been loaded")

    async def _load(self, found: Registration) -> None:
        try:
            await self._control.load(found.name, None, {})
        except BaseException:  # also if the server stops
            with contextlib.suppress(ServerError):
                await self._remove(found)
            raise

    async def unregister(self, name: str) -> None:
        """Unload a model that was added; returns when it has stopped, after its last requests."""
        found = self._found.get(name)
        if found is None:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        await self._remove(found)

    async def _remove(self, found: Registration) -> None:
        """Unload a model, once for all who ask for it at the same time.

        Its name is free when nothing is left of it. A later caller must not remove the next
        model of this name.
        """
        leaving = self._leaving.get(found.name)
        if leaving is None:
            if self._found.get(found.name) is not found:
                return  # another call has removed it, which ended its load
            leaving = asyncio.ensure_future(self._unload(found))
            self._leaving[found.name] = leaving
            leaving.add_done_callback(lambda _: self._leaving.pop(found.name))
        await asyncio.shield(leaving)

    async def _unload(self, found: Registration) -> None:
        await self._control.unload(found.name, unload_dependents=True)
        await self._control.forget([*found.places])
        del self._found[found.name]
