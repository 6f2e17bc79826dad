# SPDX-License-Identifier: Apache-2.0
"""The format of the log in which every entry is a JSON object on a line of its own."""

from __future__ import annotations

import json
import logging

from pytriton.serving.server.process.log_times import SecondTexts


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


def level_name(level: int) -> str:
    """Returns the word for a level; whatever is below INFO is verbose."""
    if level >= logging.ERROR:
        return "ERROR"
    if level >= logging.WARNING:
        return "WARNING"
    return "INFO" if level >= logging.INFO else "VERBOSE"
