# SPDX-License-Identifier: Apache-2.0
"""How much time of the event loop wrong signatures of tokens may take; no I/O.

A signature takes 0.05 to 1 ms, by its algorithm, and whoever sends ever new wrong ones makes others
wait. Slowing down addresses does not suffice: one client may have more of them than are kept, and a
policy may not slow down at all. So all wrong signatures together get a part of the time, and what
comes beyond is refused unseen, for a moment. Right ones take nothing of it: nobody but an issuer
can make them. Addresses that were accepted before have a part of their own, so that a flood from
elsewhere does not keep their new tokens out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.05  # of the time of one process, for each of the two kinds of addresses
BURST_S = 0.005  # that may be used at once
_LEAST_S = 20e-6  # that a check counts for, if the clock of the processor is coarse

# Does a check, and returns whether a signature is right; None: it may not be done now.
RunCheck = Callable[[Callable[[], bool]], bool | None]


class _Debt:
    """The time that wrong signatures have taken, less what has passed since then."""

    __slots__ = ("_seen_s", "_spent_s")

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._seen_s = 0.0

    def at(self, now_s: float) -> float:
        passed_s = max(0.0, now_s - self._seen_s)  # a clock may be set back
        self._seen_s = now_s
        self._spent_s = max(0.0, self._spent_s - SHARE * passed_s)
        return self._spent_s

    def add(self, spent_s: float) -> None:
        self._spent_s += max(_LEAST_S, spent_s)


class SignatureBudget:
    """Decides whether signatures are looked at, in one process.

    Args:
        meter: returns the seconds that this thread has used of a processor.
    """

    def __init__(self, meter: Callable[[], float] = time.thread_time) -> None:
        self._meter = meter
        self._of_strangers, self._of_known = _Debt(), _Debt()

    def run(self, is_known: bool, now_s: float, check: Callable[[], bool]) -> bool | None:
        """Do a check, if there is time for it; see `RunCheck`.

        Args:
            is_known: whether a credential was accepted before from the same address.
            now_s: the time.
            check: returns whether a signature is right.
        """
        debt = self._of_known if is_known else self._of_strangers
        if debt.at(now_s) >= BURST_S:
            return None
        began_s = self._meter()
        is_right = check()
        if not is_right:
            debt.add(self._meter() - began_s)
        return is_right
