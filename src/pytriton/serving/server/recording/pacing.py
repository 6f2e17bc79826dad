# SPDX-License-Identifier: Apache-2.0
"""How many requests a shadow may get, so that it costs the server next to nothing. Pure.

Three things bound it: the time that copies take from the event loop, the processor time of the
process that asks the other server, and what that server answers. Callers say what time it is.
"""

from __future__ import annotations

import dataclasses

# Of the event loop's time, for copies and for passing them on.
COPYING_SHARE = 0.01
COPYING_BURST_NS = 1_000_000
# Of the processor time of all cores that the server may use, for asking and comparing.
ASKING_SHARE = 0.01
ASKING_BURST_NS = 25_000_000
FIRST_WINDOW = 16  # requests under way before the process has said how many it takes
PROBES = 1  # the window of a process whose server did not answer the last time

# Before the first are measured.
_COPY_NS = 100_000
_ASK_NS = 1_000_000
# What a byte of an input adds: it is copied twice here, and read, sent and received there.
_COPY_BYTE_NS = 0.5
_ASK_BYTE_NS = 4.0
_SHORTEST_NS, _LONGEST_NS = 1_000_000, 100_000_000  # until it is worth to look again
_OVERDRAFT = 4  # bursts, beyond which copies that have begun are given up
_MEAN_OF = 256
_MAX_SEQUENCES = 10_000


class TimeBudget:
    """Time that may be taken from other work: a share of all time, and at most a burst at once.

    What was spent drains away at the rate of the share.
    """

    def __init__(self, share: float, burst_ns: int, now_ns: int = 0) -> None:
        self.burst_ns = burst_ns
        self._share = share
        self._level_ns = 0.0
        self._drained_ns = now_ns

    def spend(self, duration_ns: float) -> None:
        """Count time, also more than there is: it is paid back before anything else."""
        self._level_ns += duration_ns

    def left_ns(self, now_ns: int) -> float:
        """Returns how much may be spent; less than nothing while a debt is paid back."""
        drained = self._share * (now_ns - self._drained_ns)
        self._level_ns = max(0.0, self._level_ns - drained)
        self._drained_ns = now_ns
        return self.burst_ns - self._level_ns

    def wait_ns(self, missing_ns: float) -> int:
        """Returns how long it takes until so much more is left."""
        return int(missing_ns / self._share)


class MeanCost:
    """The mean time of a request, in which later ones count more."""

    def __init__(self, guess_ns: int) -> None:
        self._sum_ns = float(guess_ns)
        self._count = 1.0

    def add(self, duration_ns: float, count: int) -> None:
        """Count the time of requests; of none: time that the others have caused."""
        self._sum_ns += duration_ns
        self._count += count
        if self._count > _MEAN_OF:
            self._sum_ns /= 2
            self._count /= 2

    @property
    def mean_ns(self) -> float:
        """The time of one request, at least a microsecond."""
        return max(1000.0, self._sum_ns / self._count)


@dataclasses.dataclass(frozen=True, slots=True)
class ShadowProgress:
    """What the process of a shadow, and the thread that feeds it, have done; all numbers grow.

    Attributes:
        ended: Requests that it was given and that are over, whatever became of them.
        asking_ns: Processor time of the process.
        passing_ns: Processor time of the thread.
        window: How many requests it takes at a time now: none while it leaves its server alone,
            `PROBES` until this answers again.
    """

    ended: int = 0
    asking_ns: int = 0
    passing_ns: int = 0
    window: int = FIRST_WINDOW


