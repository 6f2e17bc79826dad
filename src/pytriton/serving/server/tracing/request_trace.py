# SPDX-License-Identifier: Apache-2.0
"""The records of traced requests, and the watcher that fills them.

Exporters make spans or files of the record.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
from msgspec import structs

from pytriton.base.messages import TraceContext
from pytriton.serving.engine.observers import Watcher

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytriton.base.dtypes import DataType
    from pytriton.base.messages import ExecutionTimes, InferTensor
    from pytriton.serving.engine.costs import TokenUsage
    from pytriton.serving.engine.observers import Run
    from pytriton.serving.server.tracing.settings import TraceSampling

# The events around the reading of a request, by protocol.
_RECEIVING = {
    "HTTP": ("HTTP_RECV_START", "HTTP_RECV_END"),
    "GRPC": ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
}
# Only the first responses of a longer stream and the last are recorded: OpenTelemetry keeps 128
# events.
_MAX_EVENTS = 120
# The recorded executions of one request, if its model executes it many times.
_MAX_EXECUTIONS = 128
# About the memory for recorded tensors of one request: the responses of a stream may never end.
_MAX_TENSOR_BYTES = 64 << 20
_TENSOR_BYTES = 512  # beside its data
CANCELLED = "the request was cancelled"
_monotonic_ns = time.monotonic_ns


class TracedExecution(NamedTuple):
    """One execution of a request."""

    span_id: int
    times_ns: ExecutionTimes


class TensorFact(NamedTuple):
    """A tensor, as it was when the request was queued or when the model had made it."""

    activity: str  # Triton's name of the moment
    name: str
    dtype: DataType
    shape: tuple[int, ...]
    data: bytes


class TraceFacts(msgspec.Struct, kw_only=True):
    """The record of a traced request: its properties, its parent, and times of events."""

    trace_id: int
    parent_id: int = 0  # span of the client or the calling model; 0: it starts the trace
    tracestate: str = ""
    is_call: bool = False  # by another model
    number: int  # of the request among the traced ones, since the server started
    parent_number: int = 0  # the number of the request that made this call
    sampling: TraceSampling | None = None  # by which it was selected; None for calls
    protocol: str = ""  # HTTP or GRPC; empty for calls
    model_name: str
    model_version: int
    is_ensemble: bool = False
    request_id: str
    infer_id: int
    model_id: int
    backend_id: int = 0  # of the span around a bound callable; 0: none was called
    began_ns: int = 0  # its first bytes came; 0 if that is not known
    received_ns: int = 0  # it was there as a whole
    start_ns: int  # this and all other times are of the monotonic clock
    answered_ns: int = 0
    end_ns: int = 0
    events: list[tuple[str, int]] = []
    executions: list[TracedExecution] = []
    tensors: list[TensorFact] | None = None  # None: they are not recorded
    tensor_bytes: int = 0  # about the memory that they take
    has_timestamps: bool = True
    is_refused: bool = False  # no model has seen it
    error: str | None = None
    operation: str = ""  # of OpenAI's routes
    usage: TokenUsage | None = None  # the same; None until the model has answered
    first_response_ns: int = 0


class TraceCost(NamedTuple):
    """What a traced request has cost, over all its executions."""

    worker_ns: int  # processor time, as the next one
    server_ns: int
    queue_ns: int
    bytes_in: int  # of tensors
    bytes_out: int


def cost_of(facts: TraceFacts) -> TraceCost | None:
    """Returns what a request has cost; None if it was not executed, or nobody has measured it."""
    if facts.is_ensemble:  # its steps have their own
        return None
    times = [execution.times_ns for execution in facts.executions]
    if not any(each.processor_ns or each.bytes_in or each.bytes_out for each in times):
        return None
    return TraceCost(
        sum(each.processor_ns for each in times),
        sum(each.server_ns for each in times),
        sum(max(0, each.started_ns - each.queued_ns) for each in times),
        sum(each.bytes_in for each in times),
        sum(each.bytes_out for each in times),
    )


def receiving(facts: TraceFacts) -> list[tuple[str, int]]:
    """Returns the events around the reading of a client's request, of which calls have none."""
    names = _RECEIVING.get(facts.protocol)
    if names is None or not facts.received_ns:
        return []
    began_ns = min(facts.began_ns or facts.received_ns, facts.received_ns)
    return [(names[0], began_ns), (names[1], facts.received_ns)]


