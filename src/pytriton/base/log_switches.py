# SPDX-License-Identifier: Apache-2.0
"""The settings of the server's log, as each process of the server knows them, and their changes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

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
    # Lines are kept for a page, so workers also send what they print. No client changes that.
    is_kept: bool = False

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


class LogFeed:
    """The current settings, and who is told about changes."""

    def __init__(self, switches: LogSwitches | None = None) -> None:
        self.switches = LogSwitches() if switches is None else switches
        self._listeners: list[Callable[[LogSwitches], None]] = []

    def add(self, listener: Callable[[LogSwitches], None]) -> None:
        """Call `listener` with the settings after every change, until it is removed."""
        self._listeners.append(listener)

    def remove(self, listener: Callable[[LogSwitches], None]) -> None:
        """Undo `add`; does nothing if it was undone already."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def change(self, switches: LogSwitches) -> None:
        """Replace the settings."""
        if switches == self.switches:
            return
        self.switches = switches
        for listener in self._listeners[:]:
            listener(switches)
