# SPDX-License-Identifier: Apache-2.0
"""Lines of the log that are passed on together, also to another process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import msgspec

from pytriton.base.request_ids import visible

LEVEL = logging.DEBUG  # of all of them


class ServerLine(msgspec.Struct, array_like=True, gc=False):
    """One line."""

    created: float  # seconds since 1970
    number: int  # of the line of code that made it
    message: str
    request_ids: list[str]  # as lines show them


class LogLines(msgspec.Struct, array_like=True):
    """Lines that one file of a process has made, in their order."""

    logger: str
    path: str
    process: int
    lines: list[ServerLine]

    @property
    def filename(self) -> str:
        """The name of the file that made them."""
        return os.path.basename(self.path)  # noqa: PTH119  a Path takes 3 us

    def records(self) -> Iterator[logging.LogRecord]:
        """Returns the same as records of `logging`."""
        make = logging.getLogger(self.logger).makeRecord
        for line in self.lines:
            arguments = (line.message,)
            record = make(self.logger, LEVEL, self.path, line.number, "%s", arguments, None)
            record.created, record.process = line.created, self.process
            record.triton_request_ids = line.request_ids
            record.triton_request_id = visible(", ".join(line.request_ids))
            yield record


class SentLine(msgspec.Struct, array_like=True, gc=False):
    """A line of another process that the server only keeps: that process has written it already."""

    created: float  # seconds since 1970
    level: int  # of `logging`
    place: str  # file and line, or the stream on which it was printed
    message: str
    model: str = ""
    request_ids: list[str] = []  # as lines show them
    exception: str = ""  # the traceback


class SentLines(msgspec.Struct, array_like=True):
    """Lines of one process, in their order."""

    process: int
    lines: list[SentLine]
    lost_count: int = 0  # lines before these that were dropped, as there were too many
