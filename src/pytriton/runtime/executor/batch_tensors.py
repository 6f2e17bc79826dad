# SPDX-License-Identifier: Apache-2.0
"""Writes the tensors of a batch into a message, splits outputs by request, and converts shapes."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

from pytriton.base.columns import Column
from pytriton.base.dtypes import BY_NUMBER, BYTES
from pytriton.base.errors import InternalError
from pytriton.base.messages import InferRequest, InferTensor, OutputBurst
from pytriton.runtime.executor.columns import LARGE_ROW_BYTES
from pytriton.runtime.transport.frames import RequestDetails
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES
from pytriton.runtime.transport.peer_account import ProtocolError
from pytriton.runtime.transport.refs import TensorRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytriton.base.dtypes import DataType
    from pytriton.base.messages import DevicePlace
    from pytriton.base.model_spec import Reshape
    from pytriton.runtime.executor.columns import ChunkRun
    from pytriton.runtime.executor.inference import Inference, RunningBatch
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.payload import Buffer

# Inputs of front ends that are larger together are joined by the instance, not by the event loop.
LARGE_BATCH_BYTES = 128 << 10
MAX_BURST = 1 << 16  # small responses in one message; hosts send a few dozen together
FEW_OUTPUTS = 16  # of one response: they may name the same bytes
LENGTH_BYTES = 4  # before each element of BYTES
Shape = tuple[int, ...]


def make_tensor(received: Received, ref: TensorRef) -> InferTensor:
    """Returns a tensor of a received message; it keeps the memory of its bytes alive."""
    return InferTensor(ref.name, BY_NUMBER[ref.dtype], ref.shape, received.buffer(ref))


def make_input(received: Received, ref: TensorRef) -> InferTensor:
    """Like `make_tensor`, for an input of a call, which is validated as that of any request.

    Raises:
        ProtocolError: Its bytes are not in the message.
    """
    try:
        buffer = received.column(ref, 0, ref.size)
    except KeyError:
        buffer = None
    if buffer is None or len(buffer) != ref.size:
        raise ProtocolError(f"expected an input whose bytes are there, got {ref}")
    return InferTensor(ref.name, BY_NUMBER[ref.dtype], ref.shape, buffer)


def make_outputs(received: Received, refs: Sequence[TensorRef]) -> list[InferTensor]:
    """Returns the outputs of a response, as `make_tensor` makes them.

    Raises:
        ProtocolError: Their bytes are not in the message, or do not fit their datatypes and shapes.
    """
    if len(refs) > FEW_OUTPUTS:
        check_total(received, refs)
    outputs = []
    for ref in refs:
        dtype, shape, size = BY_NUMBER[ref.dtype], ref.shape, ref.size
        if ref.block:
            buffer = _bytes_of(received, ref, dtype)
        else:
            # As `_bytes_of` does, without its calls: most outputs are small numbers.
            at = received.start + ref.offset
            buffer = memoryview(received.message)[at : at + size]
            if not len(buffer) == size == prod(shape) * dtype.itemsize:
                buffer = _bytes_of(received, ref, dtype)
        outputs.append(InferTensor(ref.name, dtype, shape, buffer))
    return outputs


def _bytes_of(received: Received, ref: TensorRef, dtype: DataType, count: int = 1) -> memoryview:
    """Returns the bytes of `count` outputs of a shape: the one check of what a reference says.

    The limits of its numbers were checked when its message was decoded.
    """
    size = ref.size
    try:
        buffer = received.column(ref, 0, size)  # outputs have no parts, which are for instances
    except KeyError:
        raise ProtocolError(f"expected a block of this message, got {ref}") from None
    least = prod(ref.shape) * count * (dtype.itemsize or LENGTH_BYTES)
    # Elements of BYTES have their length before them, and are longer.
    if len(buffer) != size or (least != size and (dtype.itemsize or least > size)):
        raise ProtocolError(
            f"expected a tensor whose bytes are there and fit its shape, got {ref} with "
            f"{len(buffer)} bytes"
        )
    return buffer


def make_placed_output(ref: TensorRef, place: DevicePlace) -> InferTensor:
    """Returns an output without bytes, which the instance has written to memory of the client.

    Raises:
        ProtocolError: There is no room for an output of this shape.
    """
    dtype = BY_NUMBER[ref.dtype]
    least = prod(ref.shape) * (dtype.itemsize or LENGTH_BYTES)
    if least > place.size:
        raise ProtocolError(f"expected an output that fits into {place.size} bytes, got {ref}")
    return InferTensor(ref.name, dtype, ref.shape, b"")


def check_total(received: Received, refs: Sequence[TensorRef]) -> None:
    """Refuse outputs that name the same bytes over and over; for a response of many outputs."""
    named = sum([ref.size for ref in refs])
    sent = len(received.message) + sum([block.nbytes for block in received.blocks.values()])
    if named > sent:
        raise ProtocolError(f"expected outputs of at most {sent} bytes together, got {named}")


def split_rows(
    received: Received, refs: Sequence[TensorRef], counts: Sequence[int]
) -> list[list[OutputBurst]]:
    """Returns the outputs of each burst; `counts` has the numbers of responses in their order."""
    bursts: list[list[OutputBurst]] = [[] for _ in counts]
    total = sum(counts)
    if total > MAX_BURST:
        raise ProtocolError(f"expected at most {MAX_BURST} responses in a message, got {total}")
    for ref in refs:
        name, dtype, shape, pieces = ref.name, BY_NUMBER[ref.dtype], ref.shape, ref.pieces
        # A copy: slices of bytes take half as long, and rows are small.
        buffer = bytes(_bytes_of(received, ref, dtype, total))
        if (len(pieces) != total or sum(pieces) != ref.size) if pieces else ref.size % total:
            raise ProtocolError(f"expected the bytes of {total} responses, got {ref}")
        each = 0 if pieces else ref.size // total
        row = start = 0
        for outputs, count in zip(bursts, counts, strict=True):
            sizes = pieces[row : row + count]
            end = start + (sum(sizes) if sizes else each * count)
            outputs.append(OutputBurst(name, dtype, shape, buffer[start:end], sizes))
            row += count
            start = end
    return bursts


def split_output(
    received: Received, ref: TensorRef, rows: list[int], positions: Iterable[int]
) -> list[InferTensor]:
    """Returns the parts of an output of a whole batch that are for the requests at `positions`.

    `rows` has the rows of each request of the batch.
    """
    dtype, name, tail = BY_NUMBER[ref.dtype], ref.name, ref.shape[1:]
    buffer = _bytes_of(received, ref, dtype)
    count = sum(rows)
    if not ref.shape or ref.shape[0] != count:
        raise ProtocolError(f"expected an output of {count} rows, got {ref}")
    if dtype is BYTES:
        sizes = ref.pieces
        if len(sizes) != len(rows) or sum(sizes) != ref.size:
            raise ProtocolError(f"expected the bytes of {len(rows)} requests, got {ref}")
    else:
        row_bytes = ref.size // count if count else 0
        sizes = [each * row_bytes for each in rows]
    starts = [0, *accumulate(sizes)]
    row_shape = (1, *tail)
    tensors = []
    for position in positions:
        each = rows[position]
        shape = row_shape if each == 1 else (each, *tail)
        data = buffer[starts[position] : starts[position + 1]]
        tensors.append(InferTensor(name, dtype, shape, data))
    return tensors


def request_details(requests: list[InferRequest]) -> dict[int, RequestDetails]:
    """Returns the details that only a model.py gets, by position, without all-default ones."""
    return {
        position: RequestDetails(
            request.fields.correlation_id, request.fields.flags, request.fields.timeout_us
        )
        for position, request in enumerate(requests)
        if request.fields.correlation_id or request.fields.flags or request.fields.timeout_us
    }


def add_input(
    payload: Payload,
    name: str,
    requests: list[InferRequest],
    rows: int,
    *,
    batching: bool,
    ragged: bool = False,
) -> TensorRef:
    """Add one input of all requests, concatenated in order, to the payload of their batch.

    `rows` is the number of all their rows. Shapes of a `ragged` input may differ otherwise, too.
    """
    first = requests[0].inputs[name]
    shape = first.shape
    shapes: list[tuple[int, ...]] = []
    if len(requests) == 1:
        pieces = [first.data]
        size = len(first.data)
    else:
        pieces = [request.inputs[name].data for request in requests]
        size = sum(map(len, pieces))
        if ragged:
            shapes = _different_shapes(name, requests)
        if shapes:
            shape = (sum(map(prod, shapes)),)
        elif batching:
            shape = (rows, *shape[1:])
        if size > LARGE_BATCH_BYTES and (parts := payload.add_parts(pieces)) is not None:
            return TensorRef(name, first.dtype.number, shape, 0, size, parts=parts, shapes=shapes)
    block, offset = payload.add(pieces, size)
    return TensorRef(name, first.dtype.number, shape, offset, size, block, shapes=shapes)


def device_input(
    name: str, requests: list[InferRequest], rows: int, *, batching: bool, ragged: bool
) -> TensorRef:
    """Returns the same as `add_input` for an input that is in GPU memory: it has no bytes here."""
    first = requests[0].inputs[name]
    size = sum([len(request.inputs[name].data) for request in requests])
    shape = first.shape
    shapes = _different_shapes(name, requests) if ragged and len(requests) > 1 else []
    if shapes:
        shape = (sum(map(prod, shapes)),)
    elif batching and len(requests) > 1:
        shape = (rows, *shape[1:])
    return TensorRef(name, first.dtype.number, shape, 0, size, shapes=shapes)


def _different_shapes(name: str, requests: list[InferRequest]) -> list[tuple[int, ...]]:
    """Returns the shape of an input for each request; none if they differ only in their rows."""
    shapes = [request.inputs[name].shape for request in requests]
    tail = shapes[0][1:]
    return shapes if any(shape[1:] != tail for shape in shapes) else []


def add_columns(payload: Payload, batch: RunningBatch, *, batching: bool) -> list[TensorRef]:
    """Add all inputs of a batch with members of chunks."""
    refs = []
    inferences, runs, rows = batch.inferences, batch.runs, batch.rows
    for index, column in enumerate(runs[0].chunk.signature.inputs):
        if batch.has_others:
            pieces = _mixed_pieces(index, column.name, inferences, runs)
        else:
            pieces = []
            for run in runs:
                pieces += run.chunk.pieces(index, run.first, run.end)
        shape = (rows, *column.shape) if batching else column.shape
        size = rows * column.row_bytes or sum(map(len, pieces))
        block, offset = payload.add(pieces, size)
        refs.append(TensorRef(column.name, column.dtype.number, shape, offset, size, block))
    return refs


def _mixed_pieces(
    index: int, name: str, inferences: Sequence[Inference], runs: Sequence[ChunkRun]
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


def requested_outputs(run: ChunkRun) -> dict[int, list[str]]:
    """Returns the names of the requested outputs, by position, of members that do not want all."""
    names = list(run.chunk.signature.outputs or ())
    return dict.fromkeys(range(run.position, run.position + run.count), names)


def output_columns(
    received: Received, refs: list[TensorRef], batch: RunningBatch, *, batching: bool
) -> list[Column] | None:
    """Returns the outputs of a batch as columns; None if each request needs tensors of its own."""
    columns = []
    rows = batch.rows
    for ref in refs:
        dtype, shape, row_bytes = BY_NUMBER[ref.dtype], ref.shape, ref.size
        if batching:
            if not shape or shape[0] != rows:
                return None
            shape = shape[1:]
            row_bytes //= rows
        # Without shared memory, large tensors are in a message of their own memory.
        is_large = ref.block or ref.size > INLINE_TENSOR_BYTES
        if is_large and row_bytes > LARGE_ROW_BYTES:
            return None
        buffer = _bytes_of(received, ref, dtype)
        offsets: Sequence[int] = ()
        if dtype is BYTES:
            if len(ref.pieces) != len(batch.inferences):
                return None
            if sum(ref.pieces) != ref.size:
                raise ProtocolError(f"expected the bytes of all requests, got {ref}")
            row_bytes = 0
            offsets = _row_offsets(
                ref.pieces, [inference.request.rows for inference in batch.inferences]
            )
        columns.append(Column(ref.name, dtype, shape, row_bytes, buffer, offsets))
    return columns


def _row_offsets(sizes: Sequence[int], rows: Sequence[int]) -> list[int]:
    """Returns where the rows of requests of these sizes begin, and the end; see `Column`."""
    offsets = [0]
    for size, count in zip(sizes, rows, strict=True):
        start = offsets[-1]
        offsets += [start] * (count - 1)
        offsets.append(start + size)
    return offsets


def reshape_inputs(
    refs: Iterable[TensorRef], reshapes: Mapping[str, Reshape], *, batching: bool
) -> None:
    """Give the inputs of a batch, which are valid, the shapes that the model expects."""
    for ref in refs:
        reshape = reshapes.get(ref.name)
        if reshape is None:
            continue
        if ref.shapes:
            ref.shapes = [_converted(reshape, shape, batching=batching) for shape in ref.shapes]
        else:
            ref.shape = _converted(reshape, ref.shape, batching=batching)


def _converted(reshape: Reshape, shape: Shape, *, batching: bool) -> Shape:
    converted = reshape.convert(shape, batching=batching)
    assert converted is not None, f"expected a shape like {reshape.source}, got {shape}"
    return converted


def reshape_outputs(
    refs: Iterable[TensorRef], reshapes: Mapping[str, Reshape], *, batching: bool
) -> None:
    """Give outputs the shapes that clients expect.

    Raises:
        InternalError: One of them has another size.
    """
    for ref in refs:
        reshape = reshapes.get(ref.name)
        if reshape is None:
            continue
        shape = reshape.convert(ref.shape, batching=batching)
        if shape is None:
            raise InternalError(
                f"output tensor shape does not match size of output for '{ref.name}'"
            )
        ref.shape = shape
