# SPDX-License-Identifier: Apache-2.0
"""Finds models in repositories of which some are in object stores, and brings them here."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from pytriton.base.model_spec import identifier_of
from pytriton.serving.repository.reading.layout import (
    ChooseVersions,
    FetchError,
    FileHolder,
    LocalFinder,
    ModelPlace,
    PlaceFinder,
    Snapshot,
    find_models,
)
from pytriton.serving.repository.remote.copies import LocalCopies, LocalCopy
from pytriton.serving.repository.remote.listing import snapshot_of
from pytriton.serving.repository.remote.location import (
    MOUNT_DIRECTORIES,
    choose_access,
    is_remote,
    read_credentials,
    read_location,
)
from pytriton.serving.repository.remote.repository import Files, RemoteRepository, Transfers
from pytriton.serving.repository.remote.store import OpenFileSystem, RemoteStore, open_file_system


class CopiedPlace(ModelPlace, frozen=True):
    """The local copy of a model."""

    copy: LocalCopy
    address: str  # of the model it is a copy of

    @property
    def is_private(self) -> bool:
        return True

    def holder(self) -> FileHolder | None:
        return self.copy

    def abandon(self) -> None:
        self.copy.abandon()

    @property
    def sharing(self) -> str:
        variable = MOUNT_DIRECTORIES[self.address.partition(":")[0]]
        return (
            "the server has copied the model to its own machine; to run it on Ray, set the "
            f"variable {variable} to a folder that all nodes share"
        )

    def explain(self, text: str) -> str:
        return text.replace(str(self.directory), self.address)


class RemotePlace(ModelPlace, frozen=True):
    """A model in an object store. Its paths only name it: nothing can be read there."""

    remote: RemoteRepository
    files: Files | None  # None: not listed yet
    pool: Executor  # for downloads of whole models

    def listed(self) -> RemotePlace:
        if self.files is not None:
            return self
        return RemotePlace(
            self.repository,
            self.directory,
            self.remote,
            self.remote.list_files(self.directory.name),
            self.pool,
        )

    def snapshot(self) -> Snapshot:
        return snapshot_of(self.files or ())

    def begin_config(self) -> Callable[[], ModelPlace]:
        try:
            files = self.listed().files or ()
            finish = self.remote.begin_config(self.directory.name, files)
        except FetchError:  # loading the model reports it
            return lambda: self

        def wait() -> ModelPlace:
            directory = finish()
            return ModelPlace(directory.parent, directory)

        return wait

    async def fetch(self, choose: ChooseVersions) -> ModelPlace:
        given_up = threading.Event()
        name, files = self.directory.name, self.files or ()
        loop = asyncio.get_running_loop()
        try:
            copy = await loop.run_in_executor(
                self.pool, self.remote.fetch, name, files, choose, given_up
            )
        except asyncio.CancelledError:
            given_up.set()
            raise
        address = f"{self.remote.address}/{name}"
        return CopiedPlace(copy.directory.parent, copy.directory, copy, address)


logger = logging.getLogger(__name__)

_FILES_AT_ONCE = 8
_MODELS_AT_ONCE = 4


class RemoteFinder:
    """Finds models in local folders and object stores, in the order of the repositories."""

    is_far = True

    def __init__(
        self,
        paths: Sequence[str],
        environment: Mapping[str, str],
        *,
        with_files: bool,
        retry_count: int = 0,
        open_system: OpenFileSystem = open_file_system,
        first_pause_s: float = 1.0,
        namespacing: bool = False,
    ) -> None:
        """Open the repositories; nothing is listed yet.

        With `with_files`, all files are listed at once, which is quicker if all models are loaded;
        otherwise those of a model when it is loaded. The pause between attempts doubles each time.
        """
        self._with_files = with_files
        self._namespaces = tuple(paths) if namespacing else ("",) * len(paths)
        self._files = ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="model-file")
        self._models = ThreadPoolExecutor(_MODELS_AT_ONCE, thread_name_prefix="model-copy")
        self._copies: dict[Path | None, LocalCopies] = {}
        self._repositories: list[Path | RemoteRepository] = []
        credentials = read_credentials(environment)
        try:
            for path in paths:
                if not is_remote(path):
                    self._repositories.append(Path(path))
                    continue
                location = read_location(path)
                access = choose_access(location, credentials, environment)
                store = RemoteStore(location, access, open_system)
                transfers = Transfers(
                    store, self._files, retry_count=retry_count, first_pause_s=first_pause_s
                )
                mount = environment.get(MOUNT_DIRECTORIES[location.scheme])
                copies = self._open_copies(Path(mount) if mount else None)
                remote = RemoteRepository(
                    location, store, copies, transfers, retry_count=retry_count
                )
                self._repositories.append(remote)
        except BaseException:
            self.close()
            raise

    @property
    def problem(self) -> str:
        problems = (each.problem for each in self._remotes if not each.was_listed)
        return "; ".join(problem for problem in problems if problem)

    def find(self) -> dict[str, list[ModelPlace]]:
        listings = [
            self._models.submit(remote.list_models, with_files=self._with_files)
            for remote in self._remotes
        ]
        for listing in listings:
            listing.result()
        return self.known()

    def known(self) -> dict[str, list[ModelPlace]]:
        models: dict[str, list[ModelPlace]] = {}
        for repository, namespace in zip(self._repositories, self._namespaces, strict=True):
            if isinstance(repository, Path):
                for name, places in find_models([repository], [namespace]).items():
                    models.setdefault(name, []).extend(places)
            else:
                for name, files in repository.models().items():
                    path = Path(repository.address)
                    place = RemotePlace(path, path / name, repository, files, self._models)
                    models.setdefault(identifier_of(namespace, name), []).append(place)
        return dict(sorted(models.items()))

    def close(self) -> None:
        for remote in self._remotes:
            remote.stop()
        self._models.shutdown(wait=True, cancel_futures=True)
        self._files.shutdown(wait=True, cancel_futures=True)
        for copies in self._copies.values():
            copies.close()

    @property
    def _remotes(self) -> list[RemoteRepository]:
        return [each for each in self._repositories if isinstance(each, RemoteRepository)]

    def _open_copies(self, parent: Path | None) -> LocalCopies:
        copies = self._copies.get(parent)
        if copies is None:
            copies = LocalCopies(parent)
            copies.open()
            self._copies[parent] = copies
        return copies


def open_finder(
    paths: Sequence[str],
    environment: Mapping[str, str],
    *,
    with_files: bool,
    retry_count: int = 0,
    namespacing: bool = False,
) -> PlaceFinder:
    """Returns the finder of the models of repositories."""
    if not any(is_remote(path) for path in paths):
        return LocalFinder([Path(path) for path in paths], paths if namespacing else ())
    return RemoteFinder(
        paths,
        environment,
        with_files=with_files,
        retry_count=retry_count,
        namespacing=namespacing,
    )
