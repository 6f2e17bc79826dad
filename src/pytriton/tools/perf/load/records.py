# SPDX-License-Identifier: Apache-2.0
"""What a load measured: a row for each request that ended, kept as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _times() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """How busy the load generator itself was since the records before.

    Attributes:
        processes: Processes that made the load.
        cpu_share: Processor time of the busiest of them, as a share of the time that passed: near
            1, it has no time left.
        waiting_share: Share of the time in which the busiest of them waited for the server: near
            0, answers waited for the generator.
        lag_ns: Mean time that an answer which had arrived waited until it was handled.
        is_limit: The generator was busy nearly all the time, so that a quicker one may have
            measured more.
    """

    processes: int = 1
    cpu_share: float = 0.0
    waiting_share: float = 1.0
    lag_ns: float = 0.0
    is_limit: bool = False


@dataclass(frozen=True, slots=True)
class Records:
    """The requests that ended since the records before, in the order of their last response.

    Times are nanoseconds of `time.monotonic_ns`. All columns but `response_ns` have a row for each
    request.

    Attributes:
        begin_ns: When sending began; for a request of a rate or a schedule that was late, this is
            when it was really sent.
        sent_ns: When the last byte of the request was given to the operating system.
        first_ns: When its first response had come whole; for a failure without one, when it ended.
        last_ns: When its last response had come whole; for a failure, when that was known.
        responses: The number of responses.
        ok: False for a failure: an error answer, a lost connection, an answer that differs from
            the expected one.
        delayed: True if the request began later than its rate or schedule asks for.
        input_index: Which input set it sent, counted through all streams of the plan.
        sequence_id: The id of its sequence, 0 without sequences.
        response_ns: When each response came, request after request (`responses` says how many
            belong to each); empty unless the plan streams.
        errors: How often each error text came.
        generator: How busy the generator was.
        taken_ns: When these records were taken.
        since_ns: When the records before were taken, or the load began.
        is_done: Everything that the level asks for was sent and has ended.
        outputs: For each request, the outputs of each of its responses; None unless the plan keeps
            them.
    """

    begin_ns: NDArray[np.int64] = field(default_factory=_times)
    sent_ns: NDArray[np.int64] = field(default_factory=_times)
    first_ns: NDArray[np.int64] = field(default_factory=_times)
    last_ns: NDArray[np.int64] = field(default_factory=_times)
    responses: NDArray[np.int64] = field(default_factory=_times)
    ok: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    delayed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    input_index: NDArray[np.int64] = field(default_factory=_times)
    sequence_id: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    response_ns: NDArray[np.int64] = field(default_factory=_times)
    errors: Mapping[str, int] = field(default_factory=dict)
    generator: GeneratorState = field(default_factory=GeneratorState)
    taken_ns: int = 0
    since_ns: int = 0
    is_done: bool = False
    outputs: Sequence[Sequence[Mapping[str, NDArray[Any]]]] | None = None

    def __len__(self) -> int:
        return len(self.begin_ns)
