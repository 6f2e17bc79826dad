# SPDX-License-Identifier: Apache-2.0
"""Requests: those that `execute` gets, and those that a model makes to call other models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec

from pytriton.base.lazy_module import LazyModule
from pytriton.base.messages import ParameterValue, TraceContext
from pytriton.runtime.pb_utils.arguments import boolean, integer, sequence, text
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.pb_utils.memory import PreferredMemory
from pytriton.runtime.pb_utils.response import (
    InferenceResponse,
    InferenceResponseSender,
    ResponseIterator,
    as_json,
    checked_parameters,
    when_ready,
)
from pytriton.runtime.pb_utils.runtime import InferenceCall, RequestBatch, require_runtime
from pytriton.runtime.pb_utils.tensor import Tensor

if TYPE_CHECKING:
    import asyncio
else:  # whoever waits in an event loop has imported it; it takes 3 MiB of each worker
    asyncio = LazyModule("asyncio")


class InferenceTrace:
    """The trace that a request belongs to, from `InferenceRequest.trace`.

    Pass it as `trace=` to a request for another model, so that both show in one trace.
    """

    __slots__ = ("context",)

    def __init__(self, context: TraceContext | None = None) -> None:
        self.context: TraceContext | None = context  # None if the request is not traced

    def get_context(self) -> str | None:
        """Returns the server's span of this request as JSON text; None if it is not traced.

        The members are the headers `traceparent` and, if there is one, `tracestate`. A server that
        writes its traces to files has no spans, so this is None there.
        """
        context = self.context
        if context is None or context.is_internal:
            return None
        headers = {"traceparent": context.traceparent}
        if context.tracestate:
            headers["tracestate"] = context.tracestate
        return msgspec.json.encode(headers).decode()


RELEASE_ALL = 1  # TRITONSERVER_REQUEST_RELEASE_ALL
RELEASE_RESCHEDULE = 2  # TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
_UINT32_MAX = (1 << 32) - 1
_UINT64_MAX = (1 << 64) - 1


class ReceivedFields(msgspec.Struct, frozen=True):
    """What a request has beside its tensors; most requests of clients have nothing of it."""

    id: str = ""
    correlation_id: int | str = 0
    flags: int = 0
    timeout: int = 0
    parameters: dict[str, ParameterValue] | None = None
    trace: TraceContext | None = None
    # The model to call, if a model has made the request.
    model_name: str = ""
    model_version: int = -1
    preferred_memory: PreferredMemory | None = None


NO_FIELDS = ReceivedFields()


class InferenceRequest:
    """A request of a client, passed to `execute`, or one that a model makes to call another model.

    Args:
        request_id: An id that is sent with the request.
        correlation_id: The id of the request's sequence, a number or a string; 0 for none.
        inputs: The input tensors.
        requested_output_names: The outputs to get; an empty list requests all.
        model_name: The name of the model to call.
        model_version: The version of the model; -1 for the newest.
        flags: `TRITONSERVER_REQUEST_FLAG_SEQUENCE_START` and `..._END`, added up.
        timeout: Microseconds that the request may wait in a queue; 0 for no limit.
        preferred_memory: The memory for outputs. Without it, they arrive where the called model
            has put them, if that can be shared, or in host memory.
        trace: The `trace()` of the request for which this one is made.
        parameters: Parameters for the called model, of type bool, int or str.

    Raises:
        TypeError: An argument is missing or has the wrong type.
        TritonModelException: An input is None, an output has no name, or a parameter cannot be
            sent.
    """

    # Few, because each costs time for each request of a client; the rest is in the fields.
    __slots__ = (
        "__weakref__", "_batch", "_fields", "_inputs", "_position", "output_names",
        "release_flags", "sender",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] | None = None,
        requested_output_names: Sequence[str] | None = None,
        model_name: str | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> None:
        request_id = text(request_id, "request_id")
        correlation_id = _checked_correlation_id(correlation_id)
        model_name = text(model_name, "model_name")  # type: ignore[arg-type]  # None raises
        self._inputs: Sequence[Tensor] = _checked_inputs(inputs, request_id, model_name)
        self.output_names: Sequence[str] = _checked_names(
            requested_output_names, request_id, model_name
        )
        model_version = integer(model_version, "model_version")
        flags = integer(flags, "flags", low=0, high=_UINT32_MAX)
        timeout = integer(timeout, "timeout", low=0, high=_UINT64_MAX)
        _check_type(preferred_memory, PreferredMemory, "preferred_memory")
        _check_type(trace, InferenceTrace, "trace")
        self._fields = ReceivedFields(
            request_id,
            correlation_id,
            flags,
            timeout,
            checked_parameters(parameters),
            None if trace is None else trace.context,
            model_name,
            model_version,
            preferred_memory,
        )
        self._batch: RequestBatch | None = None
        self._position = 0
        self.sender: InferenceResponseSender | None = None
        self.release_flags: int = RELEASE_ALL

    @classmethod
    def received(
        cls,
        batch: RequestBatch,
        inputs: Iterable[Sequence[Tensor]],
        all_outputs: Sequence[str],
        outputs: Mapping[int, Sequence[str]],
        fields: Mapping[int, ReceivedFields],
    ) -> list[InferenceRequest]:
        """Make the requests of clients in a batch, without checks.

        `outputs` and `fields` are by position; requests without an entry want all outputs, and have
        no fields.
        """
        # All in one loop: a call for each request would take twice as long.
        make = cls.__new__
        requests = []
        for position, tensors in enumerate(inputs):
            self = make(cls)
            self._inputs = tensors
            self._batch = batch
            self._position = position
            self._fields = fields.get(position, NO_FIELDS) if fields else NO_FIELDS
            self.output_names = outputs.get(position, all_outputs) if outputs else all_outputs
            self.release_flags = RELEASE_ALL
            self.sender = None
            requests.append(self)
        return requests

    @property
    def model_name(self) -> str:
        """The model to call; "" for a request of a client."""
        return self._fields.model_name

    @property
    def model_version(self) -> int:
        """The version of the model to call; -1 for the newest."""
        return self._fields.model_version

    @property
    def preferred_memory(self) -> PreferredMemory | None:
        """The memory for the outputs of the model to call; None: any."""
        return self._fields.preferred_memory

    @property
    def parameter_values(self) -> dict[str, ParameterValue] | None:
        """The parameters; None if there are none."""
        return self._fields.parameters

    @property
    def trace_context(self) -> TraceContext | None:
        """The span for which this request is made; None if it is not traced."""
        return self._fields.trace

    def inputs(self) -> list[Tensor]:
        """Returns the input tensors, without optional ones that the client did not send."""
        return list(self._inputs)

    def requested_output_names(self) -> set[str]:
        """Returns the outputs that the client requested; all configured ones if it named none."""
        return set(self.output_names)

    def request_id(self) -> str:
        """Returns the client's id of the request; empty if it has none."""
        return self._fields.id

    def correlation_id(self) -> int | str:
        """Returns the id of the request's sequence; 0 if it has none."""
        return self._fields.correlation_id

    def flags(self) -> int:
        """Returns the flags for the start and the end of a sequence."""
        return self._fields.flags

    def set_flags(self, flags: int) -> None:
        """Set the flags for the start and the end of a sequence."""
        flags = integer(flags, "flags", low=0, high=_UINT32_MAX)
        self._fields = msgspec.structs.replace(self._fields, flags=flags)

    def timeout(self) -> int:
        """Returns how many microseconds the request may wait in a queue; 0 for no limit."""
        return self._fields.timeout

    def parameters(self) -> str:
        """Returns the parameters as JSON text; `{}` if there are none."""
        return as_json(self.parameter_values)

    def trace(self) -> InferenceTrace:
        """Returns the trace to pass to requests that are made for this one."""
        return InferenceTrace(self.trace_context)

    def get_response_sender(self) -> InferenceResponseSender:
        """Returns the sender for this request's responses; the same object each time.

        Raises:
            TritonModelException: The model made the request itself.
        """
        if self.sender is None:
            batch = self._batch
            if batch is None:
                raise TritonModelException("Only requests that `execute` got have a sender.")
            context = batch.context(self._position)
            self.sender = InferenceResponseSender(context, batch.is_decoupled)
        return self.sender

    def is_cancelled(self) -> bool:
        """Returns whether the request was cancelled: nobody waits for its responses any more."""
        return self._batch is not None and self._batch.context(self._position).is_cancelled()

    def set_release_flags(self, flags: int) -> None:
        """Set whether the request ends when `execute` returns, or is to be executed again.

        Args:
            flags: `TRITONSERVER_REQUEST_RELEASE_ALL` or `TRITONSERVER_REQUEST_RELEASE_RESCHEDULE`.
        """
        if integer(flags, "flags") not in (RELEASE_ALL, RELEASE_RESCHEDULE):
            raise TritonModelException(
                f"Release flags must be {RELEASE_ALL} or {RELEASE_RESCHEDULE}, got {flags}"
            )
        self.release_flags = flags

    @overload
    def exec(self, decoupled: Literal[False] = ...) -> InferenceResponse: ...
    @overload
    def exec(self, decoupled: Literal[True]) -> ResponseIterator: ...
    @overload
    def exec(self, decoupled: bool) -> InferenceResponse | ResponseIterator: ...
    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:
        """Call another model and wait for its response; errors are returned as responses, too.

        Args:
            decoupled: Accept any number of responses. Required to call decoupled models.

        Returns:
            The response; with `decoupled` an iterator over responses, once the first has arrived.

        Raises:
            TritonModelException: The model is not between the end of `initialize` and the
                beginning of `finalize`, or no server runs it.
        """
        decoupled = boolean(decoupled, "decoupled")
        call = require_runtime("call other models").infer(self, decoupled=decoupled)
        return ResponseIterator(call) if decoupled else self._only_response(call)

    @overload
    def async_exec(self, decoupled: Literal[False] = ...) -> asyncio.Future[InferenceResponse]: ...
    @overload
    def async_exec(self, decoupled: Literal[True]) -> asyncio.Future[ResponseIterator]: ...
    @overload
    def async_exec(
        self, decoupled: bool
    ) -> asyncio.Future[InferenceResponse] | asyncio.Future[ResponseIterator]: ...
    def async_exec(self, decoupled: bool = False) -> Any:
        """Like `exec`, but returns a future: the call begins now, and no thread waits for it.

        Cancelling a task that awaits the future cancels the call. With `decoupled`, the resulting
        iterator also supports `async for`; a plain `for` blocks the event loop while it waits.

        Raises:
            RuntimeError: No event loop runs in this thread.
        """
        loop = asyncio.get_running_loop()
        decoupled = boolean(decoupled, "decoupled")
        try:
            runtime = require_runtime("call other models")
            call = runtime.infer(self, decoupled=decoupled, is_awaited=True)
        except TritonModelException as error:  # raised when the result is awaited
            failed: asyncio.Future[Any] = loop.create_future()
            failed.set_exception(error)
            return failed
        return when_ready(call, ResponseIterator if decoupled else self._only_response)

    def _only_response(self, call: InferenceCall) -> InferenceResponse:
        response = call.receive()
        if response is None:
            raise TritonModelException(f"Model {self.model_name} ended without a response.")
        return response

    def __repr__(self) -> str:
        target = f", model_name={self.model_name!r}" if self.model_name else ""
        return (
            f"InferenceRequest(request_id={self.request_id()!r}, inputs={self.inputs()!r}{target})"
        )


