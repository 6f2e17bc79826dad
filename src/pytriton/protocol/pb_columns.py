# SPDX-License-Identifier: Apache-2.0
"""Reads requests and writes responses that differ from earlier ones only in the bytes of tensors.

Messages of sequences also differ in the id and the flags of their sequence, and in their own id.
All other bytes are those of the message that was learned. The bytes of responses are those of
`pytriton.protocol.kserve_pb_response`, framed for gRPC.
"""

from __future__ import annotations

import struct
from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from pytriton.base.messages import InferResponse
from pytriton.protocol.columns import blank_tensors, structure_of
from pytriton.protocol.grpc.messages import message_prefix
from pytriton.protocol.kserve_pb_response import (
    encode_infer_response,
    encode_length,
    encode_stream_response,
    message_size,
)
from pytriton.protocol.protobuf_fields import FieldError, read_varint, split_fields
from pytriton.protocol.sequence import MAX_TEXT_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import ParameterValue
    from pytriton.protocol.columns import BatchColumn

Layout = tuple[bytes, ...]  # what comes before each tensor

_RAW_TAG = b"\x3a"  # of raw tensors in a request
_first = itemgetter(0)


def layout_of(message: bytes, raw: Sequence[Buffer]) -> Layout | None:
    """Returns the layout of a ModelInferRequest that ends with its raw tensors; else None."""
    # Tags and lengths as our own encoder writes them. A client may write a length in more bytes
    # than it needs: such a message has no layout.
    heads = [_RAW_TAG + encode_length(len(data)) for data in raw]
    raw_bytes = sum(map(len, heads)) + message_size(raw)
    start = len(message) - raw_bytes
    if not raw or message[start:] != b"".join(chain.from_iterable(zip(heads, raw, strict=True))):
        return None
    return (message_prefix(len(message)) + message[:start] + heads[0], *heads[1:])


class PbRequestPattern:
    """Reads the tensors of framed requests with the same layout and the same sizes."""

    __slots__ = ("_layout", "_unpack", "size")

    def __init__(self, layout: Layout, sizes: Sequence[int]) -> None:
        parts = zip(layout, sizes, strict=True)
        pattern = struct.Struct("".join(f"{len(fixed)}s{size}s" for fixed, size in parts))
        self.size = pattern.size
        self._layout = layout
        self._unpack = pattern.unpack

    def read(self, framed: bytes) -> tuple[bytes, ...] | None:
        """Returns the tensors of a request of the right size; None if it has another layout."""
        # One call of C cuts the message; one comparison of tuples checks all that has to be equal.
        values = self._unpack(framed)
        return values[1::2] if values[::2] == self._layout else None


class PbResponsePattern:
    """Writes framed responses with the same outputs; `rows` as in `JsonResponsePattern`."""

    __slots__ = ("_layout", "_rows", "_splits", "size", "structure")

    def __init__(
        self,
        model_name: str,
        model_version: str,
        rows: int | None,
        columns: Sequence[BatchColumn],
        parameters: dict[str, ParameterValue] | None = None,
    ) -> None:
        self.structure = structure_of(columns)
        self._rows = rows or 1
        tensors = blank_tensors(columns, rows)
        response = InferResponse(model_name, model_version, "", tensors, parameters)
        # The ordinary encoder makes the layout, so both ways have the same bytes.
        parts = encode_infer_response(response)
        size = message_size(parts)
        self.size = len(message_prefix(size)) + size  # of a framed message
        start = len(parts) - 2 * len(tensors)
        parts[: start + 1] = [b"".join([message_prefix(size), *parts[: start + 1]])]
        self._layout = [bytes(head) for head in parts[::2]]
        self._splits = [struct.Struct(f"{len(tensor.data)}s") for tensor in tensors]

    def encode(
        self, columns: Sequence[BatchColumn], row: int, count: int
    ) -> Iterator[tuple[bytes, ...]]:
        """Returns the parts of `count` framed messages whose rows begin at `row`."""
        end = row + count * self._rows
        parts = []
        for fixed, split, column in zip(self._layout, self._splits, columns, strict=True):
            data = column.data[row * column.row_bytes : end * column.row_bytes]
            # Tensors without bytes cannot be split: each response has an empty one.
            pieces = map(_first, split.iter_unpack(data)) if split.size else repeat(b"", count)
            parts += [repeat(fixed), pieces]
        return zip(*parts, strict=False)


