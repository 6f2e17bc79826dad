# SPDX-License-Identifier: Apache-2.0
"""A sequence while the server knows it: its state and its requests."""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.sequence.sequence_inputs import SequenceStates
    from pytriton.serving.engine.sequence.slots import InstanceSlots


class SequenceState(enum.Enum):
    """What a sequence does; docs/sequences.md has a picture."""

    BACKLOG = 0  # it has requests and waits for a slot
    IDLE = 1  # in a slot, without a request
    READY = 2  # in a slot, its first request may be executed
    RUNNING = 3  # in a slot, one request is being executed
    ENDED = 4


TRANSITIONS: dict[SequenceState, frozenset[SequenceState]] = {
    SequenceState.BACKLOG: frozenset({SequenceState.READY, SequenceState.ENDED}),
    SequenceState.IDLE: frozenset({SequenceState.READY, SequenceState.ENDED}),
    SequenceState.READY: frozenset({SequenceState.RUNNING, SequenceState.ENDED}),
    SequenceState.RUNNING: frozenset(
        {SequenceState.IDLE, SequenceState.READY, SequenceState.ENDED}
    ),
    SequenceState.ENDED: frozenset(),
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
        is_closed: Whether it takes no more requests: it ends when those that it has are done.
        has_generated_id: Whether the server chose the id and has to tell it to the client.
    """

    __slots__ = (
        "has_generated_id",
        "id",
        "is_closed",
        "running",
        "slot",
        "slots",
        "state",
        "states",
        "waiting",
    )

    def __init__(
        self, correlation_id: int | str, state: SequenceState, states: SequenceStates
    ) -> None:
        self.id = correlation_id
        self.state = state
        self.waiting: deque[Inference] = deque()
        self.running: Inference | None = None
        self.slots: InstanceSlots | None = None
        self.slot = 0
        self.states = states
        self.is_closed = False
        self.has_generated_id = False

    def __repr__(self) -> str:
        return (
            f"<LiveSequence {self.id!r} {self.state.name} {len(self.waiting)} waiting"
            f"{' closed' if self.is_closed else ''}>"
        )
