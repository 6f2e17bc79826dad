# SPDX-License-Identifier: Apache-2.0
"""What a model's code prints and logs in the process that binds it, for the server's page.

A thread that runs a model has a `LineSource`, which its tasks inherit. Lines of the program around
it are not taken, except for those of our own loggers. Everything is printed and logged as it would
be without this: no handler is added to `logging`, because that would change what it prints.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

from pytriton.base.log_lines import SentLine
from pytriton.base.request_ids import (
    current_prefix,
    current_request_ids,
    observe_log_records,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytriton.base.log_lines import LogOutbox

_MAX_PART = 8192  # characters of a line that has no end yet
_MAX_DEPTH = 40  # frames between a `print` and the log call that caused it
_STREAMS = ("stdout", "stderr")
_OURS = "pytriton"
_LOGGING = logging.__file__


class LineSource:
    """The model that a thread works for, and the server that keeps its lines."""

    def __init__(self, model: str, outbox: LogOutbox) -> None:
        self._model = model
        self.outbox = outbox
        self._parts: dict[tuple[int, str], str] = {}  # lines without an end, by thread and stream

    def add_part(self, stream: str, text: str) -> None:
        """Take a text that was printed and does not end a line."""
        key = (threading.get_ident(), stream)
        part = self._parts.get(key, "") + text
        if len(part) > _MAX_PART:
            self.add_printed(stream, text)
        else:
            self._parts[key] = part

    def add_printed(self, stream: str, text: str) -> None:
        """Take a text that was printed, and send its whole lines."""
        key = (threading.get_ident(), stream)
        *lines, part = (self._parts.pop(key, "") + text).split("\n")
        if len(part) > _MAX_PART:
            lines.append(part)
            part = ""
        if part:
            self._parts[key] = part
        for line in lines:
            # A progress bar overwrites its line; only what remains of it is of interest.
            shown = line.rstrip("\r").rpartition("\r")[2]
            if shown.strip() and self.outbox.has_room():
                ids = current_request_ids()
                self.outbox.add(
                    SentLine(time.time(), logging.INFO, stream, shown, self._model, ids)
                )

    def add_record(self, record: logging.LogRecord) -> None:
        """Take a record of `logging`."""
        _send_record(self.outbox, record, self._model)


_current: ContextVar[LineSource | None] = ContextVar("pytriton_line_source", default=None)
_open: dict[LogOutbox, None] = {}  # of the servers that this process is connected to
_lock = threading.Lock()
# The last one of each name. `print` holds no reference to the stream that it writes to (before
# Python 3.14), so one that a thread may be writing to must outlive `release_lines`.
_captured: dict[str, CapturedStream] = {}


def set_line_source(source: LineSource | None) -> None:
    """Set the model that this thread, and tasks that it starts, work for."""
    _current.set(source)


class CapturedStream:
    """Standard output or standard error; what models print is also sent to their server."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self.stream = stream
        self._name = name

    def write(self, text: str) -> int:
        """See `io.TextIOBase`."""
        count = self.stream.write(text)
        source = _current.get()
        if source is not None:
            # `print` writes its words one by one. A log handler, whose record was taken already,
            # writes a whole line: 1 us to find out.
            if "\n" not in text:
                source.add_part(self._name, text)
            elif not _is_of_logging():
                source.add_printed(self._name, text)
        return count

    def writelines(self, lines: Any) -> None:
        """See `io.TextIOBase`."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def __iter__(self) -> Any:
        return iter(self.stream)

    def __enter__(self) -> Self:
        self.stream.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stream.__exit__(*exception)  # type: ignore[arg-type]  # as they came

    def __repr__(self) -> str:
        return f"<CapturedStream of {self.stream!r}>"


def capture_lines(outbox: LogOutbox) -> None:
    """Send the lines of models, and of our loggers, until `release_lines`."""
    with _lock:
        _open[outbox] = None
        observe_log_records(_on_record)
        _capture_streams()


def capture_again(outbox: LogOutbox) -> None:
    """Capture streams that somebody has replaced since, unless `release_lines` was called."""
    with _lock:
        if outbox in _open:
            _capture_streams()


def _capture_streams() -> None:
    for name in _STREAMS:
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, CapturedStream):
            captured = _captured.get(name)
            if captured is None or captured.stream is not stream:
                captured = _captured[name] = CapturedStream(stream, name)
            setattr(sys, name, captured)


def release_lines(outbox: LogOutbox) -> None:
    """Undo `capture_lines`; does nothing if it was undone."""
    with _lock:
        _open.pop(outbox, None)
        if _open:
            return
        observe_log_records(None)
        for name in _STREAMS:
            stream = getattr(sys, name)
            if isinstance(stream, CapturedStream):  # else somebody has replaced it, and keeps it
                setattr(sys, name, stream.stream)


def keep_line(level: int, text: str, exception: str = "") -> None:
    """Send a line about something that this process shows its user in another way."""
    file = sys._getframe(1).f_code.co_filename  # noqa: SLF001  that of the caller
    place = os.path.basename(file)  # noqa: PTH119  as above
    for outbox in list(_open):
        if outbox.has_room():
            outbox.add(SentLine(time.time(), level, place, text, exception=exception))


def _on_record(record: logging.LogRecord) -> None:
    source = _current.get()
    if source is not None:
        source.add_record(record)
    elif (record.name or "").partition(".")[0] == _OURS:  # a record may have no name
        for outbox in list(_open):
            _send_record(outbox, record, "")


def _send_record(outbox: LogOutbox, record: logging.LogRecord, model: str) -> None:
    if not outbox.has_room():
        return
    try:
        message = record.getMessage()
    except Exception:  # noqa: BLE001  wrong arguments of the log call, which its handlers report
        return
    exception = ""
    if record.exc_info and record.exc_info[0] is not None:
        exception = "".join(traceback.format_exception(*record.exc_info)).rstrip()
    place = os.path.basename(record.pathname)  # noqa: PTH119  a Path takes 3 us
    if record.lineno:
        place += f":{record.lineno}"
    message = message.removeprefix(current_prefix())
    ids = current_request_ids()
    outbox.add(SentLine(record.created, record.levelno, place, message, model, ids, exception))


def _is_of_logging() -> bool:
    frame = sys._getframe(2)  # noqa: SLF001  the caller of `write`
    for _ in range(_MAX_DEPTH):
        if frame.f_code.co_filename == _LOGGING:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
