# SPDX-License-Identifier: Apache-2.0
"""The files of a policy: reads them, notices changes, and writes the keys."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from pytriton.base.background_tasks import BackgroundTasks, call_driver
from pytriton.serving.server.access.keys import KeyRecord, KeysError, keys_text, parse_keys
from pytriton.serving.server.access.policy import Policy, PolicyDocument, PolicyError, parse_policy

logger = logging.getLogger(__name__)

LOOK_S = 0.5  # between two looks at the files
_MAX_BYTES = 16 << 20  # of each of them
_KEYS_MODE = 0o600

# What tells that files have changed: of each, its place, number, size and time; None if missing.
Marks = tuple[tuple[str, tuple[int, int, int, int] | None], ...]


class PolicyFiles(msgspec.Struct, frozen=True):
    """A policy that was read, and the marks of its files before that."""

    policy: Policy
    marks: Marks


def read_document(path: Path) -> PolicyDocument:
    """Read the file of a policy; not those that it names.

    Raises:
        PolicyError: It cannot be read, or is no policy.
    """
    return parse_policy(_text(path), str(path), is_json=path.suffix.lower() == ".json")


def keys_path(path: Path, document: PolicyDocument) -> Path:
    """Returns where the keys of a policy are."""
    return path.parent / (document.keys_file or f"{path.stem}.keys.json")


def private_files(path: Path) -> list[str]:
    """Returns the files of a policy that are nobody's business but the server's."""
    try:
        document = read_document(path)
    except PolicyError:  # a server does not start with it
        return [str(path)]
    return [str(path), str(keys_path(path, document))]


def read_keys(path: Path) -> dict[str, KeyRecord]:
    """Read the keys of a file; one that is missing has none.

    Raises:
        PolicyError: It cannot be read, or has no keys.
    """
    try:
        return parse_keys(_text(path, may_miss=True), str(path))
    except FileNotFoundError:
        return {}
    except KeysError as error:
        raise PolicyError(str(error)) from None


def read_policy(path: Path) -> PolicyFiles:
    """Read a policy and the files that it names.

    Raises:
        PolicyError: One of them cannot be read, or is wrong.
    """
    marks = [_mark(path)]  # before reading: a change meanwhile is then seen at the next look
    document = read_document(path)
    keys_file = keys_path(path, document)
    marks.append(_mark(keys_file))
    keys = read_keys(keys_file)
    policy = document.policy
    issuers = []
    for issuer, file in zip(policy.issuers, document.jwks_files, strict=True):
        if file:
            place = path.parent / file
            marks.append(_mark(place))
            issuers.append(msgspec.structs.replace(issuer, jwks=_jwks(place)))
        else:
            issuers.append(issuer)
    # Last, because files that cannot be read are tried again twice a second.
    for key in keys.values():
        if key.principal not in policy.principals and key.revoked_s is None:
            logger.warning(
                "%s: the key %s is of the principal %s, which %s does not have",
                *(keys_file, key.id, ascii(key.principal), path),
            )
    policy = msgspec.structs.replace(policy, keys=keys, issuers=tuple(issuers))
    return PolicyFiles(policy, tuple(marks))


def _jwks(path: Path) -> str:
    text = _text(path)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{path} is no JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise PolicyError(f"{path}: expected a set of keys, an object with the list keys")
    return text


def _text(path: Path, *, may_miss: bool = False) -> str:
    """Returns the text of a file; raises FileNotFoundError if it is missing and may be."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise PolicyError(f"{path}: expected at most {_MAX_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        if may_miss and isinstance(error, FileNotFoundError):
            raise
        raise PolicyError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise PolicyError(f"{path} is no text of UTF-8: {error}") from None


def _mark(path: Path) -> tuple[str, tuple[int, int, int, int] | None]:
    try:
        found = path.stat()
    except OSError:
        return str(path), None
    return str(path), (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class PolicyWatch:
    """Reads a policy again when one of its files has changed.

    A policy that cannot be read changes nothing: the former one stays.
    """

    def __init__(self, path: Path, files: PolicyFiles) -> None:
        self._path = path
        self.policy = files.policy
        self._marks = files.marks
        self.failure = ""  # why the files are no policy now; empty: they are
        self.failure_count = 0
        self._listeners: list[Callable[[Policy], None]] = []
        self._tasks: BackgroundTasks | None = None

    def add(self, listener: Callable[[Policy], None]) -> None:
        """Call `listener` with every new policy."""
        self._listeners.append(listener)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to look at the files now and then."""
        self._tasks = BackgroundTasks(loop)
        self._tasks.start(self._watch())

    def stop(self) -> None:
        """Look no more."""
        if self._tasks is not None:
            self._tasks.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                # In a thread of its own: a file system may hang, and so may what others wait for.
                found = await call_driver(self._read_if_changed)
                if found is not None:
                    self._on_read(found)
            except PolicyError as error:
                self._on_failure(error)
            except Exception:  # the next change must be noticed, whatever this one does
                logger.exception("the files of the policy could not be looked at")

    def look(self) -> None:
        """Look at the files now."""
        try:
            found = self._read_if_changed()
        except PolicyError as error:
            self._on_failure(error)
        else:
            if found is not None:
                self._on_read(found)

    def _read_if_changed(self) -> PolicyFiles | None:
        marks = tuple(_mark(Path(place)) for place, _ in self._marks)
        # A file that could not be read is not among them if the policy did not name it before.
        if marks == self._marks and not self.failure:
            return None
        return read_policy(self._path)

    def _on_failure(self, error: PolicyError) -> None:
        if str(error) == self.failure:
            return
        self.failure = str(error)
        self.failure_count += 1
        logger.error("The former policy stays in force: %s", error)

    def _on_read(self, files: PolicyFiles) -> None:
        self._marks, self.failure = files.marks, ""
        if files.policy == self.policy:
            return
        self.policy = files.policy
        logger.info("The policy of %s is in force", self._path)
        for tell in self._listeners:
            tell(files.policy)


# Writing


@contextlib.contextmanager
def changed_keys(path: Path) -> Iterator[dict[str, KeyRecord]]:
    """Yields the keys of a file, and writes them back, in one step for all who read it.

    Nobody else changes them meanwhile.

    Raises:
        PolicyError: The file cannot be read.
        OSError: It cannot be written.
    """
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_CREAT | os.O_RDWR, _KEYS_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keys = read_keys(path)
        yield keys
        _write(path, keys_text(keys.values()))
    finally:
        os.close(lock)


def _write(path: Path, text: str) -> None:
    # Its mode is 0600 from the start. A link stays one: the file that it names is replaced.
    path = path.resolve()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():  # a server that runs as another user of a group can read on
            found = path.stat()
            Path(name).chmod(found.st_mode & 0o660)
            with contextlib.suppress(PermissionError):
                os.chown(name, found.st_uid, found.st_gid)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
