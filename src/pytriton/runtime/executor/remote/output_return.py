# SPDX-License-Identifier: Apache-2.0
"""Gives a process on another machine the lines of its own output back, for the server's log.

Its parent reads what it prints, so that the last words of a crash are not lost, and writes them to
its standard input. There `worker_process/remote_output.py` sends them to the server.
"""

from __future__ import annotations

import os
import threading
import time
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# A model may print without end. The server's log takes this many lines of one process.
LINES_PER_S = 500.0
MAX_BURST_LINES = 2000.0
# Up to this size (PIPE_BUF on Linux) a line is written as a whole or not at all.
_MAX_LINE_BYTES = 4096
_SAY_AFTER_S = 1.0


class OutputReturn:
    """The pipe to the standard input of a process. It never waits: it leaves out what is too much.

    Args:
        stdin: The pipe.
        clock: Returns the time in seconds.
    """

    def __init__(self, stdin: IO[bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._stdin = stdin
        self._clock = clock
        self._lock = threading.Lock()
        self._budget = MAX_BURST_LINES
        self._refilled_s = clock()
        self._left_out = 0
        self._timer: threading.Timer | None = None
        os.set_blocking(stdin.fileno(), False)

    def add(self, line: bytes) -> None:
        """Return a line, or a part of a long one."""
        with self._lock:
            if self._stdin.closed:
                return
            if self._takes_line() and self._say_left_out() and self._write(line):
                self._budget -= 1
                return
            self._left_out += 1
            self._say_later()

    def close(self) -> None:
        """Close the pipe, which ends the process if it still runs; may be called twice."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._stdin.close()

    def __repr__(self) -> str:
        return f"<OutputReturn left_out={self._left_out} closed={self._stdin.closed}>"

    def _takes_line(self) -> bool:
        now_s = self._clock()
        earned = (now_s - self._refilled_s) * LINES_PER_S
        self._refilled_s = now_s
        self._budget = min(self._budget + earned, MAX_BURST_LINES)
        return self._budget >= 1

    def _write(self, line: bytes) -> bool:
        """Returns whether the whole line is written."""
        data = line.rstrip(b"\r\n")[: _MAX_LINE_BYTES - 1] + b"\n"
        try:
            return os.write(self._stdin.fileno(), data) == len(data)
        except OSError:  # the pipe is full, or the process has ended
            return False

    def _say_left_out(self) -> bool:
        """Returns whether nothing is left out that was not said."""
        count = self._left_out
        if count and self._write(b"%d lines of output were left out here" % count):
            self._left_out = 0
        return not self._left_out

    def _say_later(self) -> None:
        # Nothing more may be printed, so the next line cannot be waited for.
        if self._timer is None:
            self._timer = threading.Timer(_SAY_AFTER_S, self._on_time)
            self._timer.daemon = True
            self._timer.start()

    def _on_time(self) -> None:
        with self._lock:
            self._timer = None
            if not self._stdin.closed and not self._say_left_out():
                self._say_later()
