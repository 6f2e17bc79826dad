# SPDX-License-Identifier: Apache-2.0
"""A file that the lines of a log are appended to."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import time
from collections.abc import Callable
from pathlib import Path

_MODE = 0o666  # of a new file, less what the umask takes away
_CHECK_INTERVAL_S = 1.0  # between two looks at whether the file was moved away


class AppendedFile:
    """A file, opened when it is first written to, or a stream; OSError if that is impossible.

    All processes of a server append to it. A file that was moved or deleted, as programs that
    rotate logs do, is created again. A pipe whose reader is missing or slow takes no lines.

    Args:
        stream: The descriptor of what is open already, and is not closed.
        patience_s: How long a pipe may be full.
    """

    def __init__(
        self,
        path: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        stream: int | None = None,
        patience_s: float = 0.0,
    ) -> None:
        self._path = path
        self._clock = clock
        self._stream = self._descriptor = stream
        self._patience_s = patience_s
        self._checked_s = clock()
        self._ends_mid_line = False  # the last write was incomplete

    def open(self) -> None:
        """Open the file, unless it is a pipe that nobody reads yet."""
        if self._descriptor is not None:
            return
        # A write to a full pipe then fails instead of stopping the server.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        for name in ("O_CLOEXEC", "O_NONBLOCK"):
            flags |= getattr(os, name, 0)
        try:
            self._descriptor = os.open(self._path, flags, _MODE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise

    @property
    def is_pipe(self) -> bool:
        """Whether it may be a pipe, which takes less in one piece."""
        found = self._descriptor
        return found is None or found == self._stream or not stat.S_ISREG(os.fstat(found).st_mode)

    def write(self, lines: bytes) -> None:
        """Append whole lines."""
        self._reopen_if_moved()
        self.open()
        if self._ends_mid_line:
            lines = b"\n" + lines
        while lines:
            count = self.write_some(lines)
            self._ends_mid_line = count < len(lines)
            lines = lines[count:]

    def write_some(self, lines: bytes) -> int:
        """Write as much as there is room for; returns the number of bytes."""
        found = self._descriptor
        if found is None:
            raise OSError(errno.ENXIO, "nobody reads this pipe")
        try:
            return os.write(found, lines)
        except BlockingIOError:
            if not select.select([], [found], [], self._patience_s)[1]:
                raise
        return os.write(found, lines)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None and self._descriptor != self._stream:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _reopen_if_moved(self) -> None:
        now_s, former = self._clock(), self._descriptor
        if former in (None, self._stream) or now_s - self._checked_s < _CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        try:
            is_there = os.path.samestat(Path(self._path).stat(), os.fstat(former))
        except FileNotFoundError:
            is_there = False
        except OSError:  # it cannot be known, for example because a folder is not accessible
            return
        if is_there:
            return
        self._descriptor = None
        try:
            self.open()
        except OSError:  # then the lines go to the old file
            self._descriptor = former
        else:
            os.close(former)
