# SPDX-License-Identifier: Apache-2.0
"""The users' settings of sequences: strategies, control inputs, implicit states."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.utils.checks import check_type


class ControlKind(enum.Enum):
    """What a control input tells a sequence model."""

    START = "CONTROL_SEQUENCE_START"
    READY = "CONTROL_SEQUENCE_READY"
    END = "CONTROL_SEQUENCE_END"
    CORRID = "CONTROL_SEQUENCE_CORRID"


@dataclasses.dataclass
class SequenceControl:
    """An input that the server adds to each request of a sequence; clients do not send it.

    It has the shape (1,), and (rows, 1) in a batch.

    Args:
        kind: what it tells: whether a request is the first or the last of its sequence, whether a
            row of the batch has a request at all, or the id of the sequence.
        name: name of the input; by default START, READY, END or CORRID.
        dtype: type of the input; bool (the default), int32 or float32 for flags, and for the id
            uint64 (the default), int64, uint32, int32, or bytes for ids that are texts.
        false_true: the values of a flag.
    """

    kind: ControlKind
    name: str = ""
    dtype: Any = None
    false_true: tuple[float, float] = (0, 1)

    def __post_init__(self) -> None:
        check_type(self.kind, "kind of a control", ControlKind)
        check_type(self.name, "name of a control", str)
        self.name = self.name or self.kind.name
        if self.dtype is None:
            self.dtype = np.uint64 if self.kind is ControlKind.CORRID else np.bool_


@dataclasses.dataclass
class SequenceState:
    """A state: what a request returns as output is an input of the sequence's next request.

    It stays in the server. Clients get the output only if it is also one of the model's outputs.

    Args:
        input_name: name of the input with the state.
        output_name: name of the output with the next state.
        dtype: type of the elements, as in `Tensor`.
        shape: dimensions without the batch dimension; -1 is a dimension of any size.
        initial: state of the first request of a sequence, without the batch dimension; by default
            zeros, with 1 for a dimension of any size.
        use_same_buffer_for_input_output: accepted; a hint for compiled backends.
        use_growable_memory: accepted; a hint for compiled backends. Every state with a dimension of
            any size may grow.
    """

    input_name: str
    output_name: str
    dtype: Any
    shape: Sequence[int]
    initial: NDArray[Any] | None = dataclasses.field(default=None, compare=False)
    use_same_buffer_for_input_output: bool = False
    use_growable_memory: bool = False

    def __post_init__(self) -> None:
        check_type(self.input_name, "input_name of a state", str)
        check_type(self.output_name, "output_name of a state", str)
        check_type(self.shape, f"shape of the state '{self.input_name}'", tuple, list)


@dataclasses.dataclass
class DirectStrategy:
    """Each sequence has a row of the batch of one instance, from its start to its end.

    Args:
        max_queue_delay_microseconds: how long a request may wait for others to join it.
        minimum_slot_utilization: share of the rows that must have a request before a batch runs,
            unless the delay is over; between 0 and 1.
    """

    max_queue_delay_microseconds: int = 0
    minimum_slot_utilization: float = 0.0


@dataclasses.dataclass
class OldestStrategy:
    """The requests of different sequences, the oldest first, are combined as they come.

    Args:
        max_candidate_sequences: number of sequences of an instance that may have requests running;
            0 means as many as a batch has rows.
        preferred_batch_size: sizes at which a batch does not wait any longer.
        max_queue_delay_microseconds: how long a request may wait for others to join it.
        preserve_ordering: whether responses are sent in the order in which requests arrived.
    """

    max_candidate_sequences: int = 0
    preferred_batch_size: list[int] | None = None
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False


@dataclasses.dataclass
class SequenceBatcher:
    """How the server keeps the requests of a sequence together and passes on their state.

    All requests of a sequence are executed by the same instance, one after the other.

    Args:
        strategy: how requests of different sequences are combined.
        max_sequence_idle_microseconds: a sequence without a request for this time ends.
        controls: inputs that the server adds to each request.
        states: states that requests of a sequence pass on.
        max_queue_size: number of sequences that may wait for a place; 0 means no limit.
        generate_ids: whether a request without a sequence id is a sequence of its own.
    """

    strategy: DirectStrategy | OldestStrategy = dataclasses.field(default_factory=DirectStrategy)
    max_sequence_idle_microseconds: int = 1_000_000
    controls: Sequence[SequenceControl] = ()
    states: Sequence[SequenceState] = ()
    max_queue_size: int = 0
    generate_ids: bool = False

    def __post_init__(self) -> None:
        check_type(self.strategy, "strategy of sequences", DirectStrategy, OldestStrategy)
        for control in self.controls:
            check_type(control, "control of sequences", SequenceControl)
        for state in self.states:
            check_type(state, "state of sequences", SequenceState)
