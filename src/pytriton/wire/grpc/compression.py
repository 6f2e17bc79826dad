# SPDX-License-Identifier: Apache-2.0
"""Message compression: gzip and deflate (which in gRPC is the zlib format), both with bounds."""

from __future__ import annotations

import enum
import zlib
from typing import TYPE_CHECKING

from pytriton.wire.grpc.status import GrpcError, Status

if TYPE_CHECKING:
    from collections.abc import Collection

    Buffer = bytes | bytearray | memoryview

IDENTITY = "identity"
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
SUPPORTED = (IDENTITY, *_WINDOW_BITS)


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


def compress(data: Buffer, encoding: str) -> bytes:
    """`data` in an encoding other than identity."""
    compressor = zlib.compressobj(wbits=_WINDOW_BITS[encoding])
    return compressor.compress(data) + compressor.flush()


def decompress(data: Buffer, encoding: str, max_bytes: int) -> bytes:
    """The message in `data`; GrpcError where it is damaged or longer than `max_bytes`."""
    if encoding not in _WINDOW_BITS:
        message = f"expected an uncompressed message with grpc-encoding {encoding}, got another"
        raise GrpcError(Status.INTERNAL, message)
    decompressor = zlib.decompressobj(wbits=_WINDOW_BITS[encoding])
    try:
        plain = decompressor.decompress(data, max_bytes + 1)
    except zlib.error as error:
        message = f"a message of {len(data)} bytes is no valid {encoding}: {error}"
        raise GrpcError(Status.INTERNAL, message) from error
    if len(plain) > max_bytes:
        message = f"Received message larger than max (more than {max_bytes} vs. {max_bytes})"
        raise GrpcError(Status.RESOURCE_EXHAUSTED, message)
    if not decompressor.eof or decompressor.unused_data:
        message = f"a message of {len(data)} bytes is not exactly one {encoding} stream"
        raise GrpcError(Status.INTERNAL, message)
    return plain
