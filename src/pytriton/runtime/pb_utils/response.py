# SPDX-License-Identifier: Apache-2.0
"""Responses: those that a model makes and sends, and those that it gets from other models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from pytriton.base.lazy_module import LazyModule
from pytriton.base.messages import ParameterValue
from pytriton.runtime.pb_utils.arguments import sequence, text
from pytriton.runtime.pb_utils.failures import TritonError, TritonModelException
from pytriton.runtime.pb_utils.runtime import InferenceCall, RequestContext
from pytriton.runtime.pb_utils.tensor import Tensor

if TYPE_CHECKING:
    import asyncio
else:  # whoever waits in an event loop has imported it; it takes 3 MiB of each worker
    asyncio = LazyModule("asyncio")

__all__ = ["InferenceResponse", "TritonError", "TritonModelException"]

_INT64 = range(-(1 << 63), 1 << 63)

T = TypeVar("T")


def checked_parameters(parameters: Any) -> dict[str, ParameterValue] | None:
    """Returns a model's parameters as a dict that can be sent; None if there are none.

    Raises:
        TritonModelException: They are not a dict, or a key or value has the wrong type.
    """
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise TritonModelException(
            f"Expect parameters to be None or a dict of str to bool/int/str, got {type(parameters)}"
        )
    checked: dict[str, ParameterValue] = {}
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(key)}"
            )
        checked[_text(key, "keys")] = _checked_value(key, value)
    return checked or None


def _checked_value(key: str, value: Any) -> ParameterValue:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, "values")
    if not isinstance(value, int):
        raise TritonModelException(
            f"Expect parameters values to have type bool/int/str, found type {type(value)}"
        )
    if value not in _INT64:
        raise TritonModelException(
            f"Unsupported value type on parameters: '{key}' must fit in 64 bits, got {value}"
        )
    return int.__index__(value)  # converts subclasses to int, which alone can be sent


def _text(value: str, what: str) -> str:
    try:
        return text(value, what)
    except TypeError:
        raise TritonModelException(
            f"Expect parameters {what} to be text that UTF-8 can express, got {value!r}"
        ) from None


def as_json(parameters: dict[str, ParameterValue] | None) -> str:
    """Returns parameters as JSON text, the form in which models get them."""
    return msgspec.json.encode(parameters).decode() if parameters else "{}"


class InferenceResponse:
    """The response to one request: tensors, or an error in their place.

    Args:
        output_tensors: The outputs; those that the client did not request are dropped.
        error: The reason why there are no outputs.
        parameters: Additional values for the client, of type bool, int or str.

    Raises:
        TypeError: An argument has the wrong type.
        TritonModelException: An output is None, or the parameters cannot be sent.
    """

    __slots__ = ("__weakref__", "failure", "parameter_values", "tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> None:
        if type(output_tensors) is list:
            tensors = output_tensors[:]
        else:
            tensors = sequence(output_tensors, "output_tensors")
        for tensor in tensors:
            if type(tensor) is not Tensor:
                _refuse_output(tensor)
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error must be a TritonError or None, got {type(error)}")
        self.tensors: list[Tensor] = tensors
        self.failure: TritonError | None = error
        self.parameter_values: dict[str, ParameterValue] | None = (
            None if parameters is None else checked_parameters(parameters)
        )

    @classmethod
    def received(
        cls,
        tensors: list[Tensor],
        failure: TritonError | None,
        parameters: dict[str, ParameterValue] | None,
    ) -> InferenceResponse:
        """Make a response of another model, without checks."""
        response = cls.__new__(cls)
        response.tensors = tensors
        response.failure = failure
        response.parameter_values = parameters
        return response

    def output_tensors(self) -> list[Tensor]:
        """Returns the outputs; empty if there is an error."""
        return list(self.tensors)

    def has_error(self) -> bool:
        """Returns whether the request failed."""
        return self.failure is not None

    # `Any` stands for None, so that code that asks `has_error` first passes type checkers.
    def error(self) -> TritonError | Any:
        """Returns the error of the request; None if there is none."""
        return self.failure

    def parameters(self) -> str:
        """Returns the parameters as JSON text; `{}` if there are none."""
        return as_json(self.parameter_values)

    def __repr__(self) -> str:
        if self.failure is not None:
            return f"InferenceResponse(error={self.failure!r})"
        return f"InferenceResponse({self.tensors!r})"


def _refuse_output(tensor: object) -> None:
    if tensor is None:
        raise TritonModelException("Output tensor for inference response should not be empty.")
    if not isinstance(tensor, Tensor):
        raise TypeError(f"output_tensors must hold Tensor objects, got {type(tensor)}")


FINAL = 1  # TRITONSERVER_RESPONSE_COMPLETE_FINAL
_UNABLE = "Unable to send response."


class InferenceResponseSender:
    """Sends the responses to one request, from any thread and also after `execute` returned.

    A decoupled model sends any number of responses, any other model exactly one. The last response
    must have the flag `TRITONSERVER_RESPONSE_COMPLETE_FINAL`, or the flag must be sent alone after
    it. Senders come from `InferenceRequest.get_response_sender`.
    """

    __slots__ = (
        "__weakref__", "_context", "_has_sent", "_held", "_is_closed", "_is_decoupled", "_order",
    )  # fmt: skip

    def __init__(self, context: RequestContext, is_decoupled: bool) -> None:
        self._context = context
        self._is_decoupled = is_decoupled
        self._is_closed = False
        self._has_sent = False
        # A model that is not decoupled may send its final flag after its response; the server
        # expects both together.
        self._held: InferenceResponse | None = None
        self._order = threading.Lock()  # keeps responses in the order of the calls

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, the final flag, or both; waits until the server accepts it.

        Args:
            response: The response; may be None if the flag is set.
            flags: `TRITONSERVER_RESPONSE_COMPLETE_FINAL` with the last response or after it.

        Raises:
            TypeError: `response` is not an InferenceResponse, or `flags` is not an int.
            TritonModelException: The final flag was sent already, a model that is not decoupled
                sends a second response or none, or both flag and response are missing.
        """
        if flags not in (0, FINAL):
            _refuse_flags(flags)
        if response is None:
            if not flags:
                raise TritonModelException(
                    "Inference Response object must be provided when the response flags is set"
                    " to zero."
                )
        elif not isinstance(response, InferenceResponse):
            raise TypeError(f"response must be an InferenceResponse, got {type(response)}")
        with self._order:
            if not self._is_decoupled:
                self._send_single(response, is_final=flags == FINAL)
                return
            if self._is_closed:
                self._check_open()
            self._is_closed = is_final = flags == FINAL
            self._context.send(response, is_final=is_final)

    def is_cancelled(self) -> bool:
        """Returns whether the request was cancelled; a final response is still required."""
        return self._context.is_cancelled()

    @property
    def is_closed(self) -> bool:
        """Whether the final flag was sent, or `execute` failed."""
        return self._is_closed

    def mark_closed(self) -> None:
        """Make later sends fail, because the request was answered otherwise. Not for models."""
        self._is_closed = True

    def take_held(self) -> InferenceResponse | None:
        """Remove and return the response that waits for its final flag."""
        held, self._held = self._held, None
        return held

    def count_returned(self) -> None:
        """Count the response that `execute` returned as sent with the final flag.

        Raises:
            TritonModelException: For the same reasons as in `send`.
        """
        self._check_first()
        self._has_sent = self._is_closed = True

    def _send_single(self, response: InferenceResponse | None, *, is_final: bool) -> None:
        if response is not None:
            self._check_first()
            self._has_sent = True
            self._held = response
        else:
            self._check_open()
            if not self._has_sent:
                raise TritonModelException(
                    f"{_UNABLE} Non-decoupled model cannot send complete final before sending a"
                    " response."
                )
        if is_final:
            self._is_closed = True
            self._context.send(self.take_held(), is_final=True)

    def _check_first(self) -> None:
        if self._has_sent:
            raise TritonModelException(
                f"{_UNABLE} Non-decoupled model cannot send more than one response."
            )
        self._check_open()

    def _check_open(self) -> None:
        if self._is_closed:
            raise TritonModelException(f"{_UNABLE} Response sender has been closed.")


