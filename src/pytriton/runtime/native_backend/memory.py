# SPDX-License-Identifier: Apache-2.0
"""Reads and writes memory at addresses that C passes, and keeps memory whose addresses C gets.

Nothing here can check an address. Only this module computes with them.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from pytriton.base.errors import InvalidArgumentError

_T = TypeVar("_T")
WORD_BYTES = 8
_MASK = 2**64 - 1

# All memory as arrays. An item takes 0.1 us, half the time of `from_address(...).value`.
_words: Any = (ctypes.c_uint64 * 2**57).from_address(0)
_signed_words: Any = (ctypes.c_int64 * 2**57).from_address(0)
_half_words: Any = (ctypes.c_uint32 * 2**58).from_address(0)
_bytes: Any = (ctypes.c_uint8 * 2**60).from_address(0)
_Byte = ctypes.c_char
_all_bytes = memoryview(_bytes).cast("B")
# Up to this size, a copy that lets no other thread run is faster.
_SMALL_COPY_BYTES = 64 << 10


def put_word(address: int, value: int) -> None:
    """Write a pointer or a number of 64 bits."""
    _words[address >> 3] = value


def put_field(record: int, index: int, value: int) -> None:
    """Write a word of a record."""
    _words[(record >> 3) + index] = value


def field_address(record: int, index: int) -> int:
    """Returns the address of a word of a record."""
    return record + WORD_BYTES * index


def put_half_word(address: int, value: int) -> None:
    """Write a number of 32 bits."""
    _half_words[address >> 2] = value


def put_bool(address: int, value: bool) -> None:
    """Write a C bool."""
    _bytes[address] = value


def put_double(address: int, value: float) -> None:
    """Write a double."""
    ctypes.c_double.from_address(address).value = value


def word(address: int, index: int = 0) -> int:
    """Returns the pointer or unsigned number of 64 bits at `index` of an array."""
    value: int = _words[(address >> 3) + index]
    return value


def half_word(address: int) -> int:
    """Returns an unsigned number of 32 bits."""
    value: int = _half_words[address >> 2]
    return value


def words(address: int, count: int) -> tuple[int, ...]:
    """Returns an array of signed numbers of 64 bits."""
    first = address >> 3
    return tuple(_signed_words[first : first + count])


def text(address: int) -> str:
    """Returns a C string; bytes that are not UTF-8 are escaped."""
    return decoded(ctypes.string_at(address)) if address else ""


def decoded(value: bytes | None) -> str:
    """Returns a C string that is an argument; NULL is an empty one."""
    return value.decode("utf-8", "backslashreplace") if value else ""


def content(address: int, size: int) -> bytes:
    """Returns a copy of memory."""
    return ctypes.string_at(address, size) if size else b""


def required_text(value: bytes | None) -> str:
    """Returns a C string that is an argument.

    Raises:
        InvalidArgumentError: It is NULL or not UTF-8.
    """
    if value is None:
        raise InvalidArgumentError("expected a text, got NULL")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"expected a text in UTF-8, got {value!r}") from None


def view(address: int, size: int) -> memoryview:
    """Returns memory without a copy; its owner must not free it meanwhile.

    Raises:
        InvalidArgumentError: The address is NULL, and the size is not 0.
    """
    if size and not address:
        raise InvalidArgumentError(f"expected the address of {size} bytes, got NULL")
    return _all_bytes[address : address + size]


def copy_to(address: int, data: bytes | bytearray | memoryview) -> None:
    """Copy bytes to an address; other threads run while many are copied."""
    size = len(data)
    if size <= _SMALL_COPY_BYTES:
        _all_bytes[address : address + size] = data
    else:
        source = np.frombuffer(data, np.uint8)
        ctypes.memmove(address, source.__array_interface__["data"][0], size)


def address_of(buffer: Any) -> int:
    """Returns where a writable buffer that is not empty begins."""
    return ctypes.addressof(_Byte.from_buffer(buffer))


class KeptRecords:
    """C strings and records, which stay where they are as long as this object lives."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def string(self, value: str | bytes) -> int:
        """Returns the address of a C string."""
        data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        return self._keep(ctypes.create_string_buffer(data))

    def words(self, *values: int) -> int:
        """Returns the address of an array of words; a record is one, too."""
        array = (ctypes.c_uint64 * max(1, len(values)))(*[value & _MASK for value in values])
        return self._keep(array)

    def strings(self, values: Sequence[str]) -> int:
        """Returns the address of an array of C strings."""
        return self.words(*[self.string(value) for value in values])

    def _keep(self, part: Any) -> int:
        self._parts.append(part)
        return ctypes.addressof(part)


class Texts:
    """C strings by names. One stays where it is until another is written under its name."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, int, KeptRecords]] = {}

    def address(self, name: str, value: str) -> int:
        """Returns the address of the C string of a name, however often it is asked for."""
        found = self._kept.get(name)
        if found is None or found[0] != value:
            kept = KeptRecords()
            found = self._kept[name] = value, kept.string(value), kept
        return found[1]


_numbers = itertools.count(16, 16)  # of all tables, so that a handle is valid in one of them only


class Handles(Generic[_T]):
    """Objects that C knows by numbers, which look like pointers and are none.

    Args:
        kind: The name of such an object in errors.

    Attributes:
        find_more: Called before a handle is refused. It adds objects that were not needed before.
    """

    __slots__ = ("_kind", "_objects", "find_more")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._objects: dict[int, _T] = {}
        self.find_more: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, handle: object) -> bool:
        return handle in self._objects or self._has_found(handle)

    def add(self, value: _T) -> int:
        """Returns the handle of a new object."""
        handle = next(_numbers)
        self._objects[handle] = value
        return handle

    def add_at(self, address: int, value: _T) -> None:
        """Add an object whose handle is the address of its record."""
        self._objects[address] = value

    def get(self, handle: int) -> _T:
        """Returns an object; InvalidArgumentError if there is none with this handle."""
        try:
            return self._objects[handle]
        except KeyError:
            if self._has_found(handle):
                return self._objects[handle]
            raise self._unknown(handle) from None

    def pop(self, handle: int) -> _T:
        """Remove an object and return it; InvalidArgumentError as above."""
        try:
            return self._objects.pop(handle)
        except KeyError:
            if self._has_found(handle):
                return self._objects.pop(handle)
            raise self._unknown(handle) from None

    def discard(self, handle: int) -> None:
        """Remove an object if it is there."""
        self._objects.pop(handle, None)

    def _has_found(self, handle: object) -> bool:
        if self.find_more is None:
            return False
        self.find_more()
        return handle in self._objects

    def _unknown(self, handle: int) -> InvalidArgumentError:
        was = f"{handle:#x}" if handle else "NULL"
        return InvalidArgumentError(f"expected a handle of {self._kind}, got {was}")


class WordArray:
    """An array of words for C, which is used again and grows when needed."""

    __slots__ = ("_array", "address")

    def __init__(self) -> None:
        self._array: Any = (ctypes.c_uint64 * 64)()
        self.address = ctypes.addressof(self._array)

    def fill(self, values: Sequence[int]) -> None:
        """Write the values; `address` may change."""
        count = len(values)
        if count > len(self._array):
            self._array = (ctypes.c_uint64 * (2 * count))()
            self.address = ctypes.addressof(self._array)
        self._array[:count] = values
