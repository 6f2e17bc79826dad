# SPDX-License-Identifier: Apache-2.0
"""Where the lines of the access log go: a file, a pipe, or a standard stream.

All processes of a server append to the same file, each line in one piece. A file that was moved or
deleted, as programs that rotate logs do, is created again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_STREAMS = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_MODE = 0o666  # of a new file, less what the umask takes away
_CHECK_INTERVAL_S = 1.0  # between two looks at whether the file was moved away
_PATIENCE_S = 1.0  # with a pipe whose reader is slow
_PIPE_BYTES = 4096  # the system writes this much to a pipe in one piece
_FILE_BYTES = 1 << 20


class Destination:
    """A file, opened when it is first written to.

    Args:
        path: Its path; `-` is standard output.
        clock: Tells the seconds.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._descriptor: int | None = _STREAMS.get(path)
        self._is_stream = self._descriptor is not None
        self._is_pipe = self._is_stream  # what is known of it before it is opened
        self._checked_s = clock()
        self._ends_mid_line = False

    def open(self) -> None:
        """Open the file; raises OSError if that is impossible."""
        if self._descriptor is None:
            # A write to a full pipe then fails instead of waiting for ever.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            for name in ("O_CLOEXEC", "O_NONBLOCK"):
                flags |= getattr(os, name, 0)
            try:
                self._descriptor = os.open(self._path, flags, _MODE)
            except OSError as error:
                if error.errno != errno.ENXIO:  # a pipe that nobody reads yet
                    raise
                return
            self._is_pipe = not stat.S_ISREG(os.fstat(self._descriptor).st_mode)

    def write(self, lines: list[bytes]) -> None:
        """Write whole lines; raises OSError if that is impossible."""
        self._reopen_if_moved()
        self.open()
        if self._descriptor is None:
            raise OSError(errno.ENXIO, "nobody reads this pipe")
        for part in grouped(lines, _PIPE_BYTES if self._is_pipe else _FILE_BYTES):
            self._write(self._descriptor, b"\n" + part if self._ends_mid_line else part)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None and not self._is_stream:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _write(self, descriptor: int, part: bytes) -> None:
        while part:
            try:
                count = os.write(descriptor, part)
            except BlockingIOError:
                if not select.select([], [descriptor], [], _PATIENCE_S)[1]:
                    raise
                continue
            self._ends_mid_line = count < len(part)
            part = part[count:]

    def _reopen_if_moved(self) -> None:
        now_s = self._clock()
        if self._is_stream or self._descriptor is None:
            return
        if now_s - self._checked_s < _CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        try:
            is_there = os.path.samestat(Path(self._path).stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            is_there = False
        except OSError:  # it cannot be known, for example because a folder is not accessible
            return
        if not is_there:
            self.close()


def grouped(lines: list[bytes], max_bytes: int) -> Iterator[bytes]:
    """Join lines to parts of up to `max_bytes`; a longer line is a part of its own."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        if part and size + len(line) > max_bytes:
            yield b"".join(part)
            part, size = [], 0
        part.append(line)
        size += len(line)
    if part:
        yield b"".join(part)
