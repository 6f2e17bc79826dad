# SPDX-License-Identifier: Apache-2.0
"""Detects the end of a process, even if a child that it forked holds its sockets open."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


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
