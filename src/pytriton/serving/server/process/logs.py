# SPDX-License-Identifier: Apache-2.0
"""The log of a server process: handlers, formats, and changes at run time.

Messages are quoted like JSON strings, so that text from clients cannot fake lines of the log. A
server continues without its log: a failure to write is reported once, on another stream.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TextIO

import msgspec

from pytriton.base import log_lines
from pytriton.base.log_switches import JSON_FORMAT, LogFeed, LogSwitches
from pytriton.base.request_ids import add_to_log_records, id_prefix, visible
from pytriton.serving.server.process.appended_file import AppendedFile
from pytriton.serving.server.process.log_lines import LineHandler, write_gathered
from pytriton.utils.terminal import Colour, has_colours, paint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytriton.base.log_lines import LogLines, ServerLine
    from pytriton.serving.server.options.server_options import LogOptions

logger = logging.getLogger(__name__)

FormatterFactory = Callable[[TextIO | None], logging.Formatter]
_MICROSECONDS = 1_000_000
_json_text = json.encoder.encode_basestring_ascii  # a text as `json.dumps` writes it
# As in Triton, messages are quoted unless this variable is 0.
ESCAPE_VARIABLE = "TRITON_SERVER_ESCAPE_LOG_MESSAGES"
_RAW = "is_raw"
PRINTED = "is_printed"  # of a record that is only kept
_COLOURS = {"I": Colour.GREEN, "W": Colour.YELLOW, "E": Colour.RED}
# The fields of `LogSwitches`, by their names in the protocol.
_FIELDS = {
    "log_info": "info",
    "log_warning": "warning",
    "log_error": "error",
    "log_verbose_level": "verbose",
    "log_format": "format",
}


class LiveLine(Protocol):
    """The last line of a terminal, which is overwritten with each update."""

    def hide(self) -> None:
        """Erase it before something else is written."""

    def show(self) -> None:
        """Write it again."""


class LogHandler(LineHandler):
    """Writes those records that the settings of the log want."""

    keeps_lines: ClassVar[bool] = False  # for the page, instead of writing them

    def __init__(self) -> None:
        super().__init__()
        self._switches = LogSwitches(verbose=1)

    def use(self, switches: LogSwitches, make_formatter: FormatterFactory) -> None:
        """Change what is written, and how."""
        self._switches = switches
        self.set_formatters(make_formatter)

    @property
    def lowest_level(self) -> int:
        """The level below which nothing is wanted."""
        return self._switches.lowest_level

    def set_formatters(self, make_formatter: FormatterFactory) -> None:
        """Change how records are written."""
        self.setFormatter(make_formatter(None))

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is written; a worker has printed its own lines already."""
        if getattr(record, PRINTED, False):
            return False
        return self._switches.wants(record.levelno) and bool(super().filter(record))

    def handle_lines(self, lines: LogLines) -> None:
        """Write lines, if they are wanted."""
        if self._switches.wants(log_lines.LEVEL):
            super().handle_lines(lines)


class LogFile(LogHandler):
    """Appends to a file without a buffer; lines that cannot be written are lost and counted.

    OSError is raised if the file cannot be opened.
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
        self.file = AppendedFile(path, clock)
        self.file.open()
        self._lost_count = 0  # lines since the last one that was written

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001  bad arguments of the log call; logging reports them
            self.handleError(record)
            return
        self._add(text, 1)

    def emit_lines(self, lines: LogLines) -> None:
        self._add(format_lines(self.formatter, lines), len(lines.lines))

    def _add(self, text: str, count: int) -> None:
        """Append entries."""
        if self._lost_count:
            text = f"{self.format(_loss_record(self._lost_count))}\n{text}"
        try:
            self.file.write(f"{text}\n".encode("utf-8", "backslashreplace"))
        except OSError as error:
            if not self._lost_count:
                _report_loss(sys.stderr, f"the log cannot be written to '{self._path}': {error}")
            self._lost_count += count
        else:
            self._lost_count = 0

    def close(self) -> None:
        self.file.close()
        super().close()


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
        self._add(text, is_error=is_error)

    def emit_lines(self, lines: LogLines) -> None:
        self._add(format_lines(self._formatters[False], lines), is_error=False)

    def _add(self, text: str, *, is_error: bool) -> None:
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


class SecondTexts:
    """Formats times in UTC by a format of `datetime`, and keeps the text of the last second.

    Lines come in great numbers while the log is verbose: one takes 20.6 us instead of 26.5.
    """

    def __init__(self, form: str) -> None:
        self._form = form
        self._second = -1
        self._text = ""

    def read(self, time_s: float) -> tuple[str, int]:
        """Returns the text of a time's second, and its microseconds."""
        second = int(time_s)
        microsecond = round((time_s - second) * _MICROSECONDS)
        if microsecond == _MICROSECONDS:
            second, microsecond = second + 1, 0
        if second != self._second:
            self._text = datetime.fromtimestamp(second, timezone.utc).strftime(self._form)
            self._second = second
        return self._text, microsecond


