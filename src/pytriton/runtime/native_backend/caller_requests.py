# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_InferenceRequest: requests as the caller of the C API makes them.

Errors have Triton's texts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from pytriton.base.dtypes import BY_NUMBER, DataType
from pytriton.base.errors import InternalError, InvalidArgumentError, UnsupportedError
from pytriton.base.messages import ParameterValue
from pytriton.runtime.native_backend.api_table import prototype
from pytriton.runtime.native_backend.callbacks import accessors, export
from pytriton.runtime.native_backend.caller_responses import CPU_TYPES, Allocator, Allocators
from pytriton.runtime.native_backend.memory import (
    Handles,
    Texts,
    put_bool,
    put_half_word,
    put_word,
    required_text,
    view,
    words,
)
from pytriton.runtime.native_backend.server_objects import BufferAttributes

_FINAL = 1  # TRITONSERVER_RESPONSE_COMPLETE_FINAL
_RELEASE_ALL = 1  # TRITONSERVER_REQUEST_RELEASE_ALL
_HALF_WORD = 2**32 - 1
_MAX_CORRELATION_CHARS = 128
_FIELDS = {
    "Flags": ("flags", put_half_word),
    "PriorityUInt64": ("priority", put_word),
    "TimeoutMicroseconds": ("timeout_us", put_word),
}
_CANCEL = "to cancel an inference request"
_QUERY = "to query cancellation status"


@functools.lru_cache(maxsize=256)
def _callback(address: int) -> Any:
    """Returns a function of the caller: it gets an object, flags, and a pointer of its own."""
    return prototype("v:pIp")(address)


class Sent(Protocol):
    """A request on its way."""

    def cancel(self) -> None:
        """Cancel it; it is still answered."""


class CallerInput:
    """One input: where the caller has its bytes."""

    __slots__ = ("dtype", "parts", "shape")

    def __init__(self, dtype: DataType | None, shape: tuple[int, ...]) -> None:
        self.dtype = dtype  # None: as the model says, as is the shape
        self.shape = shape
        self.parts: list[memoryview] = []


class CallerRequest:
    """A request. While a server has it, it can only be read and cancelled."""

    def __init__(self, model_name: str, version: int) -> None:
        self.handle = 0
        self.model_name = model_name
        self.version = version  # -1: the server chooses
        self.id = ""
        self.flags = 0
        self.correlation_id: int | str = 0
        self.priority = 0
        self.timeout_us = 0
        self.inputs: dict[str, CallerInput] = {}
        self.outputs: dict[str, None] = {}
        self.parameters: dict[str, ParameterValue] = {}
        self.allocator: Allocator | None = None
        self.allocator_userp = 0
        self.respond = (0, 0)  # address of the function, and its argument
        self.release = (0, 0)
        self.sent: Sent | None = None  # set while a server has it
        self.was_sent = False
        self.is_cancelled = False
        self.texts = Texts()

    def error(self, message: str) -> InvalidArgumentError:
        """Returns an error with the id in front, as Triton has it."""
        return InvalidArgumentError(f"[request id: {self.id or '<id_unknown>'}] {message}")

    def deliver(self, response: int, *, final: bool) -> None:
        """Pass a response (its handle; 0: none) to the caller."""
        function, userp = self.respond
        _callback(function)(response, _FINAL if final else 0, userp)

    def give_back(self) -> None:
        """Let the caller change, send or delete the request again."""
        self.sent = None
        function, userp = self.release
        if function:
            _callback(function)(self.handle, _RELEASE_ALL, userp)


