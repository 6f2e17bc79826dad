# SPDX-License-Identifier: Apache-2.0
"""The log of the process, which all its servers share: settings, and lines of the application.

As in Triton, settings hold from the moment they are set, whichever options they are set with.
"""

from __future__ import annotations

import logging
import sys

import msgspec

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.log_switches import LogSwitches
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import decoded, required_text
from pytriton.serving.server.process.logs import (
    ConsoleHandler,
    LogFile,
    LogHandler,
    formatter_factory,
)

_LOGGER = logging.getLogger("pytriton")
_FORMATS = ("default", "ISO8601")
# By TRITONSERVER_LogLevel; the last one is verbose.
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)


class Log:
    """Writes to standard error, or to a file."""

    def __init__(self) -> None:
        self._switches = LogSwitches()
        self._handler: LogHandler = ConsoleHandler(sys.stderr, sys.stderr)

    def open(self) -> None:
        """Begin to write what the package logs."""
        _LOGGER.propagate = False  # an application in Python has a log of its own
        _LOGGER.addHandler(self._handler)
        self._use(self._switches)

    def _use(self, switches: LogSwitches) -> None:
        self._switches = switches
        self._handler.use(switches, formatter_factory(switches))
        _LOGGER.setLevel(switches.lowest_level)

    def _change(self, **changes: object) -> None:
        self._use(msgspec.structs.replace(self._switches, **changes))

    @export("TRITONSERVER_ServerOptionsSetLogFile")
    def _set_file(self, _options: int, path: bytes | None) -> None:
        name = required_text(path)
        try:
            handler = LogFile(name, logging.Formatter()) if name else None
        except OSError as error:
            raise InvalidArgumentError(f"failed opening log file: {error}") from None
        _LOGGER.removeHandler(self._handler)
        self._handler.close()
        self._handler = handler or ConsoleHandler(sys.stderr, sys.stderr)
        self.open()

    @export("TRITONSERVER_ServerOptionsSetLogInfo")
    def _set_info(self, _options: int, is_enabled: bool) -> None:
        self._change(info=is_enabled)

    @export("TRITONSERVER_ServerOptionsSetLogWarn")
    def _set_warning(self, _options: int, is_enabled: bool) -> None:
        self._change(warning=is_enabled)

    @export("TRITONSERVER_ServerOptionsSetLogError")
    def _set_error(self, _options: int, is_enabled: bool) -> None:
        self._change(error=is_enabled)

    @export("TRITONSERVER_ServerOptionsSetLogVerbose")
    def _set_verbose(self, _options: int, level: int) -> None:
        self._change(verbose=max(0, level))

    @export("TRITONSERVER_ServerOptionsSetLogFormat")
    def _set_format(self, _options: int, number: int) -> None:
        if not 0 <= number < len(_FORMATS):
            raise InvalidArgumentError(f"unknown log format '{number}'")
        self._change(format=_FORMATS[number])

    @export("TRITONSERVER_LogIsEnabled")
    def _is_enabled(self, level: int) -> bool:
        return 0 <= level < len(_LEVELS) and self._switches.wants(_LEVELS[level])

    @export("TRITONSERVER_LogMessage")
    def _write(self, level: int, file: bytes | None, line: int, text: bytes | None) -> None:
        if not 0 <= level < len(_LEVELS):
            raise InvalidArgumentError(f"unknown logging level '{level}'")
        if self._switches.wants(_LEVELS[level]):
            record = logging.LogRecord(
                _LOGGER.name, _LEVELS[level], decoded(file), line, "%s", (decoded(text),), None
            )
            _LOGGER.handle(record)
