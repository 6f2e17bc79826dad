# SPDX-License-Identifier: Apache-2.0
"""gRPC's length-prefixed messages: splits received data into messages, and makes prefixes.

Messages may be compressed with gzip or deflate, which is the zlib format in gRPC, within limits.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pytriton.base.errors import UnavailableError
from pytriton.protocol.grpc.status import GrpcError, GrpcStatus

if TYPE_CHECKING:
    from collections.abc import Collection

Buffer = bytes | bytearray | memoryview

IDENTITY = "identity"
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
SUPPORTED = (IDENTITY, *_WINDOW_BITS)

# The largest inflated size of a message: a few kilobytes can inflate to a thousand times as much.
MAX_INFLATED_BYTES = 256 << 20
# Up to this size, messages are inflated at once, in about 0.1 ms; one read may bring hundreds.
SMALL_BYTES = 32 << 10
PIECE_BYTES = 256 << 10
_SOURCE_BYTES = 16 << 10


class CompressionLevel(enum.Enum):
    """How much responses are compressed; the values are those of the command line."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


def encoding_for_level(level: CompressionLevel, accepted: Collection[str]) -> str:
    """Returns the encoding that gRPC's C core chooses for a level and a client's encodings."""
    usable = [encoding for encoding in _WINDOW_BITS if encoding in accepted]
    if level is CompressionLevel.NONE or not usable:
        return IDENTITY
    if level is CompressionLevel.LOW:
        return usable[0]
    return usable[-1]


class MessageMemory(Protocol):
    """The right to use memory for one message; UnavailableError is raised if there is none."""

    nbytes: int  # what is used

    def check_room(self, nbytes: int) -> None:
        """Raise if there is no room now for so many bytes."""

    def grow(self, nbytes: int) -> None:
        """Use more memory."""

    def attach(self, memory: Buffer) -> memoryview:
        """Let the lease last as long as this memory; returns the view that others may use."""


OpenLease = Callable[[], MessageMemory]


def _as_status(error: UnavailableError) -> GrpcError:
    return GrpcError(GrpcStatus.UNAVAILABLE, error.message)


class Inflation:
    """Decompresses one message in pieces: a small one at once, the rest of a large one later."""

    __slots__ = ("_at", "_data", "_decompressor", "_encoding", "_lease", "_max_bytes", "_plain")

    def __init__(
        self, data: Buffer, encoding: str, max_bytes: int, lease: MessageMemory | None = None
    ) -> None:
        if encoding not in _WINDOW_BITS:
            message = f"expected an uncompressed message with grpc-encoding {encoding}, got another"
            raise GrpcError(GrpcStatus.INTERNAL, message)
        self._data = memoryview(data)
        self._encoding = encoding
        self._max_bytes = min(max_bytes, MAX_INFLATED_BYTES)
        self._decompressor = zlib.decompressobj(wbits=_WINDOW_BITS[encoding])
        self._at = 0  # offset in `_data`
        self._plain = bytearray()
        self._lease = lease

    def begin(self) -> bytearray | None:
        """Returns the message if it is small; None if `finish` has to be called."""
        while not self._decompressor.eof and self._has_input:
            if self._at + len(self._plain) >= SMALL_BYTES:
                return None
            self._step(SMALL_BYTES)
        return self._end()

    def finish(self) -> Buffer:
        """Returns the message. This may take long, but does not block other threads.

        Raises:
            GrpcError: The message is damaged or too long, or there is no memory for it.
        """
        counted = 0
        try:
            while not self._decompressor.eof and self._has_input:
                self._step(PIECE_BYTES)
                if self._lease is not None:
                    self._lease.grow(len(self._plain) - counted)
                    counted = len(self._plain)
            message = self._end()
            return message if self._lease is None else self._lease.attach(message)
        except UnavailableError as error:
            raise _as_status(error) from error
        finally:
            # A traceback may keep this object until the next collection of garbage.
            self._data, self._plain, self._lease = memoryview(b""), bytearray(), None

    @property
    def _has_input(self) -> bool:
        return self._at < len(self._data) or bool(self._decompressor.unconsumed_tail)

    def _step(self, most: int) -> None:
        """Inflate a piece; input is passed in pieces, too, because zlib copies unused input."""
        source: Buffer = self._decompressor.unconsumed_tail
        if not source:
            source = self._data[self._at : self._at + _SOURCE_BYTES]
            self._at += len(source)
        try:
            self._plain += self._decompressor.decompress(source, most)
        except zlib.error as error:
            size = len(self._data)
            message = f"a message of {size} bytes is no valid {self._encoding}: {error}"
            raise GrpcError(GrpcStatus.INTERNAL, message) from error
        limit = self._max_bytes
        if len(self._plain) > limit:
            message = f"Received message larger than max (more than {limit} vs. {limit})"
            raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, message)

    def _end(self) -> bytearray:
        decompressor = self._decompressor
        if not decompressor.eof or decompressor.unused_data or self._at < len(self._data):
            size = len(self._data)
            message = f"a message of {size} bytes is not exactly one {self._encoding} stream"
            raise GrpcError(GrpcStatus.INTERNAL, message)
        return self._plain


