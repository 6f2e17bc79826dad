# SPDX-License-Identifier: Apache-2.0
"""Writes the log to a file or the console, also if the disk is full or the reader has gone.

A server continues without its log. A failure to write is reported once, on another stream.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TextIO

from pytriton.base.log_switches import LogSwitches

logger = logging.getLogger(__name__)

FormatterFactory = Callable[[TextIO | None], logging.Formatter]
_MODE = 0o666  # of a new file, less what the umask takes away
_CHECK_INTERVAL_S = 1.0  # between two looks at whether the file was moved away


class LiveLine(Protocol):
    """The last line of a terminal, which is overwritten with each update."""

    def hide(self) -> None:
        """Erase it before something else is written."""

    def show(self) -> None:
        """Write it again."""


class LogHandler(logging.Handler):
    """Writes those records that the settings of the log want."""

    def __init__(self) -> None:
        super().__init__()
        self._switches = LogSwitches(verbose=1)

    def use(self, switches: LogSwitches, make_formatter: FormatterFactory) -> None:
        """Change what is written, and how."""
        self._switches = switches
        self.set_formatters(make_formatter)

    def set_formatters(self, make_formatter: FormatterFactory) -> None:
        """Change how records are written."""
        self.setFormatter(make_formatter(None))

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is written."""
        return self._switches.wants(record.levelno) and bool(super().filter(record))


class LogFile(LogHandler):
    """Appends to a file without a buffer; lines that cannot be written are lost and counted.

    A file that was moved or deleted, as programs that rotate logs do, is created again. A pipe
    whose reader is missing or slow loses lines, because the server does not wait for it.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(
        self,
        path: str,
        formatter: logging.Formatter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._path = path
        self._clock = clock
        self._checked_s = clock()
        self._descriptor = _open(path)
        self._lost_count = 0  # lines since the last one that was written
        self._ends_mid_line = False  # the last write was incomplete

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            if self._lost_count:
                text = f"{self.format(_loss_record(self._lost_count))}\n{text}"
        except Exception:  # noqa: BLE001  bad arguments of the log call; logging reports them
            self.handleError(record)
            return
        try:
            self._reopen_if_moved()
            self._write(f"{text}\n".encode("utf-8", "backslashreplace"))
        except OSError as error:
            self._lost_count += 1
            if self._lost_count == 1:
                _report_loss(sys.stderr, f"the log cannot be written to '{self._path}': {error}")
        else:
            self._lost_count = 0

    def close(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
        super().close()

    def write_some(self, line: bytes) -> int:
        """Write as much of a line as there is room for; returns the number of bytes."""
        if self._descriptor is None:
            self._descriptor = _open(self._path)
            if self._descriptor is None:
                raise OSError(errno.ENXIO, "nobody reads this pipe")
        return os.write(self._descriptor, line)

    def _write(self, line: bytes) -> None:
        if self._ends_mid_line:
            line = b"\n" + line
        while line:
            count = self.write_some(line)
            self._ends_mid_line = count < len(line)
            line = line[count:]

    def _reopen_if_moved(self) -> None:
        now_s = self._clock()
        if now_s - self._checked_s < _CHECK_INTERVAL_S or self._descriptor is None:
            return
        self._checked_s = now_s
        try:
            is_there = os.path.samestat(Path(self._path).stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            is_there = False
        except OSError:  # it cannot be known, for example because a folder is not accessible
            return
        if is_there:
            return
        with contextlib.suppress(OSError):  # then the lines go to the old file
            descriptor = _open(self._path)
            os.close(self._descriptor)
            self._descriptor = descriptor


def _open(path: str) -> int | None:
    """Open a file to append to it; returns None for a pipe that nobody reads."""
    # A write to a full pipe then fails instead of stopping the server.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    try:
        return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), _MODE)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


class ConsoleHandler(LogHandler):
    """Writes warnings and errors to one stream and all other records to another."""

    def __init__(self, out: TextIO, err: TextIO, live_line: LiveLine | None = None) -> None:
        super().__init__()
        self._live_line = live_line
        self._streams = {False: out, True: err}  # True: warnings and errors
        self._formatters = dict.fromkeys(self._streams, logging.Formatter())
        self._broken: set[bool] = set()

    def set_formatters(self, make_formatter: FormatterFactory) -> None:
        """Change how records are written."""
        self._formatters = {key: make_formatter(each) for key, each in self._streams.items()}

    def emit(self, record: logging.LogRecord) -> None:
        is_error = record.levelno >= logging.WARNING
        try:
            text = self._formatters[is_error].format(record)
        except Exception:  # noqa: BLE001  bad arguments of the log call; logging reports them
            self.handleError(record)
            return
        try:
            self._write(self._streams[is_error], text)
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self._on_failure(error, is_error=is_error)
        else:
            self._broken.discard(is_error)

    def _write(self, stream: TextIO, text: str) -> None:
        if self._live_line is not None:
            self._live_line.hide()
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:
            encoding = stream.encoding
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
        if self._live_line is not None:
            self._live_line.show()

    def _on_failure(self, error: Exception, *, is_error: bool) -> None:
        is_first = is_error not in self._broken
        self._broken.add(is_error)
        other = self._streams[not is_error]
        if is_first and other is not self._streams[is_error]:
            name = "standard error" if is_error else "standard output"
            _report_loss(other, f"the log cannot be written to {name}: {error}")


def _report_loss(stream: TextIO, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # this stream cannot be written, either
        stream.write(f"{text}; its lines are lost until it can be written again\n")
        stream.flush()


def _loss_record(count: int) -> logging.LogRecord:
    return logger.makeRecord(
        logger.name,
        logging.WARNING,
        __file__,
        0,
        "%d entries of the log were lost here",
        (count,),
        None,
    )
