# SPDX-License-Identifier: Apache-2.0
"""Decides when the traces of one setting are written, and to which kind of file. It has no I/O."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pytriton.serving.server.tracing.request_trace import TraceFacts
    from pytriton.serving.server.tracing.settings import TraceSampling

Trace = list["TraceFacts"]  # a request of a client, and the calls that were made for it

# Traces are not kept longer than until they have about this size.
MAX_KEPT_BYTES = 64 << 20
_FACTS_BYTES = 2048  # about the size of the facts of a request, without tensors


class TraceTarget(enum.Enum):
    """Where traces are written to."""

    MAIN = "the file of the settings"
    NUMBERED = "the next file with a number"


class TraceBatch(NamedTuple):
    """Traces that are written together."""

    target: TraceTarget
    traces: list[Trace]
    size: int  # about the memory that they take


class TraceCollection:
    """The traces of one setting.

    With a log frequency they are written when there are that many. Without, they are written
    whenever somebody asks for it; but those of a limited number together, after the last one.

    Args:
        sampling: The setting.
    """

    def __init__(self, sampling: TraceSampling) -> None:
        self._frequency = sampling.log_frequency
        self._count = sampling.count
        self._begun = 0
        self._open = 0
        self._kept: list[Trace] = []
        self._size = 0
        self.is_retired = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.is_retired and not self._open and not self._kept

    @property
    def is_written_soon(self) -> bool:
        """Whether its traces wait only for somebody who asks for them."""
        return bool(self._kept) and not self._frequency and self._count < 0

    def begin(self) -> None:
        """Note that a trace has begun."""
        self._begun += 1
        self._open += 1

    def end(self, trace: Trace) -> TraceBatch | None:
        """Add a trace that has ended, or nothing of it; returns traces to write."""
        self._open -= 1
        if trace:
            self._kept.append(trace)
            self._size += sum(map(facts_bytes, trace))
        return self._due()

    def retire(self) -> TraceBatch | None:
        """Note that no trace begins any more; returns traces to write."""
        self.is_retired = True
        return self._due()

    def take(self) -> TraceBatch | None:
        """Returns all kept traces."""
        if not self._kept:
            return None
        return self._batch(TraceTarget.NUMBERED if self._frequency else TraceTarget.MAIN)

    def _due(self) -> TraceBatch | None:
        if not self._kept:
            return None
        is_last = not self._open
        if self._frequency and len(self._kept) >= self._frequency:
            return self._batch(TraceTarget.NUMBERED)
        if is_last and self._begun == self._count:
            return self._batch(TraceTarget.NUMBERED)
        if (is_last and self.is_retired) or self._size > MAX_KEPT_BYTES:
            return self.take()
        return None

    def _batch(self, target: TraceTarget) -> TraceBatch:
        batch = TraceBatch(target, self._kept, self._size)
        self._kept, self._size = [], 0
        return batch


def facts_bytes(facts: TraceFacts) -> int:
    """Returns about the memory that the facts of a request take."""
    return _FACTS_BYTES + sum(len(tensor.data) for tensor in facts.tensors or ())
