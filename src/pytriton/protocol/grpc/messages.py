# SPDX-License-Identifier: Apache-2.0
"""gRPC's length-prefixed messages: splits received data into messages, and makes prefixes."""

from __future__ import annotations

import struct
from collections.abc import Callable

from pytriton.protocol.grpc.compression import IDENTITY, Inflation
from pytriton.protocol.grpc.status import GrpcError, GrpcStatus

Buffer = bytes | bytearray | memoryview
Message = Buffer | Inflation  # an Inflation if decompressing the message takes long
# Returns memory for a message, given its size and its first bytes; None to use a plain buffer.
AllocateBuffer = Callable[[int, memoryview], "memoryview | None"]

PREFIX_BYTES = 5
_PREFIX = struct.Struct(">BI")  # compressed flag, length
_unpack_prefix = _PREFIX.unpack_from
pack_prefix = _PREFIX.pack

# Smaller messages are copied, because a view would keep all the received data alive.
_MIN_VIEW_BYTES = 64 << 10


def message_prefix(size: int, *, is_compressed: bool = False) -> bytes:
    """Returns the prefix of a message of `size` bytes."""
    return pack_prefix(is_compressed, size)


class MessageAssembler:
    """Assembles the messages of one stream.

    A message that comes in parts is copied once: into the memory that `allocate` returns, or
    into a buffer that grows with the parts. No memory is used because of a declared size alone.
    """

    __slots__ = (
        "_allocate",
        "_encoding",
        "_is_compressed",
        "_left",
        "_max_bytes",
        "_memory",
        "_message",
        "_prefix",
        "partial_messages",
    )

    def __init__(
        self, max_bytes: int, encoding: str = IDENTITY, allocate: AllocateBuffer | None = None
    ) -> None:
        self._max_bytes = max_bytes
        self._encoding = encoding
        self._allocate = allocate
        self._prefix = b""  # the received part of an incomplete prefix
        self._message: bytearray | None = None  # the received part of an incomplete message
        self._memory: memoryview | None = None  # used instead of `_message` if it was allocated
        self._left = 0  # missing bytes of the message
        self._is_compressed = False
        self.partial_messages = 0  # counts the messages that came in parts

    @property
    def is_between_messages(self) -> bool:
        """Whether the stream may end here."""
        return self._message is None and not self._prefix

    @property
    def left(self) -> int:
        """The number of bytes that an incomplete message or its prefix lacks; 0: none."""
        return self._left or (PREFIX_BYTES - len(self._prefix) if self._prefix else 0)

    @property
    def buffer(self) -> memoryview | None:
        """The rest of the memory from `allocate`, if the message has some; see `buffer_updated`."""
        memory = self._memory
        return None if memory is None else memory[len(memory) - self._left :]

    def buffer_updated(self, size: int) -> Message | None:
        """Count `size` bytes that were written to `buffer`; returns the message if complete."""
        self._left -= size
        return None if self._left else self._end_message()

    def feed(self, data: Buffer) -> list[Message]:
        """Returns the messages that `data` completes; raises like `take`."""
        messages = []
        while data:
            message, data = self.take(data)
            if message is not None:
                messages.append(message)
        return messages

    def take(self, data: Buffer) -> tuple[Message | None, Buffer]:
        """Returns the first message that `data` completes, if any, and the remaining data.

        Raises:
            GrpcError: A message is damaged, or too large; none of its bytes is stored then.
        """
        if self._message is None and not self._prefix and len(data) >= PREFIX_BYTES:
            is_compressed, size = _unpack_prefix(data)
            if size == len(data) - PREFIX_BYTES <= self._max_bytes and not is_compressed:
                # Nearly always, this is the only message of a unary call.
                whole = memoryview(data) if size >= _MIN_VIEW_BYTES else data
                return _copy_small(whole[PREFIX_BYTES:]), b""
            if not is_compressed and size <= min(self._max_bytes, len(data) - PREFIX_BYTES):
                # One of several messages of a stream: half the time of the steps below.
                view = memoryview(data)
                end = PREFIX_BYTES + size
                return _copy_small(view[PREFIX_BYTES:end]), view[end:]
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
        """Read a prefix; returns the message if `view` has all of it, and the remaining data."""
        taken = PREFIX_BYTES - len(self._prefix)
        self._prefix += view[:taken]
        view = view[taken:]
        if len(self._prefix) < PREFIX_BYTES:
            return None, view
        flag, size = _unpack_prefix(self._prefix)
        self._prefix = b""
        if flag > 1:
            message = f"expected a compressed flag of 0 or 1, got {flag}"
            raise GrpcError(GrpcStatus.INTERNAL, message)
        if size > self._max_bytes:
            message = f"Received message larger than max ({size} vs. {self._max_bytes})"
            raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, message)
        self._is_compressed = bool(flag)
        if size <= len(view):
            return self._decode(_copy_small(view[:size])), view[size:]
        self._left = size
        self.partial_messages += 1
        self._message = bytearray()
        return None, view

    def _take_part(self, message: bytearray, part: memoryview) -> None:
        if not message and self._memory is None and not self._is_compressed:
            # This is the first part.
            self._memory = self._allocate(self._left, part) if self._allocate else None
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


def _copy_small(message: Buffer) -> Buffer:
    """Copy a small message, so that it does not keep all the received data alive."""
    if isinstance(message, memoryview) and len(message) < _MIN_VIEW_BYTES:
        return bytes(message)
    return message
