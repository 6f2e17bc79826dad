# SPDX-License-Identifier: Apache-2.0
"""Reads requests and writes responses that repeat, except for their holes.

The holes of a request are its id, its parameters and its raw tensors; those of a response are its
id and its tensors. All other bytes are those of the message that was learned. The bytes of
responses are those of `pytriton.protocol.kserve_pb_response`, framed for gRPC.
"""

from __future__ import annotations

import struct
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple

from pytriton.base.columns import Column, structure_of
from pytriton.base.messages import InferResponse, RequestFields
from pytriton.protocol.grpc.messages import PREFIX_BYTES, message_prefix
from pytriton.protocol.kserve_pb import cached_parameters, read_parameter, read_parameters
from pytriton.protocol.kserve_pb_response import (
    encode_infer_response,
    encode_length,
    encode_stream_response,
    message_size,
)
from pytriton.protocol.protobuf_fields import LENGTH, split_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import ParameterValue


_ID, _PARAMETERS, _RAW = 3, 4, 7  # numbers of fields of a request
_RAW_TAG = b"\x3a"
_MAX_ID_BYTES = 127  # the length of a longer id has two bytes


class RequestLayout(NamedTuple):
    """All bytes of a ModelInferRequest but those of its holes: an id, parameters, raw tensors."""

    fixed: tuple[bytes, ...]  # what comes before each hole, tags and lengths included
    sizes: tuple[int, ...]  # of the holes; 0 for the id, which may have any length
    heads: int  # the number of holes that are not tensors
    id_hole: int  # the place of the id among the holes; -1: the message has none

    @property
    def size(self) -> int:
        """The size of a message, except for its id."""
        return sum(map(len, self.fixed)) + sum(self.sizes)


def layout_of(message: bytes, raw: Sequence[Buffer]) -> RequestLayout | None:
    """Returns the layout of a message that ends with its raw tensors; else None."""
    # Tags and lengths as our own encoder writes them. A client may write a length in more bytes
    # than it needs: such a message has no layout.
    tensors = [(_RAW_TAG + encode_length(len(data)), data) for data in raw]
    end = len(message) - sum(len(before) + len(data) for before, data in tensors)
    if not raw or message[end:] != b"".join(chain.from_iterable(tensors)):
        return None
    id_hole = -1
    holes: list[tuple[int, int]] = []  # where each starts and stops
    for number, wire_type, _, start, stop in split_fields(message[:end]):
        if number not in (_ID, _PARAMETERS):
            continue
        if number == _ID:
            if id_hole >= 0 or not 0 < stop - start <= _MAX_ID_BYTES:
                return None  # the last of several ids counts
            id_hole = len(holes)
        if wire_type != LENGTH:
            return None
        holes.append((start, stop))
    starts = [*(start for start, _ in holes), end]
    stops = [0, *(stop for _, stop in holes)]
    fixed = [message[stop:start] for stop, start in zip(stops, starts, strict=True)]
    sizes = [stop - start for start, stop in holes]
    if id_hole >= 0:
        if fixed[id_hole][-1] != sizes[id_hole]:
            return None  # its length has superfluous bytes
        fixed[id_hole], sizes[id_hole] = fixed[id_hole][:-1] + b"\0", 0
    heads = [before for before, _ in tensors]
    fixed[-1] += heads[0]
    return RequestLayout(
        (*fixed, *heads[1:]), (*sizes, *(len(data) for data in raw)), len(holes), id_hole
    )


class PbRequestPattern:
    """Reads messages of one layout, with ids of one length.

    `is_framed` is for messages with gRPC's prefix.
    """

    __slots__ = ("_fixed", "_id_hole", "_unpack", "heads", "size")

    def __init__(self, layout: RequestLayout, id_bytes: int = 0, *, is_framed: bool) -> None:
        fixed, sizes = list(layout.fixed), list(layout.sizes)
        if layout.id_hole >= 0:
            fixed[layout.id_hole] = fixed[layout.id_hole][:-1] + bytes((id_bytes,))
            sizes[layout.id_hole] = id_bytes
        if is_framed:
            fixed[0] = message_prefix(layout.size + id_bytes) + fixed[0]
        parts = zip(fixed, sizes, strict=True)
        pattern = struct.Struct("".join(f"{len(before)}s{size}s" for before, size in parts))
        self.size = pattern.size
        self.heads = layout.heads  # the number of holes before the tensors
        self._fixed = tuple(fixed)
        self._id_hole = layout.id_hole
        self._unpack = pattern.unpack

    def read(self, message: bytes) -> tuple[bytes, ...] | None:
        """Returns the holes of a message of the right size; None if it has another layout."""
        # One call of C cuts the message; one comparison of tuples checks all that has to be equal.
        parts = self._unpack(message)
        return parts[1::2] if parts[::2] == self._fixed else None

    def split_heads(self, holes: tuple[bytes, ...]) -> tuple[bytes, tuple[bytes, ...]]:
        """Returns the id among the holes of a message, and the entries of its parameters."""
        at = self._id_hole
        if at < 0:
            return b"", holes[: self.heads]
        return holes[at], holes[:at] + holes[at + 1 : self.heads]