_ID, _PARAMETERS, _RAW = 3, 4, 7  # numbers of fields
_NUMBER, _TEXT, _START, _END, _REQUEST_ID = range(5)  # what a varying part is
# How entries of `parameters` begin; their values follow.
_NUMBER_ENTRY = b"\n\x0bsequence_id\x12%c\x10"
_TEXT_ENTRY = b"\n\x0bsequence_id\x12%c\x1a%c"
_FLAG_ENTRIES = {
    b"\n\x0esequence_start\x12\x02\x08": _START,
    b"\n\x0csequence_end\x12\x02\x08": _END,
}
_FLAG_KINDS = frozenset({_START, _END})
_FLAGS = {b"\0": 0, b"\1": 1}
_MAX_NUMBER = 2**63 - 1  # larger ones are negative in the message
_MAX_KNOWN_IDS = 1024
_PREFIX_BYTES = len(message_prefix(0))


class SequenceRequest(NamedTuple):
    """The varying parts of a request of a layout."""

    inputs: Sequence[bytes]
    correlation_id: int | str
    flags: int
    id: bytes  # of the request, in ASCII


class SequenceLayout(NamedTuple):
    """The layout of a message of a sequence."""

    fixed: Layout  # what comes before each varying part
    kinds: tuple[int, ...]  # of the varying parts before the tensors
    sizes: tuple[int, ...]  # of all varying parts


def sequence_layout_of(message: bytes, raw: Sequence[Buffer]) -> SequenceLayout | None:
    """Returns the layout of a ModelInferRequest; None if messages like it have to be read fully."""
    plain = layout_of(message, raw)
    if plain is None:
        return None
    head = plain[0][_PREFIX_BYTES:]  # everything before the first tensor
    found: list[tuple[int, int, int]] = []  # the kind of a varying part, where it starts and stops
    for number, _, _, start, stop in split_fields(message):
        if number == _RAW:
            break
        if number == _PARAMETERS:
            part = _find_value(message[start:stop])
            if part is None:
                return None
            found.append((part[0], stop - part[1], stop))
        elif number == _ID and stop > start:
            found.append((_REQUEST_ID, start, stop))
    kinds = tuple(kind for kind, _, _ in found)
    # A repeated parameter would override the first, and a request of a sequence has one id.
    if len(set(kinds)) < len(kinds) or len({_NUMBER, _TEXT}.intersection(kinds)) != 1:
        return None
    stops = [0, *(stop for _, _, stop in found)]
    starts = [*(start for _, start, _ in found), len(head)]
    fixed = [head[stop:start] for stop, start in zip(stops, starts, strict=True)]
    sizes = (*(stop - start for _, start, stop in found), *map(len, raw))
    return SequenceLayout((*fixed, *plain[1:]), kinds, sizes)


def _find_value(entry: bytes) -> tuple[int, int] | None:
    """Returns the kind and the size of the value that ends an entry of `parameters`."""
    for begin, kind in _FLAG_ENTRIES.items():
        if entry.startswith(begin):
            return (kind, 1) if len(entry) == len(begin) + 1 else None
    size = len(entry) - len(_NUMBER_ENTRY % (0,))
    if 0 < size < 10 and entry.startswith(_NUMBER_ENTRY % (size + 1)):
        return _NUMBER, size
    size -= 1
    if 0 < size < 126 and entry.startswith(_TEXT_ENTRY % (size + 2, size)):
        return _TEXT, size
    return None


