# SPDX-License-Identifier: Apache-2.0
"""Folders that belong to one process: a killed one cannot remove its own, so the next one does.

Each folder has a file that its process holds a lock on. The system gives the lock back however the
process ends, so a lock that can be had means that nobody owns the folder any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pathlib
import shutil
import stat
import tempfile

logger = logging.getLogger(__name__)

_LOCK_NAME = "owner.lock"
_LOCK_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_ATTEMPTS = 10


class TemporaryFolder:
    """A folder that only this user may enter, until it is removed or the process ends."""

    def __init__(self, path: pathlib.Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, prefix: str) -> TemporaryFolder:
        """Make a new one in the system's folder for temporary files.

        Raises:
            OSError: That is not possible.
        """
        for _ in range(_ATTEMPTS):
            path = pathlib.Path(tempfile.mkdtemp(prefix=prefix))
            lock = _take_new(path)
            if lock is not None:
                return cls(path, lock)
        raise OSError(f"{_ATTEMPTS} new folders beside '{path}' were removed by other processes")

    def remove(self) -> None:
        """Remove it with all that lies in it, as far as that is possible."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def __repr__(self) -> str:
        return f"<TemporaryFolder {self.path}>"


def remove_abandoned(prefix: str) -> list[pathlib.Path]:
    """Remove this user's folders of a prefix that no living process owns; those that it removed."""
    parent = pathlib.Path(tempfile.gettempdir())
    return [path for path in parent.glob(f"{prefix}*") if _was_abandoned(path)]


def _was_abandoned(path: pathlib.Path) -> bool:
    try:
        return _remove_if_abandoned(path)
    except OSError as error:  # it is somebody else's, or others remove it just now
        logger.debug("'%s' is left as it is: %s", path, error)
        return False


def _take_new(path: pathlib.Path) -> int | None:
    """The lock of a new folder; None where another process took it for abandoned meanwhile."""
    try:
        lock = os.open(path / _LOCK_NAME, _LOCK_FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), (path / _LOCK_NAME).lstat()):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None


def _remove_if_abandoned(path: pathlib.Path) -> bool:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
            return False
        try:
            lock = os.open(_LOCK_NAME, _LOCK_FLAGS, dir_fd=folder)
        except FileNotFoundError:
            path.rmdir()  # its process ended at once; one that holds anything is not ours
            return True
    finally:
        os.close(folder)
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)  # never follows a link
            return True
        return False
    finally:
        os.close(lock)
