# SPDX-License-Identifier: Apache-2.0
"""Decodes header blocks (RFC 7541) with the tables and the Huffman code of the `hpack` package.

The loop is our own because cache misses are common (every new grpc-timeout is one): 8 fields take
6 us here and 36 us in `hpack.Decoder`. Tests compare the two on random blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from pytriton.protocol.http2.errors import ConnectionViolation, Http2ErrorCode
from pytriton.protocol.http2.header_rules import Http2RequestHead, parse_request
from pytriton.protocol.http2.settings import DEFAULT_HEADER_TABLE_BYTES

if TYPE_CHECKING:
    from pytriton.protocol.http2.header_rules import Field
    from pytriton.protocol.http2.limits import Http2Limits

_STATIC = HeaderTable.STATIC_TABLE
_FIRST_DYNAMIC = len(_STATIC) + 1
_MAX_SHIFT = 28  # integers of at most five octets after the prefix
_CACHEABLE_BYTES = 2048  # a longer block is not likely to come twice
_ENTRY_OVERHEAD = 32
_MAX_RESIZES = 2  # RFC 7541, section 4.2: the smallest size since the last block, and the final one


class HeaderDecoder:
    """Decodes the header blocks of one connection.

    A block that did not change the dynamic table decodes to the same list as long as the table
    stays the same. Such blocks are cached (0.1 us per hit); any change of the table empties the
    cache.
    """

    __slots__ = ("_heads", "_is_table_changed", "_max_cached", "_max_list_bytes", "_table")

    def __init__(self, limits: Http2Limits) -> None:
        self._table = HeaderTable()
        self._max_list_bytes = limits.max_header_list_bytes
        self._max_cached = limits.cached_header_blocks
        self._heads: dict[bytes, Http2RequestHead] = {}
        self._is_table_changed = False

    @property
    def is_table_changed(self) -> bool:
        """Whether the block that was decoded last gave the ones after it another meaning."""
        return self._is_table_changed

    def known_request(self, block: bytes) -> Http2RequestHead | None:
        """Returns the head of a request whose block is in the cache."""
        return self._heads.get(block)

    def decode_request(self, block: bytes) -> Http2RequestHead:
        """Returns the head of a request; ConnectionViolation if the block cannot be decoded."""
        head = self._heads.get(block)
        if head is not None:
            return head
        head = parse_request(self.decode(block))
        if not self._is_table_changed and len(block) <= _CACHEABLE_BYTES:
            if len(self._heads) >= self._max_cached:
                self._heads.clear()
            self._heads[block] = head
        return head

    def decode(self, block: bytes) -> list[Field]:
        """Returns the fields of a block in order; ConnectionViolation if it cannot be decoded."""
        self._is_table_changed = False
        try:
            fields = self._decode(block)
        except (HPACKError, IndexError) as error:
            message = f"a header block of {len(block)} bytes cannot be decoded: {error}"
            raise ConnectionViolation(Http2ErrorCode.COMPRESSION_ERROR, message) from error
        if self._is_table_changed:
            self._heads.clear()
        return fields

    def _decode(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        bytes_left = self._max_list_bytes
        resizes = 0
        at = 0
        end = len(block)
        while at < end:
            first = block[at]
            if first & 0x80:  # a whole field from a table
                index, at = _integer(block, at, 0x7F)
                field = self._entry(index)
            elif first & 0x60 == 0x20:  # a new size of the table
                size, at = _integer(block, at, 0x1F)
                resizes += 1
                if fields or resizes > _MAX_RESIZES or size > DEFAULT_HEADER_TABLE_BYTES:
                    raise _resize_violation(size, resizes, is_late=bool(fields))
                self._table.maxsize = size
                self._is_table_changed = True
                continue
            else:
                is_indexing = first & 0x40
                index, at = _integer(block, at, 0x3F if is_indexing else 0x0F)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                field = (name, value)
                if is_indexing:
                    self._table.add(name, value)
                    self._is_table_changed = True
            fields.append(field)
            bytes_left -= len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD
            if bytes_left < 0:
                message = (
                    f"expected a header list of at most {self._max_list_bytes} bytes, got more"
                )
                raise ConnectionViolation(Http2ErrorCode.ENHANCE_YOUR_CALM, message)
        return fields

    def _entry(self, index: int) -> Field:
        if 0 < index < _FIRST_DYNAMIC:
            return _STATIC[index - 1]
        return self._table.get_by_index(index)


def _resize_violation(size: int, resizes: int, *, is_late: bool) -> ConnectionViolation:
    message = (
        f"expected at most {_MAX_RESIZES} table sizes of at most {DEFAULT_HEADER_TABLE_BYTES} at"
        f" the start of a header block, got {size} as number {resizes}"
        f"{' after a field' if is_late else ''}"
    )
    return ConnectionViolation(Http2ErrorCode.COMPRESSION_ERROR, message)


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """Returns the integer that begins at `at` with the bits of `prefix`, and its end."""
    number = block[at] & prefix
    at += 1
    if number < prefix:
        return number, at
    shift = 0
    while True:
        octet = block[at]
        at += 1
        number += (octet & 0x7F) << shift
        if octet < 0x80:
            return number, at
        shift += 7
        if shift > _MAX_SHIFT:
            message = "expected an integer of at most five octets, got more"
            raise ConnectionViolation(Http2ErrorCode.COMPRESSION_ERROR, message)


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Returns the string that begins at `at`, and its end."""
    is_huffman = block[at] & 0x80
    length, start = _integer(block, at, 0x7F)
    stop = start + length
    text = block[start:stop]
    if len(text) != length:
        message = f"expected a string of {length} bytes, got {len(text)}"
        raise ConnectionViolation(Http2ErrorCode.COMPRESSION_ERROR, message)
    return (bytes(decode_huffman(text)) if is_huffman else text), stop
