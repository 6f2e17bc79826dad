# SPDX-License-Identifier: Apache-2.0
"""The log of an in-process server: a handler of its own, beside those of the program."""

from __future__ import annotations

import logging
import sys

from pytriton.serving.server.options.server_options import LogOptions
from pytriton.serving.server.process.logs import (
    ConsoleHandler,
    LogFile,
    LogHandler,
    formatter_factory,
)

_LOGGER = logging.getLogger("pytriton")
# Without any handler, Python itself would print warnings.
_LOGGER.addHandler(logging.NullHandler())
_levels: list[int] = []  # those of all open logs


class ServerLog:
    """Writes what the package logs in Triton's format, if the settings ask for any of it.

    Servers of one process share the package's loggers, so the log of each has the lines of all.
    """

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._handler: LogHandler | None = None

    def open(self) -> None:
        """Begin to write; raises OSError if the file cannot be written."""
        switches = self._options.switches
        if not (switches.info or switches.warning or switches.error or switches.verbose):
            return
        if self._options.file:
            self._handler = LogFile(self._options.file, logging.Formatter())
        else:
            self._handler = ConsoleHandler(sys.stdout, sys.stdout)
        self._handler.use(switches, formatter_factory(switches))
        _levels.append(switches.lowest_level)
        _LOGGER.setLevel(min(_levels))
        _LOGGER.addHandler(self._handler)

    def close(self) -> None:
        """Stop writing; may be called twice."""
        if self._handler is not None:
            _LOGGER.removeHandler(self._handler)
            _levels.remove(self._options.switches.lowest_level)
            _LOGGER.setLevel(min(_levels, default=logging.NOTSET))
            self._handler.close()
            self._handler = None
