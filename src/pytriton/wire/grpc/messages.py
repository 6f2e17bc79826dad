# SPDX-License-Identifier: Apache-2.0
"""gRPC's length-prefixed messages: cut from the data of a stream, and prefixed for one."""

from __future__ import annotations

import struct

from pytriton.wire.grpc.compression import IDENTITY, decompress
from pytriton.wire.grpc.status import GrpcError, Status

Buffer = bytes | bytearray | memoryview

PREFIX_BYTES = 5
_PREFIX = struct.Struct(">BI")  # compressed flag, length
_unpack_prefix = _PREFIX.unpack_from
_pack_prefix = _PREFIX.pack

# A smaller message is copied out of the chunk it came in, which it would otherwise keep alive.
_MIN_VIEW_BYTES = 64 << 10


def message_prefix(size: int, *, is_compressed: bool = False) -> bytes:
    """What precedes a message of `size` bytes."""
    return _pack_prefix(is_compressed, size)


class MessageAssembler:
    """Puts the messages of one stream together.

    A message that comes in parts is copied once, into a buffer that grows as they come: a declared
    size alone allocates nothing.
    """

    __slots__ = ("_encoding", "_is_compressed", "_left", "_max_bytes", "_message", "_prefix")

    def __init__(self, max_bytes: int, encoding: str = IDENTITY) -> None:
        self._max_bytes = max_bytes
        self._encoding = encoding
        self._prefix = b""  # the part that has come of one
        self._message: bytearray | None = None  # the part that has come of one
        self._left = 0  # of it
        self._is_compressed = False

    @property
    def is_between_messages(self) -> bool:
        """Whether the stream may end here."""
        return self._message is None and not self._prefix

    def feed(self, data: Buffer) -> list[Buffer]:
        """The messages that `data` completes.

        Raises:
            GrpcError: If a message is too large, before any of it is kept, or is damaged.
        """
        if self._message is None and not self._prefix and len(data) >= PREFIX_BYTES:
            is_compressed, size = _unpack_prefix(data)
            if size == len(data) - PREFIX_BYTES <= self._max_bytes and not is_compressed:
                return [_own(data[PREFIX_BYTES:])]  # a unary call, nearly always
        return self._feed_parts(data)

    def _feed_parts(self, data: Buffer) -> list[Buffer]:
        messages: list[Buffer] = []
        view = memoryview(data)
        while view:
            if self._message is None:
                view = self._begin_message(view, messages)
            else:
                view = self._continue_message(self._message, view, messages)
        return messages

    def _begin_message(self, view: memoryview, messages: list[Buffer]) -> memoryview:
        """Read a prefix, and the message if all of it is there; returns what follows."""
        taken = PREFIX_BYTES - len(self._prefix)
        self._prefix += view[:taken]
        view = view[taken:]
        if len(self._prefix) < PREFIX_BYTES:
            return view
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
            messages.append(self._decode(_own(view[:size])))
            return view[size:]
        self._left = size
        self._message = bytearray()
        return view

    def _continue_message(
        self, message: bytearray, view: memoryview, messages: list[Buffer]
    ) -> memoryview:
        part = view[: self._left]
        message += part
        self._left -= len(part)
        if not self._left:
            self._message = None
            messages.append(self._decode(message))
        return view[len(part) :]

    def _decode(self, message: Buffer) -> Buffer:
        if self._is_compressed:
            return decompress(message, self._encoding, self._max_bytes)
        return message


def _own(message: Buffer) -> Buffer:
    """A message that may be kept: small ones do not hold on to the chunk around them."""
    if isinstance(message, memoryview) and len(message) < _MIN_VIEW_BYTES:
        return bytes(message)
    return message