class JsonFormatter(logging.Formatter):
    """Formats records as JSON objects; members without a value are left out."""

    def __init__(self) -> None:
        super().__init__()
        self._times = SecondTexts("%Y-%m-%dT%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        second, microsecond = self._times.read(record.created)
        entry = {
            "time": f"{second}.{microsecond:06}Z",
            "level": level_name(record.levelno),
            "pid": record.process,
            "file": record.filename,
            "line": record.lineno,
            "message": record.getMessage(),
        }
        if ids := getattr(record, "triton_request_ids", None):
            entry["request_ids"] = ids
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:  # a traceback of another process
            entry["exception"] = record.exc_text
        return json.dumps(entry)

    def format_lines(self, lines: LogLines) -> str:
        """Returns many lines as `format` would, one under the other."""
        filename = lines.filename
        return "\n".join([self._format_line(line, lines.process, filename) for line in lines.lines])

    def _format_line(self, line: ServerLine, process: int, filename: str) -> str:
        second, microsecond = self._times.read(line.created)
        # The names of our files need no escapes.
        text = (
            f'{{"time": "{second}.{microsecond:06}Z", "level": "VERBOSE", "pid": {process}, '
            f'"file": "{filename}", "line": {line.number}, "message": {_json_text(line.message)}'
        )
        if line.request_ids:
            text += f', "request_ids": {json.dumps(line.request_ids)}'
        return text + "}"


def level_name(level: int) -> str:
    """Returns the word for a level; whatever is below INFO is verbose."""
    if level >= logging.ERROR:
        return "ERROR"
    if level >= logging.WARNING:
        return "WARNING"
    return "INFO" if level >= logging.INFO else "VERBOSE"


class TritonFormatter(logging.Formatter):
    """Formats records as `I0102 03:04:05.678901 <pid> <file>:<line>] "<message>"`."""

    def __init__(self, name: str = "default", *, is_coloured: bool = False) -> None:
        super().__init__()
        self._is_iso = name == "ISO8601"
        self._times = SecondTexts("%Y-%m-%dT%H:%M:%SZ" if self._is_iso else "%m%d %H:%M:%S")
        self._is_quoted = os.environ.get(ESCAPE_VARIABLE) != "0"
        self._is_coloured = is_coloured

    def format(self, record: logging.LogRecord) -> str:
        place = f"{record.process} {record.filename}:{record.lineno}"
        head = self._head(level_letter(record.levelno), record.created, place)
        message = record.getMessage()
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

    def format_lines(self, lines: LogLines) -> str:
        """Returns many lines as `format` would, one under the other."""
        filename, letter = lines.filename, level_letter(log_lines.LEVEL)
        texts = []
        for line in lines.lines:
            place = f"{lines.process} {filename}:{line.number}"
            message = line.message
            if line.request_ids:
                message = id_prefix(line.request_ids) + message
            if self._is_quoted:
                message = f'"{quoted(message)}"'
            texts.append(f"{self._head(letter, line.created, place)} {message}")
        return "\n".join(texts)

    def formatException(self, ei: Any) -> str:  # noqa: N802  the name is logging's
        """Returns the traceback with each line indented."""
        return _indented(super().formatException(ei))

    def _head(self, letter: str, created: float, place: str) -> str:
        second, microsecond = self._times.read(created)
        moment = f"{second} {letter}" if self._is_iso else f"{letter}{second}.{microsecond:06}"
        head = f"{moment} {place}]"
        return paint(head, _COLOURS[letter]) if self._is_coloured else head


def format_lines(formatter: logging.Formatter | None, lines: LogLines) -> str:
    """Returns many lines as a formatter writes their records, one under the other."""
    if isinstance(formatter, (JsonFormatter, TritonFormatter)):
        return formatter.format_lines(lines)
    formatter = formatter or logging.Formatter()
    return "\n".join([formatter.format(record) for record in lines.records()])


def set_up_logging(options: LogOptions, handler: LogHandler | None = None) -> None:
    """Configure the log's destination and levels; OSError if the file cannot be written.

    Without a file, the log goes to the handler, or to standard error.
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
    write_gathered()  # with the settings of their time
    handlers = log_handlers()
    for handler in handlers:
        handler.use(switches, formatter_factory(switches))
    if handlers:
        logging.getLogger().setLevel(min(handler.lowest_level for handler in handlers))


def keep_lines(ring: LogHandler, switches: LogSwitches) -> None:
    """Let a handler keep lines of this process's log from now on."""
    ring.use(switches, lambda _stream: logging.Formatter())
    root = logging.getLogger()
    root.addHandler(ring)
    root.setLevel(min(root.level, ring.lowest_level))


def log_handlers() -> list[LogHandler]:
    """Returns the handlers of this process that have the settings of the server's log."""
    return [each for each in logging.getLogger().handlers if isinstance(each, LogHandler)]


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


class LogControl:
    """The settings of a server. Changes apply to this process and to all that `feed` tells."""

    def __init__(self, options: LogOptions) -> None:
        is_kept = any(handler.keeps_lines for handler in log_handlers())
        self.feed = LogFeed(msgspec.structs.replace(options.switches, is_kept=is_kept))
        self._file = options.file or ""

    def change(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change settings, which are valid; returns all of them, by their names in the protocol."""
        switches = changed(self.feed.switches, changes)
        if switches != self.feed.switches:
            use_log_switches(switches)
            self.feed.change(switches)
        return {
            "log_file": self._file,
            **{name: getattr(switches, field) for name, field in _FIELDS.items()},
        }


def changed(switches: LogSwitches, changes: Mapping[str, Any]) -> LogSwitches:
    """Returns the settings after changes, which are given by their names in the protocol."""
    return msgspec.structs.replace(
        switches, **{field: changes[name] for name, field in _FIELDS.items() if name in changes}
    )
