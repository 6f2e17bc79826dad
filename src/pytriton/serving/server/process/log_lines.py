# SPDX-License-Identifier: Apache-2.0
"""Lines of the log about requests, which are gathered, formatted and written together.

A record of `logging` takes 20 us until it is written, and a verbose log has two lines for each
request. The lines of one iteration of the event loop take 1 us each. They stay in order with other
records of their thread, and handlers of other programs get them as the records that they know.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from pytriton.base.log_lines import LEVEL, LogLines, ServerLine
from pytriton.base.request_ids import shown_ids

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable


class LineHandler(logging.Handler):
    """A handler that takes many lines at once, and each record after the lines before it."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Write a record."""
        write_gathered()
        return bool(super().handle(record))

    def flush(self) -> None:
        """Write what was gathered."""
        write_gathered()
        super().flush()

    def handle_lines(self, lines: LogLines) -> None:
        """Write lines, in the way of `handle`."""
        self.acquire()  # lines may come from any thread
        try:
            self.emit_lines(lines)
        finally:
            self.release()

    def emit_lines(self, lines: LogLines) -> None:
        """Write lines; one by one unless a subclass knows better."""
        for record in lines.records():
            self.emit(record)


class LineLog:
    """Gathers the lines of one file until the end of an iteration of the event loop.

    It is used on the thread of the loop only.
    """

    def __init__(self, logger: str, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._logger = logger
        self._path = path
        self._loop = loop
        self._lines: list[ServerLine] = []

    def add(self, message: str, request_id: str = "") -> None:
        """Add a line of the caller."""
        self.add_all(message, (request_id,), sys._getframe(1).f_lineno)  # noqa: SLF001  0.1 us

    def add_all(self, message: str, request_ids: Iterable[str], number: int = 0) -> None:
        """Add a line of the caller for each of some requests; those without an id have ''."""
        number = number or sys._getframe(1).f_lineno  # noqa: SLF001  see above
        if not self._lines:
            self._begin()
        now_s = time.time()
        self._lines += [
            ServerLine(now_s, number, message, shown_ids((each,)) if each else [])
            for each in request_ids
        ]

    def _begin(self) -> None:
        last: LineLog | None = getattr(_of_thread, "gathering", None)
        if last is not self:
            write_gathered()
            _of_thread.gathering = self
        self._loop.call_soon(self.write)

    def write(self) -> None:
        """Write what was gathered."""
        lines, self._lines = self._lines, []
        if lines:
            write_lines(LogLines(self._logger, self._path, os.getpid(), lines))


_of_thread = threading.local()  # has the log that gathers in a thread


def write_gathered() -> None:
    """Write the lines that this thread has gathered, because something else comes after them."""
    log: LineLog | None = getattr(_of_thread, "gathering", None)
    if log is not None:
        log.write()


def write_lines(lines: LogLines) -> None:
    """Pass lines to the handlers that their records would reach."""
    logger: logging.Logger | None = logging.getLogger(lines.logger)
    if logger is None or not logger.isEnabledFor(LEVEL):
        return
    while logger is not None:
        for handler in logger.handlers:
            if handler.level > LEVEL:
                continue
            if isinstance(handler, LineHandler) and not handler.filters:
                handler.handle_lines(lines)
            else:
                for record in lines.records():
                    handler.handle(record)
        logger = logger.parent if logger.propagate else None
