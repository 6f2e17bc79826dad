# SPDX-License-Identifier: Apache-2.0
"""Columns: one tensor of many requests or responses, one after the other in one buffer.

Requests that travel together are cut out of columns, and written from columns, without a tensor for
each. All ways to cut one that are faster than slices are here.
"""

from __future__ import annotations

import functools
import struct
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.messages import InferTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytriton.base.dtypes import Buffer, DataType


_first = itemgetter(0)


class ColumnKind(msgspec.Struct, frozen=True, gc=False):
    """What the tensors of a column have in common, for example an input of all requests."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]  # of one row; the whole shape if the model has no batch dimension
    row_bytes: int  # 0 for the datatype BYTES, whose rows differ

    def with_data(self, rows: int, data: Buffer, *, is_batched: bool) -> InferTensor:
        """Returns the tensor of a request that has this number of rows."""
        shape = (rows, *self.shape) if is_batched else self.shape
        return InferTensor(self.name, self.dtype, shape, data)

    def blank(self, rows: int | None) -> InferTensor:
        """Returns a tensor with zeros for data; `rows` is None without a batch dimension."""
        data = bytes((rows or 1) * self.row_bytes)
        return self.with_data(rows or 1, data, is_batched=rows is not None)


class Column(ColumnKind, frozen=True, gc=False):
    """The tensors of a whole batch."""

    data: memoryview  # keeps its memory alive
    # For BYTES, where each row begins, and the end; rows inside a request have none of their own.
    offsets: Sequence[int] = ()

    def part(self, row: int, end: int) -> memoryview:
        """Returns the bytes of the rows `row` to `end` (without `end`), of whole requests."""
        if self.offsets:
            return self.data[self.offsets[row] : self.offsets[end]]
        return self.data[row * self.row_bytes : end * self.row_bytes]

    def tensor(self, row: int, end: int, *, is_batched: bool) -> InferTensor:
        """Returns the tensor of a request that has these rows."""
        return self.with_data(end - row, self.part(row, end), is_batched=is_batched)

    def parts(self, row: int, count: int, rows: int) -> Iterable[bytes]:
        """Returns the bytes of `count` requests of `rows` rows each, of which the first is `row`.

        They are copies.
        """
        row_bytes, end = self.row_bytes, row + count * rows
        if row_bytes:
            return cut(self.data[row * row_bytes : end * row_bytes], rows * row_bytes, count)
        return [bytes(self.part(start, start + rows)) for start in range(row, end, rows)]


def structure_of(columns: Sequence[ColumnKind]) -> Any:
    """Returns the properties that batches share if one pattern encodes their responses."""
    return [(column.name, column.dtype, column.shape, column.row_bytes) for column in columns]


def cut(data: Buffer, size: int, count: int) -> Iterable[bytes]:
    """Returns `count` copies of parts of a buffer, all of one size; faster than slices."""
    if not size:
        return repeat(b"", count)
    return map(_first, _cutter(size)(data))


@functools.lru_cache(64)
def _cutter(size: int) -> Callable[[Buffer], Iterator[tuple[bytes]]]:
    return struct.Struct(f"{size}s").iter_unpack
