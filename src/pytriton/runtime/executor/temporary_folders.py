# SPDX-License-Identifier: Apache-2.0
"""Temporary folders, each of one process. Those of a killed process are removed by a later one.

The owner of a folder holds a lock on a file inside it. The system releases the lock however the
process ends. So if the lock can be acquired, no process owns the folder any more.
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
    """A folder that only this user can access, until it is removed or the process ends."""

    def __init__(self, path: pathlib.Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, prefix: str) -> TemporaryFolder:
        """Create a folder in the system's folder for temporary files.

        Raises:
            OSError: No folder could be created.
        """
        for _ in range(_ATTEMPTS):
            path = pathlib.Path(tempfile.mkdtemp(prefix=prefix))
            lock = _lock_new(path)
            if lock is not None:
                return cls(path, lock)
        raise OSError(f"{_ATTEMPTS} new folders beside '{path}' were removed by other processes")

    def remove(self) -> None:
        """Remove the folder with its contents; errors are ignored."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def __repr__(self) -> str:
        return f"<TemporaryFolder {self.path}>"


def remove_abandoned(prefix: str) -> list[pathlib.Path]:
    """Remove this user's folders with a prefix that no process owns; returns the removed ones."""
    parent = pathlib.Path(tempfile.gettempdir())
    return [path for path in parent.glob(f"{prefix}*") if _was_abandoned(path)]


def _was_abandoned(path: pathlib.Path) -> bool:
    try:
        return _remove_if_abandoned(path)
    except OSError as error:  # another user owns it, or another process removes it just now
        logger.debug("'%s' is left as it is: %s", path, error)
        return False


def _lock_new(path: pathlib.Path) -> int | None:
    """Lock a new folder; returns None if another process considers it abandoned."""
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
            path.rmdir()  # its process ended at once; fails, as it should, if it has any files
            return True
    finally:
        os.close(folder)
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)  # does not follow links
            return True
        return False
    finally:
        os.close(lock)
