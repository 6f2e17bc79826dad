# SPDX-License-Identifier: Apache-2.0
"""The tensors of one message: collected on its way out, read on its way in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.dtypes import BY_NUMBER, BYTES, bytes_elements_to_array, decode_bytes
from pytriton.transport.arena import Arena, Block, RemoteBlock, find_block
from pytriton.transport.frames import INLINE_ALIGNMENT, Frame, TensorRef

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Buffer = bytes | bytearray | memoryview

# Below this a tensor is copied through the socket, which is cheaper than tracking a block for it.
INLINE_TENSOR_BYTES = 32 << 10
INLINE_TOTAL_BYTES = 64 << 10
_PADDING = [bytes(size) for size in range(INLINE_ALIGNMENT)]


class Payload:
    """Collects the tensor bytes of one outgoing message.

    Args:
        arena: where large tensors go; None where all travel inside the message.
    """

    __slots__ = ("_arena", "_inline_size", "blocks", "inline", "returned_blocks")

    def __init__(self, arena: Arena | None) -> None:
        self._arena = arena
        self._inline_size = 0
        self.inline: list[Buffer] = []
        self.blocks: list[Block | RemoteBlock] = []
        self.returned_blocks: list[RemoteBlock] = []

    def add(self, pieces: Sequence[Buffer], size: int) -> tuple[int, int]:
        """Place `pieces` one after the other; their block (0: inside the message) and offset."""
        arena = self._arena
        if arena is None or (
            size <= INLINE_TENSOR_BYTES and self._inline_size + size <= INLINE_TOTAL_BYTES
        ):
            offset = self._inline_size
            padding = -size % INLINE_ALIGNMENT
            self.inline.extend(pieces)
            if padding:
                self.inline.append(_PADDING[padding])
            self._inline_size = offset + size + padding
            return 0, offset
        if len(pieces) == 1 and (found := find_block(pieces[0])) is not None:
            block, offset = found
            if arena.owns(block) and offset % INLINE_ALIGNMENT == 0:
                return self._lend(block), offset
        block = arena.allocate(size)
        self.blocks.append(block)
        view = block.view()
        at = 0
        for piece in pieces:
            end = at + len(piece)
            view[at:end] = piece
            at = end
        return block.id, 0

    def give_back(self, block: RemoteBlock) -> int:
        """Refer to a block of the receiver's, which holds the bytes already."""
        # Held until the message is sent: the receiver must not hear before that it is given up.
        self.returned_blocks.append(block)
        return -block.owner_id

    def forward(self, block: RemoteBlock) -> int:
        """Refer to a block of a third process: the receiver maps it, and nothing is copied.

        Its owner has it back when nobody reads it any more, neither here nor at the receiver's.
        The receiver may write to it, so whoever forwards a block must be its only reader.
        """
        assert self._arena is not None, "there is no shared memory to refer to"
        return self._lend(block)

    def _lend(self, block: Block | RemoteBlock) -> int:
        if block not in self.blocks:
            self.blocks.append(block)
        return block.id


class Received:
    """A message that came in, and access to its tensors."""

    __slots__ = ("_blocks", "_message", "_start", "frame")

    def __init__(
        self, frame: Frame, message: bytearray, start: int, blocks: dict[int, NDArray[np.uint8]]
    ) -> None:
        self.frame = frame
        self._message = message
        self._start = start
        self._blocks = blocks

    @property
    def uses_blocks(self) -> bool:
        """Whether some of its tensors are in shared memory."""
        return bool(self._blocks)

    def buffer(self, ref: TensorRef) -> memoryview:
        """The tensor's bytes, alive for as long as the view."""
        source: Any = self._blocks[ref.block] if ref.block else self._message
        start = ref.offset + (0 if ref.block else self._start)
        return memoryview(source)[start : start + ref.size]

    def array(self, ref: TensorRef) -> NDArray[Any]:
        """The tensor as a writable array; object elements of type bytes for BYTES."""
        dtype = BY_NUMBER[ref.dtype]
        if dtype is BYTES:
            return bytes_elements_to_array(decode_bytes(self.buffer(ref)), ref.shape)
        if not ref.size:
            return np.empty(ref.shape, dtype.numpy)
        if ref.block:
            flat = self._blocks[ref.block][ref.offset : ref.offset + ref.size].view(dtype.numpy)
            return flat.reshape(ref.shape)
        array: NDArray[Any]
        array = np.ndarray(ref.shape, dtype.numpy, self._message, self._start + ref.offset)
        return array
