# SPDX-License-Identifier: Apache-2.0
"""Encodes header lists without state: literals are never added to the peer's dynamic table.

A block therefore has the same bytes on every connection, so constant blocks are encoded once, at
import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpack.table import HeaderTable

if TYPE_CHECKING:
    from collections.abc import Iterable

_FIELD_INDEX = {field: index for index, field in enumerate(HeaderTable.STATIC_TABLE, 1)}
_NAME_INDEX: dict[bytes, int] = {}
for _index, (_name, _) in enumerate(HeaderTable.STATIC_TABLE, 1):
    _NAME_INDEX.setdefault(_name, _index)

# Announces that our dynamic table stays empty; sent if the peer allows less than the default.
EMPTY_TABLE_UPDATE = b"\x20"


def encode_header_block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns the header block of `fields`; names are in lower case, pseudo-headers come first."""
    return b"".join([_encode_field(name, value) for name, value in fields])


def _encode_field(name: bytes, value: bytes) -> bytes:
    index = _FIELD_INDEX.get((name, value))
    if index is not None and value:
        return bytes((0x80 | index,))
    index = _NAME_INDEX.get(name)
    head = b"\x00" + _encode_string(name) if index is None else _encode_integer(index, 4)
    return head + _encode_string(value)


def _encode_string(text: bytes) -> bytes:
    return _encode_integer(len(text), 7) + text


def _encode_integer(number: int, prefix_bits: int) -> bytes:
    """Returns an integer as in RFC 7541, section 5.1; the bits before the prefix are zero."""
    largest = (1 << prefix_bits) - 1
    if number < largest:
        return bytes((number,))
    encoded = bytearray((largest,))
    number -= largest
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
