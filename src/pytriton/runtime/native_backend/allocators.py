# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_ResponseAllocator: functions of a caller that give memory for outputs."""

from __future__ import annotations

import ctypes
from typing import Any

from pytriton.base.errors import InternalError, InvalidArgumentError, UnsupportedError
from pytriton.runtime.native_backend.api_table import prototype
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import Handles, Kept, put_word
from pytriton.runtime.native_backend.server_objects import Attributes, BufferAttributes, Errors

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

    def allocate(self, name: str, size: int, userp: int, kept: Kept) -> Buffer:
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
