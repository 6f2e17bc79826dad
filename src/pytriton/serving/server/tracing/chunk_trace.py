# SPDX-License-Identifier: Apache-2.0
"""The traces of the members of a chunk, which are recorded together.

Each has ids and a record of its own. The times are those of the chunk and of its batches.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pytriton.base.messages import InferTensor
from pytriton.serving.server.tracing.request_trace import (
    CANCELLED,
    TracedExecution,
    new_span_id,
    record_tensors,
    sending,
    shown_trace_id,
    trace_context,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import ExecutionTimes, InferResponse, TraceContext
    from pytriton.runtime.executor.columns import ChunkSink, OutputColumn
    from pytriton.serving.server.tracing.request_trace import TraceExporter, TraceFacts
    from pytriton.serving.server.tracing.settings import TraceSampling

_monotonic_ns = time.monotonic_ns


class ChunkTrace:
    """Records what happens to the traced members of a chunk, and passes it on to the chunk's sink.

    Args:
        facts: The records of the traced members, by their indices.
        sink: Gets what the engine tells this one.
        exporter: Gets each record when its member has ended.
        sampling: Has selected them.
        is_batched: Whether tensors have a batch dimension.
    """

    __slots__ = ("_exporter", "_facts", "_is_batched", "_sampling", "_sink")

    def __init__(
        self,
        facts: Mapping[int, TraceFacts],
        sink: ChunkSink,
        exporter: TraceExporter,
        sampling: TraceSampling,
        *,
        is_batched: bool,
    ) -> None:
        self._facts = facts
        self._sink = sink
        self._exporter = exporter
        self._sampling = sampling
        self._is_batched = is_batched

    def _traced(self, first: int, end: int) -> Iterator[tuple[int, TraceFacts]]:
        facts = self._facts
        return ((index, facts[index]) for index in range(first, end) if index in facts)

    # Called by the engine and by instances

    def contexts(
        self, first: int, end: int, *, is_model_file: bool
    ) -> Iterator[tuple[int, TraceContext]]:
        """Returns the parents of what the executing process adds, with the members' indices."""
        has_spans = self._exporter.has_spans
        if not has_spans and not is_model_file:  # it adds nothing
            return
        for index, facts in self._traced(first, end):
            context = trace_context(facts, has_spans=has_spans, is_model_file=is_model_file)
            if context is not None:
                self._exporter.expect_calls(facts)
                yield index, context

    def trace_id(self, index: int) -> str:
        """Returns the id by which users find the trace of a member; empty if it has none."""
        facts = self._facts.get(index)
        return "" if facts is None else shown_trace_id(facts, has_spans=self._exporter.has_spans)

    def add_execution(self, first: int, end: int, times_ns: ExecutionTimes) -> None:
        """Record the execution of members."""
        has_spans = self._exporter.has_spans
        execution = TracedExecution(0, times_ns)
        for _, facts in self._traced(first, end):
            if has_spans:  # each is a span
                execution = TracedExecution(new_span_id(), times_ns)
            facts.executions.append(execution)

    def record_inputs(self, chunk: Any) -> None:
        """Record the tensors that traced members bring."""
        starts = chunk.row_starts
        for index, facts in self._facts.items():
            rows = (starts[index + 1] - starts[index],) if self._is_batched else ()
            tensors = [
                InferTensor(
                    column.name,
                    column.dtype,
                    (*rows, *column.shape),
                    b"".join(chunk.pieces(place, index, index + 1)),
                )
                for place, column in enumerate(chunk.signature.inputs)
            ]
            record_tensors(facts, "TENSOR_QUEUE_INPUT", tensors)

    # Passed on to the sink of the chunk

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[OutputColumn], row: int
    ) -> None:
        """Pass on the answers of members."""
        answered_ns = _monotonic_ns()
        members, starts = chunk.members, chunk.row_starts
        protocol = next(iter(self._facts.values())).protocol
        self._sink.on_rows(chunk, first, end, outputs, row)
        events = sending(protocol, answered_ns, _monotonic_ns())
        ended = []
        for index, facts in self._traced(first, end):
            if facts.tensors is not None:
                at = row + starts[index] - starts[first]
                until = row + starts[index + 1] - starts[first]
                tensors = [each.tensor(at, until, is_batched=self._is_batched) for each in outputs]
                record_tensors(facts, "TENSOR_BACKEND_OUTPUT", tensors)
            _finish(facts, answered_ns, events, is_cancelled=members[index].is_cancelled)
            ended.append(facts)
        self._exporter.end_members(ended, self._sampling)

    def on_outcome(
        self,
        chunk: Any,
        index: int,
        response: InferResponse | None,
        error: ServerError | None,
        *,
        is_refused: bool,
    ) -> None:
        """Pass on the end of one member."""
        answered_ns = _monotonic_ns()
        is_cancelled = chunk.members[index].is_cancelled
        facts = self._facts.get(index)
        if facts is not None:
            facts.is_refused = is_refused
            if response is not None:
                record_tensors(facts, "TENSOR_BACKEND_OUTPUT", response.outputs)
            if error is not None:
                facts.error = error.message or CANCELLED
        try:
            self._sink.on_outcome(chunk, index, response, error, is_refused=is_refused)
        except Exception:
            if error is not None:  # otherwise it is called again, with an error
                self._end_alone(facts, answered_ns, is_cancelled=is_cancelled)
            raise
        self._end_alone(facts, answered_ns, is_cancelled=is_cancelled)

    def _end_alone(self, facts: TraceFacts | None, answered_ns: int, *, is_cancelled: bool) -> None:
        if facts is None:
            return
        events: list[tuple[str, int]] = []
        if not facts.is_refused:
            events = sending(facts.protocol, answered_ns, _monotonic_ns())
        _finish(facts, answered_ns, events, is_cancelled=is_cancelled)
        self._exporter.end_members([facts], self._sampling)


def _finish(
    facts: TraceFacts,
    answered_ns: int,
    events: list[tuple[str, int]],
    *,
    is_cancelled: bool,
) -> None:
    if is_cancelled:  # nobody is there to whom it could be sent
        facts.error = facts.error or CANCELLED
    else:
        facts.events = events
    facts.answered_ns = answered_ns
    facts.end_ns = _monotonic_ns()
