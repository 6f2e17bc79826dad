# SPDX-License-Identifier: Apache-2.0
"""A server that is told to stop, or killed, while clients use it, and what has to come of that.

Requests that are under way are finished within the exit timeout, others are refused by an error
that says so, or by a connection that ends; then nothing is left, and the exit code says how it was.
"""

from __future__ import annotations

import dataclasses
import enum
import random
from collections.abc import Iterator, Sequence

from tests.simulation.machine import SECOND_NS, Machine
from tests.simulation.served import Served
from tests.workload.oracle import EARLY_S, Cause, Oracle
from tests.workload.sessions import Session

PROFILE = "stopping"
_USUAL_TIMEOUT_S = 30
_AFTER_KILL_S = 30.0  # until everything has ended that depends on a process that was killed
_MARGIN_S = 10.0  # beyond all timeouts of a stop


class How(enum.Enum):
    """How a server is stopped."""

    ORDER = "in order"  # SIGTERM, or the program stops it
    TWICE = "by two signals"  # the second one ends everything at once
    KILL = "with its program, which is killed"  # with a repository, it is its own program


@dataclasses.dataclass(frozen=True, slots=True)
class StopPlan:
    """When and how a server is stopped.

    Args:
        at_s: after the start of the clients.
        how: it is stopped.
        again_s: when the second signal comes, after the first one.
        timeout_s: its exit timeout.
        grace_s: how long it serves on after the signal.
    """

    at_s: float
    how: How = How.ORDER
    again_s: float = 0.0
    timeout_s: int = _USUAL_TIMEOUT_S
    grace_s: int = 0

    @property
    def settings(self) -> dict[str, int]:
        settings = {"exit_timeout_secs": self.timeout_s}
        if self.grace_s:
            settings["exit_grace_secs"] = self.grace_s
        return settings

    @property
    def finishes_s(self) -> int:
        """How long the server finishes requests, from the signal on."""
        return 0 if self.how is How.KILL else self.grace_s + self.timeout_s

    @property
    def longest_s(self) -> float:
        if self.how is How.KILL:
            return _AFTER_KILL_S
        return self.finishes_s + _MARGIN_S

    def __str__(self) -> str:
        words = [f"the server is stopped {self.how.value}, with a timeout of {self.timeout_s} s"]
        if self.grace_s:
            words.append(f"after {self.grace_s} s in which it serves on")
        return ", ".join(words)


def make_stop(source: random.Random, length_s: float, *, has_repository: bool) -> StopPlan:
    """Make the plan of a stop among clients that begin within this time."""
    at_s = source.random() * (length_s + 1.0)
    choice, again_s = source.random(), 0.5 + source.random()
    timeout_s = 1 if source.random() < 0.2 else _USUAL_TIMEOUT_S
    grace_s = 1 if has_repository and source.random() < 0.3 else 0
    how = How.ORDER
    if choice < 0.15:
        how = How.TWICE if has_repository and choice < 0.075 else How.KILL
    return StopPlan(at_s, how, again_s, timeout_s, grace_s)


class Stop:
    """Stops a server while its clients go on, and finds what is wrong with the end."""

    def __init__(
        self, plan: StopPlan, machine: Machine, served: Served, oracle: Oracle, *, has_faults: bool
    ) -> None:
        self.plan = plan
        self._machine = machine
        self._served = served
        self._oracle = oracle
        self._has_faults = has_faults
        self._began_ns = 0
        self._ended_ns = 0

    def schedule(self) -> None:
        self._machine.call_later(round(self.plan.at_s * SECOND_NS), self._begin)

    @property
    def has_begun(self) -> bool:
        """Whether the server was told to stop."""
        return bool(self._began_ns)

    def _begin(self) -> None:
        machine, served, plan = self._machine, self._served, self.plan
        self._began_ns = machine.now_ns
        machine.note(str(plan))
        assert served.main is not None
        # In its time of grace a server serves everybody, except that it is not ready.
        self._oracle.fault(Cause.SERVER_STOPPING)
        if plan.how is How.KILL:
            self._oracle.fault(Cause.SERVER_KILLED)
            served.main.kill()
            return
        served.begin_stop()
        if plan.how is How.TWICE:
            machine.call_later(round(plan.again_s * SECOND_NS), self._insist)

    def _insist(self) -> None:
        if self._machine.live_count:
            self._oracle.fault(Cause.SERVER_KILLED)
            self._served.begin_stop()

    def finish(self, sessions: Sequence[Session]) -> Iterator[str]:
        """Wait for the end of everything; yields what is wrong with it."""
        machine, plan = self._machine, self.plan
        machine.run(lambda: self.has_begun, machine.now_ns + round(plan.at_s * SECOND_NS) + 1)
        longest_ns = round(plan.longest_s * SECOND_NS)
        if not machine.run(lambda: not machine.live_count, self._began_ns + longest_ns):
            living = [each.name for each in machine.processes if not each.is_over]
            yield f"{plan.longest_s:g} s after its stop, {', '.join(living)} still run"
        self._ended_ns = machine.now_ns
        for session in sessions:
            session.stop()
        machine.run_for(1.0)
        open_count = sum(not session.is_done for session in sessions)
        if open_count:
            yield f"{open_count} clients have calls under way, but there is no server any more"
        yield from self._check_exit()
        if machine.shared_memory_bytes:
            yield f"{machine.shared_memory_bytes} bytes of shared memory are left"

    def _check_exit(self) -> Iterator[str]:
        """Look at the exit code, which says whether requests could be finished in time."""
        if self.plan.how is not How.ORDER or self._has_faults:
            return
        status = self._served.server.status
        limit_s = self.plan.finishes_s - EARLY_S
        took_s = (self._ended_ns - self._began_ns) / SECOND_NS
        is_over = took_s >= limit_s < self._oracle.work_after_s(self._began_ns / SECOND_NS)
        if status != 0 and not (status == 1 and is_over):
            yield f"the server ended with the exit code {status}, {took_s:.3f} s after its stop"
        elif status == 0 and self._oracle.has_given_up and self._served.plan.repository:
            yield "the exit code is 0, but calls were given up when the exit timeout was over"
