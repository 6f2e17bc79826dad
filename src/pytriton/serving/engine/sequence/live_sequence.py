# SPDX-License-Identifier: Apache-2.0
"""A sequence while it lives: its phases, the backlog in which it waits, the slots it may get."""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Protocol

from pytriton.serving.engine.fairness import FairFifo, FairShares
from pytriton.serving.engine.request_queue import DeadlineHeap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.runtime.executor.inference import Inference, Instance
    from pytriton.serving.engine.sequence.sequence_inputs import SequenceStates

# The requests of a batch (None: an empty slot, which a null request fills), or the time in ns at
# which to ask again, or None: ask after the next change.
Choice = list["Inference"] | list["Inference | None"] | int | None

FULL = -1


class InstanceSlots(Protocol):
    """The sequences of one instance. Each occupies a slot; the first request of some is ready."""

    instance: Instance

    @property
    def rank(self) -> int:
        """How good its next free slot is, 0 for the best; `FULL` if there is none."""

    @property
    def sequences(self) -> Iterable[LiveSequence]:
        """The sequences that occupy slots."""

    def take(self, sequence: LiveSequence) -> None:
        """Give a sequence a slot."""

    def release(self, sequence: LiveSequence) -> None:
        """Free the slot of a sequence, of which no request is ready."""

    def add_ready(self, sequence: LiveSequence) -> None:
        """Note that the first waiting request of a sequence may be executed."""

    def remove_ready(self, sequence: LiveSequence) -> None:
        """Undo `add_ready`; the request is still the first one that waits."""

    def check_integrity(self) -> None:
        """Check that no two sequences share a slot, and who is ready; raises AssertionError."""

    def next(self, now_ns: int) -> Choice:
        """Decide what the instance, which can take a batch, executes now.

        The chosen requests are not ready any more.
        """


def best_slots(all_slots: Iterable[InstanceSlots]) -> InstanceSlots | None:
    """Returns the slots with the best free one; None if all are occupied."""
    best = None
    best_rank = FULL
    for slots in all_slots:
        rank = slots.rank
        if rank != FULL and (best is None or rank < best_rank):
            best, best_rank = slots, rank
    return best


class _FairBacklog(FairFifo["LiveSequence"]):
    """Sequences in the order of the shares of principals."""

    __slots__ = ()

    def principal_of(self, item: LiveSequence) -> str:
        return item.principal

    def rows_of(self, item: LiveSequence) -> int:
        return 1


class Backlog:
    """Sequences in the order of their arrival. A request may limit how long its sequence waits.

    If principals share it, they take turns at the slots that become free.
    """

    def __init__(self) -> None:
        # Each with the tokens of its deadlines.
        self._sequences: OrderedDict[LiveSequence, list[int]] | _FairBacklog = OrderedDict()
        self._shares: FairShares | None = None
        self._deadlines = DeadlineHeap()

    def share(self, shares: FairShares | None) -> None:
        """Let principals share the slots from now on; None: the order of arrival decides."""
        self._shares = shares
        items = list(self._sequences.items())
        self._sequences = OrderedDict(items) if shares is None else _FairBacklog(shares, items)

    @property
    def sequences(self) -> OrderedDict[LiveSequence, list[int]] | _FairBacklog:
        """The sequences, the one that is next first."""
        return self._sequences

    def append(self, sequence: LiveSequence) -> None:
        """Add a sequence as the last one."""
        self._sequences[sequence] = []

    def limit(self, sequence: LiveSequence, inference: Inference, now_ns: int) -> None:
        """Apply the timeout of a request that was added to a sequence in this backlog."""
        inference.deadline_ns = now_ns + 1000 * inference.request.fields.timeout_us
        self._sequences[sequence].append(self._deadlines.add(inference))

    def pop_first(self) -> LiveSequence:
        """Remove and return the sequence that is next: the oldest one, unless it is shared."""
        sequence = next(iter(self._sequences))
        self.remove(sequence)
        if self._shares is not None:
            self._shares.charge(sequence.principal, 1)
        return sequence

    def remove(self, sequence: LiveSequence) -> None:
        """Remove a sequence; the timeouts of its requests do not count any more."""
        for token in self._sequences.pop(sequence):
            self._deadlines.discard(token)
        for inference in sequence.waiting:
            inference.deadline_ns = 0

    def pop_expired(self, now_ns: int) -> list[Inference]:
        """Returns the requests whose timeout is over; the caller removes their sequences."""
        return self._deadlines.pop_expired(now_ns)

    def earliest_ns(self) -> int:
        """Returns the time at which the next timeout is over; 0 if there is none."""
        return self._deadlines.earliest_ns()

    def __len__(self) -> int:
        return len(self._sequences)


class SequencePhase(enum.Enum):
    """The phases of a sequence; docs/sequences.md has a picture."""

    BACKLOG = 0  # it has requests and waits for a slot
    IDLE = 1  # in a slot, without a request
    READY = 2  # in a slot, its first request may be executed
    RUNNING = 3  # in a slot, one request is being executed
    ENDED = 4


TRANSITIONS: dict[SequencePhase, frozenset[SequencePhase]] = {
    SequencePhase.BACKLOG: frozenset({SequencePhase.READY, SequencePhase.ENDED}),
    SequencePhase.IDLE: frozenset({SequencePhase.READY, SequencePhase.ENDED}),
    SequencePhase.READY: frozenset({SequencePhase.RUNNING, SequencePhase.ENDED}),
    SequencePhase.RUNNING: frozenset(
        {SequencePhase.IDLE, SequencePhase.READY, SequencePhase.ENDED}
    ),
    SequencePhase.ENDED: frozenset(),
}


class LiveSequence:
    """A sequence, from the request that starts it until its slot is free again.

    Attributes:
        id: The correlation id.
        state: What it does now.
        waiting: Its requests that wait for an execution, in order.
        running: The request that is being executed.
        slots: The slots of the instance that executes it; None in the backlog and at the end.
        slot: The number of its slot there.
        states: What the server keeps for the model between requests.
        principal: Who has started it.
        is_closed: Whether it takes no more requests: it ends when those that it has are done.
        has_generated_id: Whether the server chose the id and has to tell it to the client.
    """

    __slots__ = (
        "has_generated_id",
        "id",
        "is_closed",
        "principal",
        "running",
        "slot",
        "slots",
        "state",
        "states",
        "waiting",
    )

    def __init__(
        self, correlation_id: int | str, state: SequencePhase, states: SequenceStates
    ) -> None:
        self.id = correlation_id
        self.state = state
        self.waiting: deque[Inference] = deque()
        self.running: Inference | None = None
        self.slots: InstanceSlots | None = None
        self.slot = 0
        self.states = states
        self.principal = ""
        self.is_closed = False
        self.has_generated_id = False

    def __repr__(self) -> str:
        return (
            f"<LiveSequence {self.id!r} {self.state.name} {len(self.waiting)} waiting"
            f"{' closed' if self.is_closed else ''}>"
        )
