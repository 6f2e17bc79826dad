# SPDX-License-Identifier: Apache-2.0
"""Finds models in repositories of which some are in object stores, and brings them here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
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
from pytriton.serving.repository.remote.listing import (
    RemoteFile,
    config_files,
    files_of_versions,
    shared_files,
    snapshot_of,
    split_reusable,
    version_folders,
)
from pytriton.serving.repository.remote.location import (
    MOUNT_DIRECTORIES,
    Location,
    choose_access,
    is_remote,
    read_credentials,
    read_location,
)
from pytriton.serving.repository.remote.store import (
    CancelledFetchError,
    OpenFileSystem,
    RemoteStore,
    open_file_system,
)

_MAX_PAUSE_S = 30.0


class Ending:
    """Ends downloads: the server stops, they are not needed any more, or another one failed."""

    def __init__(self, *events: threading.Event) -> None:
        self._events = events
        self.failed = threading.Event()

    def check(self) -> None:
        """Raise an exception if they should end.

        Raises CancelledFetchError if they should.
        """
        if self.failed.is_set() or any(event.is_set() for event in self._events):
            raise CancelledFetchError("a download was given up")

    def pause(self, seconds: float) -> None:
        """Wait, but not longer than the downloads are needed."""
        self._events[-1].wait(seconds)


class Transfers:
    """The downloads of one repository."""

    def __init__(
        self,
        store: RemoteStore,
        pool: ThreadPoolExecutor,
        *,
        retry_count: int,
        first_pause_s: float = 1.0,
    ) -> None:
        self._store = store
        self._pool = pool
        self._retry_count = retry_count
        self._first_pause_s = first_pause_s

    def pause_s(self, attempt: int) -> float:
        """Returns how long to wait after a failed attempt."""
        return min(_MAX_PAUSE_S, self._first_pause_s * float(2**attempt))

    def bring(
        self,
        copy: LocalCopy,
        files: Collection[RemoteFile],
        earlier: Sequence[LocalCopy],
        *events: threading.Event,
    ) -> None:
        """Bring files into a copy; returns when all are there.

        Unchanged files are taken from `earlier` copies. One of the events ends the downloads.
        """
        for attempt in range(1 + self._retry_count):
            ending = Ending(*events)
            pending = self.begin(copy, files, earlier, ending)
            wait(pending)
            failure = _first_failure(pending)
            if failure is None:
                return
            if attempt == self._retry_count or isinstance(failure, CancelledFetchError):
                raise failure
            logger.error("%s, trying again", failure)
            ending.pause(self.pause_s(attempt))
            files = [file for file in files if copy.files.get(file.path) != file]

    def begin(
        self,
        copy: LocalCopy,
        files: Iterable[RemoteFile],
        earlier: Sequence[LocalCopy],
        ending: Ending,
    ) -> list[Future[None]]:
        """Begin to download files; those that an earlier copy has are linked."""
        needed: list[RemoteFile] = []
        for file in files:
            target = copy.directory / file.path
            try:
                (target if file.is_folder else target.parent).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FetchError(f"failed to make '{target}': {error.strerror}") from error
            if not file.is_folder:
                needed.append(file)
        for former in earlier:
            reusable, needed = split_reusable(needed, former.files)
            needed += [file for file in reusable if not _link(former, copy, file)]
        return [self._pool.submit(self._download, copy, file, ending) for file in needed]

    def _download(self, copy: LocalCopy, file: RemoteFile, ending: Ending) -> None:
        target = copy.directory / file.path
        try:
            self._store.download(copy.directory.name, file, target, ending.check)
        except BaseException:
            ending.failed.set()
            with contextlib.suppress(OSError):
                target.unlink()
            raise
        copy.files[file.path] = file


def _first_failure(pending: Iterable[Future[None]]) -> BaseException | None:
    """Returns why downloads failed; those that ended because of another one do not count."""
    failures = [error for each in pending if (error := each.exception()) is not None]
    failures.sort(key=lambda error: isinstance(error, CancelledFetchError))
    return failures[0] if failures else None


def _link(former: LocalCopy, copy: LocalCopy, file: RemoteFile) -> bool:
    try:
        os.link(former.directory / file.path, copy.directory / file.path)
    except OSError:  # another file system, or the model has removed its file
        return False
    copy.files[file.path] = file
    return True


Files = tuple[RemoteFile, ...]
_MAX_REFUSED_SHOWN = 5


class ConfigCopy:
    """The configurations of a model, as long as they are those of the last listing."""

    def __init__(self, copy: LocalCopy, files: list[RemoteFile]) -> None:
        self.copy = copy
        self.files = files
        self.pending: list[Future[None]] = []

    @property
    def is_complete(self) -> bool:
        """Whether all of them are there."""
        return all(file.path in self.copy.files for file in self.files)


class RemoteRepository:
    """The models of one repository."""

    def __init__(
        self,
        location: Location,
        store: RemoteStore,
        copies: LocalCopies,
        transfers: Transfers,
        *,
        retry_count: int = 0,
    ) -> None:
        self.address = location.address
        self.problem = ""  # why it cannot be listed
        self.was_listed = False
        self._store = store
        self._copies = copies
        self._transfers = transfers
        self._retry_count = retry_count
        self._models: dict[str, Files | None] = {}  # of the last listing that succeeded
        self._latest: weakref.WeakValueDictionary[str, LocalCopy] = weakref.WeakValueDictionary()
        self._configs: dict[str, ConfigCopy] = {}
        self._refused: tuple[str, ...] = ()
        self._stopped = threading.Event()
        self._lock = threading.Lock()

    # Listing

    def models(self) -> dict[str, Files | None]:
        """Returns the models of the last listing that succeeded."""
        return self._models

    def list_models(self, *, with_files: bool) -> dict[str, Files | None]:
        """List the models, with their files or only their names.

        If that fails, the last listing counts: nothing is known to have changed. The log says this
        once. Only the first listing is tried several times, as a server waits for it.
        """
        attempts = 1 if self.was_listed else 1 + self._retry_count
        for attempt in range(attempts):
            if attempt:
                self._stopped.wait(self._transfers.pause_s(attempt - 1))
            if self._try_list(with_files=with_files):
                break
        return self._models

    def _try_list(self, *, with_files: bool) -> bool:
        try:
            found = self._list(with_files=with_files)
        except FetchError as error:
            self._note_problem(error.message)
            return False
        self._note_success(found)
        return True

    def _list(self, *, with_files: bool) -> dict[str, Files | None]:
        found: dict[str, Files | None]
        if with_files:
            listing = self._store.list_files()
            self._note_refused(listing.refused)
            found = dict(listing.models)
        else:
            found = dict.fromkeys(self._store.list_names())
        if not found and not self.was_listed:
            # Later, an empty repository only means that the last model was removed.
            self._store.check_path()
        return found

    def list_files(self, model: str) -> Files:
        """Returns the files of a model."""
        listing = self._store.list_files(model)
        self._note_refused(listing.refused)
        return listing.models.get(model, ())

    def _note_success(self, found: dict[str, Files | None]) -> None:
        if not found and not self.was_listed:
            logger.warning("model repository '%s' has no models", self.address)
        if self.problem:
            logger.info("model repository '%s' can be listed again", self.address)
        self._models, self.problem, self.was_listed = found, "", True
        with self._lock:
            for name in self._configs.keys() - found.keys():
                del self._configs[name]

    def _note_problem(self, message: str) -> None:
        if not self.problem:
            effect = "stay as they are" if self.was_listed else "are not known"
            logger.error("%s; the models of this repository %s", message, effect)
        self.problem = message

    def _note_refused(self, refused: tuple[str, ...]) -> None:
        if refused and refused != self._refused:
            logger.warning(
                "%d files of model repository '%s' are left out, as a local folder cannot have "
                "them: %s",
                len(refused),
                self.address,
                ", ".join(repr(path) for path in refused[:_MAX_REFUSED_SHOWN]),
            )
        self._refused = refused

    # Copies

    def begin_config(self, model: str, files: Files) -> Callable[[], Path]:
        """Begin to download the configurations of a model.

        Returns a function that waits for them and returns their folder. One that could not be
        downloaded is missing there; loading the model reports that.
        """
        needed = config_files(files)
        with self._lock:
            config = self._configs.get(model)
            if config is None or config.files != needed:
                config = self._configs[model] = ConfigCopy(self._copies.new(model), needed)
                config.pending = self._transfers.begin(
                    config.copy, needed, (), Ending(self._stopped)
                )

        def finish() -> Path:
            wait(config.pending)
            with self._lock:
                if not config.is_complete and self._configs.get(model) is config:
                    del self._configs[model]  # so that the next caller tries again
            return config.copy.directory

        return finish

    def fetch(
        self, model: str, files: Files, choose: ChooseVersions, given_up: threading.Event
    ) -> LocalCopy:
        """Make a local copy of a model, with the versions that are needed.

        Files that an earlier copy has are taken from there. `given_up` is set when nobody needs the
        copy any more.
        """
        with self._lock:
            config, latest = self._configs.get(model), self._latest.get(model)
        earlier = [latest] if latest is not None else []
        earlier += [config.copy] if config is not None else []
        copy, events = self._copies.new(model), (self._stopped, given_up)
        try:
            self._transfers.bring(copy, shared_files(files), earlier, *events)
            folders = version_folders(files)
            for folder in folders.values():
                (copy.directory / folder).mkdir(exist_ok=True)
            versions = choose(copy.directory, folders.keys())
            self._transfers.bring(copy, files_of_versions(files, versions), earlier, *events)
        except BaseException:
            copy.abandon()
            raise
        with self._lock:
            self._latest[model] = copy
        return copy

    def stop(self) -> None:
        """End all downloads."""
        self._stopped.set()


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
