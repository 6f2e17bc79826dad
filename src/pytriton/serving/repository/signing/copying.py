# SPDX-License-Identifier: Apache-2.0
"""Copies a model's folder, so that nobody can change what was verified before it is loaded.

The folder may belong to somebody who changes it meanwhile: it is walked by descriptors, and what
is not a plain file or folder is refused. A copy has no links.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from pytriton.base.errors import InternalError, InvalidArgumentError

_CHUNK_BYTES = 1 << 20
MAX_FILES = 100_000
MAX_DEPTH = 64  # of folders in each other
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Opening a pipe must not wait for its writer.
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def copy_folder(source: Path, target: Path, check: Callable[[], None] = lambda: None) -> None:
    """Copy a folder into an empty one that only this user can enter.

    Args:
        source: The folder. It may be a link itself.
        target: The empty folder.
        check: Called between pieces; it may raise an exception to end the copy.

    Raises:
        InvalidArgumentError: Something in the folder cannot be part of a signed model.
        InternalError: The folder cannot be read, or the copy cannot be written.
    """
    copying = _Copying(source, target, check)
    try:
        descriptor = os.open(source, _DIRECTORY)
        with _closing(descriptor):
            copying.copy(descriptor, Path())
    except OSError as error:
        raise InternalError(
            f"failed to copy '{error.filename}' of '{source}' to verify its signature: "
            f"{error.strerror}"
        ) from error


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _Copying:
    """One copy of a folder."""

    def __init__(self, source: Path, target: Path, check: Callable[[], None]) -> None:
        self._source, self._target, self._check = source, target, check
        self._root = Path(os.path.realpath(source))
        self._free_bytes = shutil.disk_usage(target).free
        self._bytes = 0
        self._entries = 0

    def copy(self, folder: int, path: Path) -> None:
        """Copy what is in a folder, given by its descriptor and its path in the model."""
        if len(path.parts) > MAX_DEPTH:
            raise InvalidArgumentError(
                f"expected at most {MAX_DEPTH} folders in each other in a signed model, "
                f"got more: '{path}'"
            )
        with os.scandir(folder) as found:
            names = sorted(entry.name for entry in found)
        for name in names:
            self._count()
            self._copy_entry(folder, name, path / name)

    def _count(self) -> None:
        self._entries += 1
        if self._entries > MAX_FILES:
            raise InvalidArgumentError(
                f"expected at most {MAX_FILES} files in the folder of a signed model, got more"
            )

    def _copy_entry(self, folder: int, name: str, path: Path) -> None:
        mode = os.lstat(name, dir_fd=folder).st_mode
        if stat.S_ISDIR(mode):
            (self._target / path).mkdir(mode=0o700)
            with _closing(os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)) as inner:
                self.copy(inner, path)
        elif stat.S_ISLNK(mode):
            with _closing(os.open(self._linked(folder, name, path), _FILE)) as file:
                self._copy_file(file, path)
        else:
            with _closing(os.open(name, _FILE | os.O_NOFOLLOW, dir_fd=folder)) as file:
                self._copy_file(file, path)

    def _linked(self, folder: int, name: str, path: Path) -> Path:
        """Returns the file in the model's folder that a link leads to."""
        written = os.readlink(name, dir_fd=folder)
        target = Path(os.path.realpath(self._root / path))
        if not target.is_relative_to(self._root):
            raise InvalidArgumentError(
                f"expected links in the folder of a signed model to stay in it, got '{path}', "
                f"which leads to '{written}'"
            )
        if target.is_dir():
            raise InvalidArgumentError(
                "expected links in the folder of a signed model to lead to files, got "
                f"'{path}', which leads to the folder '{written}'"
            )
        return target

    def _copy_file(self, file: int, path: Path) -> None:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgumentError(
                f"expected files and folders in the folder of a signed model, got '{path}', "
                "which is neither"
            )
        self._bytes += status.st_size
        if self._bytes > self._free_bytes:
            raise InternalError(
                f"failed to copy '{self._source}' to verify its signature: it has more bytes than "
                f"are free in '{self._target.parent}' ({self._free_bytes}); the variable TMPDIR "
                "of the server names another folder"
            )
        # Read-only, but executable if it was.
        mode = 0o400 | (status.st_mode & 0o100)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with _closing(os.open(self._target / path, flags, mode)) as copy:
            self._copy_bytes(file, copy, status.st_size)

    def _copy_bytes(self, file: int, copy: int, size: int) -> None:
        """Copy not more than the size of a file, which may grow meanwhile."""
        while size > 0:
            self._check()
            chunk = memoryview(os.read(file, min(size, _CHUNK_BYTES)))
            if not chunk:
                return  # it has shrunk; its digest will tell
            size -= len(chunk)
            while chunk:
                chunk = chunk[os.write(copy, chunk) :]
