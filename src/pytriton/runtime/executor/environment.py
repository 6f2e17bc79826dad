# SPDX-License-Identifier: Apache-2.0
"""Finds, and if necessary unpacks, the Python that a model requests with EXECUTION_ENV_PATH.

Archives may be hostile. Files and folders are created first, each under an unused name, and
symbolic links last. So nothing is ever written through a link, whatever the names and targets of an
archive's links are. `tarfile` reads the archive, but its extraction methods are not used, because
their checks differ between Python releases. It also reads as much as the headers of an archive
request, gigabytes at once and the same bytes repeatedly, so it gets a stream with limits.

An unpacked environment is in a temporary folder, whose owner holds a lock on a file inside it. The
system releases the lock however the process ends: a folder whose lock can be acquired is abandoned.
"""

from __future__ import annotations

import bz2
import contextlib
import fcntl
import gzip
import hashlib
import logging
import lzma
import os
import pathlib
import shutil
import stat
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Mapping
from typing import IO, cast

import msgspec
from msgspec import structs

from pytriton.base.errors import InternalError

logger = logging.getLogger(__name__)

MAX_HOPS = 40  # Linux follows no more; opening a longer chain, or a cycle, fails
MAX_STEPS = 20_000_000  # for all links of an archive together; thousands are usual
_CHUNK_BYTES = 1 << 20
MAX_UNPACKED_BYTES = 64 << 30
MAX_ENTRIES = 500_000  # an environment with a deep learning framework has about 50,000
MAX_DEPTH = 100
MAX_NAME_BYTES = 4096
MAX_DESCRIPTION_BYTES = 4 << 20  # per entry: its headers, long names and sparse file maps
_MAX_TIME_S = 1 << 33
# Raised by `tarfile` and the decompressors; ValueError is for names that the system rejects.
_READ_ERRORS = (tarfile.TarError, OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_LOCK_NAME = "owner.lock"
_LOCK_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_ATTEMPTS = 10
PARAMETER = "EXECUTION_ENV_PATH"
MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_PREFIX = "pytriton-environments-"


class LinkCheck:
    """Follows links (a mapping from name to target) and checks that none leaves their folder."""

    def __init__(self, links: Mapping[str, str]) -> None:
        self._links = links
        self._steps = 0

    def require_inside(self, name: str) -> None:
        """Refuse a link whose path leaves the folder at any step, also through other links.

        Raises:
            InternalError: The link leaves the folder, or following all links takes too many steps.
        """
        place = name.split("/")[:-1]  # the folder that the path has reached; contains no links
        pending = self._parts(name)
        hops = 1
        while pending:
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise InternalError("Following its links takes too many steps")
            part = pending.pop()
            if part == ".." and not place:
                raise InternalError(
                    f"'{name}' leads out of the environment, to '{self._links[name]}'"
                )
            if part == "..":
                place.pop()
                continue
            place.append(part)
            if "/".join(place) in self._links:
                hops += 1
                if hops > MAX_HOPS:
                    return
                pending += self._parts("/".join(place))
                place.pop()

    def _parts(self, name: str) -> list[str]:
        """Returns the parts of a link's target, the last one first."""
        target = self._links[name]
        if target.startswith("/"):
            raise InternalError(f"'{name}' leads out of the environment, to '{target}'")
        return [part for part in reversed(target.split("/")) if part not in ("", ".")]


class ArchiveStream:
    """The methods of a file object that `tarfile` uses."""

    def __init__(self, file: IO[bytes], limit_message: str) -> None:
        self._file = _decompressed(file)
        self._is_compressed = self._file is not file
        self._limit_message = limit_message
        self._allowed = 0
        self._position = 0

    def allow(self, size: int) -> None:
        """Set how many bytes may be read from now on."""
        self._allowed = size

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes; returns fewer only at the end of the archive.

        Raises:
            InternalError: `size` is more than the bytes that are still allowed.
        """
        self._count(size)
        data = self._file.read(size)
        self._position += len(data)
        return data

    def tell(self) -> int:
        """Returns how many bytes were read or skipped."""
        return self._position

    def seek(self, position: int) -> None:
        """Skip bytes up to a position.

        Raises:
            InternalError: The position was passed already, or is further away than is allowed.
        """
        if position < self._position:
            raise InternalError("Its entries overlap")
        if not self._is_compressed:
            self._file.seek(position)
            self._position = position
            return
        while position > self._position and self.read(min(position - self._position, _CHUNK_BYTES)):
            pass

    def close(self) -> None:
        """Do nothing: the caller closes the file that it opened."""

    def _count(self, size: int) -> None:
        if not 0 <= size <= self._allowed:
            raise InternalError(self._limit_message)
        self._allowed -= size


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    start = file.read(6)
    file.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    if start.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if start.startswith((b"\xfd7zXZ\0", b"\x5d\0\0")):
        return lzma.LZMAFile(file)
    return file


def is_archive(path: pathlib.Path) -> bool:
    """Returns whether a file begins like a tar archive, compressed or not."""
    try:
        with path.open("rb") as file:
            stream = ArchiveStream(file, "")
            stream.allow(tarfile.BLOCKSIZE)
            tarfile.TarInfo.frombuf(stream.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
    except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # an archive without entries
        return True
    except _READ_ERRORS:
        return False
    return True


def unpack(archive_path: pathlib.Path, folder: pathlib.Path) -> None:
    """Unpack a tar archive, compressed or not, into an empty folder.

    Raises:
        InternalError: The archive is broken or too large, or an entry would leave the folder.
    """
    failure = f"Failed to extract '{archive_path}'"
    try:
        with archive_path.open("rb") as file:
            stream = ArchiveStream(
                file, f"The description of an entry is longer than {MAX_DESCRIPTION_BYTES} bytes"
            )
            stream.allow(MAX_DESCRIPTION_BYTES)
            with tarfile.TarFile(fileobj=stream) as archive:  # type: ignore[arg-type]  # all it uses
                _Unpacker(archive, stream, os.path.realpath(folder)).run()
    except InternalError as error:
        raise InternalError(f"{failure}: {error.message}") from error
    except RecursionError as error:
        raise InternalError(f"{failure}: Its headers are nested too deeply") from error
    except _READ_ERRORS as error:
        raise InternalError(f"{failure}: {error}") from error


class _Unpacker:
    """Unpacks one archive into one folder. Names are normalised and relative to the folder."""

    def __init__(self, archive: tarfile.TarFile, stream: ArchiveStream, root: str) -> None:
        self._archive = archive
        self._stream = stream
        self._root = root
        self._free_bytes = min(MAX_UNPACKED_BYTES, shutil.disk_usage(root).free)
        self._folders = {""}
        self._files: set[str] = set()
        self._links: dict[str, str] = {}  # created after all files were written

    def run(self) -> None:
        count = 0
        while (member := self._archive.next()) is not None:
            self._archive.members.clear()  # type: ignore[attr-defined]  # or it keeps every member
            count += 1
            if max(count, len(self._folders)) > MAX_ENTRIES:
                raise InternalError(f"It has more than {MAX_ENTRIES} entries")
            self._extract(member)
            self._stream.allow(MAX_DESCRIPTION_BYTES)
        check = LinkCheck(self._links)
        for name in self._links:
            check.require_inside(name)
        for name, target in self._links.items():
            os.symlink(target, self._path(name))  # noqa: PTH211  as everywhere here

    def _extract(self, member: tarfile.TarInfo) -> None:
        name = _normal_name(member.name)
        if member.isdir():
            self._make_folder(name, member)
            return
        if not (member.isreg() or member.issym() or member.islnk()):
            raise InternalError(f"'{name}' is neither a file nor a folder nor a link")
        self._require_new(name)
        self._make_parents(name)
        if member.issym():
            self._links[name] = _validated(member.linkname)
        elif member.islnk():
            self._make_hard_link(name, _normal_name(member.linkname))
        else:
            self._make_file(name, member)

    def _make_folder(self, name: str, member: tarfile.TarInfo) -> None:
        if name in self._files or name in self._links:
            raise InternalError(f"'{name}' occurs twice")
        self._make_parents(f"{name}/")
        if name:
            # The owner can always change and remove the folder, other users never can.
            os.chmod(self._path(name), member.mode & 0o755 | 0o700)  # noqa: PTH101  30,000 files

    def _make_parents(self, name: str) -> None:
        parent = name.rpartition("/")[0]
        if parent in self._folders:
            return
        if parent in self._files or parent in self._links:
            raise InternalError(f"'{name}' is inside '{parent}', which is not a folder")
        self._make_parents(parent)
        os.mkdir(self._path(parent), 0o755)  # noqa: PTH102  30,000 files
        self._folders.add(parent)

    def _require_new(self, name: str) -> None:
        if name in self._files or name in self._links or name in self._folders:
            raise InternalError(f"'{name}' occurs twice")

    def _make_hard_link(self, name: str, target: str) -> None:
        if target in self._links:  # a symbolic link under a second name
            self._links[name] = self._links[target]
        elif target in self._files:
            os.link(self._path(target), self._path(name))
            self._files.add(name)
        else:
            raise InternalError(f"'{name}' is a hard link to '{target}', which is no earlier file")

    def _make_file(self, name: str, member: tarfile.TarInfo) -> None:
        if member.size < 0 or member.size > self._free_bytes:
            raise InternalError(
                f"It needs more than the free disk space, or than {MAX_UNPACKED_BYTES} bytes"
            )
        self._free_bytes -= member.size
        self._stream.allow(member.size)
        content = self._archive.extractfile(member)
        assert content is not None
        descriptor = os.open(self._path(name), _CREATE, 0o600)
        self._files.add(name)
        with os.fdopen(descriptor, "wb") as file, content:
            _copy(content, file, member.size)
            file.flush()  # a later write would change the file's time again
            # Drops setuid and setgid, and the right of group and others to write.
            os.chmod(descriptor, member.mode & 0o755 | 0o600)  # noqa: PTH101
            time_s = min(max(member.mtime, 0), _MAX_TIME_S)
            os.utime(descriptor, (time_s, time_s))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def _copy(content: IO[bytes], file: IO[bytes], size: int) -> None:
    while size:
        chunk = content.read(min(size, _CHUNK_BYTES))
        if not chunk:
            raise EOFError("It ends within a file")
        file.write(chunk)
        size -= len(chunk)


def _normal_name(text: str) -> str:
    """Returns a name without redundant parts like `./`; the name of the folder itself is ''."""
    name = pathlib.PurePosixPath(_validated(text))
    if name.is_absolute():
        raise InternalError(f"Path is absolute: '{text}'")
    if ".." in name.parts:
        raise InternalError(f"Path contains '..': '{text}'")
    if len(name.parts) > MAX_DEPTH:
        raise InternalError(f"Path has more than {MAX_DEPTH} parts: '{text[:80]}...'")
    return "/".join(name.parts)


def _validated(text: str) -> str:
    if len(os.fsencode(text)) > MAX_NAME_BYTES:
        raise InternalError(f"Path is longer than {MAX_NAME_BYTES} bytes: '{text[:80]}...'")
    if "\0" in text or not text:
        raise InternalError(f"Path is empty or has a zero byte: {text!r}")
    return text


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


class PythonEnvironment(msgspec.Struct, frozen=True):
    """An interpreter, and environment variables that its processes get in addition."""

    interpreter: str
    variables: dict[str, str]
    is_unpacked: bool = False  # it is a folder that the server has made, of an archive


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
        path = pathlib.Path(setting.replace(MODEL_DIRECTORY, model_directory)).absolute()
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
                unpacked = _describe_folder(self._unpacked(path))
                return structs.replace(unpacked, is_unpacked=True)
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
                while chunk := file.read(_CHUNK_BYTES):
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
