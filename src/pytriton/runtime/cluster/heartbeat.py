# SPDX-License-Identifier: Apache-2.0
"""Notices that the launcher process hangs: it says on its own that it is alive, until it does not.

Its calls of Ray are made in threads, so that one which takes long does not keep it from that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

BEAT_S = 2.0
SILENT_BEATS = 15
# No Python code runs while Ray's libraries are being loaded, from a slow disk perhaps.
SILENT_BEATS_AT_START = 60


class Heartbeat:
    """Looks regularly whether something came from a process that should say something.

    It counts looks and not seconds: if the server was stopped itself, or its machine slept, the
    process has not become silent.

    Args:
        loop: The event loop.
        on_silent: Called once, when nothing came for too long.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_silent: Callable[[], None]) -> None:
        self._loop = loop
        self._on_silent = on_silent
        self._timer: asyncio.TimerHandle | None = None
        self._silent_beats = 0
        self._limit = SILENT_BEATS_AT_START

    def start(self) -> None:
        """Begin to look, at a process that has just been started."""
        self.stop()
        self._silent_beats = 0
        self._limit = SILENT_BEATS_AT_START
        self._look_later()

    def stop(self) -> None:
        """Look no more; may be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_message(self) -> None:
        """Something came."""
        self._silent_beats = 0

    def on_running(self) -> None:
        """The process has started, and is silent no longer than a busy machine makes it."""
        self._limit = SILENT_BEATS

    def look(self) -> bool:
        """Count a look; returns whether the process has been silent for too long."""
        self._silent_beats += 1
        return self._silent_beats > self._limit

    @property
    def silent_s(self) -> float:
        """For how long nothing came."""
        return self._silent_beats * BEAT_S

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(BEAT_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.look():
            self._on_silent()
        else:
            self._look_later()

    def __repr__(self) -> str:
        return f"<Heartbeat {self._silent_beats} of {self._limit} silent>"
