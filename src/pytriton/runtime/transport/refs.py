# SPDX-License-Identifier: Apache-2.0
"""References from a message to the bytes of its tensors, and updates about shared memory.

The sender may be a worker that is broken or hostile. So types say what values are possible: their
limits are checked where a record is decoded, in C. What fields mean together is checked by those
who use them.
"""
# Annotations are no strings here: msgspec would compile them, which takes half of their import.

from typing import Annotated

import msgspec

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]  # in bytes, or in elements; offsets as well
Shape = Annotated[tuple[Size, ...], msgspec.Meta(max_length=256)]


class PartRef(msgspec.Struct, array_like=True, gc=False):
    """A part of a tensor and where its bytes are; see `TensorRef`."""

    block: int
    offset: Size
    size: Size


class TensorRef(msgspec.Struct, array_like=True, gc=False):
    """A tensor and where its bytes are: at `offset` of the message's payload or of a block."""

    name: str
    dtype: Annotated[int, msgspec.Meta(ge=1, le=14)]
    shape: Shape
    offset: Size
    size: Size
    block: int = 0  # 0: inside the message; negative: a block of the receiver's arena
    pieces: list[
        Size
    ] = []  # size of each request's part, for BYTES tensors that hold a whole batch
    # If its bytes are not in one place: the receiver joins them, and `offset` and `block` are 0.
    parts: list[PartRef] | None = None
    # The shape of each request's part, if they differ; `shape` then is the number of all elements.
    shapes: list[Shape] = []


class BlockRef(msgspec.Struct, array_like=True, gc=False):
    """A block of the sender's arena that this message uses."""

    id: int
    segment: int
    offset: Size
    size: Size
    is_given: bool = False  # the sender has made it for this message and does not read it any more


class SegmentRef(msgspec.Struct, array_like=True, gc=False):
    """A segment whose file descriptor comes with this message."""

    id: int
    size: Size


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
