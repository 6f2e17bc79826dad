# SPDX-License-Identifier: Apache-2.0
"""Reads lines from the pipes of other processes. What becomes of the lines is not known here."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_READ_BYTES = 1 << 16  # as much as a pipe holds
_LAST_READS = 4  # of a process that has ended; others that it left behind may write on


class LineCutter:
    """Cuts what comes in pieces into lines; the end of one that is too long is not waited for."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._rest = b""  # of a line that is not complete

    def cut(self, data: bytes) -> list[bytes]:
        """Returns the lines that these bytes complete."""
        *lines, rest = (self._rest + data).split(b"\n")
        while len(rest) >= self._limit_bytes:
            lines.append(rest[: self._limit_bytes])
            rest = rest[self._limit_bytes :]
        self._rest = rest
        return lines

    def end(self) -> bytes:
        """Returns the line that has no end."""
        rest, self._rest = self._rest, b""
        return rest


class LinePipe:
    """Reads the lines of a pipe on an event loop until its end or `close`, and closes it then."""

    def __init__(
        self,
        stream: IO[bytes],
        loop: asyncio.AbstractEventLoop,
        on_line: Callable[[bytes], None],
        limit_bytes: int = _READ_BYTES,
        *,
        on_data: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self._stream = stream
        self._loop = loop
        self._on_line = on_line
        self._on_data = on_data  # gets the same as it comes
        self._cutter = LineCutter(limit_bytes)

    def start(self) -> None:
        """Begin to read."""
        descriptor = self._stream.fileno()
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def close(self) -> None:
        """Read what has come until now, and no more; may be called twice."""
        for _ in range(_LAST_READS):
            if self._stream.closed or not self._read():
                break
        self._end()

    def _read(self) -> bool:
        """Read once; returns whether there may be more."""
        try:
            data = os.read(self._stream.fileno(), _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._end()
            return False
        self._on_data(data)
        for line in self._cutter.cut(data):
            self._on_line(line)
        return True

    def _end(self) -> None:
        if not self._stream.closed:
            self._loop.remove_reader(self._stream.fileno())
            self._stream.close()
            self._on_line(self._cutter.end())
