# SPDX-License-Identifier: Apache-2.0
"""Where lines of the log go: a file or the console, which may be full or gone.

A server goes on without its log. What could not be written is said once, where it can be read.
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
    """The last line of a terminal, which is written over again and again."""

    def hide(self) -> None:
        """Take it away before something else is written."""

    def show(self) -> None:
        """Write it again."""


class LogFile(logging.Handler):
    """Appends to a file. Nothing is kept back, so what the disk has no room for is lost.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: str, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._path = path
        self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115  closed with the handler
        self._lost_count = 0  # lines since the last one that was written
        self._is_torn = False  # the file ends within a line

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            if self._lost_count:
                text = f"{self.format(_loss(self._lost_count))}\n{text}"
        except Exception:  # noqa: BLE001  a mistake of who logs, which logging shows with its place
            self.handleError(record)
            return
        try:
            self._write(f"{text}\n".encode("utf-8", "backslashreplace"))
        except (OSError, ValueError) as error:  # ValueError: it was closed
            self._lost_count += 1
            if self._lost_count == 1:
                _say(sys.stderr, f"the log cannot be written to '{self._path}': {error}")
        else:
            self._lost_count = 0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        super().close()

    def _write(self, line: bytes) -> None:
        if self._is_torn:
            line = b"\n" + line
        while line:
            count = self._file.write(line)
            self._is_torn = count < len(line)
            line = line[count:]


class ConsoleHandler(logging.Handler):
    """Writes what is informative to one stream, warnings and errors to another."""

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        make_formatter: Callable[[TextIO], logging.Formatter],
        live_line: LiveLine | None = None,
    ) -> None:
        super().__init__()
        self._live_line = live_line
        self._streams = {False: out, True: err}  # by whether it is for warnings and errors
        self._formatters = {key: make_formatter(each) for key, each in self._streams.items()}
        self._broken: set[bool] = set()

    def emit(self, record: logging.LogRecord) -> None:
        is_error = record.levelno >= logging.WARNING
        try:
            text = self._formatters[is_error].format(record)
        except Exception:  # noqa: BLE001  a mistake of who logs, which logging shows with its place
            self.handleError(record)
            return
        try:
            self._write(self._streams[is_error], text)
        except (OSError, ValueError) as error:  # ValueError: it was closed
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
            _say(other, f"the log cannot be written to {name}: {error}")


def forget_unwritable_output() -> None:
    """Let the interpreter end in peace where nobody takes what is left to be written."""
    for stream in (sys.stdout, sys.stderr):
        _flush_for_good(stream)


def _flush_for_good(stream: TextIO) -> None:
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _say(stream: TextIO, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody is left to be told
        stream.write(f"{text}; its lines are lost until it can be written again\n")
        stream.flush()


def _loss(count: int) -> logging.LogRecord:
    return logger.makeRecord(
        logger.name,
        logging.WARNING,
        __file__,
        0,
        "%d entries of the log were lost here",
        (count,),
        None,
    )
