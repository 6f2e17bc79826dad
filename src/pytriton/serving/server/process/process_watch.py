# SPDX-License-Identifier: Apache-2.0
"""Tells whether a process works, and its end, even if a child of it holds its sockets open."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Activity:
    """What the system says about a process.

    Attributes:
        processor_s: The processor time that it has used.
        is_runnable: Whether it runs, or waits for a processor or a disk; not if it is stopped.
    """

    processor_s: float
    is_runnable: bool


def read_activity(pid: int) -> Activity | None:
    """Returns the activity of a process; None if it has ended, or if the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name of the program, in brackets, may contain anything; proc_pid_stat(5) has the fields.
    state, *fields = text.rpartition(")")[2].split()
    ticks = int(fields[10]) + int(fields[11])
    return Activity(ticks / os.sysconf("SC_CLK_TCK"), state in "RD")


class ProcessWatch:
    """Watches one process of this machine between `start` and `close`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, process: int, on_end: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._process = process
        self._on_end = on_end
        self._descriptor = -1

    def start(self) -> bool:
        """Start to watch; returns False if the system has no such process or cannot watch it."""
        if not hasattr(os, "pidfd_open"):
            return False
        try:
            self._descriptor = os.pidfd_open(self._process)
        except OSError:
            return False
        self._loop.add_reader(self._descriptor, self._on_readable)
        return True

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _on_readable(self) -> None:
        self.close()
        self._on_end()
