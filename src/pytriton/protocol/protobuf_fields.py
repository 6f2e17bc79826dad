# SPDX-License-Identifier: Apache-2.0
"""Splits a large protobuf message into its fields without parsing them.

A parser would create objects for everything in it, and block all other threads meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytriton.base.dtypes import Buffer

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES = 10


class FieldError(ValueError):
    """The bytes are not a valid message, or it has groups, which are obsolete."""


class PbField(NamedTuple):
    """The number, type and position of a field."""

    number: int
    wire_type: int
    begin: int  # where its tag begins
    start: int  # where its content begins
    stop: int


def split_fields(message: Buffer) -> Iterator[PbField]:
    """Yields the fields in order.

    Raises:
        FieldError: The message is invalid; fields before the error have been yielded.
    """
    at = 0
    while at < len(message):
        field = read_field(message, at)
        yield field
        at = field.stop


def read_field(message: Buffer, begin: int) -> PbField:
    """Returns the field at an offset; FieldError if it is invalid."""
    tag, at = read_varint(message, begin)
    wire_type = tag & 7
    if wire_type == LENGTH:
        size, at = read_varint(message, at)
        stop = at + size
    elif wire_type == VARINT:
        _, stop = read_varint(message, at)
    elif wire_type in _FIXED_BYTES:
        stop = at + _FIXED_BYTES[wire_type]
    else:
        raise FieldError(f"field {tag >> 3} at offset {begin} has wire type {wire_type}")
    if stop > len(message) or not tag >> 3:
        end = len(message)
        raise FieldError(f"field {tag >> 3} at offset {begin} ends at {stop} of {end} bytes")
    return PbField(tag >> 3, wire_type, begin, at, stop)


def read_varint(message: Buffer, at: int) -> tuple[int, int]:
    """Returns the number at an offset and where it ends; FieldError if it does not end."""
    value = shift = 0
    for byte in message[at : at + _MAX_VARINT_BYTES]:
        value |= (byte & 127) << shift
        shift += 7
        at += 1
        if byte < 128:
            return value, at
    raise FieldError(f"expected a number that ends before offset {at}")
