# SPDX-License-Identifier: Apache-2.0
"""The server's side of signed models: private copies of them, and the process that verifies these.

All methods may take long, so they are called in threads.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from pytriton.base.errors import InternalError, InvalidArgumentError, UnavailableError
from pytriton.base.package import IMPORT_FOLDER
from pytriton.serving.repository.reading.layout import FileHolder, ModelPlace, is_inside
from pytriton.serving.repository.remote.copies import LocalCopies, LocalCopy
from pytriton.serving.repository.signing.signers import DEFAULT_SIGNATURE, Signers, SigningSettings
from pytriton.serving.repository.signing.verification import (
    MAX_SIGNATURE_BYTES,
    Answer,
    Question,
)

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


logger = logging.getLogger(__name__)

MAX_PROCESSES = 2  # at a time: each has 85 MB and takes a core for a second
PACKAGE = "model_signing"
INSTALL = "pip install 'pytriton[signing]'"
_BOOTSTRAP = (
    "import sys; sys.path[0] = sys.argv.pop(1); "
    "from pytriton.serving.repository.signing.verification import main; main()"
)
_MAX_ERROR_CHARACTERS = 2000


class PrivatePlace(ModelPlace, frozen=True):
    """A copy of a model that nobody but this server can change."""

    copy: LocalCopy
    original: ModelPlace

    @property
    def is_private(self) -> bool:
        return True

    @property
    def is_renamed(self) -> bool:
        return self.original.is_renamed

    def holder(self) -> FileHolder | None:
        return self.copy

    def abandon(self) -> None:
        self.copy.abandon()
        self.original.abandon()

    @property
    def sharing(self) -> str:
        return (
            "the server has copied the model, whose signature it has verified; to run it on Ray, "
            "set the variable TMPDIR of the server to a folder that all nodes share"
        )

    def explain(self, text: str) -> str:
        return self.original.explain(
            text.replace(str(self.directory), str(self.original.directory))
        )


class SignatureVerifier:
    """Verifies signatures of models."""

    def __init__(self, settings: SigningSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._copies: LocalCopies | None = None
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # by their ids
        self._is_stopped = False
        self._slots = threading.BoundedSemaphore(MAX_PROCESSES)

    @property
    def has_copies(self) -> bool:
        """Whether it has a folder with copies, which `close` removes."""
        return self._copies is not None

    def private_copy(self, place: ModelPlace) -> ModelPlace:
        """Returns a place that nobody else can change, with the files of the given one."""
        if place.is_private:
            return place
        copy = self._open_copies().new(place.directory.name)
        try:
            copy_folder(place.directory, copy.directory, self._check_running)
        except BaseException:
            copy.abandon()
            raise
        return PrivatePlace(copy.directory.parent, copy.directory, copy, place)

    def verify(
        self, name: str, place: ModelPlace, signers: Signers, signature: str = DEFAULT_SIGNATURE
    ) -> None:
        """Verify a private place, and remove the files that its signature does not cover.

        Raises:
            InvalidArgumentError: The signature is missing, or does not count.
            InternalError: It could not be verified.
        """
        assert place.is_private, "what others can change is not worth verifying"
        expected = f"expected a valid signature by {signers.words} in '{signature}'"
        _check_signature_file(place.directory, signature, expected)
        answer = self._ask(Question(str(place.directory), signature, signers))
        if answer.problem:
            raise InvalidArgumentError(f"{expected}, got {answer.problem}")
        _remove_unsigned(place.directory, {*answer.files, os.path.normpath(signature)})
        logger.info(
            "the signature of model '%s' is valid; it was signed by %s",
            name,
            answer.signer,
        )

    def stop(self) -> None:
        """End what is being verified; nothing is verified from now on."""
        with self._lock:
            self._is_stopped = True
            for process in self._processes.values():
                process.kill()

    def close(self) -> None:
        """Remove all copies; may be called twice."""
        self.stop()
        with self._lock:
            copies, self._copies = self._copies, None
        if copies is not None:
            copies.close()

    def _open_copies(self) -> LocalCopies:
        with self._lock:
            if self._copies is None:
                copies = LocalCopies()
                copies.open()
                self._copies = copies
            return self._copies

    def _check_running(self) -> None:
        if self._is_stopped:
            raise UnavailableError("Server exiting")

    def _ask(self, question: Question) -> Answer:
        if importlib.util.find_spec(PACKAGE) is None:
            raise InternalError(f"signatures of models need the package model-signing: {INSTALL}")
        with self._slots:
            return self._ask_process(question)

    def _ask_process(self, question: Question) -> Answer:
        with self._lock:
            self._check_running()
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, IMPORT_FOLDER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            self._processes[process.pid] = process
        try:
            output, errors = process.communicate(msgspec.json.encode(question))
        finally:
            with self._lock:
                del self._processes[process.pid]
        self._check_running()
        if process.returncode:
            text = errors.decode(errors="replace")[-_MAX_ERROR_CHARACTERS:]
            raise InternalError(
                f"the process that verifies signatures ended with {process.returncode}: {text}"
            )
        return msgspec.json.decode(output, type=Answer)


def _check_signature_file(folder: Path, signature: str, expected: str) -> None:
    if not is_inside(signature):
        raise InvalidArgumentError(
            f"expected the path of a signature in the model's folder, got '{signature}'"
        )
    try:
        status = (folder / signature).lstat()
    except OSError as error:
        raise InvalidArgumentError(f"{expected}, got no such file: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgumentError(f"{expected}, got something that is no file")
    if status.st_size > MAX_SIGNATURE_BYTES:
        raise InvalidArgumentError(
            f"{expected}, got a file of {status.st_size} bytes; at most {MAX_SIGNATURE_BYTES} "
            "are read"
        )


def _remove_unsigned(folder: Path, signed: set[str]) -> None:
    """Remove the files that the signer has left out, such as those of version control."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path.relative_to(folder).as_posix() not in signed:
                path.unlink()