class SequencePattern:
    """Reads the messages of one layout."""

    __slots__ = ("_fixed", "_ids", "_kinds", "_unpack", "size")

    def __init__(self, layout: SequenceLayout) -> None:
        parts = zip(layout.fixed, layout.sizes, strict=True)
        pattern = struct.Struct("".join(f"{len(fixed)}s{size}s" for fixed, size in parts))
        self.size = pattern.size
        self._fixed = layout.fixed
        self._kinds = layout.kinds
        self._unpack = pattern.unpack
        self._ids: dict[bytes, int | str] = {}  # a sequence repeats its id

    def read(self, message: bytes) -> SequenceRequest | None:
        """Read a message of the right size; returns None if it has to be read fully."""
        parts = self._unpack(message)
        # Everything between the varying parts, tags and lengths included, has to be as it was
        # learned.
        if parts[::2] != self._fixed:
            return None
        varying = parts[1::2]
        correlation_id: int | str | None = None
        flags = 0
        request_id = b""
        for kind, value in zip(self._kinds, varying, strict=False):
            if kind in _FLAG_KINDS:
                flag = _FLAGS.get(value)
                if flag is None:
                    return None
                flags |= flag << (kind - _START)
            elif kind == _REQUEST_ID:
                if not value.isascii():
                    return None
                request_id = value
            else:
                # 0 is no id of a sequence, so `or` only repeats what was not read.
                correlation_id = self._ids.get(value) or self._read_id(kind, value)
        if correlation_id is None:
            return None
        return SequenceRequest(varying[len(self._kinds) :], correlation_id, flags, request_id)

    def _read_id(self, kind: int, value: bytes) -> int | str | None:
        correlation_id: int | str
        if kind == _NUMBER:
            try:
                correlation_id, end = read_varint(value, 0)
            except FieldError:
                return None
            if end != len(value) or not 0 < correlation_id <= _MAX_NUMBER:
                return None
        else:
            try:
                correlation_id = value.decode()
            except UnicodeDecodeError:
                return None
            if len(correlation_id) > MAX_TEXT_LENGTH:
                return None
        if len(self._ids) >= _MAX_KNOWN_IDS:
            self._ids.clear()
        self._ids[value] = correlation_id
        return correlation_id


class PbStreamedResponsePattern:
    """Writes framed, streamed, final responses; see `PbResponsePattern`."""

    def __init__(
        self,
        model_name: str,
        model_version: str,
        rows: int | None,
        columns: Sequence[BatchColumn],
        parameters: dict[str, ParameterValue] | None = None,
    ) -> None:
        self.structure = structure_of(columns)
        self._rows = rows or 1
        tensors = blank_tensors(columns, rows)
        self._response = InferResponse(model_name, model_version, "", tensors, parameters)
        self._splits = [struct.Struct(f"{len(tensor.data)}s") for tensor in tensors]
        self._layouts: dict[int, tuple[bytes, list[bytes]]] = {}  # by the length of the id

    def encode(
        self, columns: Sequence[BatchColumn], row: int, ids: Sequence[bytes]
    ) -> Iterator[bytes]:
        """Yields the messages to requests with these ids, whose rows begin at `row`."""
        end = row + len(ids) * self._rows
        pieces = []
        for split, column in zip(self._splits, columns, strict=True):
            data = column.data[row * column.row_bytes : end * column.row_bytes]
            pieces.append(split.iter_unpack(data) if split.size else repeat((b"",), len(ids)))
        layouts = self._layouts
        for request_id, *tensors in zip(ids, *pieces, strict=True):
            head, fixed = layouts.get(len(request_id)) or self._layout(len(request_id))
            parts = [head, request_id, fixed[0]]
            for before, (data,) in zip(fixed[1:], tensors, strict=True):
                parts += (data, before)
            yield b"".join(parts)

    def _layout(self, id_bytes: int) -> tuple[bytes, list[bytes]]:
        """Returns the bytes before the id, after it, and after each tensor."""
        response = self._response
        response.id = "0" * id_bytes
        parts = encode_stream_response(encode_infer_response(response), is_final=True)
        after = 6 if id_bytes else 4  # parts before the id: sizes, the final flag, the model
        head = b"".join((message_prefix(message_size(parts)), *parts[:after]))
        rest = parts[after + bool(id_bytes) :]
        tensors = len(response.outputs)
        first = len(rest) - 2 * tensors
        fixed = [b"".join(rest[: first + 1]), *map(bytes, rest[first + 2 :: 2])]
        if tensors:
            fixed.append(b"")
        layout = self._layouts[id_bytes] = (head, fixed)
        return layout
