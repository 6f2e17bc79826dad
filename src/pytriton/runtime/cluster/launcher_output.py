# SPDX-License-Identifier: Apache-2.0
"""Takes what the launcher process prints, which is nearly always Ray's, into the server's log."""

from __future__ import annotations

import logging
import os
import re
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)

_READ_BYTES = 64 << 10
_LINE_BYTES = 4 << 10  # a longer line becomes several
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class LauncherOutput:
    """Logs lines from a pipe as they come, on an event loop.

    Args:
        stream: The reading end; it is closed at the end of what is printed, or by `close`.
        loop: The event loop.
    """

    def __init__(self, stream: IO[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._stream = stream
        self._loop = loop
        self._rest = b""  # of a line that is not complete

    def start(self) -> None:
        """Begin to read."""
        os.set_blocking(self._stream.fileno(), False)
        self._loop.add_reader(self._stream.fileno(), self._read)

    def close(self) -> None:
        """Log what has come until now, and read no more; may be called twice."""
        while not self._stream.closed and self._read():
            pass
        self._end()

    def _read(self) -> bool:
        """Returns whether something came."""
        try:
            data = os.read(self._stream.fileno(), _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._end()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._log(line)
        while len(self._rest) >= _LINE_BYTES:
            self._log(self._rest[:_LINE_BYTES])
            self._rest = self._rest[_LINE_BYTES:]
        return True

    def _end(self) -> None:
        if not self._stream.closed:
            self._loop.remove_reader(self._stream.fileno())
            self._stream.close()
            self._log(self._rest)
            self._rest = b""

    def _log(self, line: bytes) -> None:
        text = _COLOURS.sub("", line.decode(errors="replace")).rstrip()
        if text:
            logger.warning("ray: %s", text)
