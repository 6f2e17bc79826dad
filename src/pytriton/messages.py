# SPDX-License-Identifier: Apache-2.0
"""The records that front ends, engine and instances hand each other: tensors, requests, responses.

They know neither HTTP nor gRPC nor the channel. A tensor's data is any C-contiguous buffer in the
protocol's byte layout (little-endian, row-major; BYTES with length prefixes); whoever passes a
tensor on passes the reference, not the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pytriton.dtypes import BytesWalk, DataType

if TYPE_CHECKING:
    from pytriton.errors import ServerError

ParameterValue = bool | int | float | str


class InferTensor(msgspec.Struct, gc=False):
    """A named tensor of a request or of a response."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    data: Any  # bytes, bytearray or memoryview
    strings: BytesWalk | None = None  # of a large BYTES tensor, once they were counted


class TraceContext(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A span as W3C Trace Context names it to another process."""

    traceparent: str
    tracestate: str = ""


class InferRequest(msgspec.Struct, eq=False):
    """One inference as a client asks for it: a plain record, which may cross a process.

    What the engine keeps while it serves the request is `pytriton.executor.inference.Inference`.
    """

    model_name: str
    inputs: dict[str, InferTensor]
    model_version: str = ""
    id: str = ""
    outputs: tuple[str, ...] | None = None  # requested names; None asks for all
    parameters: dict[str, ParameterValue] = {}
    priority: int = 0
    timeout_us: int = 0
    correlation_id: int | str = 0  # of a sequence
    flags: int = 0  # 1: its first request, 2: its last
    received_ns: int = 0  # time.monotonic_ns() when the front end had the whole request
    call_depth: int = 0  # how many models called one another until this request was made

    # Set when the request is validated against its model.
    rows: int = 1  # batch dimension; 1 where the model has none
    batch_key: Any = None  # only requests with equal keys share a batch


class InferResponse(msgspec.Struct, gc=False):
    """One response: the only one of a coupled model, one of any number of a decoupled one."""

    model_name: str
    model_version: str
    id: str
    outputs: list[InferTensor]
    parameters: dict[str, ParameterValue] | None = None


class ResponseSink(Protocol):
    """Where the responses of a request go: a front end's exchange, an ensemble step, a test.

    It hears of every request exactly one end: a refusal, or a response or error that is final. That
    may be before `Engine.infer` returns.
    """

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Take a response; None with `final` ends a decoupled request without a tensor.

        An exception says that it cannot be delivered: `on_error` with that error follows, and is
        the end.
        """

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Take an error; only that of a decoupled model may not be the end of the request."""

    def on_refused(self, error: ServerError) -> None:
        """The engine did not take the request, so no model has seen it. This is the end."""


class RequestTrace(Protocol):
    """What is told of a traced request while it is served; how it ends, its sink hears."""

    def context(self, *, is_model_file: bool) -> TraceContext:
        """The span that the process goes on under which executes the request."""

    def add_execution(self, times_ns: ExecutionTimes) -> None:
        """The request was executed, or one of its responses was."""

    def on_cancelled(self) -> None:
        """Nobody waits for its responses any more."""


class TracedSink(RequestTrace, ResponseSink, Protocol):
    """The trace of a request, which hears of its responses before it passes them on."""


class ExecutionTimes(msgspec.Struct, frozen=True, gc=False):
    """When a request was queued, handed to an instance, computed, and answered."""

    queued_ns: int
    started_ns: int
    infer_start_ns: int
    output_start_ns: int
    ended_ns: int
