# SPDX-License-Identifier: Apache-2.0
"""Header blocks: decodes them (RFC 7541), checks them (RFC 9113, section 8), and encodes ours.

Decoding uses the tables and the Huffman code of the `hpack` package. The loop is our own because
cache misses are common (every new grpc-timeout is one): 8 fields take 6 us here and 36 us in
`hpack.Decoder`. Tests compare the two on random blocks.

Encoding has no state: literals are never added to the peer's dynamic table. A block therefore has
the same bytes on every connection, so constant blocks are encoded once, at import.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from pytriton.protocol.http2.frames import (
    DEFAULT_HEADER_TABLE_BYTES,
    ConnectionViolation,
    Http2ErrorCode,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.protocol.http2.limits import Http2Limits

Field = tuple[bytes, bytes]

_is_name = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_is_value = re.compile(rb"(?:[^\x00\r\n \t](?:[^\x00\r\n]*[^\x00\r\n \t])?)?").fullmatch
_is_content_length = re.compile(rb"[0-9]{1,19}").fullmatch

_BLANKS = b" \t"
_PSEUDO_NAMES = frozenset((b":method", b":scheme", b":path", b":authority"))
_CONNECTION_NAMES = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"),
)
# Fields up to the last one of these rarely change on a connection; what follows is often different
# in each request: deadlines, traces, tokens.
_BASE_NAMES = frozenset(
    (
        *_PSEUDO_NAMES,
        b"content-length",
        b"content-type",
        b"grpc-accept-encoding",
        b"grpc-encoding",
        b"grpc-message-type",
        b"te",
        b"user-agent",
    ),
)


class Http2RequestHead(msgspec.Struct, gc=False, eq=False):
    """The header section of a request; requests with equal header blocks may share an object."""

    method: str
    path: str
    fields: tuple[Field, ...]  # without pseudo-headers
    authority: str = ""
    content_length: int | None = None
    violation: str | None = None  # why the head is malformed
    memo: Any = None  # a cache for the layer above
    # The head with the first of these fields, if that is known: what is derived from it may be used
    # again. No later field is a pseudo-header or in `_BASE_NAMES`.
    base: Http2RequestHead | None = None


def parse_request(fields: list[Field]) -> Http2RequestHead:
    """Returns the head of a request from its decoded fields; `violation` is set if malformed."""
    pseudo: dict[bytes, bytes] = {}
    regular: list[Field] = []
    violation = None
    for name, value in fields:
        if name[:1] == b":":
            violation = violation or _pseudo_violation(name, pseudo, is_late=bool(regular))
            pseudo[name] = value
            violation = violation or (None if _is_value(value) else _value_violation(name, value))
        else:
            # gRPC clients send values unchanged, and its specification lets servers strip them.
            value = value.strip(_BLANKS)  # noqa: PLW2901
            violation = violation or field_violation(name, value)
            regular.append((name, value))
    lengths = {value for name, value in regular if name == b"content-length"}
    violation = violation or _request_violation(pseudo) or _length_violation(lengths)
    return Http2RequestHead(
        method=pseudo.get(b":method", b"").decode("latin-1"),
        path=pseudo.get(b":path", b"").decode("latin-1"),
        fields=tuple(regular),
        authority=pseudo.get(b":authority", b"").decode("latin-1"),
        content_length=int(lengths.pop()) if lengths and violation is None else None,
        violation=violation,
    )


def trailers_violation(fields: list[Field]) -> str | None:
    """Returns why the trailers of a request are malformed; None if they are not."""
    for name, value in fields:
        violation = field_violation(name, value.strip(_BLANKS))
        if violation is not None:
            return violation
    return None


def field_violation(name: bytes, value: bytes) -> str | None:
    if not _is_name(name):
        return f"expected a field name in lower case, got {name!r}"
    if not _is_value(value):
        return _value_violation(name, value)
    if name in _CONNECTION_NAMES:
        return f"field {name.decode()} does not exist in HTTP/2"
    if name == b"te" and value.lower() != b"trailers":
        return f"expected field te to be 'trailers', got {value!r}"
    return None


def _value_violation(name: bytes, value: bytes) -> str:
    return f"field {name!r} has a value with forbidden characters: {value[:100]!r}"


def _pseudo_violation(name: bytes, seen: dict[bytes, bytes], *, is_late: bool) -> str | None:
    if name not in _PSEUDO_NAMES:
        return f"pseudo-header {name!r} does not exist in requests"
    if name in seen:
        return f"pseudo-header {name.decode()} came twice"
    if is_late:
        return f"pseudo-header {name.decode()} came after a regular field"
    return None


def _request_violation(pseudo: dict[bytes, bytes]) -> str | None:
    method = pseudo.get(b":method")
    if not method:
        return "expected pseudo-header :method, got none"
    if method == b"CONNECT":
        if b":scheme" in pseudo or b":path" in pseudo or not pseudo.get(b":authority"):
            return "expected CONNECT with :authority only"
        return None
    if not pseudo.get(b":scheme"):
        return "expected pseudo-header :scheme, got none"
    path = pseudo.get(b":path", b"")
    if not path.startswith(b"/") and not (path == b"*" and method == b"OPTIONS"):
        return f"expected pseudo-header :path to begin with '/', got {path[:100]!r}"
    return None


def _length_violation(lengths: set[bytes]) -> str | None:
    if len(lengths) > 1 or not all(_is_content_length(length) for length in lengths):
        return f"expected one content-length in digits, got {sorted(lengths)!r}"
    return None


_STATIC = HeaderTable.STATIC_TABLE
_FIRST_DYNAMIC = len(_STATIC) + 1
_FIRST_DYNAMIC_BYTE = 0x80 | _FIRST_DYNAMIC
_MAX_SHIFT = 28  # integers of at most five octets after the prefix
_CACHEABLE_BYTES = 2048  # a longer block is not likely to come twice
_ENTRY_OVERHEAD = 32
_indices_of = re.compile(rb"[\x81-\xfe]*").match  # fields from the tables with indices of one byte
_MAX_RESIZES = 2  # RFC 7541, section 4.2: the smallest size since the last block, and the final one


class HeaderDecoder:
    """Decodes the header blocks of one connection.

    A block that did not change the dynamic table decodes to the same list as long as the table
    stays the same. Such blocks are cached (0.1 us per hit); any change of the table empties the
    cache.
    """

    __slots__ = (
        "_bases",
        "_heads",
        "_is_table_changed",
        "_max_cached",
        "_max_list_bytes",
        "_peeked",
        "_runs",
        "_table",
    )

    def __init__(self, limits: Http2Limits) -> None:
        self._table = HeaderTable()
        self._max_list_bytes = limits.max_header_list_bytes
        self._max_cached = limits.cached_header_blocks
        self._heads: dict[bytes, Http2RequestHead] = {}
        self._bases: dict[tuple[Field, ...], Http2RequestHead] = {}
        # Blocks often begin with the same indices: their fields, and what is left of the limit.
        self._runs: dict[bytes, tuple[list[Field], int]] = {}
        self._peeked: Http2RequestHead | None = None
        self._is_table_changed = False

    @property
    def is_table_changed(self) -> bool:
        """Whether the block that was decoded last gave the ones after it another meaning."""
        return self._is_table_changed

    def forget_memos(self) -> None:
        """Empty the caches of the layer above."""
        for head in (*self._heads.values(), *self._bases.values()):
            head.memo = None

    def known_request(self, block: bytes) -> Http2RequestHead | None:
        """Returns the head of a request whose block is in the cache."""
        return self._heads.get(block)

    def peek_request(self, block: bytes) -> Http2RequestHead:
        """Decode a block of a request before it is certain who processes it.

        A block may change the table, so it is decoded once: `decode_request` has to be called next,
        unless `take_peeked` is.
        """
        head = self._peeked = self.decode_request(block)
        return head

    def take_peeked(self) -> None:
        """The request whose block was decoded last is processed now."""
        self._peeked = None

    def decode_request(self, block: bytes) -> Http2RequestHead:
        """Returns the head of a request; ConnectionViolation if the block cannot be decoded."""
        if self._peeked is not None:
            head, self._peeked = self._peeked, None
            return head
        known = self._heads.get(block)
        if known is not None:
            return known
        fields = self.decode(block)
        head = self._extend_base(fields) or parse_request(fields)
        # A block that adds to the table means something else the next time.
        if not self._is_table_changed and len(block) <= _CACHEABLE_BYTES:
            if len(self._heads) >= self._max_cached:
                self._heads.clear()
            self._heads[block] = head
        return head

    def _extend_base(self, fields: list[Field]) -> Http2RequestHead | None:
        """Returns what `parse_request` would, in a third of its time; None if it has to be called.

        Most requests differ from others only in fields that have no meaning here.
        """
        end = len(fields)
        while end and fields[end - 1][0] not in _BASE_NAMES:
            end -= 1
        key = tuple(fields[:end])
        base = self._bases.get(key)
        if base is None:
            base = parse_request(fields[:end])
            if len(self._bases) >= self._max_cached:
                self._bases.clear()
            if sum(len(name) + len(value) for name, value in key) <= _CACHEABLE_BYTES:
                self._bases[key] = base
        if base.violation is not None:
            return None
        if end == len(fields):
            return base
        others = []
        for name, value in fields[end:]:
            value = value.strip(_BLANKS)  # noqa: PLW2901
            if field_violation(name, value) is not None:
                return None
            others.append((name, value))
        return Http2RequestHead(
            base.method,
            base.path,
            (*base.fields, *others),
            base.authority,
            base.content_length,
            base=base,
        )

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
            self._runs.clear()
        return fields

    def _decode(self, block: bytes) -> list[Field]:
        match = _indices_of(block)
        run = match[0] if match else b""
        known = self._runs.get(run)
        if known is None:
            known = self._decode_from(block[: len(run)], 0, [], self._max_list_bytes)
            if len(self._runs) >= self._max_cached:
                self._runs.clear()
            self._runs[run] = known
        fields, bytes_left = known
        if len(run) == len(block):
            return fields
        return self._decode_from(block, len(run), fields.copy(), bytes_left)[0]

    def _decode_from(
        self, block: bytes, at: int, fields: list[Field], bytes_left: int
    ) -> tuple[list[Field], int]:
        """Append the fields of the rest of a block; returns them, and what is left of the limit."""
        resizes = 0
        end = len(block)
        dynamic = self._table.dynamic_entries
        while at < end:
            first = block[at]
            # RFC 7541, 6.1, 6.3 and 6.2, by the first bits: indexed field, size update, literal.
            if _FIRST_DYNAMIC_BYTE <= first < 0xFF and first - _FIRST_DYNAMIC_BYTE < len(dynamic):
                field = dynamic[first - _FIRST_DYNAMIC_BYTE]  # as below, in half the time
                at += 1
            elif first & 0x80:  # a whole field from a table
                index, at = _integer(block, at, 0x7F)
                field = self._entry(index)
            elif first & 0x60 == 0x20:  # a new size of the table
                size, at = _integer(block, at, 0x1F)
                resizes += 1
                # RFC 7541, 4.2: updates come before the first field, and not above our setting.
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
            # Counted as in SETTINGS_MAX_HEADER_LIST_SIZE (RFC 9113, 6.5.2): a few bytes of indices
            # could stand for megabytes of fields.
            bytes_left -= len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD
            if bytes_left < 0:
                message = (
                    f"expected a header list of at most {self._max_list_bytes} bytes, got more"
                )
                raise ConnectionViolation(Http2ErrorCode.ENHANCE_YOUR_CALM, message)
        return fields, bytes_left

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
    # RFC 7541, 6.2.2: a literal without indexing leaves the dynamic table of the peer as it is.
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
