# SPDX-License-Identifier: Apache-2.0
"""The tensors of one message: writes them into an outgoing one, reads them from a received one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pytriton.base.dtypes import (
    BY_NUMBER,
    BYTES,
    array_to_bytes_elements,
    bytes_elements_to_array,
    decode_bytes,
    encode_bytes,
)
from pytriton.base.errors import UnavailableError, resource_error
from pytriton.base.messages import DeviceBytes
from pytriton.runtime.transport.arena import (
    Arena,
    Block,
    RemoteBlock,
    find_block,
    find_unshared_block,
)
from pytriton.runtime.transport.frames import INLINE_ALIGNMENT, Frame
from pytriton.runtime.transport.refs import PartRef, TensorRef

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pytriton.base.dtypes import DataType
    from pytriton.runtime.transport.frontend_frames import ColumnRef

    Buffer = bytes | bytearray | memoryview


# Up to these sizes tensors are copied through the socket: that is cheaper than tracking a block.
INLINE_TENSOR_BYTES = 32 << 10
INLINE_TOTAL_BYTES = 64 << 10
_PADDING = [bytes(size) for size in range(INLINE_ALIGNMENT)]


class Payload(msgspec.Struct, eq=False):
    """Collects the tensor bytes of one outgoing message."""

    # The arena for large tensors; None if all tensors are sent inside the message.
    arena: Arena | None
    # Whether tensors in blocks of other processes are forwarded instead of copied, because the
    # receiver only reads them.
    forwards: bool = False
    # Whether tensors in blocks may be sent by reference at all. Not if they are read again later:
    # the receiver may write to them.
    lends: bool = True
    # Whether only blocks of `arena` are sent by reference. A receiver maps whole segments, and one
    # in a sandbox must not see what else is in those of other models.
    keeps_to_arena: bool = False
    inline: list[Buffer] = []  # the bytes of the tensors inside the message
    inline_size: int = 0
    blocks: list[Block | RemoteBlock] = []  # the blocks that the message refers to
    returned_blocks: list[RemoteBlock] = []  # the same, of blocks of the receiver
    # The ids of those in `blocks` that were not allocated for this message.
    lent_ids: list[int] = []
    descriptors: list[int] = []  # file descriptors to pass to the receiver, beside those of memory
    # Whether `inline` has views of large tensors, which their owner may change after the message
    # was sent. So such a message must not be held back.
    has_views: bool = False

    def add(self, pieces: Sequence[Buffer], size: int) -> tuple[int, int]:
        """Add `pieces` as one tensor; returns its block (0: inside the message) and offset."""
        arena = self.arena
        if arena is None or (
            size <= INLINE_TENSOR_BYTES and self.inline_size + size <= INLINE_TOTAL_BYTES
        ):
            offset = self.inline_size
            padding = -size % INLINE_ALIGNMENT
            self.inline.extend(pieces)
            if padding:
                self.inline.append(_PADDING[padding])
            self.inline_size = offset + size + padding
            if size > INLINE_TENSOR_BYTES:
                self.has_views = True
            return 0, offset
        if self.lends and (found := _find_place(pieces)) is not None:
            block, offset = found
            # numpy is slow on unaligned arrays, and other code of models may refuse them.
            if offset % INLINE_ALIGNMENT == 0 and self._may_lend(arena, block):
                return self._lend(block), offset
        copy = arena.allocate(size)
        self.blocks.append(copy)
        view = copy.view()
        at = 0
        for piece in pieces:
            end = at + len(piece)
            view[at:end] = piece
            at = end
        return copy.id, 0

    def fill(self, size: int, write: Callable[[memoryview], None]) -> tuple[int, int]:
        """Like `add`, for a tensor that `write` writes: into shared memory if it is large."""
        arena = self.arena
        if arena is None or size <= INLINE_TENSOR_BYTES:
            data = memoryview(bytearray(size))
            write(data)
            return self.add((data.toreadonly(),), size)
        block = arena.allocate(size)
        write(block.view()[:size])
        self.blocks.append(block)
        return block.id, 0

    def add_parts(self, pieces: Sequence[Buffer]) -> list[PartRef] | None:
        """Refer to pieces of one tensor in blocks of other processes; the receiver joins them.

        Returns None if `add` has to copy the pieces, because not all of them are in such blocks, or
        if it can refer to all of them as one.
        """
        arena = self.arena
        if arena is None or not self.lends or _find_place(pieces) is not None:
            return None
        found = []
        for piece in pieces:
            place = find_block(piece)
            if place is None or not isinstance(place[0], RemoteBlock):
                return None
            if not self._may_lend(arena, place[0]):
                return None
            found.append(place)
        return [
            PartRef(self._lend(block), offset, len(piece))
            for (block, offset), piece in zip(found, pieces, strict=True)
        ]

    def give(self, block: Block) -> int:
        """Refer to a block of the arena that nothing here reads or writes any more."""
        self.blocks.append(block)
        return block.id

    def return_block(self, block: RemoteBlock) -> int:
        """Refer to a block of the receiver that contains the bytes; returns its negative id."""
        # Kept until the message is sent: the receiver must not get the release of the block before.
        self.returned_blocks.append(block)
        return -block.owner_id

    def forward(self, block: RemoteBlock) -> int:
        """Refer to a block of a third process: the receiver maps it, and nothing is copied.

        The owner gets it back when nobody reads it any more, neither here nor in the receiver. The
        receiver may write to it, so the process that forwards a block must be its only reader.
        """
        assert self.arena is not None, "there is no shared memory to refer to"
        return self._lend(block)

    def _may_lend(self, arena: Arena, block: Block | RemoteBlock) -> bool:
        # Another arena of this process would drop a segment without telling the receiver. Of blocks
        # that nobody else uses, `BlockTracker.make_update` keeps track itself.
        if isinstance(block, Block) and arena.owns(block):
            return True
        if self.keeps_to_arena:
            return False
        return block.is_unshared or (self.forwards and isinstance(block, RemoteBlock))

    def _lend(self, block: Block | RemoteBlock) -> int:
        if block not in self.blocks:
            self.blocks.append(block)
            self.lent_ids.append(block.id)
        return block.id


def _find_place(pieces: Sequence[Buffer]) -> tuple[Block | RemoteBlock, int] | None:
    """Returns the block that contains all pieces one after the other, and where they begin in it.

    So are the outputs of a batch whose requests are again together in the next batch.
    """
    if not pieces or (first := find_block(pieces[0])) is None:
        return None
    block, offset = first
    at = offset + len(pieces[0])
    for piece in pieces[1:]:
        found = find_block(piece)
        if found is None or found[0] is not block or found[1] != at:
            return None
        at += len(piece)
    return first


def unshareable(data: Buffer) -> Buffer:
    """Returns the same bytes, but so that a payload copies them instead of lending their block.

    They cannot be given up, either: see `give_up`.
    """
    if len(data) <= INLINE_TENSOR_BYTES or isinstance(data, DeviceBytes):
        return data
    return np.frombuffer(data, np.uint8).data


class Received(msgspec.Struct, eq=False):
    """A received message, and access to its tensors.

    Reading a tensor raises UnavailableError if there were no resources to receive it. So those who
    read tensors can still tell from the frame which requests to answer.
    """

    frame: Frame
    message: bytearray | memoryview
    start: int  # where the bytes of its small tensors begin
    blocks: Mapping[int, NDArray[np.uint8]]  # the blocks that it uses, by their ids

    def buffer(self, ref: TensorRef) -> memoryview:
        """Returns the tensor's bytes; the view keeps their memory alive."""
        if ref.parts:
            return self._join(ref.parts, ref.size).data
        return self.column(ref, 0, ref.size)

    def restricted(self, refs: Sequence[ColumnRef]) -> Received:
        """Returns the message without blocks that these columns do not use, so as to free them."""
        blocks = {ref.block: self.blocks[ref.block] for ref in refs if ref.block}
        return Received(self.frame, self.message, self.start, blocks)

    def column(self, ref: TensorRef | PartRef | ColumnRef, start: int, end: int) -> memoryview:
        """Returns the bytes `start` to `end` of a column; the view keeps their memory alive."""
        if ref.block:
            at = ref.offset
            return self.blocks[ref.block].data[at + start : at + end]
        at = self.start + ref.offset
        return memoryview(self.message)[at + start : at + end]

    def array(self, ref: TensorRef) -> NDArray[Any]:
        """Returns the tensor as a writable array; for BYTES an object array of bytes elements."""
        dtype = BY_NUMBER[ref.dtype]
        if dtype is BYTES:
            return bytes_elements_to_array(decode_bytes(self.buffer(ref)), ref.shape)
        if not ref.size:  # it may be at the very end of the message, where no view can begin
            return np.empty(ref.shape, dtype.numpy)
        if ref.parts:
            return self._join(ref.parts, ref.size).view(dtype.numpy).reshape(ref.shape)
        if ref.block:
            flat = self.blocks[ref.block][ref.offset : ref.offset + ref.size].view(dtype.numpy)
            return flat.reshape(ref.shape)
        array: NDArray[Any]
        array = np.ndarray(ref.shape, dtype.numpy, self.message, self.start + ref.offset)
        return array

    def _join(self, parts: Sequence[PartRef], size: int) -> NDArray[np.uint8]:
        """Copies parts to one place; raises ValueError if they are not `size` bytes together."""
        # Before memory is reserved, as the size is the peer's word.
        if sum([part.size for part in parts]) != size:
            raise ValueError(f"expected parts of {size} bytes together, got {parts}")
        try:
            joined = np.empty(size, np.uint8)
        except MemoryError as error:
            raise resource_error(error) or error from error
        at = 0
        for part in parts:
            end = at + part.size
            joined[at:end] = np.frombuffer(self.column(part, 0, part.size), np.uint8)
            at = end
        return joined