def patterns_of_size(
    size: int, layouts: Iterable[RequestLayout], *, is_framed: bool
) -> Iterator[PbRequestPattern | None]:
    """Yields, for each layout, the pattern of messages of this size; None if it has none."""
    if is_framed:
        size -= PREFIX_BYTES
    for layout in layouts:
        id_bytes = size - layout.size
        is_possible = not id_bytes if layout.id_hole < 0 else 0 < id_bytes <= _MAX_ID_BYTES
        yield PbRequestPattern(layout, id_bytes, is_framed=is_framed) if is_possible else None


def read_entries(entries: Iterable[bytes]) -> RequestFields:
    """Returns what a request with these parameters has of its own.

    Raises:
        ServerError: One of them is wrong.
        DecodeError: One of them is no entry.
    """
    fields = RequestFields()
    read_parameters(
        dict(cached_parameters.get(entry) or read_parameter(entry) for entry in entries), fields
    )
    return fields


class ResponseLayout(NamedTuple):
    """The bytes of responses to requests whose ids have one length."""

    before_id: bytes
    fixed: list[bytes]  # what comes before each tensor; all of the rest if there is none
    size: int


class PbResponsePattern:
    """Writes framed responses with the same outputs; `rows` as in `HttpResponsePattern`."""

    _parts_before_id = 1  # what the encoder returns before an id: the model

    def __init__(
        self,
        model_name: str,
        model_version: str,
        rows: int | None,
        columns: Sequence[Column],
        parameters: dict[str, ParameterValue] | None = None,
    ) -> None:
        self.structure = structure_of(columns)
        self._rows = rows or 1
        tensors = [column.blank(rows) for column in columns]
        self._response = InferResponse(model_name, model_version, "", tensors, parameters)
        self._layouts: dict[int, ResponseLayout] = {}  # by the length of the id

    def encode(
        self, columns: Sequence[Column], row: int, ids: Sequence[bytes]
    ) -> Iterator[tuple[bytes, ...]]:
        """Returns the parts of messages to requests with these ids, whose rows begin at `row`."""
        count = len(ids)
        pieces = [column.parts(row, count, self._rows) for column in columns]
        lengths = {*map(len, ids)}
        if len(lengths) > 1:
            return self._encode_each(ids, pieces)
        layout = self.layout(lengths.pop())
        parts: list[Iterable[bytes]]
        if ids[0]:
            parts = [repeat(layout.before_id), ids, repeat(layout.fixed[0])]
        else:
            parts = [repeat(layout.before_id + layout.fixed[0], count)]
        parts += pieces[:1]
        for before, piece in zip(layout.fixed[1:], pieces[1:], strict=True):
            parts += (repeat(before), piece)
        return zip(*parts, strict=False)

    def _encode_each(
        self, ids: Sequence[bytes], pieces: Sequence[Iterable[bytes]]
    ) -> Iterator[tuple[bytes, ...]]:
        for request_id, *tensors in zip(ids, *pieces, strict=True):
            layout = self.layout(len(request_id))
            others = chain.from_iterable(zip(layout.fixed[1:], tensors[1:], strict=True))
            yield (layout.before_id, request_id, layout.fixed[0], *tensors[:1], *others)

    def layout(self, id_bytes: int) -> ResponseLayout:
        """Returns the layout of responses to requests whose ids have this length."""
        layout = self._layouts.get(id_bytes)
        if layout is None:
            layout = self._layouts[id_bytes] = self._make_layout(id_bytes)
        return layout

    def _make_layout(self, id_bytes: int) -> ResponseLayout:
        self._response.id = "0" * id_bytes
        # The ordinary encoder makes the layout, so both ways have the same bytes.
        parts = self._encode_blank()
        size = message_size(parts)
        at = self._parts_before_id
        if id_bytes:
            at += 2  # its tag and its length
        rest = parts[at + bool(id_bytes) :]
        tensors = len(self._response.outputs)
        first = len(rest) - 2 * tensors
        fixed = [b"".join(rest[: first + 1]), *map(bytes, rest[first + 2 :: 2])]
        prefix = message_prefix(size)
        return ResponseLayout(b"".join((prefix, *parts[:at])), fixed, len(prefix) + size)

    def _encode_blank(self) -> list[Buffer]:
        return encode_infer_response(self._response)


class PbStreamedResponsePattern(PbResponsePattern):
    """Writes framed, streamed, final responses."""

    _parts_before_id = 4  # the tag and the length of the response, the final flag, the model

    def _encode_blank(self) -> list[Buffer]:
        return encode_stream_response(super()._encode_blank(), is_final=True)
