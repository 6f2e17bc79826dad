# SPDX-License-Identifier: Apache-2.0
"""Compiles a C file of this package when it is first needed, and keeps the library.

Machines that serve models often have no compiler, so what uses this must work without it. The
library is kept in a folder of the user, under a name that says what it was made of.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from pytriton.constants import PYTRITON_HOME

_ROOT = 0
_MODE = 0o755  # others may read and load it, as in an image that root has made
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")


class NoCompilerError(Exception):
    """There is no C compiler on this machine."""


class CompiledCodeError(Exception):
    """A file cannot be compiled, kept or loaded here; the text says why."""


def load_compiled(source: Path, folder: Path = PYTRITON_HOME / "compiled_code") -> ctypes.CDLL:
    """Load the library of a C file; compile it first if the folder does not have it.

    Raises:
        NoCompilerError: It would have to be compiled, and there is no compiler.
        CompiledCodeError: Something else prevents it.
    """
    path = folder / f"{source.stem}-{_digest(source)}.so"
    if not path.is_absolute():
        raise CompiledCodeError("the user has no home folder")
    try:
        if not path.exists():
            _compile(source, path)
        _check_owner(folder, path)
        try:
            return ctypes.CDLL(str(path))
        except OSError:  # a file that a crash of the machine has cut short
            _compile(source, path)
            return ctypes.CDLL(str(path))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EROFS):  # as in a sandbox
            return _load_unkept(source)
        raise CompiledCodeError(str(error)) from error


def _load_unkept(source: Path) -> ctypes.CDLL:
    """Compile a file for this process alone, which may not write to the user's folder."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{source.stem}.so"
            _compile(source, path)
            return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompiledCodeError(str(error)) from error


def _digest(source: Path) -> str:
    """Returns a name for the file, the compiler's options and the kind of machine."""
    digest = hashlib.sha256(source.read_bytes())
    system = (os.uname().machine, os.confstr("CS_GNU_LIBC_VERSION"), _FLAGS)
    digest.update(repr(system).encode())
    return digest.hexdigest()[:16]


def _check_owner(folder: Path, path: Path) -> None:
    """Refuse to load what another user may have written."""
    for place in (folder, path):
        status = place.stat()
        if status.st_uid not in (os.geteuid(), _ROOT) or status.st_mode & 0o022:
            raise CompiledCodeError(f"other users can write to {place}")


def _compile(source: Path, path: Path) -> None:
    command = shlex.split(os.environ.get("CC", "cc"))
    if not command or shutil.which(command[0]) is None:
        raise NoCompilerError(f"there is no C compiler {command[0] if command else ''!r}")
    path.parent.mkdir(mode=_MODE, parents=True, exist_ok=True)
    # Other processes see the whole file or none: several may compile it at the same time.
    descriptor, unfinished = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(descriptor)
    try:
        done = subprocess.run(
            [*command, *_FLAGS, str(source), "-o", unfinished],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            raise CompiledCodeError(f"{command[0]} failed: {done.stderr.strip()}")
        Path(unfinished).chmod(_MODE)
        Path(unfinished).replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)  # noqa: PTH108  beside `mkstemp`, which has a path as text