def sending(protocol: str, answered_ns: int, sent_ns: int) -> list[tuple[str, int]]:
    """Returns the events around the sending of a response."""
    return [
        ("INFER_RESPONSE_COMPLETE", answered_ns),
        (f"{protocol}_SEND_START", answered_ns),
        (f"{protocol}_SEND_END", sent_ns),
    ]


class TraceExporter(Protocol):
    """Takes the facts of traced requests out of the server; one for each mode."""

    has_spans: bool  # False: the facts become no spans, so processes of models add none

    def begin(self, facts: TraceFacts) -> bool:
        """Note that a request begins; returns False if it cannot be traced."""

    def end(self, facts: TraceFacts) -> None:
        """Export the facts of a request that has ended."""

    def begin_members(self, members: Iterable[TraceFacts], sampling: TraceSampling) -> None:
        """Note that requests begin that travel in a chunk, and were selected by this sampling."""

    def expect_calls(self, facts: TraceFacts) -> None:
        """Note that the model may make calls for a request that travels in a chunk."""

    def end_members(self, members: list[TraceFacts], sampling: TraceSampling) -> None:
        """Export the facts of requests in a chunk that have ended."""

    def retire(self, sampling: TraceSampling) -> None:
        """Finish with what was sampled by a setting that was changed."""

    async def close(self, timeout_s: float) -> None:
        """Export the rest, if that is possible in time."""


def new_span_id() -> int:
    """Returns a random id for a span."""
    return random.getrandbits(64) or 1


def new_trace_id() -> int:
    """Returns a random id for a trace."""
    return random.getrandbits(128) or 1


def trace_context(
    facts: TraceFacts, *, has_spans: bool, is_model_file: bool
) -> TraceContext | None:
    """Returns the parent span for the model's process: the model's, or a bound callable's.

    Without spans, it is only the parent of calls, which bound callables do not make.
    """
    if not has_spans:
        if not is_model_file:
            return None
        parent = f"00-{facts.trace_id:032x}-{facts.model_id:016x}-01"
        return TraceContext(parent, is_internal=True)
    if not is_model_file and not facts.backend_id:
        facts.backend_id = new_span_id()
    span_id = facts.model_id if is_model_file else facts.backend_id
    return TraceContext(f"00-{facts.trace_id:032x}-{span_id:016x}-01", facts.tracestate)


def shown_trace_id(facts: TraceFacts, *, has_spans: bool) -> str:
    """Returns the id of a trace where users look for it: in a file it is a number."""
    return f"{facts.trace_id:032x}" if has_spans else str(facts.number)


def record_tensors(facts: TraceFacts, activity: str, tensors: Iterable[InferTensor]) -> None:
    """Record tensors; their bytes are copied, because models may write to them later."""
    if facts.tensors is None:
        return
    for tensor in tensors:
        size = memoryview(tensor.data).nbytes + _TENSOR_BYTES  # none of what is in GPU memory
        if facts.tensors and facts.tensor_bytes + size > _MAX_TENSOR_BYTES:
            facts.tensor_bytes = _MAX_TENSOR_BYTES  # nor any later one, so that no gap is left
            return
        facts.tensor_bytes += size
        facts.tensors.append(
            TensorFact(activity, tensor.name, tensor.dtype, tensor.shape, bytes(tensor.data))
        )


