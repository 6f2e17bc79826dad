# SPDX-License-Identifier: Apache-2.0
"""Formats the server's log as Triton does, for a file or the console.

Messages are quoted like JSON strings, so that text from clients cannot fake lines of the log.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from pytriton.base.log_switches import JSON_FORMAT
from pytriton.base.request_ids import add_to_log_records, id_prefix, visible
from pytriton.serving.server.process.log_json import JsonFormatter
from pytriton.serving.server.process.log_output import ConsoleHandler, LogFile, LogHandler
from pytriton.serving.server.process.log_times import SecondTexts
from pytriton.utils.terminal import Colour, has_colours, paint

if TYPE_CHECKING:
    from pytriton.base.log_switches import LogSwitches
    from pytriton.serving.server.options.server_options import LogOptions
    from pytriton.serving.server.process.log_output import FormatterFactory

# As in Triton, messages are quoted unless this variable is 0.
ESCAPE_VARIABLE = "TRITON_SERVER_ESCAPE_LOG_MESSAGES"

_RAW = "is_raw"
_COLOURS = {"I": Colour.GREEN, "W": Colour.YELLOW, "E": Colour.RED}


class TritonFormatter(logging.Formatter):
    """Formats records as `I0102 03:04:05.678901 <pid> <file>:<line>] "<message>"`."""

    def __init__(self, name: str = "default", *, is_coloured: bool = False) -> None:
        super().__init__()
        self._is_iso = name == "ISO8601"
        self._times = SecondTexts("%Y-%m-%dT%H:%M:%SZ" if self._is_iso else "%m%d %H:%M:%S")
        self._is_quoted = os.environ.get(ESCAPE_VARIABLE) != "0"
        self._is_coloured = is_coloured

    def format(self, record: logging.LogRecord) -> str:
        head, message = self._head(record), record.getMessage()
        if ids := getattr(record, "triton_request_ids", None):
            message = id_prefix(ids) + message
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
        second, microsecond = self._times.read(record.created)
        moment = f"{second} {letter}" if self._is_iso else f"{letter}{second}.{microsecond:06}"
        head = f"{moment} {record.process} {record.filename}:{record.lineno}]"
        return paint(head, _COLOURS[letter]) if self._is_coloured else head


def set_up_logging(options: LogOptions, handler: LogHandler | None = None) -> None:
    """Configure the log's destination and levels.

    Args:
        options: what to log, and the file to log to, if any.
        handler: used if no file is named; by default the log goes to standard error.

    Raises:
        OSError: the file cannot be written.
    """
    if options.file:
        handler = LogFile(options.file, logging.Formatter())
    elif handler is None:
        handler = ConsoleHandler(sys.stderr, sys.stderr)
    logging.getLogger().addHandler(handler)
    add_to_log_records()
    use_log_switches(options.switches)


def use_log_switches(switches: LogSwitches) -> None:
    """Change the log of this process; does nothing if it has no log of the server."""
    root = logging.getLogger()
    handlers = [handler for handler in root.handlers if isinstance(handler, LogHandler)]
    for handler in handlers:
        handler.use(switches, formatter_factory(switches))
    if handlers:
        root.setLevel(switches.lowest_level)


def formatter_factory(switches: LogSwitches) -> FormatterFactory:
    """Returns a function that makes the formatter of a stream, with colours on a terminal."""

    def make(stream: TextIO | None) -> logging.Formatter:
        if switches.format == JSON_FORMAT:
            return JsonFormatter()
        is_coloured = stream is not None and has_colours(stream)
        return TritonFormatter(switches.format, is_coloured=is_coloured)

    return make


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


def _indented(text: str) -> str:
    return "\n".join(f"  {visible(line)}" for line in text.splitlines())
