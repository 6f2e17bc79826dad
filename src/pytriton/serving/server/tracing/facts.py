# SPDX-License-Identifier: Apache-2.0
"""What is recorded of a traced request. Exporters make spans or files of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from pytriton.base.dtypes import DataType
    from pytriton.base.messages import ExecutionTimes
    from pytriton.serving.server.tracing.settings import TraceSampling


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


# The events around the reading of a request, by protocol.
_RECEIVING = {
    "HTTP": ("HTTP_RECV_START", "HTTP_RECV_END"),
    "GRPC": ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
}


def receiving(facts: TraceFacts) -> list[tuple[str, int]]:
    """Returns the events around the reading of a client's request, of which calls have none."""
    names = _RECEIVING.get(facts.protocol)
    if names is None or not facts.received_ns:
        return []
    began_ns = min(facts.began_ns or facts.received_ns, facts.received_ns)
    return [(names[0], began_ns), (names[1], facts.received_ns)]


class TraceExporter(Protocol):
    """Takes the facts of traced requests out of the server; one for each mode."""

    has_spans: bool  # False: the facts become no spans, so processes of models add none

    def begin(self, facts: TraceFacts) -> bool:
        """Note that a request begins; returns False if it cannot be traced."""

    def end(self, facts: TraceFacts) -> None:
        """Export the facts of a request that has ended."""

    def retire(self, sampling: TraceSampling) -> None:
        """Finish with what was sampled by a setting that was changed."""

    async def close(self, timeout_s: float) -> None:
        """Export the rest, if that is possible in time."""
