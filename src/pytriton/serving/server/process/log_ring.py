# SPDX-License-Identifier: Apache-2.0
"""Keeps the last entries of the log in memory, for the page."""

from __future__ import annotations

import logging
import traceback
from collections import deque
from itertools import islice

import msgspec

from pytriton.base.log_switches import LogSwitches
from pytriton.base.request_ids import id_prefix
from pytriton.serving.server.process.log_json import level_name
from pytriton.serving.server.process.log_output import LogHandler

MAX_ENTRIES = 1000
MAX_CHARACTERS = 4000  # of an entry


class KeptLogLine(msgspec.Struct, frozen=True, gc=False):
    """One entry of the log."""

    number: int  # counts all entries since the start
    time: float  # seconds since 1970
    level: str  # ERROR, WARNING, INFO or VERBOSE
    place: str  # file and line
    text: str


class LogRing(LogHandler):
    """A log handler that keeps the last entries, cut to a length."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[KeptLogLine] = deque(maxlen=MAX_ENTRIES)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = _text_of(record)
        except Exception:  # noqa: BLE001  bad arguments of the log call; logging reports them
            self.handleError(record)
            return
        self._count += 1
        place = f"{record.filename}:{record.lineno}"
        line = KeptLogLine(self._count, record.created, level_name(record.levelno), place, text)
        self._lines.append(line)

    def after(self, number: int) -> list[KeptLogLine]:
        """Returns the entries that came after the one with this number, as far as they are kept.

        A number that no entry has had yet is one of an earlier server: all entries are returned.
        """
        self.acquire()  # records may come from any thread
        try:
            first = number if number <= self._count else 0
            new_count = min(self._count - first, len(self._lines))
            return list(islice(self._lines, len(self._lines) - new_count, None))
        finally:
            self.release()


def keep_lines(switches: LogSwitches) -> None:
    """Keep the last entries of this process's log from now on."""
    ring = LogRing()
    ring.use(switches, lambda _stream: logging.Formatter())
    logging.getLogger().addHandler(ring)


def kept_lines() -> LogRing | None:
    """Returns the last entries of this process's log; None if they are not kept."""
    return next((each for each in logging.getLogger().handlers if isinstance(each, LogRing)), None)


def _text_of(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if ids := getattr(record, "triton_request_ids", None):
        text = id_prefix(ids) + text
    if record.exc_info and record.exc_info[0] is not None:
        text += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
    elif record.exc_text:  # a traceback of another process
        text += "\n" + record.exc_text
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS] + " ..."
    return text.encode("utf-8", "backslashreplace").decode()  # bytes that are no text