class UnreadReceived(Received):
    """A received message whose tensors were dropped on arrival, as there was no memory for them."""

    reason: str = ""

    def column(self, ref: TensorRef | PartRef | ColumnRef, start: int, end: int) -> memoryview:
        """Raise UnavailableError."""
        raise UnavailableError(f"a tensor could not be received: {self.reason}")

    def array(self, ref: TensorRef) -> NDArray[Any]:
        """Raise UnavailableError."""
        raise UnavailableError(f"a tensor could not be received: {self.reason}")


def add_array(
    payload: Payload,
    arrays: Mapping[str, NDArray[Any]],
    name: str,
    dtype: DataType,
    rows: Sequence[int] | None = None,
) -> TensorRef:
    """Add `arrays[name]`, which has the type `dtype` already, to a message.

    An array in shared memory to which only `arrays` refers is sent by reference: an input that the
    model returns, or memory that was allocated for this output. `rows` are those of each request,
    by which the server splits the BYTES of a whole batch.
    """
    if dtype is BYTES:
        return _add_bytes(payload, name, arrays[name], rows)
    # No variable for the array yet, because it would count as a reference.
    if arrays[name].nbytes > INLINE_TENSOR_BYTES and arrays[name].flags.c_contiguous:
        found = find_unshared_block(arrays, name)
        if found is not None:
            array = arrays[name]
            place, offset = found
            if isinstance(place, RemoteBlock):
                block = payload.return_block(place)
            else:
                block = payload.give(place)
            return TensorRef(name, dtype.number, array.shape, offset, array.nbytes, block)
    array = arrays[name]
    size = array.nbytes
    data: bytes | memoryview
    # Data inside a message may wait to be sent, while the model changes its array.
    if size <= INLINE_TENSOR_BYTES or not array.flags.c_contiguous:
        data = array.tobytes()
    else:
        data = array.reshape(-1).view(np.uint8).data
    block, offset = payload.add((data,), size)
    return TensorRef(name, dtype.number, array.shape, offset, size, block)


def _add_bytes(
    payload: Payload, name: str, array: NDArray[Any], rows: Sequence[int] | None
) -> TensorRef:
    parts = []
    at = 0
    for count in rows or [len(array) if array.ndim else 1]:
        part = array[at : at + count] if rows else array
        parts.append(encode_bytes(array_to_bytes_elements(part)))
        at += count
    pieces = [len(part) for part in parts]
    size = sum(pieces)
    block, offset = payload.add(parts, size)
    return TensorRef(name, BYTES.number, array.shape, offset, size, block, pieces if rows else [])
