# SPDX-License-Identifier: Apache-2.0
"""Requests, as `execute` gets them and as a model makes them for other models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from pytriton.messages import ParameterValue, TraceContext
from pytriton.pb_utils.arguments import integer, sequence, text, truth
from pytriton.pb_utils.awaiting import when_ready
from pytriton.pb_utils.failures import TritonModelException
from pytriton.pb_utils.memory import PreferredMemory
from pytriton.pb_utils.parameters import as_json, checked_parameters
from pytriton.pb_utils.response import InferenceResponse
from pytriton.pb_utils.response_iterator import ResponseIterator
from pytriton.pb_utils.runtime import InferenceCall, RequestContext, require_runtime
from pytriton.pb_utils.sender import InferenceResponseSender
from pytriton.pb_utils.tensor import Tensor
from pytriton.pb_utils.trace import InferenceTrace

RELEASE_ALL = 1  # TRITONSERVER_REQUEST_RELEASE_ALL
RELEASE_RESCHEDULE = 2  # TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
_UINT32_MAX = (1 << 32) - 1
_UINT64_MAX = (1 << 64) - 1


class InferenceRequest:
    """One request: those of clients come to `execute`, a model makes its own to call other models.

    Args:
        request_id: goes along with the request.
        correlation_id: of the sequence it belongs to, a number or a text; 0 for none.
        inputs: the input tensors.
        requested_output_names: which outputs to get; none asks for all.
        model_name: of the model to call.
        model_version: which of its versions; -1 for the newest.
        flags: `TRITONSERVER_REQUEST_FLAG_SEQUENCE_START` and `..._END`, added up.
        timeout: microseconds the request may wait in a queue; 0 for as long as it takes.
        preferred_memory: where outputs are wanted; they always come in host memory.
        trace: of the request that this one is made for, from its `trace()`.
        parameters: for the called model, of type bool, int or str.

    Raises:
        TypeError: an argument is missing or has the wrong type.
        TritonModelException: an input is None, an output has no name, or a parameter cannot be
            sent.
    """

    __slots__ = (
        "__weakref__", "_context", "_correlation_id", "_flags", "_inputs", "_is_decoupled",
        "_request_id", "_timeout", "model_name", "model_version", "output_names",
        "parameter_values", "release_flags", "sender", "trace_context",
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
        self._request_id = text(request_id, "request_id")
        self._correlation_id = _checked_correlation_id(correlation_id)
        self.model_name = text(model_name, "model_name")  # type: ignore[arg-type]  # None raises
        self._inputs = _checked_inputs(inputs, self._request_id, self.model_name)
        self.output_names = _checked_names(
            requested_output_names, self._request_id, self.model_name
        )
        self.model_version = integer(model_version, "model_version")
        self._flags = integer(flags, "flags", low=0, high=_UINT32_MAX)
        self._timeout = integer(timeout, "timeout", low=0, high=_UINT64_MAX)
        _check_type(preferred_memory, PreferredMemory, "preferred_memory")
        _check_type(trace, InferenceTrace, "trace")
        self.trace_context = None if trace is None else trace.context
        self.parameter_values = checked_parameters(parameters)
        self._context: RequestContext | None = None
        self._is_decoupled = False
        self.sender: InferenceResponseSender | None = None
        self.release_flags = RELEASE_ALL

    @classmethod
    def received(
        cls,
        inputs: list[Tensor],
        output_names: Sequence[str],
        request_id: str,
        correlation_id: int | str,
        flags: int,
        timeout: int,
        parameters: dict[str, ParameterValue] | None,
        trace_context: TraceContext | None,
        context: RequestContext,
        is_decoupled: bool,
    ) -> InferenceRequest:
        """A client's request, known to be fine."""
        self = cls.__new__(cls)
        self._inputs = inputs
        self.output_names = output_names
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._flags = flags
        self._timeout = timeout
        self.parameter_values = parameters
        self.trace_context = trace_context
        self._context = context
        self._is_decoupled = is_decoupled
        self.sender = None
        self.release_flags = RELEASE_ALL
        self.model_name = ""
        self.model_version = -1
        return self

    def inputs(self) -> list[Tensor]:
        """The input tensors; optional ones that the client left out are missing."""
        return list(self._inputs)

    def requested_output_names(self) -> set[str]:
        """The outputs that the client wants: all of the configuration if it named none."""
        return set(self.output_names)

    def request_id(self) -> str:
        """The client's id of the request; empty where it gave none."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """Of the sequence that the request belongs to; 0 where it belongs to none."""
        return self._correlation_id

    def flags(self) -> int:
        """Whether the request begins or ends a sequence, or both."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Say whether the request begins or ends a sequence."""
        self._flags = integer(flags, "flags", low=0, high=_UINT32_MAX)

    def timeout(self) -> int:
        """Microseconds that the request may wait in a queue; 0 for as long as it takes."""
        return self._timeout

    def parameters(self) -> str:
        """The parameters as JSON text; `{}` where there are none."""
        return as_json(self.parameter_values)

    def trace(self) -> InferenceTrace:
        """What to pass on so that the requests made for this one show in its trace."""
        return InferenceTrace(self.trace_context)

    def get_response_sender(self) -> InferenceResponseSender:
        """What to send this request's responses through; the same object each time.

        Raises:
            TritonModelException: the request was made by the model.
        """
        if self.sender is None:
            if self._context is None:
                raise TritonModelException("Only requests that `execute` got have a sender.")
            self.sender = InferenceResponseSender(self._context, self._is_decoupled)
        return self.sender

    def is_cancelled(self) -> bool:
        """Whether nobody waits for this request's responses any more."""
        return self._context is not None and self._context.is_cancelled()

    def set_release_flags(self, flags: int) -> None:
        """Say whether the request is over when `execute` returns, or is to be executed again.

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
        """Call another model and wait for its response; failures come as responses as well.

        Args:
            decoupled: take any number of responses. Models that are decoupled must be called so.

        Returns:
            The response; with `decoupled` an iterator over them, once the first one is there.

        Raises:
            TritonModelException: the model is not between the end of `initialize` and the
                beginning of `finalize`, or no server runs it.
        """
        decoupled = truth(decoupled, "decoupled")
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
        """Like `exec`, but awaited: the call begins now, and no thread waits for it.

        Whoever is cancelled while awaiting it cancels the call. With `decoupled`, the iterator that
        it gives can be used with `async for`, too; a plain `for` stops the event loop while it
        waits.

        Raises:
            RuntimeError: no event loop runs in this thread.
        """
        loop = asyncio.get_running_loop()
        decoupled = truth(decoupled, "decoupled")
        try:
            runtime = require_runtime("call other models")
            call = runtime.infer(self, decoupled=decoupled, is_awaited=True)
        except TritonModelException as error:  # raised where the result is awaited
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
        return f"InferenceRequest(request_id={self._request_id!r}, inputs={self._inputs!r}{target})"


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
