# SPDX-License-Identifier: Apache-2.0
"""Writes the tensors of a batch into a message, and splits outputs into those of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.dtypes import BY_NUMBER, BYTES
from pytriton.messages import InferRequest, InferTensor
from pytriton.transport.frames import RequestDetails, TensorRef

if TYPE_CHECKING:
    from pytriton.transport.channel import Payload, Received


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
