# SPDX-License-Identifier: Apache-2.0
"""Makes the spans of a request after it has ended.

It has no I/O and does not use OpenTelemetry. Names of spans, attributes and events are Triton's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pytriton.serving.server.tracing.request_trace import receiving

if TYPE_CHECKING:
    from pytriton.serving.server.tracing.request_trace import TracedExecution, TraceFacts

SERVER_SCOPE = "triton-server"
BACKEND_SCOPE = "pbe"


class SpanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A span that has ended."""

    name: str
    scope: str
    trace_id: int
    span_id: int
    parent_id: int  # 0: none
    is_parent_remote: bool
    tracestate: str
    start_ns: int  # this and all other times are since the epoch
    end_ns: int
    events: list[tuple[str, int]]
    attributes: dict[str, str | int]
    error: str | None


def make_spans(facts: TraceFacts, offset_ns: int) -> list[SpanRecord]:
    """Make the spans of a request, outer ones first.

    Args:
        facts: the record of the request.
        offset_ns: the difference between the time since the epoch and the monotonic clock.
    """
    spans = _Spans(facts, offset_ns)
    if not facts.is_call:
        received = receiving(facts)
        times = (received[0][1] if received else facts.start_ns, facts.end_ns)
        events = received + facts.events
        spans.add("InferRequest", facts.infer_id, facts.parent_id, times, events)
    _add_model(spans, facts)
    for execution in facts.executions:
        _add_execution(spans, facts, execution)
    return spans.records


class _Spans:
    """Makes the spans of one request with the values that they share."""

    def __init__(self, facts: TraceFacts, offset_ns: int) -> None:
        self.records: list[SpanRecord] = []
        self._facts = facts
        self._offset_ns = offset_ns

    def add(
        self,
        name: str,
        span_id: int,
        parent_id: int,
        times_ns: tuple[int, int],
        events: list[tuple[str, int]],
        attributes: dict[str, str | int] | None = None,
        scope: str = SERVER_SCOPE,
    ) -> None:
        facts = self._facts
        offset_ns = self._offset_ns
        self.records.append(
            SpanRecord(
                name=name,
                scope=scope,
                trace_id=facts.trace_id,
                span_id=span_id,
                parent_id=parent_id,
                is_parent_remote=bool(parent_id) and parent_id == facts.parent_id,
                tracestate=facts.tracestate,
                start_ns=times_ns[0] + offset_ns,
                end_ns=times_ns[1] + offset_ns,
                events=[(event, at_ns + offset_ns) for event, at_ns in events],
                attributes=attributes or {},
                error=facts.error,
            )
        )


def _add_model(spans: _Spans, facts: TraceFacts) -> None:
    attributes: dict[str, str | int] = {
        "triton.model_name": facts.model_name,
        "triton.model_version": facts.model_version,
        "triton.trace_id": facts.number,
    }
    if not facts.is_call:
        attributes["triton.trace_parent_id"] = 0
    if facts.request_id:
        attributes["triton.request_id"] = facts.request_id
    events = [("REQUEST_START", facts.start_ns), ("REQUEST_END", facts.answered_ns)]
    if facts.executions:
        events.insert(1, ("QUEUE_START", facts.executions[0].times_ns.queued_ns))
    parent_id = facts.parent_id if facts.is_call else facts.infer_id
    times = (facts.start_ns, facts.answered_ns)
    spans.add(facts.model_name, facts.model_id, parent_id, times, events, attributes)


def _add_execution(spans: _Spans, facts: TraceFacts, execution: TracedExecution) -> None:
    times_ns = execution.times_ns
    span = (times_ns.started_ns, times_ns.ended_ns)
    events = [
        ("COMPUTE_START", times_ns.started_ns),
        ("COMPUTE_INPUT_END", times_ns.infer_start_ns),
        ("COMPUTE_OUTPUT_START", times_ns.output_start_ns),
        ("COMPUTE_END", times_ns.ended_ns),
    ]
    spans.add("compute", execution.span_id, facts.model_id, span, events)
    if facts.backend_id:
        name = "python_backend_execute"
        spans.add(name, facts.backend_id, facts.model_id, span, [], scope=BACKEND_SCOPE)
