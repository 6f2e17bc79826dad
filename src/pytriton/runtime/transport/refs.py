# SPDX-License-Identifier: Apache-2.0
"""References from a message to the bytes of its tensors, and updates about shared memory."""
# Annotations are no strings here: msgspec would compile them, which takes half of their import.

import msgspec


class PartRef(msgspec.Struct, array_like=True, gc=False):
    """A part of a tensor and where its bytes are; see `TensorRef`."""

    block: int
    offset: int
    size: int


class TensorRef(msgspec.Struct, array_like=True, gc=False):
    """A tensor and where its bytes are: at `offset` of the message's payload or of a block."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    offset: int
    size: int
    block: int = 0  # 0: inside the message; negative: a block of the receiver's arena
    pieces: list[int] = []  # size of each request's part, for BYTES tensors that hold a whole batch
    # If its bytes are not in one place: the receiver joins them, and `offset` and `block` are 0.
    parts: list[PartRef] | None = None
    # The shape of each request's part, if they differ; `shape` then is the number of all elements.
    shapes: list[tuple[int, ...]] = []


class BlockRef(msgspec.Struct, array_like=True, gc=False):
    """A block of the sender's arena that this message uses."""

    id: int
    segment: int
    offset: int
    size: int
    is_given: bool = False  # the sender has made it for this message and does not read it any more


class SegmentRef(msgspec.Struct, array_like=True, gc=False):
    """A segment whose file descriptor comes with this message."""

    id: int
    size: int


class MemoryUpdate(msgspec.Struct, array_like=True, omit_defaults=True):
    """The sender's update about shared memory; sent along with the next message, of any kind."""

    blocks: list[BlockRef] = []
    segments: list[SegmentRef] = []
    dropped_segments: list[int] = []
    released_blocks: list[int] = []  # of the receiver's arena
    returned_blocks: list[int] = []  # of the receiver's arena, used by tensors of this message
    abandoned_blocks: list[int] = []  # released, but a process without connection may read them
    # Of the receiver: the sender had no resources to map them, and needs them again.
    missing_segments: list[int] = []


class FrameBase(msgspec.Struct, array_like=True, kw_only=True):
    """A message of a channel: any of them may carry an update about memory, as its last field."""

    memory: MemoryUpdate | None = None
