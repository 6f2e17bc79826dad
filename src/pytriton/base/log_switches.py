# SPDX-License-Identifier: Apache-2.0
"""Which lines the server's log has and how they look, as every process of the server knows it."""

from __future__ import annotations

import logging

import msgspec

JSON_FORMAT = "json"
LOG_FORMATS = ("default", "ISO8601", JSON_FORMAT)
MAX_VERBOSE = 2**31 - 1

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


class LogSwitches(msgspec.Struct, frozen=True, array_like=True):
    """The settings of the log that clients may change."""

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose: int = 0
    format: str = "default"

    def wants(self, level: int) -> bool:
        """Returns whether the log has lines with this level of `logging`."""
        if level >= logging.ERROR:
            return self.error
        if level >= logging.WARNING:
            return self.warning
        return self.info if level >= logging.INFO else bool(self.verbose)

    @property
    def lowest_level(self) -> int:
        """The lowest level that is wanted; ERROR if none is."""
        return next((level for level in _LEVELS if self.wants(level)), logging.ERROR)
