# SPDX-License-Identifier: Apache-2.0
"""Tells the processes of the server when the settings of the log change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.log_switches import LogSwitches

if TYPE_CHECKING:
    from collections.abc import Callable


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
