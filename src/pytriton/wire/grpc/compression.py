# SPDX-License-Identifier: Apache-2.0
"""Message compression: gzip and deflate (which in gRPC is the zlib format), both with bounds."""

from __future__ import annotations

import enum
import zlib
from typing import TYPE_CHECKING

from pytriton.wire.grpc.status import GrpcError, Status

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    Buffer = bytes | bytearray | memoryview

IDENTITY = "identity"
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
SUPPORTED = (IDENTITY, *_WINDOW_BITS)

# What compressed messages may come to: some kilobytes inflate to a thousand times as much.
MAX_INFLATED_BYTES = 256 << 20
# So much is inflated at once, in some 0.1 ms: one read may bring hundreds of such messages.
SMALL_BYTES = 32 << 10
PIECE_BYTES = 256 << 10
_SOURCE_BYTES = 16 << 10


class CompressionLevel(enum.Enum):
    """How hard a server tries to make responses small, as its command line names it."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


def encoding_for_level(level: CompressionLevel, accepted: Collection[str]) -> str:
    """What gRPC's C core picks for a level among the encodings that a client accepts."""
    usable = [encoding for encoding in _WINDOW_BITS if encoding in accepted]
    if level is CompressionLevel.NONE or not usable:
        return IDENTITY
    if level is CompressionLevel.LOW:
        return usable[0]
    return usable[-1]


def compress(parts: Sequence[Buffer], encoding: str) -> list[Buffer]:
    """The bytes of `parts` in an encoding other than identity.

    They are taken piece by piece, as joining them would hold all other threads.
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
    """A compressed message, inflated in pieces: at once as far as that is little work."""

    __slots__ = ("_at", "_data", "_decompressor", "_encoding", "_max_bytes", "_plain")

    def __init__(self, data: Buffer, encoding: str, max_bytes: int) -> None:
        if encoding not in _WINDOW_BITS:
            message = f"expected an uncompressed message with grpc-encoding {encoding}, got another"
            raise GrpcError(Status.INTERNAL, message)
        self._data = memoryview(data)
        self._encoding = encoding
        self._max_bytes = min(max_bytes, MAX_INFLATED_BYTES)
        self._decompressor = zlib.decompressobj(wbits=_WINDOW_BITS[encoding])
        self._at = 0  # in the data
        self._plain = bytearray()

    def begin(self) -> bytearray | None:
        """The message, if it is a small one; None where `finish` has to be called."""
        while not self._decompressor.eof and self._has_input:
            if self._at + len(self._plain) >= SMALL_BYTES:
                return None
            self._step(SMALL_BYTES)
        return self._end()

    def finish(self) -> bytearray:
        """The message. This may take long; other threads run meanwhile.

        Raises:
            GrpcError: It is damaged, or longer than it may be.
        """
        while not self._decompressor.eof and self._has_input:
            self._step(PIECE_BYTES)
        return self._end()

    @property
    def _has_input(self) -> bool:
        return self._at < len(self._data) or bool(self._decompressor.unconsumed_tail)

    def _step(self, most: int) -> None:
        """Inflate a piece: little at a time of both, as what is not used is copied."""
        source: Buffer = self._decompressor.unconsumed_tail
        if not source:
            source = self._data[self._at : self._at + _SOURCE_BYTES]
            self._at += len(source)
        try:
            self._plain += self._decompressor.decompress(source, most)
        except zlib.error as error:
            size = len(self._data)
            message = f"a message of {size} bytes is no valid {self._encoding}: {error}"
            raise GrpcError(Status.INTERNAL, message) from error
        limit = self._max_bytes
        if len(self._plain) > limit:
            message = f"Received message larger than max (more than {limit} vs. {limit})"
            raise GrpcError(Status.RESOURCE_EXHAUSTED, message)

    def _end(self) -> bytearray:
        decompressor = self._decompressor
        if not decompressor.eof or decompressor.unused_data or self._at < len(self._data):
            size = len(self._data)
            message = f"a message of {size} bytes is not exactly one {self._encoding} stream"
            raise GrpcError(Status.INTERNAL, message)
        return self._plain
