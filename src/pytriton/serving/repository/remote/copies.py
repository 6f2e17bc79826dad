# SPDX-License-Identifier: Apache-2.0
"""Local folders for copies of models: private, removed after their last use, also after a crash.

A server locks its folder as long as it lives. What a killed server has left behind is not locked,
and is removed by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import shutil
import stat
import tempfile
import time
import weakref
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from pytriton.base.errors import InternalError
from pytriton.serving.repository.remote.listing import RemoteFile

logger = logging.getLogger(__name__)

PREFIX = "pytriton-models-"
_LOCK = "lock"
_UNLOCKED_AGE_S = 3600.0  # of a folder without a lock: its server may be about to make it
_ATTEMPTS = 10


class LocalCopy:
    """A copy of a model.

    Its folder is removed when no object refers to it any more. After a failure, the exception may
    refer to it for long: `abandon` does not wait for that, only for versions that use the copy.
    """

    def __init__(self, copies: LocalCopies, directory: Path) -> None:
        self.directory = directory
        self.files: dict[str, RemoteFile] = {}  # what is complete, by path
        self._user_count = 0
        self._is_abandoned = False
        self._remove = weakref.finalize(self, copies.discard, directory.parent)
        self._remove.atexit = False

    def retain(self) -> None:
        """Count a version that uses the files."""
        self._user_count += 1

    def release(self) -> None:
        """Count a version less."""
        self._user_count -= 1
        self._remove_if_unused()

    def abandon(self) -> None:
        """Remove the files as soon as no version uses them."""
        self._is_abandoned = True
        self._remove_if_unused()

    def _remove_if_unused(self) -> None:
        if self._is_abandoned and not self._user_count:
            self._remove()


class LocalCopies:
    """The folder of one server, in the system's folder for temporary files or a given one."""

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = Path(tempfile.gettempdir()) if parent is None else parent
        self._root: Path | None = None
        self._lock = -1
        self._numbers = itertools.count(1)
        # Copies are discarded wherever the garbage collector runs, maybe inside of other code that
        # holds a lock: only a queue of this kind may be used there.
        self._discarded: SimpleQueue[Path | None] = SimpleQueue()
        self._remover = Thread(target=self._remove_discarded, name="remove-models", daemon=True)

    @property
    def root(self) -> Path:
        """The server's own folder."""
        assert self._root is not None, "expected an open folder"
        return self._root

    def open(self) -> None:
        """Make the folder, after removing those of servers that were killed."""
        self._remove_stale()
        for _ in range(_ATTEMPTS):
            try:
                root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._parent))
            except OSError as error:
                raise InternalError(
                    f"failed to make a folder for local copies of models in '{self._parent}': "
                    f"{error.strerror}"
                ) from error
            lock = _try_lock(root / _LOCK, create=True)
            if lock is not None:
                self._root, self._lock = root, lock
                self._remover.start()
                return
        raise InternalError(f"failed to lock a folder for local copies in '{self._parent}'")

    def close(self) -> None:
        """Remove the folder with everything in it; may be called twice."""
        root, self._root = self._root, None
        if root is not None:
            self._discarded.put(None)
            self._remover.join()
            shutil.rmtree(root, ignore_errors=True)
            os.close(self._lock)

    def new(self, name: str) -> LocalCopy:
        """Make an empty copy of a model; only this user may read it."""
        parent = self.root / f"copy{next(self._numbers)}"
        parent.mkdir(mode=0o700)
        (parent / name).mkdir()
        return LocalCopy(self, parent / name)

    def discard(self, directory: Path) -> None:
        """Remove a folder in the background, as far as possible."""
        self._discarded.put(directory)

    def _remove_discarded(self) -> None:
        while (directory := self._discarded.get()) is not None:
            shutil.rmtree(directory, ignore_errors=True)

    def _remove_stale(self) -> None:
        try:
            found = [entry for entry in os.scandir(self._parent) if entry.name.startswith(PREFIX)]
        except OSError as error:
            raise InternalError(
                f"failed to open directory '{self._parent}' for local copies of models: "
                f"{error.strerror}"
            ) from error
        for entry in found:
            with contextlib.suppress(OSError):  # another server removes it
                _remove_if_stale(Path(entry.path))


def _remove_if_stale(directory: Path) -> None:
    """Remove a folder of a server of this user that does not live any more."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    lock = None
    if (directory / _LOCK).exists():
        lock = _try_lock(directory / _LOCK)
        if lock is None:
            return
    elif time.time() - status.st_mtime < _UNLOCKED_AGE_S:
        return
    logger.info("removing local copies of models that a killed server has left in %s", directory)
    try:
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)  # not earlier: else its server could lock it now


def _try_lock(path: Path, *, create: bool = False) -> int | None:
    """Returns a descriptor that holds the lock; None if another process holds or removed it."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    if os.fstat(descriptor).st_nlink == 0:
        os.close(descriptor)
        return None
    return descriptor
