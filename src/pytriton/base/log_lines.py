# SPDX-License-Identifier: Apache-2.0
"""Lines of the log that are passed on together, also to another process, and how they get there."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from pytriton.base.errors import sendable_text
from pytriton.base.request_ids import visible
from pytriton.base.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

LEVEL = logging.DEBUG  # of all of them

MAX_LINES = 1000  # that wait; the server keeps as many
MAX_CHARACTERS = 4000  # of a line, and of its traceback
_MAX_PER_MESSAGE = 50  # at most 400,000 characters
_GATHER_S = 0.05  # lines that come within this time travel together


class ServerLine(msgspec.Struct, array_like=True, gc=False):
    """One line."""

    created: float  # seconds since 1970
    number: int  # of the line of code that made it
    message: str
    request_ids: list[str]  # as lines show them


class LogLines(msgspec.Struct, array_like=True):
    """Lines that one file of a process has made, in their order."""

    logger: str
    path: str
    process: int
    lines: list[ServerLine]

    @property
    def filename(self) -> str:
        """The name of the file that made them."""
        return os.path.basename(self.path)  # noqa: PTH119  a Path takes 3 us

    def records(self) -> Iterator[logging.LogRecord]:
        """Returns the same as records of `logging`."""
        make = logging.getLogger(self.logger).makeRecord
        for line in self.lines:
            arguments = (line.message,)
            record = make(self.logger, LEVEL, self.path, line.number, "%s", arguments, None)
            record.created, record.process = line.created, self.process
            record.triton_request_ids = line.request_ids
            record.triton_request_id = visible(", ".join(line.request_ids))
            yield record


class SentLine(msgspec.Struct, array_like=True, gc=False):
    """A line of another process that the server only keeps: that process has written it already."""

    created: float  # seconds since 1970
    level: int  # of `logging`
    place: str  # file and line, or the stream on which it was printed
    message: str
    model: str = ""
    request_ids: list[str] = []  # as lines show them
    exception: str = ""  # the traceback


class SentLines(msgspec.Struct, array_like=True):
    """Lines of one process, in their order."""

    process: int
    lines: list[SentLine]
    lost_count: int = 0  # lines before these that were dropped, as there were too many


class LogOutbox:
    """Sends lines to the server, from the first one on until it is closed.

    Whoever adds a line never waits. Lines that come faster than the server takes them are dropped
    and counted. `send` may wait, and raises an OSError when the server has ended. A process that
    was forked adds nothing: the connection belongs to its parent.
    """

    def __init__(self, send: Callable[[SentLines], None]) -> None:
        self._send = send
        self._lines: deque[SentLine] = deque()
        self._lost_count = 0
        self._process = os.getpid()
        # A finalizer may print while its own thread is adding a line.
        self._lock = threading.RLock()
        self._is_awake = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def has_room(self) -> bool:
        """Returns whether a line would be sent; if not, it counts as lost."""
        if os.getpid() != self._process or self._ended.is_set():
            return False
        if len(self._lines) < MAX_LINES:
            return True
        with self._lock:
            self._lost_count += 1
        return False

    def add(self, line: SentLine) -> None:
        """Send a line soon, if `has_room` was true."""
        line.message = _shortened(line.message)
        line.exception = _shortened(line.exception)
        line.request_ids = [sendable_text(each) for each in line.request_ids]
        with self._lock:
            self._lines.append(line)
            if self._thread is None:
                self._thread = start_thread(self._run, "pytriton-log")  # or with the next line
        self._is_awake.set()

    def close(self, timeout_s: float) -> None:
        """Send what waits, and end; what the server does not take in time is lost."""
        self._ended.set()
        self._is_awake.set()
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._is_awake.wait()
            is_last = self._ended.wait(_GATHER_S)
            self._is_awake.clear()
            try:
                while (lines := self._taken()) is not None:
                    self._send(lines)
            except OSError:  # the server has ended
                self._ended.set()
                return

    def _taken(self) -> SentLines | None:
        """Returns the lines of the next message; None if there are none."""
        with self._lock:
            count = min(len(self._lines), _MAX_PER_MESSAGE)
            if not count:
                return None
            lines = [self._lines.popleft() for _ in range(count)]
            lost_count, self._lost_count = self._lost_count, 0
        return SentLines(self._process, lines, lost_count)


def _shortened(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS] + " ..."
    return sendable_text(text)
