# SPDX-License-Identifier: Apache-2.0
"""How slow a client may be, for the timeouts of both protocols."""

from __future__ import annotations

# How long the input of a client is discarded whose connection has ended. If it were closed at once,
# unread bytes would make the system reset it, and the last answers might be lost (RFC 9112, 9.6).
LINGER_S = 5.0
# A slower client counts as stalled: a byte now and then is no progress.
MIN_BYTES_PER_S = 256


class Pace:
    """Measures for how long a client has been slower than `MIN_BYTES_PER_S`."""

    __slots__ = ("_bytes", "_since")

    def __init__(self) -> None:
        self._bytes = 0
        self._since = 0.0

    def restart(self, now: float) -> None:
        self._bytes = 0
        self._since = now

    def advance(self, nbytes: int, now: float) -> None:
        """Count bytes that the client sent or received."""
        self._bytes += nbytes
        if nbytes and self._bytes >= MIN_BYTES_PER_S * (now - self._since):
            self.restart(now)

    def stalled_s(self, now: float) -> float:
        """Returns for how long it has been too slow."""
        return now - self._since
