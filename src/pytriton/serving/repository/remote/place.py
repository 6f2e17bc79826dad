# SPDX-License-Identifier: Apache-2.0
"""The place of a model in an object store, and that of its local copy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from pytriton.serving.repository.reading.layout import (
    ChooseVersions,
    FetchError,
    Holder,
    ModelPlace,
    Snapshot,
)
from pytriton.serving.repository.remote.copies import LocalCopy
from pytriton.serving.repository.remote.listing import snapshot_of
from pytriton.serving.repository.remote.location import MOUNT_DIRECTORIES
from pytriton.serving.repository.remote.repository import Files, RemoteRepository


class CopiedPlace(ModelPlace, frozen=True):
    """The local copy of a model."""

    copy: LocalCopy
    address: str  # of the model it is a copy of

    def holder(self) -> Holder | None:
        """See `ModelPlace`."""
        return self.copy

    def abandon(self) -> None:
        """See `ModelPlace`."""
        self.copy.abandon()

    @property
    def sharing(self) -> str:
        """See `ModelPlace`."""
        variable = MOUNT_DIRECTORIES[self.address.partition(":")[0]]
        return (
            "the server has copied the model to its own machine; to run it on Ray, set the "
            f"variable {variable} to a folder that all nodes share"
        )

    def explain(self, text: str) -> str:
        """See `ModelPlace`."""
        return text.replace(str(self.directory), self.address)


class RemotePlace(ModelPlace, frozen=True):
    """A model in an object store. Its paths only name it: nothing can be read there."""

    remote: RemoteRepository
    files: Files | None  # None: not listed yet
    pool: Executor  # for downloads of whole models

    def listed(self) -> RemotePlace:
        """See `ModelPlace`."""
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
        """See `ModelPlace`."""
        return snapshot_of(self.files or ())

    def begin_config(self) -> Callable[[], ModelPlace]:
        """See `ModelPlace`."""
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
        """See `ModelPlace`."""
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


def remote_place(
    remote: RemoteRepository, name: str, files: Files | None, pool: Executor
) -> RemotePlace:
    """Returns the place of a model."""
    repository = Path(remote.address)
    return RemotePlace(repository, repository / name, remote, files, pool)
