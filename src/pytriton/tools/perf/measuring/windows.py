# SPDX-License-Identifier: Apache-2.0
"""Windows of a measurement, and the columns of records that belong to them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.tools.perf.load.records import GeneratorState, Records
from pytriton.tools.perf.server.statistics import ServerCounts

# The columns with a row for each request.
_ROWS = (
    "begin_ns", "sent_ns", "first_ns", "last_ns", "responses", "ok", "delayed", "input_index",
    "sequence_id",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """What was measured between two moments.

    Attributes:
        records: The requests that ended in it.
        server: What the server counted meanwhile; None if it does not say.
        gpu: Gauges of the server's GPUs by name and GPU, if they are collected.
        is_cut: Whether an interrupt ended it.
    """

    begin_ns: int
    end_ns: int
    records: Records
    server: ServerCounts | None = None
    gpu: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    is_cut: bool = False

    @property
    def duration_s(self) -> float:
        return max(self.end_ns - self.begin_ns, 1) / 1e9


def join(parts: Sequence[Records]) -> Records:
    """The records of several takes as one."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Records()
    columns: dict[str, NDArray[Any]] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in _ROWS
    }
    errors: Counter[str] = Counter()
    for part in parts:
        errors.update(part.errors)
    outputs = None
    if all(part.outputs is not None for part in parts):
        outputs = [each for part in parts for each in part.outputs or ()]
    return Records(
        **columns,
        response_ns=np.concatenate([part.response_ns for part in parts]),
        errors=dict(errors),
        generator=busiest([part.generator for part in parts if part.taken_ns > part.since_ns]),
        taken_ns=parts[-1].taken_ns,
        since_ns=parts[0].since_ns,
        is_done=parts[-1].is_done,
        outputs=outputs,
    )


def busiest(states: Sequence[GeneratorState]) -> GeneratorState:
    """How busy the generator was in all: means, as its limits are those of the whole time."""
    if not states:
        return GeneratorState()
    return GeneratorState(
        processes=max(state.processes for state in states),
        cpu_share=float(np.mean([state.cpu_share for state in states])),
        waiting_share=float(np.mean([state.waiting_share for state in states])),
        lag_ns=float(np.mean([state.lag_ns for state in states])),
        is_limit=sum(state.is_limit for state in states) * 2 > len(states),
    )


def choose(records: Records, rows: NDArray[np.bool_]) -> Records:
    """Some rows of records; errors and the generator's state stay as they are."""
    if bool(rows.all()):
        return records
    columns: dict[str, Any] = {name: getattr(records, name)[rows] for name in _ROWS}
    responses = records.response_ns
    if len(responses):
        responses = responses[np.repeat(rows, records.responses)]
    outputs = records.outputs
    if outputs is not None:
        outputs = [each for each, is_in in zip(outputs, rows, strict=True) if is_in]
    return dataclasses.replace(records, **columns, response_ns=responses, outputs=outputs)