class TraceWatcher(Watcher):
    """Fills the records of traced requests, and passes each on when its request has ended.

    Args:
        facts: The records by the indices of the requests.
        exporter: Gets each record.
        sampling: Has selected them, if they are members of a chunk.
    """

    sees_executions = True

    def __init__(
        self,
        facts: Mapping[int, TraceFacts],
        exporter: TraceExporter,
        sampling: TraceSampling | None = None,
    ) -> None:
        self._open = dict(facts)
        self._exporter = exporter
        self._sampling = sampling
        self._cancelled: set[int] = set()  # nobody is there to whom responses could be sent

    def _of(self, first: int, end: int) -> list[tuple[int, TraceFacts]]:
        found = self._open
        return [(index, found[index]) for index in range(first, end) if index in found]

    def contexts(
        self, first: int, end: int, *, is_model_file: bool
    ) -> Iterator[tuple[int, TraceContext]]:
        """Returns the parents of what the model's process adds; see `trace_context`."""
        has_spans = self._exporter.has_spans
        if not has_spans and not is_model_file:  # it adds nothing
            return
        for index, facts in self._of(first, end):
            context = trace_context(facts, has_spans=has_spans, is_model_file=is_model_file)
            if context is not None:
                if self._sampling is not None:
                    self._exporter.expect_calls(facts)
                yield index, context

    def trace_id(self, index: int) -> str:
        """Returns the id by which users find the trace."""
        facts = self._open.get(index)
        return "" if facts is None else shown_trace_id(facts, has_spans=self._exporter.has_spans)

    def add_execution(self, first: int, end: int, times_ns: ExecutionTimes) -> None:
        """Record an execution; another response of the same execution only extends it."""
        for _, facts in self._of(first, end):
            executions = facts.executions
            if executions and executions[-1].times_ns.started_ns == times_ns.started_ns:
                span_id, before = executions[-1]
                whole = structs.replace(
                    times_ns,
                    infer_start_ns=before.infer_start_ns,
                    processor_ns=before.processor_ns + times_ns.processor_ns,
                    bytes_in=before.bytes_in + times_ns.bytes_in,
                    bytes_out=before.bytes_out + times_ns.bytes_out,
                )
                executions[-1] = TracedExecution(span_id, whole)
            elif len(executions) < _MAX_EXECUTIONS:
                span_id = new_span_id() if self._exporter.has_spans else 0
                executions.append(TracedExecution(span_id, times_ns))

    def add_usage(self, index: int, usage: TokenUsage) -> None:
        """Record the tokens of a request of OpenAI's routes."""
        for _, facts in self._of(index, index + 1):
            facts.usage = usage

    def on_cancelled(self, index: int) -> None:
        """Record that the client cancelled a request, whatever the model still sends."""
        self._cancelled.add(index)
        for _, facts in self._of(index, index + 1):
            facts.error = facts.error or CANCELLED

    def answering(self, run: Run) -> None:
        """Record the tensors of an answer."""
        for index, facts in self._of(run.first, run.end):
            if facts.tensors is not None:
                for tensors, _ in run.answers(index):
                    record_tensors(facts, "TENSOR_BACKEND_OUTPUT", tensors)

    def answered(self, run: Run) -> None:
        """Record what was sent, and pass on the records of requests that have ended."""
        sent_ns = _monotonic_ns()
        events: list[tuple[str, int]] = []  # the same for all of a chunk
        ended = []
        for index, facts in self._of(run.first, run.end):
            if run.is_refused:
                assert run.error is not None
                facts.is_refused, facts.error = True, run.error.message
            elif run.error is not None:
                facts.error = facts.error or run.error.message or CANCELLED
            elif not facts.first_response_ns:
                facts.first_response_ns = run.answered_ns
            is_sent = facts.protocol and not run.is_refused and index not in self._cancelled
            if is_sent and (run.is_final or len(facts.events) < _MAX_EVENTS):
                events = events or sending(facts.protocol, run.answered_ns, sent_ns)
                facts.events += events
            if run.is_final:
                facts.answered_ns, facts.end_ns = run.answered_ns, sent_ns
                ended.append(self._open.pop(index))
        if ended and self._sampling is not None:
            self._exporter.end_members(ended, self._sampling)
        elif ended:
            self._exporter.end(ended[0])
