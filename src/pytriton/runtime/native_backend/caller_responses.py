# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_ResponseAllocator and _InferenceResponse: responses for callers of the C API.

An allocator consists of functions of the caller that give memory for outputs.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytriton.base.errors import InternalError, InvalidArgumentError, ServerError, UnsupportedError
from pytriton.base.messages import InferResponse, InferTensor, ParameterValue
from pytriton.runtime.native_backend.api_table import prototype
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import (
    Handles,
    KeptRecords,
    copy_to,
    put_half_word,
    put_word,
)
from pytriton.runtime.native_backend.server_objects import (
    Attributes,
    BufferAttributes,
    Errors,
    stored_parameter,
)

_CPU, _PINNED = 0, 1
CPU_TYPES = frozenset({_CPU, _PINNED})  # of TRITONSERVER_MemoryType


class Buffer:
    """A buffer that the caller has given, until it gets it back."""

    __slots__ = ("address", "memory_type", "memory_type_id", "size", "userp")

    def __init__(self, address: int, size: int, userp: int, place: Attributes) -> None:
        self.address = address
        self.size = size
        self.userp = userp
        self.memory_type = place.memory_type
        self.memory_type_id = place.memory_type_id


class _Result(ctypes.Structure):
    """What `alloc` fills."""

    _fields_ = (
        ("buffer", ctypes.c_uint64),
        ("userp", ctypes.c_uint64),
        ("memory_type_id", ctypes.c_int64),
        ("memory_type", ctypes.c_int32),
    )


class Allocator:
    """The functions of one allocator. They are called with the interpreter lock released."""

    def __init__(
        self, alloc: int, release: int, start: int, errors: Errors, attributes: BufferAttributes
    ) -> None:
        self.handle = 0
        self._errors = errors
        self._attributes = attributes
        self._alloc: Any = prototype("e:ppQiqppppp")(alloc)
        self._release: Any = prototype("e:pppQiq")(release)
        self._start: Any = prototype("e:pp")(start) if start else None
        self.describe: Any = None

    def start(self, userp: int) -> None:
        """Announce a response."""
        if self._start is not None:
            self._errors.raise_for(self._start(self.handle, userp))

    def allocate(self, name: str, size: int, userp: int, kept: KeptRecords) -> Buffer:
        """Returns memory for an output; raises the caller's error."""
        result = _Result()
        place = ctypes.addressof(result)
        name_address = kept.string(name)
        error = self._alloc(
            self.handle, name_address, size, _CPU, 0, userp,
            place, place + 8, place + 24, place + 16,
        )  # fmt: skip
        self._errors.raise_for(error)
        found = Attributes(result.memory_type, result.memory_type_id, size)
        buffer = Buffer(result.buffer, size, result.userp, found)
        try:
            if self.describe is not None:
                self._describe(name_address, found, userp, result.userp)
            _check(name, buffer)
        except BaseException:
            self.release(buffer)
            raise
        return buffer

    def _describe(self, name: int, found: Attributes, userp: int, buffer_userp: int) -> None:
        handle = self._attributes.handles.add(found)
        try:
            error = self.describe(self.handle, name, handle, userp, buffer_userp)
        finally:
            self._attributes.handles.discard(handle)
        self._errors.raise_for(error)

    def release(self, buffer: Buffer) -> None:
        """Give a buffer back; one at NULL is none."""
        if not buffer.address:
            return
        error = self._release(
            self.handle, buffer.address, buffer.userp, buffer.size,
            buffer.memory_type, buffer.memory_type_id,
        )  # fmt: skip
        self._errors.raise_for(error)


def _check(name: str, buffer: Buffer) -> None:
    if buffer.memory_type not in CPU_TYPES:
        raise UnsupportedError(f"expected memory of the CPU for output '{name}', got that of a GPU")
    if buffer.size and not buffer.address:
        raise InternalError(
            f"expected memory for the {buffer.size} bytes of output '{name}', got NULL"
        )


class Allocators:
    """The allocators that exist."""

    def __init__(self, errors: Errors, attributes: BufferAttributes) -> None:
        self.handles: Handles[Allocator] = Handles("a response allocator")
        self._errors = errors
        self._attributes = attributes

    @export("TRITONSERVER_ResponseAllocatorNew")
    def _new(self, place: int, alloc: int, release: int, start: int) -> None:
        if not alloc or not release:
            raise InvalidArgumentError("expected functions to allocate and to release, got NULL")
        allocator = Allocator(alloc, release, start, self._errors, self._attributes)
        allocator.handle = self.handles.add(allocator)
        put_word(place, allocator.handle)

    @export("TRITONSERVER_ResponseAllocatorDelete")
    def _delete(self, handle: int) -> None:
        self.handles.pop(handle)

    @export("TRITONSERVER_ResponseAllocatorSetQueryFunction")
    def _set_query(self, handle: int, _function: int) -> None:
        """Accept a function that is not needed: outputs are asked for in CPU memory only."""
        self.handles.get(handle)

    @export("TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction")
    def _set_describe(self, handle: int, function: int) -> None:
        describe = prototype("e:ppppp")(function) if function else None
        self.handles.get(handle).describe = describe


logger = logging.getLogger(__name__)


