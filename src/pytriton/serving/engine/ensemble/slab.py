# SPDX-License-Identifier: Apache-2.0
"""Neighbours of a client's chunk that are at the same step of an ensemble, with their tensors.

The members that a batch of one step has answered are a slab: the next step takes them together, and
their tensors are rows of the columns of batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.messages import InferTensor
from pytriton.runtime.executor.columns import OutputColumn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytriton.base.dtypes import DataType
    from pytriton.runtime.executor.columns import Buffer, Chunk
    from pytriton.serving.engine.ensemble.plan import Plan
    from pytriton.serving.engine.stats import BatchRecord


class InputSource:
    """An input of the ensemble, in the columns of the client's chunk."""

    __slots__ = ("_chunk", "_column", "dtype", "row_bytes", "shape")

    def __init__(self, chunk: Chunk, column: int) -> None:
        described = chunk.signature.inputs[column]
        self.dtype: DataType = described.dtype
        self.shape = described.shape
        self.row_bytes = described.row_bytes
        self._chunk = chunk
        self._column = column

    def pieces(self, first: int, end: int) -> list[Buffer]:
        """Returns the bytes of some members."""
        return self._chunk.pieces(self._column, first, end)


class RowsSource:
    """An output of a step, in a column of the batch that has computed it.

    Args:
        column: The output of the whole batch.
        starts: The first row of each member of the client's chunk.
        offset: What to add to that, for its first row in the batch.
    """

    __slots__ = ("_data", "_offset", "_starts", "dtype", "row_bytes", "shape")

    def __init__(self, column: OutputColumn, starts: Sequence[int], offset: int) -> None:
        self.dtype: DataType = column.dtype
        self.shape = column.shape
        self.row_bytes = column.row_bytes
        self._data = column.data
        self._starts = starts
        self._offset = offset

    def pieces(self, first: int, end: int) -> list[Buffer]:
        """Returns the bytes of some members."""
        starts, offset, row_bytes = self._starts, self._offset, self.row_bytes
        begin, until = (starts[first] + offset) * row_bytes, (starts[end] + offset) * row_bytes
        return [self._data[begin:until]]


class Slab:
    """Neighbours of a client's chunk that have the same step next, and their tensors."""

    __slots__ = ("chunk", "compute_ns", "end", "first", "plan", "position", "sources")

    def __init__(
        self,
        plan: Plan,
        chunk: Chunk,
        extent: tuple[int, int],
        sources: Mapping[str, InputSource | RowsSource],
        position: int = 0,
        compute_ns: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        self.plan = plan
        self.chunk = chunk
        self.first, self.end = extent
        self.sources = sources
        self.position = position  # of the next step in the plan's chain
        self.compute_ns = compute_ns  # the times of the steps before it

    def after_step(
        self, extent: tuple[int, int], outputs: Sequence[OutputColumn], row: int
    ) -> Slab:
        """Returns the slab of those members that a batch has answered."""
        plan, position, starts = self.plan, self.position, self.chunk.row_starts
        written = plan.chain[position].outputs
        live = plan.live[position]
        sources = {name: source for name, source in self.sources.items() if name in live}
        offset = row - starts[extent[0]]
        for output in outputs:
            tensor = written.get(output.name)
            if tensor is not None:
                sources[tensor] = RowsSource(output, starts, offset)
        return Slab(plan, self.chunk, extent, sources, position + 1, self.compute_ns)

    def part(self, first: int, end: int) -> Slab:
        """Returns the slab of some of its members."""
        extent = (first, end)
        return Slab(self.plan, self.chunk, extent, self.sources, self.position, self.compute_ns)

    def add_times(self, record: BatchRecord | None) -> None:
        """Add the compute times of the batch."""
        if record is not None:
            input_ns, infer_ns, output_ns = self.compute_ns
            self.compute_ns = (
                input_ns + record.infer_start_ns - record.input_start_ns,
                infer_ns + record.output_start_ns - record.infer_start_ns,
                output_ns + record.end_ns - record.output_start_ns,
            )

    def rows_of(self, index: int) -> int:
        """Returns the number of rows of a member."""
        starts = self.chunk.row_starts
        return starts[index + 1] - starts[index]

    @property
    def most_rows(self) -> int:
        """The number of rows of the largest member."""
        starts = self.chunk.row_starts
        if isinstance(starts, range):
            return starts.step
        return max(map(self.rows_of, range(self.first, self.end)))

    def tensors_of(self, index: int) -> dict[str, InferTensor]:
        """Returns the tensors of a member; it keeps the memory of the whole batch."""
        tensors = {}
        for name, source in self.sources.items():
            (data,) = source.pieces(index, index + 1)
            shape = (self.rows_of(index), *source.shape) if self.plan.batches else source.shape
            tensors[name] = InferTensor(name, source.dtype, shape, data)
        return tensors

    def output_columns(self) -> list[OutputColumn]:
        """Returns the outputs of the ensemble for these members, from their first row on."""
        columns = []
        for name in self.plan.outputs:
            source = self.sources.get(name)
            if source is not None:
                pieces = source.pieces(self.first, self.end)
                data = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
                columns.append(
                    OutputColumn(name, source.dtype, source.shape, source.row_bytes, data)
                )
        return columns
