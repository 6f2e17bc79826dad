# SPDX-License-Identifier: Apache-2.0
"""Writes the log to a file or the console, also if the disk is full or the reader has gone.

A server continues without its log. A failure to write is reported once, on another stream.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)


class LiveLine(Protocol):
    """The last line of a terminal, which is overwritten with each update."""

    def hide(self) -> None:
        """Erase it before something else is written."""

    def show(self) -> None:
        """Write it again."""


class LogFile(logging.Handler):
    """Appends to a file without a buffer; lines that cannot be written are lost and counted.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: str, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._path = path
        self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115  closed with the handler
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
            self._write(f"{text}\n".encode("utf-8", "backslashreplace"))
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self._lost_count += 1
            if self._lost_count == 1:
                _report_loss(sys.stderr, f"the log cannot be written to '{self._path}': {error}")
        else:
            self._lost_count = 0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        super().close()

    def _write(self, line: bytes) -> None:
        if self._ends_mid_line:
            line = b"\n" + line
        while line:
            count = self._file.write(line)
            self._ends_mid_line = count < len(line)
            line = line[count:]


class ConsoleHandler(logging.Handler):
    """Writes warnings and errors to one stream and all other records to another."""

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        make_formatter: Callable[[TextIO], logging.Formatter],
        live_line: LiveLine | None = None,
    ) -> None:
        super().__init__()
        self._live_line = live_line
        self._streams = {False: out, True: err}  # True: warnings and errors
        self._formatters = {key: make_formatter(each) for key, each in self._streams.items()}
        self._broken: set[bool] = set()

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


def discard_unwritable_output() -> None:
    """Discard unwritten output if its reader has gone, so that the exit does not fail."""
    for stream in (sys.stdout, sys.stderr):
        _flush_or_discard(stream)


def _flush_or_discard(stream: TextIO) -> None:
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


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
