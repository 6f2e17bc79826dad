# SPDX-License-Identifier: Apache-2.0
"""Encodings for messages between front ends and the core: texts and log records.

Both ends are here: what one side encodes, the other decodes. The records of messages themselves
are in `pytriton.runtime.transport.frontend_frames`.
"""

from __future__ import annotations

import logging
import os
import traceback
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.errors import sendable_text
from pytriton.base.request_ids import add_to_log_records
from pytriton.runtime.transport.frontend_frames import LogEntries, LogEntry
from pytriton.serving.server.process.log_lines import LineHandler

if TYPE_CHECKING:
    from pytriton.base.log_lines import LogLines
    from pytriton.base.log_switches import LogSwitches
    from pytriton.serving.server.frontend.core_link import CoreLink


def as_batch_key(value: Any) -> Any:
    """Returns a batch key as validation makes it: MessagePack turns its tuples into lists."""
    if value is None:
        return None
    return tuple(tuple(dims) if isinstance(dims, list) else dims for dims in value)


_ENCODING = ("utf-8", "surrogateescape")
_TEXT = 1  # the kind of an extension of MessagePack


def packed(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a question as they can be sent."""
    return {name: _packed(value) for name, value in arguments.items()}


def _packed(value: Any) -> Any:
    if not isinstance(value, str) or value.isascii():
        return value
    # Surrogates stand for bytes of a path that are not UTF-8; MessagePack refuses them.
    raw = value.encode(*_ENCODING)
    try:
        raw.decode()
    except UnicodeDecodeError:
        return msgspec.msgpack.Ext(_TEXT, raw)
    return value


def unpacked(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a question as they were asked."""
    return {
        name: bytes(value.data).decode(*_ENCODING)
        if isinstance(value, msgspec.msgpack.Ext)
        else value
        for name, value in arguments.items()
    }


class CoreLogHandler(LineHandler):
    """Sends records to the core, which has the only log."""

    def __init__(self, link: CoreLink) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        try:
            exception = None
            if record.exc_info and record.exc_info[0] is not None:
                exception = "".join(traceback.format_exception(*record.exc_info)).rstrip()
            self._link.send_from_any_thread(
                LogEntry(
                    record.name,
                    record.levelno,
                    sendable_text(record.getMessage()),
                    record.pathname,
                    record.lineno,
                    record.created,
                    os.getpid(),
                    None if exception is None else sendable_text(exception),
                    request_ids=[sendable_text(each) for each in _ids_of(record)],
                )
            )
        except Exception:  # noqa: BLE001  as logging's own handlers do
            self.handleError(record)

    def emit_lines(self, lines: LogLines) -> None:
        for line in lines.lines:
            line.message = sendable_text(line.message)
            line.request_ids = [sendable_text(each) for each in line.request_ids]
        self._link.send_from_any_thread(LogEntries(lines))


def _ids_of(record: logging.LogRecord) -> list[str]:
    return getattr(record, "triton_request_ids", [])


def set_up_logging(link: CoreLink, switches: LogSwitches) -> None:
    """Send this process's log to the core, as far as the core wants it."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(CoreLogHandler(link))
    add_to_log_records()
    root.setLevel(switches.lowest_level)


def log_entry(entry: LogEntry) -> None:
    """Add a record of a front end to the server's log."""
    target = logging.getLogger(entry.logger)
    if not target.isEnabledFor(entry.level):
        return
    record = target.makeRecord(
        entry.logger, entry.level, entry.path, entry.line, "%s", (entry.message,), None
    )
    record.created = entry.created
    record.process = entry.process
    record.exc_text = entry.exception
    record.triton_request_ids = entry.request_ids
    target.handle(record)
