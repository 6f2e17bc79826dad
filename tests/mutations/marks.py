# SPDX-License-Identifier: Apache-2.0
"""Writes down which test files reach a place; marked copies of the source call it.

The nearest ancestor in which tests run says which file that is now: `watching.py` keeps it there.
The environment of a server has the test that started it, perhaps long ago. The simulated machine
replaces what is in `os`, so this uses what lies below it.
"""

from __future__ import annotations

import pathlib
import posix

FOLDER = str(pathlib.Path(__file__).resolve().parent.parent / "reached")
UNKNOWN = "?"

_seen: set[tuple[int, int, str]] = set()
_process = _test_process = 0


def mark(number: int) -> None:
    """Note that this place runs for the test file of now."""
    global _process, _test_process
    process = posix.getpid()
    try:
        if process != _process:
            # In a new namespace there is nothing above it: then it is as for the process before.
            _process, _test_process = process, _above(process) or _test_process
        file = _open(f"{FOLDER}/{_test_process}").decode() if _test_process else UNKNOWN
        if (process, number, file) not in _seen:
            _seen.add((process, number, file))
            where = "test" if process == _test_process else "child"
            _open(f"{FOLDER}/log", f"{number}\t{file}\t{where}\n".encode())
    except OSError:
        return  # a confined process sees no such files; models run without confinement, too


def _above(process: int) -> int:
    """The nearest process in which tests run, or 0."""
    while process > 1 and not posix.access(f"{FOLDER}/{process}", posix.F_OK):
        process = int(_open(f"/proc/{process}/stat").rpartition(b")")[2].split()[1])
    return process if process > 1 else 0


def _open(path: str, line: bytes = b"") -> bytes:
    """What a small file has, or append a line to it."""
    flags = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT if line else posix.O_RDONLY
    descriptor = posix.open(path, flags | posix.O_CLOEXEC, 0o666)
    try:
        return posix.read(descriptor, 4096) if not line else line[: posix.write(descriptor, line)]
    finally:
        posix.close(descriptor)
