# SPDX-License-Identifier: Apache-2.0
"""Decides when a front end hangs, and how soon one that ended is started again. It does no I/O.

A front end hangs if it does not answer a ping although the core's loop ran and read all that it
sent. One that works, or that waits for a processor or a disk, has more time: a machine under load
is not its fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.serving.server.process.process_watch import Activity

PING_INTERVAL_S = 1.0
SILENCE_LIMIT_S = 3.0
# Of processor time. With requests of 48 MB on a machine with eight times as much work as cores,
# the longest stall of a loop was 2 s of real time.
WORK_LIMIT_S = 30.0
_STABLE_S = 1.0  # a front end that ends after this time did not fail to start
# By the number of early ends in a row. The first may be an accident.
_RESTART_DELAYS_S = (0.0, 0.0, 0.1, 0.5, 1.0)


class FrontEndHeartbeat:
    """The pings to one front end and its answers.

    Attributes:
        is_answered: Whether the last ping was answered.
        is_late: Whether the answer was missing when the next ping was due.
    """

    def __init__(self) -> None:
        self.is_answered = True
        self.is_late = False
        self._number = 0  # of the last ping
        self._seen_s = 0.0
        self._processor_s = 0.0
        self._silent_s = 0.0
        self._worked_s = 0.0

    def beat(self, now_s: float, activity: Activity | None) -> int | None:
        """Count the time since the last call; to be called every `PING_INTERVAL_S`.

        Args:
            now_s: The time.
            activity: The activity of the process; None if the system does not tell.

        Returns:
            The number of the ping to send now; None while the answer to the last one is missing.
        """
        # After a longer pause the core did not run either: its machine was suspended, for example.
        elapsed_s = min(now_s - self._seen_s, PING_INTERVAL_S)
        self._seen_s = now_s
        used_s = elapsed_s if activity is None else activity.processor_s - self._processor_s
        self._processor_s = 0.0 if activity is None else activity.processor_s
        if self.is_answered:
            self.is_answered = False
            self._silent_s = self._worked_s = 0.0
            self._number += 1
            return self._number
        self.is_late = True
        if used_s or (activity is not None and activity.is_runnable):
            self._silent_s = 0.0
            self._worked_s += used_s
        else:
            self._silent_s += elapsed_s
        return None

    def on_answer(self, number: int) -> None:
        """Note the answer to a ping."""
        if number == self._number:
            self.is_answered = True
            self.is_late = False

    @property
    def failure(self) -> str:
        """Why the front end counts as hung; empty if it does not."""
        if self.is_answered:
            return ""
        if self._silent_s >= SILENCE_LIMIT_S:
            return f"did not answer for {self._silent_s:.0f} s and did nothing"
        if self._worked_s >= WORK_LIMIT_S:
            return f"did not answer while it used {self._worked_s:.0f} s of processor time"
        return ""


class RestartDelays:
    """How long to wait before one front end is started again."""

    def __init__(self) -> None:
        self._early_ends = 0  # in a row

    def after(self, served_s: float) -> float:
        """Returns the delay after an end; `served_s` is for how long clients were served."""
        self._early_ends = 0 if served_s >= _STABLE_S else self._early_ends + 1
        return _RESTART_DELAYS_S[min(self._early_ends, len(_RESTART_DELAYS_S) - 1)]