class CallerResponse:
    """A response that the caller holds: an error, or outputs in its own buffers."""

    __slots__ = (
        "allocator", "buffers", "error", "error_handle", "id", "kept", "labels", "model_name",
        "model_version", "outputs", "parameters",
    )  # fmt: skip

    def __init__(self, allocator: Allocator, model_name: str, model_version: int, id_: str) -> None:
        self.allocator = allocator
        self.model_name = model_name
        self.model_version = model_version
        self.id = id_
        self.outputs: Sequence[InferTensor] = ()
        self.buffers: list[Buffer] = []
        self.parameters: Sequence[tuple[str, ParameterValue]] = ()
        self.labels: Mapping[str, tuple[str, ...]] = {}
        self.error: ServerError | None = None
        self.error_handle = 0
        self.kept = KeptRecords()

    def fill(self, read: Callable[[], InferResponse], userp: int) -> None:
        """Become the response that `read` returns, or an error that it or the allocator raises."""
        try:
            self.allocator.start(userp)
            self.take(read(), userp)
        except ServerError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001  the caller waits for an answer
            self.fail(InternalError(f"{type(error).__name__}: {error}"))

    def take(self, response: InferResponse, userp: int) -> None:
        """Copy the outputs to memory that the caller gives."""
        for tensor in response.outputs:
            buffer = self.allocator.allocate(tensor.name, len(tensor.data), userp, self.kept)
            self.buffers.append(buffer)
            if buffer.size:
                copy_to(buffer.address, tensor.data)
            tensor.data = b""  # the memory of the engine is free again
        self.outputs = response.outputs
        self.parameters = list((response.parameters or {}).items())

    def fail(self, error: ServerError) -> None:
        """Let the response tell an error only; buffers go back."""
        self.error = error
        self.outputs = ()
        self.release()

    def release(self) -> None:
        """Give all buffers back, each once."""
        buffers, self.buffers = self.buffers, []
        for buffer in buffers:
            self._release(buffer)

    def _release(self, buffer: Buffer) -> None:
        try:
            self.allocator.release(buffer)
        except ServerError as error:
            logger.warning("a buffer could not be released: %s", error.message)


class CallerResponses:
    """The responses that the caller holds."""

    def __init__(self, errors: Errors) -> None:
        self.handles: Handles[CallerResponse] = Handles("a response")
        self._errors = errors

    @export("TRITONSERVER_InferenceResponseDelete")
    def _delete(self, handle: int) -> None:
        response = self.handles.pop(handle)
        if response.error_handle:
            self._errors.take(response.error_handle)
        response.release()

    @export("TRITONSERVER_InferenceResponseError")
    def _error(self, handle: int) -> int:
        """Returns the error of a response, which stays the response's."""
        response = self.handles.get(handle)
        if response.error is not None and not response.error_handle:
            error = response.error
            response.error_handle = self._errors.new(int(error.triton_code), error.message)
        return response.error_handle

    @export("TRITONSERVER_InferenceResponseModel")
    def _model(self, handle: int, name: int, version: int) -> None:
        response = self.handles.get(handle)
        put_word(name, response.kept.string(response.model_name))
        put_word(version, response.model_version)

    @export("TRITONSERVER_InferenceResponseId")
    def _id(self, handle: int, place: int) -> None:
        response = self.handles.get(handle)
        put_word(place, response.kept.string(response.id))

    @export("TRITONSERVER_InferenceResponseParameterCount")
    def _parameter_count(self, handle: int, place: int) -> None:
        put_half_word(place, len(self.handles.get(handle).parameters))

    @export("TRITONSERVER_InferenceResponseParameter")
    def _parameter(self, handle: int, index: int, name: int, kind: int, value: int) -> None:
        response = self.handles.get(handle)
        _check_index(index, len(response.parameters), "parameters")
        parameter, given = response.parameters[index]
        number, address = stored_parameter(response.kept, given)
        put_word(name, response.kept.string(parameter))
        put_half_word(kind, number)
        put_word(value, address)

    @export("TRITONSERVER_InferenceResponseOutputCount")
    def _output_count(self, handle: int, place: int) -> None:
        put_half_word(place, len(self.handles.get(handle).outputs))

    @export("TRITONSERVER_InferenceResponseOutput")
    def _output(self, handle: int, index: int, *places: int) -> None:
        response = self.handles.get(handle)
        _check_index(index, len(response.outputs), "outputs")
        tensor, buffer = response.outputs[index], response.buffers[index]
        name, dtype, shape, dims, base, size, memory_type, memory_type_id, userp = places
        kept = response.kept
        put_word(name, kept.string(tensor.name))
        put_half_word(dtype, tensor.dtype.number)
        put_word(shape, kept.words(*tensor.shape))
        put_word(dims, len(tensor.shape))
        put_word(base, buffer.address)
        put_word(size, buffer.size)
        put_half_word(memory_type, buffer.memory_type)
        put_word(memory_type_id, buffer.memory_type_id)
        put_word(userp, buffer.userp)

    @export("TRITONSERVER_InferenceResponseOutputClassificationLabel")
    def _label(self, handle: int, index: int, class_index: int, place: int) -> None:
        response = self.handles.get(handle)
        _check_index(index, len(response.outputs), "outputs")
        labels = response.labels.get(response.outputs[index].name, ())
        has_one = class_index < len(labels)
        put_word(place, response.kept.string(labels[class_index]) if has_one else 0)


def _check_index(index: int, count: int, noun: str) -> None:
    if index >= count:
        raise InvalidArgumentError(f"out of bounds index {index}: response has {count} {noun}")
