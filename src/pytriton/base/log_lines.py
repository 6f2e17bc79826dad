# SPDX-License-Identifier: Apache-2.0
"""Lines of the log that are passed on together, also to another process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import msgspec

from pytriton.base.request_ids import visible

LEVEL = logging.DEBUG  # of all of them


class LogLine(msgspec.Struct, array_like=True, gc=False):
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
    lines: list[LogLine]

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
