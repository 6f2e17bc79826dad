# SPDX-License-Identifier: Apache-2.0
"""Brings files of models into local copies: several at once, each one complete or not there."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from pytriton.serving.repository.reading.layout import FetchError
from pytriton.serving.repository.remote.copies import LocalCopy
from pytriton.serving.repository.remote.listing import RemoteFile, split_reusable
from pytriton.serving.repository.remote.store import CancelledFetchError, RemoteStore

logger = logging.getLogger(__name__)

_MAX_PAUSE_S = 30.0


class Ending:
    """Tells downloads to end: the server stops, nobody needs them, or another one has failed."""

    def __init__(self, *events: threading.Event) -> None:
        self._events = events
        self.failed = threading.Event()

    def check(self) -> None:
        """Raise an exception if they should end.

        Raises:
            CancelledFetchError: They should.
        """
        if self.failed.is_set() or any(event.is_set() for event in self._events):
            raise CancelledFetchError("a download was given up")

    def pause(self, seconds: float) -> None:
        """Wait, but not longer than until nobody needs the downloads."""
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

        Args:
            copy: The copy.
            files: The files.
            earlier: Copies from which unchanged files are taken.
            events: End the downloads when one of them is set.

        Raises:
            FetchError: A file could not be downloaded, also after further attempts.
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
        """Begin to download files; those that an earlier copy has are linked.

        Raises:
            FetchError: A folder cannot be made.
        """
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