def _refuse_flags(flags: object) -> None:
    if not isinstance(flags, int):
        raise TypeError(f"flags must be an int, got {type(flags)}")
    raise TritonModelException(f"{_UNABLE} Unsupported flag provided.")


def when_ready(call: InferenceCall, read: Callable[[InferenceCall], T]) -> asyncio.Future[T]:
    """Returns a future for `read(call)`, which is called once `receive` would not wait.

    Cancelling the future cancels the call.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def finish() -> None:
        if result.done():
            return
        try:
            result.set_result(read(call))
        except Exception as error:  # noqa: BLE001  raised where the future is awaited
            result.set_exception(error)

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:  # the loop was closed, so nothing awaits the result
            call.abandon()

    def cancel_call_if_cancelled(_: asyncio.Future[T]) -> None:
        if result.cancelled():
            call.cancel()
            call.abandon()

    result.add_done_callback(cancel_call_if_cancelled)
    call.notify(wake)
    return result


class ResponseIterator:
    """Iterates over responses as they arrive; from `InferenceRequest.exec(decoupled=True)`.

    A `for` loop continues where the last one stopped. After the last response, the next loop begins
    with the first one again. In a coroutine, `async for` does the same without blocking the event
    loop. Cancelling a task that waits for a response cancels the call.
    """

    def __init__(self, call: InferenceCall) -> None:
        self._call = call
        self._responses: list[InferenceResponse] = []
        self._position = 0
        self._is_complete = False  # all responses were received
        self._fetch()

    def __iter__(self) -> ResponseIterator:
        if self._is_complete and self._position == len(self._responses):
            self._position = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._position == len(self._responses) and not self._is_complete:
            self._fetch()
        if self._position == len(self._responses):
            raise StopIteration("Iteration is done for the responses.")
        return self._next_response()

    def __aiter__(self) -> ResponseIterator:
        return self.__iter__()

    async def __anext__(self) -> InferenceResponse:
        if self._position == len(self._responses) and not self._is_complete:
            await when_ready(self._call, lambda _: self._fetch())
        if self._position == len(self._responses):
            raise StopAsyncIteration
        return self._next_response()

    def cancel(self) -> None:
        """Ask the called model to stop, which it may ignore; no effect after the last response."""
        if not self._is_complete:
            self._call.cancel()

    def __del__(self) -> None:
        # The remaining responses are received and dropped: the called model runs to its end.
        if not getattr(self, "_is_complete", True):
            self._call.abandon()

    def _next_response(self) -> InferenceResponse:
        response = self._responses[self._position]
        self._position += 1
        return response

    def _fetch(self) -> None:
        response = self._call.receive()
        if response is not None:
            self._responses.append(response)
        self._is_complete = response is None or self._call.is_over
