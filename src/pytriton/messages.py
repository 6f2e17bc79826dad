# SPDX-License-Identifier: Apache-2.0
"""The records that front ends, engine and instances hand each other: tensors, requests, responses.

They know neither HTTP nor gRPC nor the channel. A tensor's data is any C-contiguous buffer in the
protocol's byte layout (little-endian, row-major; BYTES with length prefixes); whoever passes a
tensor on passes the reference, not the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pytriton.dtypes import DataType

if TYPE_CHECKING:
    from pytriton.errors import ServerError

ParameterValue = bool | int | float | str


class InferTensor(msgspec.Struct, gc=False):
    """A named tensor of a request or of a response."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    data: Any  # bytes, bytearray or memoryview


class TraceContext(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A span as W3C Trace Context names it to another process."""

    traceparent: str
    tracestate: str = ""


class InferRequest(msgspec.Struct, eq=False):
    """One inference, from the moment it is parsed to its final response.

    A front end fills the first group and calls `Engine.infer`; the engine fills the second.
    """

    model_name: str
    inputs: dict[str, InferTensor]
    sink: ResponseSink
    model_version: str = ""
    id: str = ""
    outputs: tuple[str, ...] | None = None  # requested names; None asks for all
    parameters: dict[str, ParameterValue] = {}
    priority: int = 0
    timeout_us: int = 0
    correlation_id: int | str = 0  # of a sequence
    flags: int = 0  # 1: its first request, 2: its last
    received_ns: int = 0  # time.monotonic_ns() when the front end had the whole request
    trace: RequestTrace | None = None  # None: it is not traced
    depth: int = 0  # models that called one another until this request was made

    model: Any = None  # the engine's model; set once the request was accepted
    rows: int = 1  # batch dimension; 1 where the model has none
    batch_key: Any = None  # only requests with equal keys share a batch
    queued_ns: int = 0
    deadline_ns: int = 0  # 0: none
    is_cancelled: bool = False
    ticket: int = 0  # place in the order of arrival, where a model keeps it
    instance: Any = None  # that runs it, and as what: the batch's id and the position in it
    batch_id: int = 0
    position: int = 0
    response_count: int = 0
    taken_count: int = 0  # responses that the sink took and the instance was not told of
    is_paused: bool = False  # the sink takes no more for now
    cache_key: Any = None  # set where the response is to be cached
    cache_ns: int = 0


class InferResponse(msgspec.Struct, gc=False):
    """One response: the only one of a coupled model, one of any number of a decoupled one."""

    model_name: str
    model_version: str
    id: str
    outputs: list[InferTensor]
    parameters: dict[str, ParameterValue] | None = None


class ResponseSink(Protocol):
    """Where the responses of a request go: a front end's exchange, an ensemble step, a test."""

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Take a response; None with `final` ends a decoupled request without a tensor."""

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Take an error; only that of a decoupled model may not be the end of the request."""


class RequestTrace(Protocol):
    """What is told of a traced request while it is served; how it ends, its sink hears."""

    def context(self, *, is_model_file: bool) -> TraceContext:
        """The span that the process goes on under which executes the request."""

    def add_execution(self, times_ns: ExecutionTimes) -> None:
        """The request was executed, or one of its responses was."""

    def on_cancelled(self) -> None:
        """Nobody waits for its responses any more."""

    def on_refused(self, error: ServerError) -> None:
        """It was not taken, and its sink will hear nothing."""


class ExecutionTimes(msgspec.Struct, frozen=True, gc=False):
    """When a request was queued, handed to an instance, computed, and answered."""

    queued_ns: int
    started_ns: int
    infer_start_ns: int
    output_start_ns: int
    ended_ns: int
