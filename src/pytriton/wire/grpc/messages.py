# SPDX-License-Identifier: Apache-2.0
"""gRPC's length-prefixed messages: cut from the data of a stream, and prefixed for one."""

from __future__ import annotations

import struct
from collections.abc import Callable

from pytriton.wire.grpc.compression import IDENTITY, Inflation
from pytriton.wire.grpc.status import GrpcError, Status

Buffer = bytes | bytearray | memoryview
Message = Buffer | Inflation  # the second where a message has to be inflated, which takes long
# The memory for a message of so many bytes that begins like this; None where there is none.
FindMemory = Callable[[int, memoryview], "memoryview | None"]

PREFIX_BYTES = 5
_PREFIX = struct.Struct(">BI")  # compressed flag, length
_unpack_prefix = _PREFIX.unpack_from
pack_prefix = _PREFIX.pack

# A smaller message is copied out of the chunk it came in, which it would otherwise keep alive.
_MIN_VIEW_BYTES = 64 << 10


def message_prefix(size: int, *, is_compressed: bool = False) -> bytes:
    """What precedes a message of `size` bytes."""
    return pack_prefix(is_compressed, size)


class MessageAssembler:
    """Puts the messages of one stream together.

    A message that comes in parts is copied once: into the memory that `find_memory` knows for it,
    else into a buffer that grows as they come. A declared size alone makes nobody touch memory.
    """

    __slots__ = (
        "_encoding",
        "_find_memory",
        "_is_compressed",
        "_left",
        "_max_bytes",
        "_memory",
        "_message",
        "_prefix",
        "begun",
    )

    def __init__(
        self, max_bytes: int, encoding: str = IDENTITY, find_memory: FindMemory | None = None
    ) -> None:
        self._max_bytes = max_bytes
        self._encoding = encoding
        self._find_memory = find_memory
        self._prefix = b""  # the part that has come of one
        self._message: bytearray | None = None  # the part that has come of one
        self._memory: memoryview | None = None  # of all of it, where it was found
        self._left = 0  # of it
        self._is_compressed = False
        self.begun = 0  # messages that came in parts

    @property
    def is_between_messages(self) -> bool:
        """Whether the stream may end here."""
        return self._message is None and not self._prefix

    @property
    def left(self) -> int:
        """How many bytes of a message are still to come, as far as that is known; 0: none."""
        return self._left or (PREFIX_BYTES - len(self._prefix) if self._prefix else 0)

    @property
    def room(self) -> memoryview | None:
        """Where the rest of a message belongs, if that is known; see `fill`."""
        memory = self._memory
        return None if memory is None else memory[len(memory) - self._left :]

    def fill(self, size: int) -> Message | None:
        """So many bytes were written to `room`; the message, if it is complete."""
        self._left -= size
        return None if self._left else self._end_message()

    def feed(self, data: Buffer) -> list[Message]:
        """The messages that `data` completes; raises as `take` does."""
        messages = []
        while data:
            message, data = self.take(data)
            if message is not None:
                messages.append(message)
        return messages

    def take(self, data: Buffer) -> tuple[Message | None, Buffer]:
        """The first message that `data` completes, if it does, and the data after it.

        Raises:
            GrpcError: If a message is too large, before any of it is kept, or is damaged.
        """
        if self._message is None and not self._prefix and len(data) >= PREFIX_BYTES:
            is_compressed, size = _unpack_prefix(data)
            if size == len(data) - PREFIX_BYTES <= self._max_bytes and not is_compressed:
                # A unary call, nearly always.
                whole = memoryview(data) if size >= _MIN_VIEW_BYTES else data
                return _own(whole[PREFIX_BYTES:]), b""
        view = memoryview(data)
        message: Message | None = None
        while view and message is None:
            if self._message is None:
                message, view = self._begin_message(view)
                continue
            part = view[: self._left]
            self._take_part(self._message, part)
            view = view[len(part) :]
            if not self._left:
                message = self._end_message()
        return message, view

    def _begin_message(self, view: memoryview) -> tuple[Message | None, memoryview]:
        """Read a prefix, and the message if all of it is there; the other one is what follows."""
        taken = PREFIX_BYTES - len(self._prefix)
        self._prefix += view[:taken]
        view = view[taken:]
        if len(self._prefix) < PREFIX_BYTES:
            return None, view
        flag, size = _unpack_prefix(self._prefix)
        self._prefix = b""
        if flag > 1:
            message = f"expected a compressed flag of 0 or 1, got {flag}"
            raise GrpcError(Status.INTERNAL, message)
        if size > self._max_bytes:
            message = f"Received message larger than max ({size} vs. {self._max_bytes})"
            raise GrpcError(Status.RESOURCE_EXHAUSTED, message)
        self._is_compressed = bool(flag)
        if size <= len(view):
            return self._decode(_own(view[:size])), view[size:]
        self._left = size
        self.begun += 1
        self._message = bytearray()
        return None, view

    def _take_part(self, message: bytearray, part: memoryview) -> None:
        if not message and self._memory is None and not self._is_compressed:
            # Its first part.
            self._memory = self._find_memory(self._left, part) if self._find_memory else None
        if self._memory is None:
            message += part
        else:
            start = len(self._memory) - self._left
            self._memory[start : start + len(part)] = part
        self._left -= len(part)

    def _end_message(self) -> Message:
        message = self._message if self._memory is None else self._memory
        assert message is not None
        self._message = self._memory = None
        return self._decode(message)

    def _decode(self, message: Buffer) -> Message:
        if not self._is_compressed:
            return message
        inflation = Inflation(message, self._encoding, self._max_bytes)
        plain = inflation.begin()
        return inflation if plain is None else plain


def _own(message: Buffer) -> Buffer:
    """A message that may be kept: small ones do not hold on to the chunk around them."""
    if isinstance(message, memoryview) and len(message) < _MIN_VIEW_BYTES:
        return bytes(message)
    return message
