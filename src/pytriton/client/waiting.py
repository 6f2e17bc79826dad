# SPDX-License-Identifier: Apache-2.0
"""When to look again whether a server or model is ready, and when to give up."""

from __future__ import annotations

import time
from collections.abc import Callable

DEFAULT_WAIT_FOR_SERVER_TIMEOUT_S = 60.0
DEFAULT_WAIT_FOR_MODEL_TIMEOUT_S = 300.0

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
_SHORTEST_LIMIT_S = 0.001  # a call needs a positive one, also when the time is just up


class Wait:
    """One wait with a deadline; pauses between two looks grow up to a second.

    Args:
        timeout_s: time allowed.
        clock: tells the time in seconds.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s = timeout_s
        self.last_problem = "it is not ready"
        self._clock = clock
        self._deadline = clock() + timeout_s
        self._pause_s = _FIRST_PAUSE_S

    def limit_s(self) -> float:
        """How long the next call may take."""
        return max(self._deadline - self._clock(), _SHORTEST_LIMIT_S)

    def next_pause_s(self) -> float | None:
        """How long to wait before the next look; None where the time is up."""
        remaining = self._deadline - self._clock()
        if remaining <= 0:
            return None
        pause, self._pause_s = self._pause_s, min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return min(pause, remaining)
