# SPDX-License-Identifier: Apache-2.0
"""Decides when a crashed instance is restarted, and when no more. The caller passes the time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

FIRST_DELAY_S = 0.2  # before the second restart in a row; the first is immediate
MAX_DELAY_S = 30.0
MAX_FORK_DELAY_S = 1.0  # after the process that forks workers ended, which starts again at once
CRASH_LIMIT = 5
CRASH_PERIOD_S = 60.0
LACK_DELAY_S = 0.25  # such a start fails at once, so trying it again costs little
SAME_EVENT_S = 1.0  # instances lost within this time are assumed to have one common cause


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart the instance after this delay."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not restart: it crashes too often. The model is unavailable until it is loaded again."""

    reason: str


class RestartPolicy:
    """Decides for the instances of one model version; the crashes of all are counted together.

    The first restart is immediate; the delay of each further one is twice the last. After a period
    without a crash the count starts from zero.
    """

    def __init__(self, crash_limit: int = CRASH_LIMIT) -> None:
        self._crash_limit = crash_limit
        self._crashes_s: deque[float] = deque(maxlen=crash_limit)
        self._restarts_in_a_row = 0
        self._losses_in_a_row = 0
        self._last_loss_s = 0.0

    def on_loss(self, now_s: float, max_delay_s: float = MAX_DELAY_S) -> Restart:
        """Decide after the process that forks instances ended, which is not the model's fault.

        This does not count as a crash. Instances that are lost together are restarted together,
        with a delay if it happens repeatedly.

        Args:
            now_s: The time of a monotonic clock.
            max_delay_s: The longest delay.
        """
        elapsed_s = now_s - self._last_loss_s
        if elapsed_s >= CRASH_PERIOD_S:
            self._losses_in_a_row = 0
        if not self._losses_in_a_row or elapsed_s >= SAME_EVENT_S:
            self._losses_in_a_row += 1
            self._last_loss_s = now_s
        return Restart(min(_delay_s(self._losses_in_a_row - 1), max_delay_s))

    def on_lack(self) -> Restart:
        """Decide after the machine had no resources for a start, which is not the model's fault.

        It is tried until there are resources again.
        """
        return Restart(LACK_DELAY_S)

    def on_exit(self, now_s: float, cause: str) -> Restart | GiveUp:
        """Decide after an instance ended unexpectedly.

        Args:
            now_s: The time of a monotonic clock.
            cause: Why it ended, as far as known, for the reason.
        """
        if self._crashes_s and now_s - self._crashes_s[-1] >= CRASH_PERIOD_S:
            self._crashes_s.clear()
            self._restarts_in_a_row = 0
        self._crashes_s.append(now_s)
        if len(self._crashes_s) == self._crash_limit:
            elapsed_s = now_s - self._crashes_s[0]
            if elapsed_s < CRASH_PERIOD_S:
                return GiveUp(
                    f"its instances ended {self._crash_limit} times within {elapsed_s:.1f} s "
                    f"and are not started again; the last time: {cause}"
                )
        delay_s = _delay_s(self._restarts_in_a_row)
        self._restarts_in_a_row += 1
        return Restart(delay_s)

    def __repr__(self) -> str:
        return (
            f"<RestartPolicy {len(self._crashes_s)} of {self._crash_limit} crashes, "
            f"{self._restarts_in_a_row} restarts in a row>"
        )


def _delay_s(earlier_restarts: int) -> float:
    if not earlier_restarts:
        return 0.0
    # Bounded, because the power would become huge if instances crash for years.
    doublings = min(earlier_restarts - 1, 16)
    return min(FIRST_DELAY_S * 2.0**doublings, MAX_DELAY_S)