class ShadowPace:
    """Says how many of the requests that a shadow should get may be copied now.

    The event loop asks; `progress` is replaced by another thread. While it is closed, asking costs
    one comparison.

    Args:
        cores: That the server may use.
        now_ns: The time.
    """

    def __init__(self, cores: int, now_ns: int) -> None:
        self.progress = ShadowProgress()
        self.reason = ""  # why nothing may be copied: "budget", "slow" or "gone"
        self.closed_until_ns = 0
        self._copying = TimeBudget(COPYING_SHARE, COPYING_BURST_NS, now_ns)
        self._asking = TimeBudget(ASKING_SHARE * cores, ASKING_BURST_NS, now_ns)
        self._copy_cost = MeanCost(_COPY_NS)
        self._ask_cost = MeanCost(_ASK_NS)
        self._seen = self.progress  # up to which everything is counted
        self._taken = 0

    def allows(self, wanted: int, now_ns: int, size: int = 0) -> int:
        """Returns how many requests may be copied, up to those wanted; `size` are bytes of each."""
        if now_ns < self.closed_until_ns:
            return 0
        self._count_progress()
        under_way = self._taken - self._seen.ended
        window = self._seen.window
        if under_way >= window:
            self._close("slow" if window > PROBES else "gone", now_ns, _LONGEST_NS)
            return 0
        ask_ns = self._ask_cost.mean_ns
        copies = self._affordable(
            self._copying, self._copy_cost.mean_ns + size * _COPY_BYTE_NS, 0.0, now_ns
        )
        questions = self._affordable(
            self._asking, ask_ns + size * _ASK_BYTE_NS, under_way * ask_ns, now_ns
        )
        return min(wanted, window - under_way, copies, questions)

    def take(self, count: int = 1) -> None:
        """Count requests that are copied; those that were allowed need not be."""
        self._taken += count

    def give_up(self) -> None:
        """Count one less: it is not passed on."""
        self._taken -= 1

    def spend(self, duration_ns: int, count: int) -> None:
        """Count the time of copies of requests; of none: of their answers."""
        self._copying.spend(duration_ns)
        self._copy_cost.add(duration_ns, count)

    def is_overdrawn(self, now_ns: int) -> bool:
        """Returns whether copies took so much more than they may that those begun are too many."""
        return self._copying.left_ns(now_ns) < -_OVERDRAFT * COPYING_BURST_NS

    def _count_progress(self) -> None:
        before, now = self._seen, self.progress
        if now is before:
            return
        self._seen = now
        asking_ns = now.asking_ns - before.asking_ns
        self._asking.spend(asking_ns)
        self._ask_cost.add(asking_ns, now.ended - before.ended)
        passing_ns = now.passing_ns - before.passing_ns
        self._copying.spend(passing_ns)
        self._copy_cost.add(passing_ns, 0)

    def _affordable(
        self, budget: TimeBudget, cost_ns: float, expected_ns: float, now_ns: int
    ) -> int:
        """Returns how many can be paid, beside what those under way are expected to cost."""
        all_ns = budget.left_ns(now_ns)
        left_ns = all_ns - expected_ns
        if left_ns >= budget.burst_ns:  # one that costs more than a burst waits until all is there
            return max(1, int(left_ns / cost_ns))
        if left_ns >= cost_ns:
            return int(left_ns / cost_ns)
        needed_ns = min(cost_ns, budget.burst_ns)
        if all_ns >= needed_ns:  # those under way have to end first
            self._close("slow", now_ns, _LONGEST_NS)
        else:
            self._close("budget", now_ns, budget.wait_ns(needed_ns - all_ns))
        return 0

    def _close(self, reason: str, now_ns: int, wait_ns: int) -> None:
        self.reason = reason
        # Not longer: the process may report at any time, and requests under way may cost less.
        self.closed_until_ns = now_ns + min(max(wait_ns, _SHORTEST_NS), _LONGEST_NS)


class FollowedSequences:
    """The sequences of which every request was passed on: no other makes sense to a shadow."""

    def __init__(self) -> None:
        self._followed: dict[tuple[str, int | str], None] = {}

    def has(self, model: str, correlation_id: int | str, *, is_first: bool) -> bool:
        """Returns whether the next request of a sequence may be passed on."""
        return is_first or (model, correlation_id) in self._followed

    def follow(self, model: str, correlation_id: int | str, *, is_last: bool) -> None:
        """Note that a request is passed on."""
        if is_last:
            self._followed.pop((model, correlation_id), None)
            return
        self._followed[model, correlation_id] = None
        if len(self._followed) > _MAX_SEQUENCES:
            del self._followed[next(iter(self._followed))]

    def lose(self, model: str, correlation_id: int | str) -> None:
        """Note that a request is not passed on, so that the rest of its sequence cannot be."""
        self._followed.pop((model, correlation_id), None)

    def clear(self) -> None:
        """Note that any request may have been lost."""
        self._followed = {}
