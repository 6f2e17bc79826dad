# SPDX-License-Identifier: Apache-2.0
"""Makes a scenario with a finding shorter: fewer faults, clients and calls, and simpler ones.

Parts are left out and the rest runs again. What still has the same kind of finding is kept, until
nothing can be left out or the number of runs is reached. The same seed gives the same result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Sequence
from typing import Any

from tests.simulation.scenario import USUAL_LENGTH, Kept, Length, Result, Run, make_scenario
from tests.workload.calls import POLITE

_TIME = re.compile(r"^\d+\.\d+: ")
_CALL = re.compile(r" \[call \d.*\]$", re.DOTALL)
_CAUSES = re.compile(r" \([a-z ,]+\)$")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_NUMBER = re.compile(r"0b[01]+|\d+(?:\.\d+)?")
_LIST = re.compile(r"N(?:, ?N)+")


def kind_of(finding: str) -> str:
    """Returns what a finding says whatever its numbers, its time and its call are."""
    first = finding.split("\n", 1)[0]
    sentence = _CAUSES.sub("", _CALL.sub("", _TIME.sub("", first)))
    return _LIST.sub("N", _NUMBER.sub("N", _ADDRESS.sub("N", sentence)))


@dataclasses.dataclass(slots=True)
class Shrunk:
    kept: Kept
    kind: str  # of the finding
    result: Result
    runs: int


class _BudgetSpentError(Exception):
    """No more runs are allowed."""


class Shrinker:
    """Looks for a shorter scenario.

    Args:
        seed: of the scenario.
        profile: of the scenario.
        length: of the scenario.
        max_runs: how many runs it may take.
        max_s: how many seconds; the machine decides on the result if that is too short.
    """

    def __init__(
        self,
        seed: int,
        profile: str,
        length: Length = USUAL_LENGTH,
        *,
        max_runs: int = 200,
        max_s: float = 600.0,
    ) -> None:
        self._seed, self._profile, self._length = seed, profile, length
        self._max_runs = max_runs
        self._deadline_s = time.monotonic() + max_s
        self._best: Shrunk | None = None
        self._runs = 0

    def shrink(self) -> Shrunk | None:
        """Returns the shortest schedule, or None if the seed has no finding."""
        result = self._run(Kept())
        if not result.findings:
            return None
        self._best = Shrunk(Kept(), kind_of(result.findings[0]), result, 1)
        with contextlib.suppress(_BudgetSpentError):
            self._leave_out("faults", range(len(result.scenario.faults)))
            self._leave_out("clients", [client.number for client in result.scenario.clients])
            self._leave_out("calls", self._calls())
            self._simplify()
            # What is simpler may need less.
            self._leave_out("faults", sorted(self._best.kept.faults or ()))
            self._leave_out("calls", self._calls())
        self._best.runs = self._runs
        return self._best

    def _calls(self) -> list[int]:
        assert self._best is not None
        clients = self._best.result.scenario.clients
        return [call.number for client in clients for call in client.calls]

    def _run(self, kept: Kept) -> Result:
        if self._runs >= self._max_runs or time.monotonic() > self._deadline_s:
            raise _BudgetSpentError
        self._runs += 1
        return self._make_result(kept)

    def _make_result(self, kept: Kept) -> Result:
        scenario = make_scenario(self._seed, self._profile, kept, self._length)
        return Run(scenario).run()

    def _try(self, **changes: Any) -> bool:
        """Run with less; whether the finding is still there."""
        assert self._best is not None
        kept = dataclasses.replace(self._best.kept, **changes)
        result = self._run(kept)
        if self._best.kind not in map(kind_of, result.findings):
            return False
        self._best = dataclasses.replace(self._best, kept=kept, result=result)
        return True

    def _leave_out(self, what: str, parts: Sequence[int]) -> None:
        """Keep few of these parts: large portions are left out first, single ones last."""
        left = list(parts)
        portion = len(left)
        while left and portion:
            at = 0
            while at < len(left):
                rest = left[:at] + left[at + portion :]
                if self._try(**{what: frozenset(rest)}):
                    left = rest
                else:
                    at += portion
            portion = min(portion // 2, len(left))

    def _simplify(self) -> None:
        """Use one process for ports and models, whole pieces of bytes and polite clients."""
        assert self._best is not None
        scenario = self._best.result.scenario
        if scenario.front_ends:
            self._try(front_ends=False)
        if scenario.split_share:
            self._try(splits=False)
        if scenario.pause_share:
            self._try(pauses=False)
        if scenario.writes_files:
            self._try(files=False)
        rude = [
            call.number
            for client in scenario.clients
            for call in client.calls
            if call.conduct is not POLITE
        ]
        self._leave_out("conducts", rude)
