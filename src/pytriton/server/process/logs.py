# SPDX-License-Identifier: Apache-2.0
"""Formats the server's log as Triton does, for a file or the console.

Messages are quoted like JSON strings, so that text from clients cannot fake lines of the log.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TextIO

from pytriton.server.process.log_output import ConsoleHandler, LogFile
from pytriton.server.process.terminal import Colour, has_colours, paint

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.server.options.log_options import LogOptions

# As in Triton, messages are quoted unless this variable is 0.
ESCAPE_VARIABLE = "TRITON_SERVER_ESCAPE_LOG_MESSAGES"

_RAW = "is_raw"
_COLOURS = {"I": Colour.GREEN, "W": Colour.YELLOW, "E": Colour.RED}


class TritonFormatter(logging.Formatter):
    """Formats records as `I0102 03:04:05.678901 <pid> <file>:<line>] "<message>"`."""

    def __init__(self, options: LogOptions, *, is_coloured: bool = False) -> None:
        super().__init__()
        self._is_iso = options.format == "ISO8601"
        self._is_quoted = os.environ.get(ESCAPE_VARIABLE) != "0"
        self._is_coloured = is_coloured

    @classmethod
    def factory(cls, options: LogOptions) -> Callable[[TextIO], TritonFormatter]:
        """Returns a function that makes the formatter of a stream, with colours on a terminal."""
        return lambda stream: cls(options, is_coloured=has_colours(stream))

    def format(self, record: logging.LogRecord) -> str:
        head, message = self._head(record), record.getMessage()
        if getattr(record, _RAW, False):
            text = f"{head} \n{message}"
        elif self._is_quoted:
            text = f'{head} "{quoted(message)}"'
        else:
            text = f"{head} {message}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        elif record.exc_text:  # a traceback of another process
            text += "\n" + _indented(record.exc_text)
        return text

    def formatException(self, ei: Any) -> str:  # noqa: N802  the name is logging's
        """Returns the traceback with each line indented."""
        return _indented(super().formatException(ei))

    def _head(self, record: logging.LogRecord) -> str:
        letter = level_letter(record.levelno)
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        if self._is_iso:
            head = f"{moment:%Y-%m-%dT%H:%M:%SZ} {letter}"
        else:
            head = f"{letter}{moment:%m%d %H:%M:%S.%f}"
        head += f" {record.process} {record.filename}:{record.lineno}]"
        return paint(head, _COLOURS[letter]) if self._is_coloured else head


def set_up_logging(options: LogOptions, handler: logging.Handler | None = None) -> None:
    """Configure the log's destination and levels.

    Args:
        options: what to log, and the file to log to, if any.
        handler: used if no file is named; by default the log goes to standard error.

    Raises:
        OSError: the file cannot be written.
    """
    if options.file:
        handler = LogFile(options.file, TritonFormatter(options))
    elif handler is None:
        handler = ConsoleHandler(sys.stderr, sys.stderr, TritonFormatter.factory(options))
    handler.addFilter(lambda record: _is_wanted(record.levelno, options))
    root = logging.getLogger()
    root.addHandler(handler)
    levels = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
    wanted = (level for level in levels if _is_wanted(level, options))
    root.setLevel(next(wanted, logging.ERROR))


def log_table(logger: logging.Logger, table: str) -> None:
    """Log a table without quoting, after the usual prefix of a record."""
    logger.info("%s", table, extra={_RAW: True}, stacklevel=2)


def level_letter(level: int) -> str:
    """Returns the first letter of a line; verbose lines have that of INFO."""
    if level >= logging.ERROR:
        return "E"
    return "W" if level >= logging.WARNING else "I"


def quoted(text: str) -> str:
    """Returns text escaped as in a JSON string, with invisible characters escaped, too."""
    return visible(text.replace("\\", r"\\").replace('"', r"\""))


def visible(text: str) -> str:
    """Returns text on one line: line breaks and control characters are escaped as in JSON."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in text
    )


def _indented(text: str) -> str:
    return "\n".join(f"  {visible(line)}" for line in text.splitlines())


def _is_wanted(level: int, options: LogOptions) -> bool:
    if level >= logging.ERROR:
        return options.error
    if level >= logging.WARNING:
        return options.warning
    return options.info if level >= logging.INFO else bool(options.verbose)
