# SPDX-License-Identifier: Apache-2.0
"""TRITONBACKEND_Request and _Input: the functions that read a request and its tensors."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import (
    Kept,
    decoded,
    field_address,
    put_bool,
    put_half_word,
    put_word,
    word,
)
from pytriton.runtime.native_backend.records import (
    INPUT_WORDS,
    REQUEST_GETTERS,
    REQUEST_WORDS,
    InputWord,
    RequestWord,
    field_functions,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.base.messages import ParameterValue
    from pytriton.runtime.native_backend.requests import BackendRequest, BackendRequests

_CPU = 0  # TRITONSERVER_MEMORY_CPU


class RequestFunctions:
    """Functions on requests that the backend has not released."""

    def __init__(self, requests: BackendRequests) -> None:
        self._live = requests.live

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Returns the functions that only read a field."""
        return field_functions("a request", self._live, REQUEST_GETTERS)

    @export("TRITONBACKEND_RequestInputByIndex")
    def _input_by_index(self, request: int, index: int, out: int) -> None:
        put_word(out, self._input(request, index))

    @export("TRITONBACKEND_RequestInputName")
    def _input_name(self, request: int, index: int, out: int) -> None:
        put_word(out, word(self._input(request, index), InputWord.NAME))

    def _input(self, handle: int, index: int) -> int:
        request = self._live.get(handle)
        count = len(request.inputs)
        if index >= count:
            raise _refusal(request, f"out of bounds index {index}: request has {count} inputs")
        return field_address(handle, REQUEST_WORDS + INPUT_WORDS * index)

    @export("TRITONBACKEND_RequestInput")
    def _input_by_name(self, handle: int, name: bytes | None, out: int) -> None:
        request = self._live.get(handle)
        found = request.inputs.get(name or b"")
        if found is None:
            put_word(out, 0)
            raise _refusal(request, f"unknown request input name {decoded(name)}")
        put_word(out, found)

    @export("TRITONBACKEND_RequestOutputName")
    def _output_name(self, handle: int, index: int, out: int) -> None:
        request = self._live.get(handle)
        count = word(handle, RequestWord.OUTPUT_COUNT)
        if index >= count:
            put_word(out, 0)
            raise _refusal(
                request, f"out of bounds index {index}: request has {count} requested outputs"
            )
        put_word(out, word(word(handle, RequestWord.OUTPUT_NAMES), index))

    @export("TRITONBACKEND_RequestOutputBufferProperties")
    def _output_properties(
        self, request: int, name: bytes, size: int, memory_type: int, memory_id: int
    ) -> None:
        self._live.get(request)
        put_half_word(memory_type, _CPU)
        put_word(memory_id, 0)

    @export("TRITONBACKEND_RequestCorrelationId")
    def _correlation_id(self, request: int, out: int) -> None:
        found = self._live.get(request)
        value = found.details.correlation_id
        if isinstance(value, str):
            raise _refusal(found, "correlation ID in request is not an unsigned int")
        put_word(out, value)

    @export("TRITONBACKEND_RequestCorrelationIdString")
    def _correlation_id_string(self, request: int, out: int) -> None:
        found = self._live.get(request)
        value = found.details.correlation_id
        if not isinstance(value, str):
            raise _refusal(found, "correlation ID in request is not a string")
        put_word(out, _keep(found).string(value))

    @export("TRITONBACKEND_RequestIsCancelled")
    def _is_cancelled(self, request: int, out: int) -> None:
        found = self._live.get(request)
        put_bool(out, found.run.is_cancelled(found.position))

    @export("TRITONBACKEND_RequestTrace")
    def _trace(self, request: int, out: int) -> None:
        self._live.get(request)
        put_word(out, 0)

    @export("TRITONBACKEND_RequestParameter")
    def _parameter(self, request: int, index: int, key: int, kind: int, value: int) -> None:
        found = self._live.get(request)
        parameters = found.run.execute.parameters.get(found.position, {})
        if index >= len(parameters):
            raise InvalidArgumentError(
                f"out of bounds index {index}: request has {len(parameters)} parameters"
            )
        name = list(parameters)[index]
        kept = _keep(found)
        number, address = _parameter_value(parameters[name], kept)
        put_word(key, kept.string(name))
        put_half_word(kind, number)
        put_word(value, address)

    @export("TRITONBACKEND_InputProperties")
    def _properties(
        self, this: int, name: int, datatype: int, shape: int, dims: int, size: int, buffers: int
    ) -> None:
        if not this:
            raise InvalidArgumentError("expected a handle of an input, got NULL")
        if name:
            put_word(name, word(this, InputWord.NAME))
        if datatype:
            put_half_word(datatype, word(this, InputWord.DATATYPE))
        if shape:
            put_word(shape, word(this, InputWord.SHAPE))
        if dims:
            put_half_word(dims, word(this, InputWord.DIMS_COUNT))
        if size:
            put_word(size, word(this, InputWord.SIZE))
        if buffers:
            put_half_word(buffers, 1)

    @export("TRITONBACKEND_InputPropertiesForHostPolicy")
    def _properties_for_policy(self, this: int, policy: bytes | None, *outs: int) -> None:
        self._properties(this, *outs)

    @export("TRITONBACKEND_InputBuffer")
    def _buffer(
        self, this: int, index: int, buffer: int, size: int, memory_type: int, memory_id: int
    ) -> None:
        if not this:
            raise InvalidArgumentError("expected a handle of an input, got NULL")
        put_word(buffer, 0 if index else word(this, InputWord.BUFFER))
        put_word(size, 0 if index else word(this, InputWord.SIZE))
        put_half_word(memory_type, _CPU)
        put_word(memory_id, 0)

    @export("TRITONBACKEND_InputBufferForHostPolicy")
    def _buffer_for_policy(self, this: int, policy: bytes | None, *rest: int) -> None:
        self._buffer(this, *rest)


def _refusal(request: BackendRequest, text: str) -> InvalidArgumentError:
    """Returns an error with the id of its request, as Triton writes it."""
    name = request.run.execute.ids.get(request.position) or "<id_unknown>"
    return InvalidArgumentError(f"[request id: {name}] {text}")


def _keep(request: BackendRequest) -> Kept:
    """Returns memory that lives as long as a request."""
    kept = Kept()
    request.owned = (request.owned, kept)
    return kept


def _parameter_value(value: ParameterValue, kept: Kept) -> tuple[int, int]:
    """Returns the number of a parameter's type, and the address of its value."""
    if isinstance(value, str):
        return 0, kept.string(value)
    if isinstance(value, bool):
        return 2, kept.words(value)
    if isinstance(value, int):
        return 1, kept.words(value)
    return 3, kept.words(struct.unpack("<Q", struct.pack("<d", value))[0])
