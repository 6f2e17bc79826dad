# SPDX-License-Identifier: Apache-2.0
"""The last lines of the log, which the page shows: of this process, and of others that send theirs.

Those of other processes were written there already, and are only kept here.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections import deque
from itertools import islice, repeat
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pytriton.base import log_lines
from pytriton.serving.server.process.logs import LogHandler, level_name, log_handlers

if TYPE_CHECKING:
    from pytriton.base.log_lines import LogLines, SentLines, ServerLine
    from pytriton.base.log_switches import LogSwitches
    from pytriton.serving.server.process.logs import FormatterFactory

_LEVEL_ORDER = {"VERBOSE": 0, "INFO": 1, "WARNING": 2, "ERROR": 3}
MAX_ENTRIES = 1000
MAX_CHARACTERS = 4000  # of an entry


class KeptLogLine(msgspec.Struct, frozen=True, gc=False):
    """One entry of the log."""

    number: int  # counts all entries since the start
    time: float  # seconds since 1970
    level: str  # ERROR, WARNING, INFO or VERBOSE
    place: str  # file and line, or the stream on which it was printed
    text: str  # with the traceback
    model: str = ""  # whose code wrote it; empty: the server itself
    request_ids: list[str] = []  # of the requests that caused it, as lines show them
    process: int = 0


class LineFilter(NamedTuple):
    """Which entries somebody wants to see. Empty texts allow all."""

    level: str = "VERBOSE"  # the lowest
    model: str = ""
    text: str = ""  # part of the text, the place, or an id of a request; in any case

    def fits(self, line: KeptLogLine) -> bool:
        """Returns whether an entry is wanted."""
        if _LEVEL_ORDER[line.level] < _LEVEL_ORDER.get(self.level, 0):
            return False
        # Lines of the server about a model have its name in quotes.
        if self.model and line.model != self.model and f"'{self.model}'" not in line.text:
            return False
        text = self.text.casefold()
        return not text or any(
            text in each.casefold() for each in (line.text, line.place, *line.request_ids)
        )


class LogRing(LogHandler):
    """A log handler that keeps the last entries, cut to a length.

    It keeps the lines of level INFO also where the log leaves them out, as `pytriton serve` does:
    they are few, and who opens the page looks for them.
    """

    keeps_lines = True

    def __init__(self) -> None:
        super().__init__()
        # Lines about requests become entries only if somebody asks for them.
        self._lines: deque[KeptLogLine | tuple[ServerLine, str, int]] = deque(maxlen=MAX_ENTRIES)
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is kept."""
        return self._switches.wants(record.levelno)

    def use(self, switches: LogSwitches, make_formatter: FormatterFactory) -> None:
        """Change what is kept."""
        super().use(msgspec.structs.replace(switches, info=True), make_formatter)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = _text_of(record)
        except Exception:  # noqa: BLE001  bad arguments of the log call; logging reports them
            self.handleError(record)
            return
        place = f"{record.filename}:{record.lineno}" if record.lineno else record.filename
        self._keep(
            record.created,
            level_name(record.levelno),
            place,
            text,
            getattr(record, "triton_model", ""),
            getattr(record, "triton_request_ids", []),
            getattr(record, "triton_process", 0) or record.process or 0,
        )

    def _keep(
        self,
        time_s: float,
        level: str,
        place: str,
        text: str,
        model: str,
        request_ids: list[str],
        process: int,
    ) -> None:
        self._count += 1
        ids = [_shortened(each) for each in request_ids]
        self._lines.append(
            KeptLogLine(self._count, time_s, level, place, text, model, ids, process)
        )

    def emit_lines(self, lines: LogLines) -> None:
        self._count += len(lines.lines)
        self._lines.extend(zip(lines.lines, repeat(lines.filename), repeat(lines.process)))

    def keep_sent(self, sent: SentLines) -> None:
        """Keep lines that another process has written already."""
        self.acquire()
        try:
            if sent.lost_count:
                place, level = "log_lines.py", level_name(logging.WARNING)
                text = f"{sent.lost_count} lines of process {sent.process} were lost here"
                created = sent.lines[0].created if sent.lines else time.time()
                self._keep(created, level, place, text, "", [], sent.process)
            for line in sent.lines:
                if self._switches.wants(line.level):
                    text = f"{line.message}\n{line.exception}" if line.exception else line.message
                    self._keep(
                        line.created,
                        level_name(line.level),
                        _shortened(line.place),
                        _shortened(text),
                        line.model,
                        line.request_ids,
                        sent.process,
                    )
        finally:
            self.release()

    @property
    def last_number(self) -> int:
        """The number of the newest entry."""
        return self._count

    def after(self, number: int, wanted: LineFilter = LineFilter()) -> list[KeptLogLine]:  # noqa: B008  a tuple
        """Returns the entries that came after the one with this number, as far as they are kept.

        A number that no entry has had yet is one of an earlier server: all entries are returned.
        """
        self.acquire()  # records may come from any thread
        try:
            first = number if number <= self._count else 0
            new_count = min(self._count - first, len(self._lines))
            entries = islice(self._lines, len(self._lines) - new_count, None)
            lines = [
                each if isinstance(each, KeptLogLine) else _kept(number, *each)
                for number, each in enumerate(entries, self._count - new_count + 1)
            ]
        finally:
            self.release()
        return [line for line in lines if wanted.fits(line)]


def keep_sent_lines(lines: SentLines) -> None:
    """Keep lines of another process, if this one keeps any."""
    ring = kept_lines()
    if ring is not None:
        ring.keep_sent(lines)


def kept_lines() -> LogRing | None:
    """Returns the last entries of this process's log; None if they are not kept."""
    return next((each for each in log_handlers() if isinstance(each, LogRing)), None)


def _kept(number: int, line: ServerLine, filename: str, process: int) -> KeptLogLine:
    text = _shortened(line.message)
    place = f"{filename}:{line.number}"
    ids = [_shortened(each) for each in line.request_ids]
    level = level_name(log_lines.LEVEL)
    return KeptLogLine(number, line.created, level, place, text, "", ids, process)


def _text_of(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and record.exc_info[0] is not None:
        text += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
    elif record.exc_text:  # a traceback of another process
        text += "\n" + record.exc_text
    return _shortened(text)


def _shortened(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS] + " ..."
    return text.encode("utf-8", "backslashreplace").decode()  # bytes that are no text