Message = Buffer | Inflation  # an Inflation if decompressing the message takes long
# Returns memory for a message, given its size and its first bytes; None to use a plain buffer.
# Bytes are a message that takes its place: of the one that comes, nothing is kept.
AllocateBuffer = Callable[[int, memoryview], "memoryview | bytes | None"]

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
    With `open_lease`, the memory of large messages is counted until it is freed, and that of
    others while they are incomplete.
    """

    __slots__ = (
        "_allocate",
        "_encoding",
        "_is_compressed",
        "_lease",
        "_left",
        "_max_bytes",
        "_memory",
        "_message",
        "_open_lease",
        "_prefix",
        "_stand_in",
        "partial_messages",
    )

    def __init__(
        self,
        max_bytes: int,
        encoding: str = IDENTITY,
        allocate: AllocateBuffer | None = None,
        open_lease: OpenLease | None = None,
    ) -> None:
        self._max_bytes = max_bytes
        self._encoding = encoding
        self._allocate = allocate
        self._open_lease = open_lease
        self._lease: MessageMemory | None = None  # of `_memory`
        self._prefix = b""  # the received part of an incomplete prefix
        self._message: bytearray | None = None  # the received part of an incomplete message
        self._memory: memoryview | None = None  # used instead of `_message` if it was allocated
        self._stand_in: bytes | None = (
            None  # the message that takes the place of the one that comes
        )
        self._left = 0  # missing bytes of the message
        self._is_compressed = False
        self.partial_messages = 0  # counts the messages that came in parts

    @property
    def is_between_messages(self) -> bool:
        """Whether the stream may end here."""
        return self._message is None and not self._prefix

    @property
    def held_bytes(self) -> int:
        """How much memory is counted for an incomplete message, or for one that has to wait."""
        return 0 if self._lease is None else self._lease.nbytes

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
        self._grow(size)
        self._left -= size
        return None if self._left else self._end_message()

    def stop(self) -> memoryview | None:
        """Drop a message that is not complete; returns its memory from `allocate`, if it had any.

        Nothing may be fed after that.
        """
        memory = self._memory
        self._message = self._memory = self._lease = self._stand_in = None
        return memory

    def keep(self, nbytes: int) -> None:
        """Count a complete message that has to wait for the end of the stream; a large one is."""
        has_none = self._lease is None and nbytes < _MIN_VIEW_BYTES
        if has_none and self._open_lease is not None:
            self._lease = self._open_lease()
            self._grow(nbytes)

    def release(self) -> None:
        """Stop counting a message that had to wait."""
        self._lease = None

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
                if size >= _MIN_VIEW_BYTES:
                    return self._hold(memoryview(data)[PREFIX_BYTES:]), b""
                return _copy_small(data[PREFIX_BYTES:]), b""
            if not is_compressed and size <= min(self._max_bytes, len(data) - PREFIX_BYTES):
                # One of several messages of a stream: half the time of the steps below.
                view = memoryview(data)
                end = PREFIX_BYTES + size
                return self._whole(view[PREFIX_BYTES:end]), view[end:]
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
            return self._decode(self._whole(view[:size])), view[size:]
        self._left = size
        self.partial_messages += 1
        self._message = bytearray()
        return None, view

    def _take_part(self, message: bytearray, part: memoryview) -> None:
        if not message and self._memory is None and self._stand_in is None:
            self._begin_parts(part)
        if self._stand_in is None:
            self._grow(len(part))
            if self._memory is None:
                message += part
            else:
                start = len(self._memory) - self._left
                self._memory[start : start + len(part)] = part
        self._left -= len(part)

    def _begin_parts(self, first: memoryview) -> None:
        if self._allocate is not None and not self._is_compressed:
            allocated = self._allocate(self._left, first)
            if isinstance(allocated, bytes):
                self._stand_in = allocated
                return
            self._memory = allocated
        if self._open_lease is not None:
            self._begin_lease(self._open_lease())

    def _begin_lease(self, lease: MessageMemory) -> None:
        try:
            lease.check_room(self._left)
        except UnavailableError as error:
            raise _as_status(error) from error
        self._lease = lease
        if self._memory is not None:
            self._memory = lease.attach(self._memory)

    def _grow(self, nbytes: int) -> None:
        if self._lease is not None:
            try:
                self._lease.grow(nbytes)
            except UnavailableError as error:
                raise _as_status(error) from error

    def _whole(self, message: memoryview) -> Buffer:
        return bytes(message) if len(message) < _MIN_VIEW_BYTES else self._hold(message)

    def _hold(self, message: memoryview) -> Buffer:
        """Returns a large message that came at once; it is counted as long as it is used."""
        if self._open_lease is None:
            return message
        self._lease = self._open_lease()
        self._grow(len(message))
        held, self._lease = self._lease.attach(message), None
        return held

    def _end_message(self) -> Message:
        stand_in, self._stand_in = self._stand_in, None
        if stand_in is not None:
            self._message = None
            return stand_in
        message: Buffer | None = self._message if self._memory is None else self._memory
        assert message is not None
        if self._lease is not None and self._memory is None and len(message) >= _MIN_VIEW_BYTES:
            message = self._lease.attach(message)
        self._message = self._memory = self._lease = None
        return self._decode(message)

    def _decode(self, message: Buffer) -> Message:
        if not self._is_compressed:
            return message
        lease = None if self._open_lease is None else self._open_lease()
        inflation = Inflation(message, self._encoding, self._max_bytes, lease)
        plain = inflation.begin()
        return inflation if plain is None else plain


def _copy_small(message: Buffer) -> Buffer:
    """Copy a small message, so that it does not keep all the received data alive."""
    if isinstance(message, memoryview) and len(message) < _MIN_VIEW_BYTES:
        return bytes(message)
    return message