def _checked_correlation_id(value: int | str) -> int | str:
    if value is None:
        raise TypeError("correlation_id must be an int or a str, got None")
    if isinstance(value, str | bytes):
        return text(value, "correlation_id")
    try:
        return integer(value, "correlation_id", low=0, high=_UINT64_MAX)
    except TypeError as error:
        raise TritonModelException(f"Correlation ID must be integer or string: {error}") from error


def _checked_inputs(inputs: Any, request_id: str, model_name: str) -> list[Tensor]:
    tensors = sequence(inputs, "inputs")
    for tensor in tensors:
        if tensor is None:
            raise TritonModelException(
                f"Input tensor for request with id '{request_id}' and model name '{model_name}'"
                " should not be empty."
            )
        if not isinstance(tensor, Tensor):
            raise TypeError(f"inputs must hold Tensor objects, got {type(tensor)}")
    return tensors


def _checked_names(names: Any, request_id: str, model_name: str) -> Sequence[str]:
    checked = [
        text(name, "requested_output_names") for name in sequence(names, "requested_output_names")
    ]
    if "" in checked:
        raise TritonModelException(
            f"Requested output name for request with id '{request_id}' and model name"
            f" '{model_name}' should not be empty."
        )
    return list(dict.fromkeys(checked))


def _check_type(value: object, expected: type, what: str) -> None:
    if value is not None and not isinstance(value, expected):
        raise TypeError(f"{what} must be a {expected.__name__}, got {type(value)}")
