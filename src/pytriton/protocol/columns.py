# SPDX-License-Identifier: Apache-2.0
"""An output of a whole batch, as the encoders of many responses at once read it.

`json_columns` and `pb_columns` have these encoders, and the readers of many requests: a pattern
reads or writes everything that differs only in the bytes of tensors from what was learned. All that
a pattern does not accept takes the ordinary way, which also finds the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pytriton.base.messages import InferTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.dtypes import DataType


class BatchColumn(Protocol):
    """One output of a whole batch."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> DataType: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row; the whole shape if the model has no batch dimension."""

    @property
    def row_bytes(self) -> int:
        """The size of a row; 0 for BYTES."""

    @property
    def data(self) -> memoryview: ...

    def part(self, row: int, end: int) -> memoryview:
        """Returns the bytes of the rows `row` to `end` (without `end`), of whole requests."""


def structure_of(columns: Sequence[BatchColumn]) -> Any:
    """Returns the properties that batches share if one pattern encodes their responses."""
    return [(column.name, column.dtype, column.shape, column.row_bytes) for column in columns]


def blank_tensors(columns: Sequence[BatchColumn], rows: int | None) -> list[InferTensor]:
    """Returns the outputs of a response with zeros for data; `rows` is None without a batch."""
    tensors = []
    for column in columns:
        shape = column.shape if rows is None else (rows, *column.shape)
        data = bytes((rows or 1) * column.row_bytes)
        tensors.append(InferTensor(column.name, column.dtype, shape, data))
    return tensors