class CallerRequests:
    """The requests that exist.

    Args:
        find: Raises a ServerError unless a server (its handle) has a model (its name and version).
        allocators: The allocators that requests may have.
        attributes: The attributes that data of inputs may have.
    """

    def __init__(
        self,
        find: Callable[[int, str, int], object],
        allocators: Allocators,
        attributes: BufferAttributes,
    ) -> None:
        self._find = find
        self._allocators = allocators
        self._attributes = attributes
        self.handles: Handles[CallerRequest] = Handles("a request")

    def owned(self, handle: int) -> CallerRequest:
        """Returns a request that no server has."""
        request = self.handles.get(handle)
        if request.sent is not None:
            raise InvalidArgumentError(
                "expected a request that no server has; this one was sent and is not released yet"
            )
        return request

    @export("TRITONSERVER_InferenceRequestNew")
    def _new(self, place: int, server: int, model_name: bytes | None, version: int) -> None:
        name = required_text(model_name)
        self._find(server, name, version)
        request = CallerRequest(name, version)
        request.handle = self.handles.add(request)
        put_word(place, request.handle)

    @export("TRITONSERVER_InferenceRequestDelete")
    def _delete(self, handle: int) -> None:
        self.owned(handle)
        self.handles.pop(handle)

    # Its attributes

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Returns the functions that get or set one attribute."""
        return accessors("TRITONSERVER_InferenceRequest", _FIELDS, self.handles.get, self.owned)

    @export("TRITONSERVER_InferenceRequestId")
    def _id(self, handle: int, place: int) -> None:
        request = self.handles.get(handle)
        put_word(place, request.texts.address("id", request.id))

    @export("TRITONSERVER_InferenceRequestSetId")
    def _set_id(self, handle: int, value: bytes | None) -> None:
        self.owned(handle).id = required_text(value)

    @export("TRITONSERVER_InferenceRequestCorrelationId")
    def _correlation_id(self, handle: int, place: int) -> None:
        value = self.handles.get(handle).correlation_id
        if isinstance(value, str):
            raise InvalidArgumentError("given request's correlation id is not an unsigned int")
        put_word(place, value)

    @export("TRITONSERVER_InferenceRequestSetCorrelationId")
    def _set_correlation_id(self, handle: int, value: int) -> None:
        self.owned(handle).correlation_id = value

    @export("TRITONSERVER_InferenceRequestCorrelationIdString")
    def _correlation_text(self, handle: int, place: int) -> None:
        request = self.handles.get(handle)
        if not isinstance(request.correlation_id, str):
            raise InvalidArgumentError("given request's correlation id is not a string")
        put_word(place, request.texts.address("correlation id", request.correlation_id))

    @export("TRITONSERVER_InferenceRequestSetCorrelationIdString")
    def _set_correlation_text(self, handle: int, value: bytes | None) -> None:
        text = required_text(value)
        if len(text) > _MAX_CORRELATION_CHARS:
            raise UnsupportedError(
                f"string correlation ID cannot be longer than {_MAX_CORRELATION_CHARS} characters"
            )
        self.owned(handle).correlation_id = text

    @export("TRITONSERVER_InferenceRequestPriority")
    def _priority_32(self, handle: int, place: int) -> None:
        put_half_word(place, self.handles.get(handle).priority & _HALF_WORD)

    @export("TRITONSERVER_InferenceRequestSetPriority")
    def _set_priority(self, handle: int, priority: int) -> None:
        self.owned(handle).priority = priority

    @export(
        "TRITONSERVER_InferenceRequestSetBoolParameter",
        "TRITONSERVER_InferenceRequestSetDoubleParameter",
        "TRITONSERVER_InferenceRequestSetIntParameter",
    )
    def _set_parameter(self, handle: int, name: bytes | None, value: float) -> None:
        self.owned(handle).parameters[required_text(name)] = value

    @export("TRITONSERVER_InferenceRequestSetStringParameter")
    def _set_text_parameter(self, handle: int, name: bytes | None, value: bytes | None) -> None:
        self.owned(handle).parameters[required_text(name)] = required_text(value)

    # Inputs and outputs

    @export("TRITONSERVER_InferenceRequestAddInput")
    def _add_input(
        self, handle: int, name: bytes | None, number: int, shape: int, dims: int
    ) -> None:
        dtype = BY_NUMBER.get(number)
        if dtype is None:
            raise InvalidArgumentError(f"expected a datatype, got the number {number}")
        self._add(
            handle, required_text(name), CallerInput(dtype, words(shape, dims) if dims else ())
        )

    @export("TRITONSERVER_InferenceRequestAddRawInput")
    def _add_raw_input(self, handle: int, name: bytes | None) -> None:
        request = self.owned(handle)
        if request.inputs:
            raise request.error(
                f"raw input '{required_text(name)}' can't be added to request with other inputs"
            )
        self._add(handle, required_text(name), CallerInput(None, ()))

    def _add(self, handle: int, name: str, tensor: CallerInput) -> None:
        request = self.owned(handle)
        if name in request.inputs:
            raise request.error(f"input '{name}' already exists in request")
        request.inputs[name] = tensor

    @export("TRITONSERVER_InferenceRequestRemoveInput")
    def _remove_input(self, handle: int, name: bytes | None) -> None:
        self._input(handle, name)
        del self.owned(handle).inputs[required_text(name)]

    @export("TRITONSERVER_InferenceRequestRemoveAllInputs")
    def _remove_inputs(self, handle: int) -> None:
        self.owned(handle).inputs.clear()

    def _input(self, handle: int, name: bytes | None) -> CallerInput:
        key, request = required_text(name), self.owned(handle)
        tensor = request.inputs.get(key)
        if tensor is None:
            raise request.error(f"input '{key}' does not exist in request")
        return tensor

    @export(
        "TRITONSERVER_InferenceRequestAppendInputData",
        "TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy",
    )
    def _append(
        self, handle: int, name: bytes | None, base: int, size: int, memory_type: int, *_: object
    ) -> None:
        tensor = self._input(handle, name)
        if memory_type not in CPU_TYPES:
            raise UnsupportedError(
                f"expected data of input '{required_text(name)}' in CPU memory, got GPU memory"
            )
        if size:
            tensor.parts.append(view(base, size))

    @export("TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes")
    def _append_described(
        self, handle: int, name: bytes | None, base: int, attributes: int
    ) -> None:
        found = self._attributes.handles.get(attributes)
        self._append(handle, name, base, found.byte_size, found.memory_type)

    @export("TRITONSERVER_InferenceRequestRemoveAllInputData")
    def _remove_data(self, handle: int, name: bytes | None) -> None:
        self._input(handle, name).parts.clear()

    @export("TRITONSERVER_InferenceRequestAddRequestedOutput")
    def _add_output(self, handle: int, name: bytes | None) -> None:
        self.owned(handle).outputs[required_text(name)] = None

    @export("TRITONSERVER_InferenceRequestRemoveRequestedOutput")
    def _remove_output(self, handle: int, name: bytes | None) -> None:
        self.owned(handle).outputs.pop(required_text(name), None)

    @export("TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs")
    def _remove_outputs(self, handle: int) -> None:
        self.owned(handle).outputs.clear()

    # Its way through a server

    @export("TRITONSERVER_InferenceRequestSetReleaseCallback")
    def _set_release(self, handle: int, function: int, userp: int) -> None:
        self.owned(handle).release = (function, userp)

    @export("TRITONSERVER_InferenceRequestSetResponseCallback")
    def _set_response(
        self, handle: int, allocator: int, allocator_userp: int, function: int, userp: int
    ) -> None:
        request = self.owned(handle)
        request.allocator = self._allocators.handles.get(allocator)
        request.allocator_userp = allocator_userp
        request.respond = (function, userp)

    @export("TRITONSERVER_InferenceRequestCancel")
    def _cancel(self, handle: int) -> None:
        request = self._sent(handle, _CANCEL)
        request.is_cancelled = True
        sent = request.sent
        if sent is not None:
            sent.cancel()

    @export("TRITONSERVER_InferenceRequestIsCancelled")
    def _is_cancelled(self, handle: int, place: int) -> None:
        put_bool(place, self._sent(handle, _QUERY).is_cancelled)

    def _sent(self, handle: int, purpose: str) -> CallerRequest:
        request = self.handles.get(handle)
        if not request.was_sent:
            raise InternalError(
                f"It is not possible {purpose} before calling TRITONSERVER_InferAsync."
            )
        return request
