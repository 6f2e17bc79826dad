# SPDX-License-Identifier: Apache-2.0
"""Writes lines to the server's log."""

from __future__ import annotations

import enum
import os
import sys
from datetime import datetime
from types import FrameType

from pytriton.runtime.pb_utils import arguments
from pytriton.runtime.pb_utils.runtime import current_runtime


class Logger:
    """Writes to the server's log, with the file and line of the caller; never instantiated.

    Lines with level VERBOSE appear only if verbose logging is on.
    """

    class LogLevel(enum.Enum):
        """The level of a line."""

        INFO = 0
        WARNING = 1
        ERROR = 2
        VERBOSE = 3

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    def __init__(self) -> None:
        raise TypeError("Logger is used as it is: Logger.log_info(...)")

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Write a line.

        Args:
            message: The line.
            level: One of this class's constants.

        Raises:
            TypeError: An argument has the wrong type.
        """
        if not isinstance(level, Logger.LogLevel):
            raise TypeError(f"level must be one of Logger's constants, got {level!r}")
        _write(message, level, sys._getframe(1))  # noqa: SLF001  a line names its caller

    @staticmethod
    def log_info(message: str) -> None:
        """Like `log`, with level INFO."""
        _write(message, Logger.INFO, sys._getframe(1))  # noqa: SLF001

    @staticmethod
    def log_warn(message: str) -> None:
        """Like `log`, with level WARNING."""
        _write(message, Logger.WARNING, sys._getframe(1))  # noqa: SLF001

    @staticmethod
    def log_error(message: str) -> None:
        """Like `log`, with level ERROR."""
        _write(message, Logger.ERROR, sys._getframe(1))  # noqa: SLF001

    @staticmethod
    def log_verbose(message: str) -> None:
        """Like `log`, with level VERBOSE."""
        _write(message, Logger.VERBOSE, sys._getframe(1))  # noqa: SLF001


def _write(message: str, level: Logger.LogLevel, caller: FrameType) -> None:
    line = arguments.message(message, "message")
    file = caller.f_code.co_filename.rpartition("/")[2]
    runtime = current_runtime()
    if runtime is not None:
        runtime.log(level.name, line, file, caller.f_lineno)
        return
    now = datetime.now().astimezone()
    sys.stderr.write(
        f"{level.name[0]}{now:%m%d %H:%M:%S.%f} {os.getpid()} {file}:{caller.f_lineno}] {line}\n"
    )
