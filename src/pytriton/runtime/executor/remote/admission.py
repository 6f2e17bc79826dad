# SPDX-License-Identifier: Apache-2.0
"""Decides which processes may be an instance; no sockets, no clock, and no secrets in here.

A process that was replaced may come back, for example when a broken network is whole again. It
still has the token of its start. So the proof of the token is not enough: the process must also be
the one that the starter told about, and its place must not have been taken before.

        expect                    place                      all ranks were admitted
    ────────────► EXPECTED ────────────────► PLACED ────────────────────────────────► COMPLETE
                  claims wait       claims are decided at once      every claim is refused
                      │                         │                               │
                      └──────── revoke ─────────┴───────────────────────────────┘──► REVOKED
                                                                       every claim is refused
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.runtime.executor.remote.starter import ProcessPlace


class StartState(enum.Enum):
    """The state of a start; the picture is above."""

    EXPECTED = enum.auto()
    PLACED = enum.auto()
    COMPLETE = enum.auto()
    REVOKED = enum.auto()


class Claim:
    """A process that has proved the token of a start, and says which of its processes it is.

    Attributes:
        is_admitted: None until that is decided.
        refusal: Why it was not admitted, as text for the process.
    """

    def __init__(self, rank: int, node_id: str, pid: int) -> None:
        self.rank = rank
        self.node_id = node_id
        self.pid = pid
        self.is_admitted: bool | None = None
        self.refusal = ""

    def __repr__(self) -> str:
        return (
            f"<Claim rank={self.rank} node={self.node_id} pid={self.pid} "
            f"admitted={self.is_admitted}>"
        )


class ExpectedStart:
    """One start of an instance, of one process or of a group."""

    def __init__(self, name: str, group_size: int = 1) -> None:
        self.name = name
        self.group_size = group_size
        self.state = StartState.EXPECTED
        self.places: tuple[ProcessPlace, ...] = ()
        self._waiting: list[Claim] = []
        self._taken: set[int] = set()

    def claim(self, rank: int, node_id: str, pid: int) -> Claim:
        """Take a process's claim; it is decided now, or by `place` or `revoke`."""
        claim = Claim(rank, node_id, pid)
        if self.state is StartState.EXPECTED and 0 <= rank < self.group_size:
            self._waiting.append(claim)
        else:
            self._decide(claim)
        return claim

    def withdraw(self, claim: Claim) -> None:
        """Forget a claim whose process has gone, if it still waits."""
        if claim in self._waiting:
            self._waiting.remove(claim)

    def place(self, places: Sequence[ProcessPlace]) -> list[Claim]:
        """Take the places of the processes, by rank, from the starter; returns the decided claims.

        Raises:
            ValueError: There is not one place for each process of the group.
        """
        if len(places) != self.group_size:
            raise ValueError(
                f"expected the places of {self.group_size} processes of '{self.name}', "
                f"got {len(places)}"
            )
        if self.state is not StartState.EXPECTED:
            return []
        self.places = tuple(places)
        self.state = StartState.PLACED
        return self._decide_waiting()

    def revoke(self) -> list[Claim]:
        """Admit no process any more; returns the claims that waited, which are refused."""
        self.state = StartState.REVOKED
        return self._decide_waiting()

    def check_integrity(self) -> None:
        """Raise AssertionError if the state contradicts the claims. Changes nothing.

        Claims wait only before the places are known, every place that was taken is one of the
        group, and a start is complete if all are taken.
        """
        assert not self._waiting or self.state is StartState.EXPECTED, (
            f"{len(self._waiting)} claims wait in state {self.state.name}"
        )
        assert self._taken <= set(range(self.group_size)), f"the ranks {self._taken} were taken"
        is_full = len(self._taken) == self.group_size
        assert self.state is StartState.REVOKED or is_full == (self.state is StartState.COMPLETE), (
            f"{len(self._taken)} of {self.group_size} places are taken in {self.state.name}"
        )

    def __repr__(self) -> str:
        return f"<ExpectedStart {self.name} {self.state.name} waiting={len(self._waiting)}>"

    def _decide_waiting(self) -> list[Claim]:
        waiting, self._waiting = self._waiting, []
        for claim in waiting:
            self._decide(claim)
        return waiting

    def _decide(self, claim: Claim) -> None:
        claim.refusal = self._refusal(claim)
        claim.is_admitted = not claim.refusal
        if claim.is_admitted:
            self._taken.add(claim.rank)
            if len(self._taken) == self.group_size:
                self.state = StartState.COMPLETE

    def _refusal(self, claim: Claim) -> str:
        """Returns why a claim is refused; "" if it is admitted."""
        if self.state is StartState.REVOKED:
            return f"'{self.name}' is not expected any more"
        if not 0 <= claim.rank < self.group_size:
            return f"'{self.name}' has {self.group_size} processes, so none of rank {claim.rank}"
        place = self.places[claim.rank]
        if (claim.node_id, claim.pid) != (place.node_id, place.pid):
            return (
                f"'{self.name}' is process {place.pid} of node {place.node_id}, "
                f"not process {claim.pid} of node {claim.node_id}"
            )
        if claim.rank in self._taken:
            return f"process {claim.pid} of '{self.name}' was connected before"
        return ""
