# SPDX-License-Identifier: Apache-2.0
"""How slow a client is, for the time limits of both protocols (`Limits` in `server_options`)."""

from __future__ import annotations

# A client that is slower counts as standing still: one byte now and then is no progress.
MIN_BYTES_PER_S = 256


class Pace:
    """Since when a client has been slower than it may be."""

    __slots__ = ("_bytes", "_since")

    def __init__(self) -> None:
        self._bytes = 0
        self._since = 0.0

    def restart(self, now: float) -> None:
        """Begin to count."""
        self._bytes = 0
        self._since = now

    def advance(self, nbytes: int, now: float) -> None:
        """So many more bytes were moved."""
        self._bytes += nbytes
        if nbytes and self._bytes >= MIN_BYTES_PER_S * (now - self._since):
            self.restart(now)

    def stalled_s(self, now: float) -> float:
        """For how long it has been too slow."""
        return now - self._since
