# SPDX-License-Identifier: Apache-2.0
"""Message compression: gzip and deflate (which is the zlib format in gRPC), with size limits."""

from __future__ import annotations

import enum
import zlib
from typing import TYPE_CHECKING

from pytriton.protocol.grpc.status import GrpcError, GrpcStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

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


def compress(parts: Sequence[Buffer], encoding: str) -> list[Buffer]:
    """Compress `parts` with an encoding other than identity.

    This works piece by piece, because joining the parts would block all other threads.
    """
    compressor = zlib.compressobj(wbits=_WINDOW_BITS[encoding])
    compressed: list[Buffer] = []
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), PIECE_BYTES):
            piece = compressor.compress(view[start : start + PIECE_BYTES])
            if piece:
                compressed.append(piece)
    compressed.append(compressor.flush())
    return compressed


class Inflation:
    """Decompresses one message in pieces: a small one at once, the rest of a large one later."""

    __slots__ = ("_at", "_data", "_decompressor", "_encoding", "_max_bytes", "_plain")

    def __init__(self, data: Buffer, encoding: str, max_bytes: int) -> None:
        if encoding not in _WINDOW_BITS:
            message = f"expected an uncompressed message with grpc-encoding {encoding}, got another"
            raise GrpcError(GrpcStatus.INTERNAL, message)
        self._data = memoryview(data)
        self._encoding = encoding
        self._max_bytes = min(max_bytes, MAX_INFLATED_BYTES)
        self._decompressor = zlib.decompressobj(wbits=_WINDOW_BITS[encoding])
        self._at = 0  # offset in `_data`
        self._plain = bytearray()

    def begin(self) -> bytearray | None:
        """Returns the message if it is small; None if `finish` has to be called."""
        while not self._decompressor.eof and self._has_input:
            if self._at + len(self._plain) >= SMALL_BYTES:
                return None
            self._step(SMALL_BYTES)
        return self._end()

    def finish(self) -> bytearray:
        """Returns the message. This may take long, but does not block other threads.

        Raises:
            GrpcError: The message is damaged or too long.
        """
        while not self._decompressor.eof and self._has_input:
            self._step(PIECE_BYTES)
        return self._end()

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
