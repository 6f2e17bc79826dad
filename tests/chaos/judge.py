# SPDX-License-Identifier: Apache-2.0
"""The oracle of the workload, with an account by kind of call and what real sockets need."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable

from tests.e2e.waiting import DEADLINE_S
from tests.workload.calls import INFERENCES, Call, End, Kind
from tests.workload.models import SEQUENCE_IDLE_US as _SEQUENCE_IDLE_US
from tests.workload.oracle import Bounds, Cause, Oracle

_SENT = "sent"
_LOSSES = (End.LOST, End.RESET, End.UNSENT)
# The columns of the account, besides the calls that were sent. The last ones are findings.
_COLUMNS = (
    "answered",
    "refused",  # an error that the call itself explains
    "failed by fault",
    "lost by fault",
    "client left",
    "invalid",
    "wrong",
    "lost",
    "double",
)
# What takes longer hangs, however busy the machine is; the simulation judges how long things take.
_BOUNDS = Bounds(
    health_s=DEADLINE_S,
    answer_s=DEADLINE_S,
    gap_s=DEADLINE_S,
    management_s=DEADLINE_S,
    refusal_s=DEADLINE_S,
    fault_s=DEADLINE_S,
    late_s=DEADLINE_S,
)


class ChaosOracle(Oracle):
    """Judges calls over real connections."""

    def __init__(self, now: Callable[[], float], served: Iterable[str]) -> None:
        super().__init__(now, _BOUNDS, served)
        self.rows: dict[str, collections.Counter[str]] = {}
        self._silent_since_s: float | None = None
        self._is_stopping = False

    def stop(self) -> None:
        """No more calls begin: those that no connection has sent yet never will be."""
        self._is_stopping = True

    def resume(self) -> None:
        """All clients are gone, and others may come; a call that is still open is a finding."""
        self._is_stopping = False
        for call in list(self.open.values()):
            if call.outcome.submitted_s is None:
                del self.open[call.number]  # it waited for the next connection of its client
        self.close()
        self.open.clear()

    def silent_since(self, time_s: float | None) -> None:
        """Calls that are lost now were lost since then.

        A client that does not read learns late that its connection was reset.
        """
        self._silent_since_s = time_s

    def _causes(self, call: Call, began_s: float | None = None) -> list[Cause]:
        if began_s is None and call.outcome.end in _LOSSES and self._silent_since_s is not None:
            began_s = min(self._silent_since_s, call.outcome.submitted_s or self._silent_since_s)
        return super()._causes(call, began_s)

    def _judge_loss(self, call: Call) -> None:
        if not (self._is_stopping and call.outcome.end is End.UNSENT):
            super()._judge_loss(call)

    def _sequence_explains(self, call: Call, status: int | None) -> bool:
        if super()._sequence_explains(call, status):
            return True
        # To the server, the sequence may have been idle since the step before was sent: its answer
        # waits for a front end or a client that gets no time, and this one for a stopped server.
        waited_us = ((call.outcome.ended_s or 0.0) - call.memory.ended_began_s) * 1e6
        return "START flag" in call.outcome.error and waited_us >= _SEQUENCE_IDLE_US

    def finish(self, call: Call) -> None:
        before = len(self.findings)
        row = self.rows.get(f"{call.port.value} {call.kind.value}")
        if row is None:
            row = self.rows[f"{call.port.value} {call.kind.value}"] = collections.Counter()
        # A queue that was full is known only as long as the call is open.
        is_own_error = (
            call.outcome.end is End.ERROR
            and call.kind in INFERENCES
            and call.number in self.open
            and self._explains_itself(call, call.outcome.status)
        )
        super().finish(call)
        row[_SENT] += 1
        is_finding = len(self.findings) > before
        row[_column(call, is_finding=is_finding, is_own_error=is_own_error)] += 1

    def table(self) -> dict[str, dict[str, int]]:
        """The account, by kind of call and by how calls ended."""
        return {
            kind: {name: row[name] for name in (_SENT, *_COLUMNS)}
            for kind, row in self.rows.items()
        }


def _column(call: Call, *, is_finding: bool, is_own_error: bool) -> str:
    outcome = call.outcome
    if is_finding:
        if outcome.ends != 1:
            return "double"
        return "lost" if outcome.end in _LOSSES else "wrong"
    if call.kind is Kind.INVALID:
        return "invalid"
    if outcome.end is End.ANSWERED:
        return "answered"
    if outcome.end is End.ERROR:
        return "refused" if is_own_error else "failed by fault"
    return "lost by fault" if outcome.end in _LOSSES else "client left"
