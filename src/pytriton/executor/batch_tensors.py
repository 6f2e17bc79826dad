# SPDX-License-Identifier: Apache-2.0
"""Writes the tensors of a batch into a message, and splits outputs into those of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.dtypes import BY_NUMBER, BYTES
from pytriton.executor.columns import LARGE_ROW_BYTES, OutputColumn
from pytriton.messages import InferRequest, InferTensor
from pytriton.transport.frames import RequestDetails, TensorRef

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.executor.base import RunningBatch
    from pytriton.executor.columns import Run
    from pytriton.executor.inference import Inference
    from pytriton.transport.channel import Payload, Received
    from pytriton.transport.payload import Buffer


class BatchOutput:
    """One output of a whole batch, from which the part of each request is sliced."""

    __slots__ = ("_buffer", "_ends", "_name", "_row_bytes", "_tail", "dtype")

    def __init__(self, received: Received, ref: TensorRef, requests: list[InferRequest]) -> None:
        self.dtype = BY_NUMBER[ref.dtype]
        self._name = ref.name
        self._tail = ref.shape[1:]
        self._buffer = received.buffer(ref)
        self._row_bytes = ref.size // ref.shape[0] if ref.shape[0] else 0
        self._ends: list[int] = []
        if self.dtype is BYTES:
            end = 0
            for size in ref.pieces:
                end += size
                self._ends.append(end)
            assert len(self._ends) == len(requests)

    def slice(self, position: int, row: int, end: int) -> InferTensor:
        """Returns the part of the request at `position`, which has the rows `row` to `end`."""
        if self._ends:
            start_byte = self._ends[position - 1] if position else 0
            data = self._buffer[start_byte : self._ends[position]]
        else:
            row_bytes = self._row_bytes
            data = self._buffer[row * row_bytes : end * row_bytes]
        return InferTensor(self._name, self.dtype, (end - row, *self._tail), data)


def make_tensor(received: Received, ref: TensorRef) -> InferTensor:
    """Returns a tensor of a received message; it keeps the memory of its bytes alive."""
    return InferTensor(ref.name, BY_NUMBER[ref.dtype], ref.shape, received.buffer(ref))


def request_details(requests: list[InferRequest]) -> dict[int, RequestDetails]:
    """Returns the details that only a model.py gets, by position, without all-default ones."""
    return {
        position: RequestDetails(request.correlation_id, request.flags, request.timeout_us)
        for position, request in enumerate(requests)
        if request.correlation_id or request.flags or request.timeout_us
    }


def add_input(
    payload: Payload, name: str, requests: list[InferRequest], *, batching: bool
) -> TensorRef:
    """Add one input of all requests, concatenated in order, to the payload of their batch."""
    first = requests[0].inputs[name]
    if len(requests) == 1:
        pieces, shape = [first.data], first.shape
    else:
        pieces = [request.inputs[name].data for request in requests]
        shape = first.shape
        if batching:
            shape = (sum(request.rows for request in requests), *shape[1:])
    size = sum(map(len, pieces))
    block, offset = payload.add(pieces, size)
    return TensorRef(name, first.dtype.number, shape, offset, size, block)


def add_columns(payload: Payload, batch: RunningBatch, *, batching: bool) -> list[TensorRef]:
    """Add all inputs of a batch with members of chunks."""
    refs = []
    inferences, runs, total = batch.inferences, batch.runs, batch.rows
    for index, column in enumerate(runs[0].chunk.signature.inputs):
        if len(runs) == 1 and runs[0].count == len(inferences):
            pieces = runs[0].chunk.pieces(index, runs[0].first, runs[0].end)
        else:
            pieces = _mixed_pieces(index, column.name, inferences, runs)
        shape = (total, *column.shape) if batching else column.shape
        size = total * column.row_bytes
        block, offset = payload.add(pieces, size)
        refs.append(TensorRef(column.name, column.dtype.number, shape, offset, size, block))
    return refs


def _mixed_pieces(
    index: int, name: str, inferences: Sequence[Inference], runs: Sequence[Run]
) -> list[Buffer]:
    """Returns the bytes of an input: runs of members, and other requests between them."""
    pieces: list[Buffer] = []
    position = 0
    for run in runs:
        others = inferences[position : run.position]
        pieces += [other.request.inputs[name].data for other in others]
        pieces += run.chunk.pieces(index, run.first, run.end)
        position = run.position + run.count
    pieces += [other.request.inputs[name].data for other in inferences[position:]]
    return pieces


def requested_outputs(runs: Sequence[Run]) -> dict[int, list[str]]:
    """Returns the names of the requested outputs, by position, of members that do not want all."""
    outputs: dict[int, list[str]] = {}
    for run in runs:
        if run.chunk.signature.outputs is not None:
            names = list(run.chunk.signature.outputs)
            outputs.update(dict.fromkeys(range(run.position, run.position + run.count), names))
    return outputs


def output_columns(
    received: Received, refs: list[TensorRef], rows: int, *, batching: bool
) -> list[OutputColumn] | None:
    """Returns the outputs of a batch as columns; None if each request needs tensors of its own."""
    columns = []
    for ref in refs:
        dtype, shape, row_bytes = BY_NUMBER[ref.dtype], ref.shape, ref.size
        if batching:
            if not shape or shape[0] != rows:
                return None
            shape = shape[1:]
            row_bytes //= rows
        if dtype is BYTES or (ref.block and row_bytes > LARGE_ROW_BYTES):
            return None
        columns.append(OutputColumn(ref.name, dtype, shape, row_bytes, received.buffer(ref)))
    return columns
