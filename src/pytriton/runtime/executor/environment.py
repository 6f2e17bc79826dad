# SPDX-License-Identifier: Apache-2.0
"""Finds, and if necessary unpacks, the Python that a model requests with EXECUTION_ENV_PATH."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import pathlib
import shutil
import stat
import tempfile
import threading

import msgspec

from pytriton.base.errors import InternalError
from pytriton.runtime.executor.archives import is_archive, unpack

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


PARAMETER = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_PREFIX = "pytriton-environments-"
_HASH_CHUNK_BYTES = 1 << 20


class PythonEnvironment(msgspec.Struct, frozen=True):
    """An interpreter, and environment variables that its processes get in addition."""

    interpreter: str
    variables: dict[str, str]


class EnvironmentStore:
    """The Python environments of this server; archives are unpacked into a private folder.

    All methods may block for long, so call them from threads. They are thread-safe.
    """

    def __init__(self) -> None:
        self._folder: TemporaryFolder | None = None
        self._lock = threading.Lock()
        self._archive_locks: dict[str, threading.Lock] = {}
        self._digests: dict[tuple[str, int, int], str] = {}

    def resolve(
        self, setting: str, model_directory: str, *, unpacks: bool = True
    ) -> PythonEnvironment:
        """Returns the environment that a model's parameter names.

        Args:
            setting: The path of an archive, a folder or an interpreter.
            model_directory: Replaces `$$TRITON_MODEL_DIRECTORY` in the path.
            unpacks: Whether an archive is unpacked; the processes of other machines would not see
                what is unpacked here, so they need a folder.

        Raises:
            InternalError: The path does not exist, or has no usable environment.
        """
        path = pathlib.Path(setting.replace(_MODEL_DIRECTORY, model_directory)).absolute()
        try:
            if path.is_dir():
                return _describe_folder(path)
            if not path.exists():
                raise InternalError(f"The {PARAMETER} '{path}' does not exist.")
            if is_archive(path):
                if not unpacks:
                    raise InternalError(
                        f"The {PARAMETER} '{path}' is an archive. For a model that runs on Ray, "
                        "unpack it in a folder that all nodes share, and name that folder."
                    )
                return _describe_folder(self._unpacked(path))
        except OSError as error:
            raise InternalError(f"The {PARAMETER} '{path}' cannot be read: {error}") from error
        if not os.access(path, os.X_OK):
            raise InternalError(
                f"The {PARAMETER} '{path}' is neither an archive (tar.gz) nor a folder nor an "
                "interpreter that can be executed."
            )
        return _describe(path, path.parent.parent)

    def close(self) -> None:
        """Remove the unpacked environments."""
        with self._lock:
            folder, self._folder = self._folder, None
        if folder is not None:
            folder.remove()

    @staticmethod
    def remove_abandoned() -> None:
        """Remove environments that killed servers of this user have left behind."""
        for path in remove_abandoned(_PREFIX):
            logger.info("removed '%s', left behind by a server that was killed", path)

    def _unpacked(self, archive: pathlib.Path) -> pathlib.Path:
        digest = self._digest(archive)
        with self._lock:
            if self._folder is None:
                self._folder = TemporaryFolder.create(_PREFIX)
            target = self._folder.path / digest
            archive_lock = self._archive_locks.setdefault(digest, threading.Lock())
        with archive_lock:
            if not target.exists():
                partial = target.with_suffix(".partial")
                partial.mkdir()
                try:
                    unpack(archive, partial)
                    partial.rename(target)
                except BaseException:
                    shutil.rmtree(partial, ignore_errors=True)
                    raise
        return target

    def _digest(self, archive: pathlib.Path) -> str:
        status = archive.stat()
        key = (str(archive), status.st_size, status.st_mtime_ns)
        if key not in self._digests:
            digest = hashlib.sha256()
            with archive.open("rb") as file:
                while chunk := file.read(_HASH_CHUNK_BYTES):
                    digest.update(chunk)
            self._digests[key] = digest.hexdigest()
        return self._digests[key]


def _describe_folder(folder: pathlib.Path) -> PythonEnvironment:
    activate = folder / "bin" / "activate"
    if not activate.exists():
        raise InternalError(
            f"Path {activate} does not exist. The Python environment should contain an "
            "'activate' script."
        )
    for name in ("python", "python3"):
        interpreter = folder / "bin" / name
        if os.access(interpreter, os.X_OK):
            return _describe(interpreter, folder)
    raise InternalError(
        f"Path {folder / 'bin' / 'python'} does not exist or cannot be executed. The Python "
        "environment should contain an interpreter."
    )


def _describe(interpreter: pathlib.Path, prefix: pathlib.Path) -> PythonEnvironment:
    variables = {"PATH": _prepend(interpreter.parent, os.environ.get("PATH", ""))}
    if (prefix / "bin" / "activate").exists():
        libraries = os.environ.get("LD_LIBRARY_PATH", "")
        variables["VIRTUAL_ENV"] = str(prefix)
        variables["VIRTUAL_ENV_PROMPT"] = f"({prefix.name})"
        variables["LD_LIBRARY_PATH"] = _prepend(prefix / "lib", libraries)
    return PythonEnvironment(str(interpreter), variables)


def _prepend(folder: pathlib.Path, paths: str) -> str:
    return f"{folder}{os.pathsep}{paths}" if paths else str(folder)
