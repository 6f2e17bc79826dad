# SPDX-License-Identifier: Apache-2.0
"""Compresses and decompresses gzip and deflate (the zlib format): the Content-Encoding of HTTP.

gRPC compresses its messages by the same function, and decompresses them in `protocol.grpc`.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from pytriton.base.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytriton.base.dtypes import Buffer

SUPPORTED = ("gzip", "deflate")
ACCEPT_ENCODING = "gzip, deflate"  # the header of the response to an unknown encoding

_ANY_WRAPPER = zlib.MAX_WBITS | 32  # zlib or gzip, which zlib detects
_GZIP_WRAPPER = zlib.MAX_WBITS | 16
_STEP_BYTES = 256 << 10
_MAX_RATIO = 1040  # data inflates to at most 1032 times its size (RFC 1951)


class UnknownEncodingError(UnsupportedError):
    """The Content-Encoding of a request is none of those in `ACCEPT_ENCODING`."""


def decompress(
    body: Buffer,
    encoding: str,
    limit_bytes: int,
    on_inflated: Callable[[int], None] | None = None,
) -> Buffer:
    """Decompress the body of a request, in about 3 ms for each MiB; other threads are not blocked.

    Like Triton, `gzip` and `deflate` accept either format. Memory is used only for data that was
    inflated, whatever size a header declares. `on_inflated` is called with the size of each further
    piece, and may raise what ends it.

    Raises:
        UnknownEncodingError: The encoding is not supported.
        InvalidArgumentError: The body is empty, damaged, incomplete or exceeds the limit.
    """
    inflated = decompress_small(body, encoding, limit_bytes, limit_bytes, on_inflated)
    assert inflated is not None, "only a body beyond the limit is not small"
    return inflated


def decompress_small(
    body: Buffer,
    encoding: str,
    limit_bytes: int,
    small_bytes: int,
    on_inflated: Callable[[int], None] | None = None,
) -> Buffer | None:
    """Like `decompress`, but returns None once the output exceeds `small_bytes`."""
    if encoding == "identity":
        return body
    if encoding not in SUPPORTED:
        raise UnknownEncodingError("Unsupported compression type")
    if not body:
        raise InvalidArgumentError("nothing to be decompressed")
    try:
        return _inflate(body, limit_bytes, small_bytes, on_inflated)
    except zlib.error as error:
        raise InvalidArgumentError(
            f"expected a request body in {encoding} format, got data that does not inflate: {error}"
        ) from None


def _inflate(
    body: Buffer,
    limit_bytes: int,
    small_bytes: int,
    on_inflated: Callable[[int], None] | None = None,
) -> memoryview | None:
    most = min(limit_bytes, small_bytes)
    # Pages that are not written use no memory; joining pieces would block all other threads.
    memory = np.empty(min(most, _MAX_RATIO * len(body) + _STEP_BYTES), np.uint8).data
    size = 0
    try:
        for piece in _inflated_pieces(memoryview(body)):
            end = size + len(piece)
            if end > limit_bytes:
                raise _size_error(limit_bytes)  # noqa: TRY301  it frees the memory, too
            if end > small_bytes:
                return None
            if on_inflated is not None:
                on_inflated(len(piece))
            memory[size:end] = piece
            size = end
        return memory[:size]
    except BaseException:
        memory.release()  # a traceback may keep this frame until the next collection of garbage
        raise


def _size_error(limit_bytes: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Decompressed data size exceeds the maximum allowed value of {limit_bytes} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def _inflated_pieces(body: memoryview) -> Iterator[bytes]:
    """Yields the inflated body in pieces; data after its end is ignored.

    The input is passed in pieces, too, because zlib copies the input that it leaves.
    """
    inflater = zlib.decompressobj(_ANY_WRAPPER)
    for start in range(0, len(body), _STEP_BYTES):
        left: Buffer = body[start : start + _STEP_BYTES]
        while left and not inflater.eof:
            yield inflater.decompress(left, _STEP_BYTES)
            left = inflater.unconsumed_tail
    while not inflater.eof:
        piece = inflater.decompress(b"", _STEP_BYTES)  # output that zlib has buffered
        if not piece:
            raise zlib.error("the data ends early")
        yield piece


def choose_encoding(accept_encoding: str) -> str:
    """Returns the encoding of the response for an Accept-Encoding header.

    This is the one of `identity`, `deflate` and `gzip` with the highest weight; the first if equal.
    """
    best, best_weight = "identity", 0.0
    for choice in accept_encoding.split(","):
        name, _, attributes = choice.partition(";")
        weight = _weight(attributes)
        if name.strip() in ("identity", *SUPPORTED) and weight > best_weight:
            best, best_weight = name.strip(), weight
    return best


def _weight(attributes: str) -> float:
    key, _, value = attributes.partition("=")
    if not attributes.strip():
        return 1.0
    if key.strip() != "q":
        return 0.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def compress(buffers: Iterable[Buffer], encoding: str) -> list[bytes]:
    """Compress the buffers as one stream with `gzip` or `deflate`; returns it in pieces.

    This takes about 40 ms for each MB. It works piece by piece, because joining the buffers would
    block all other threads.
    """
    wrapper = _GZIP_WRAPPER if encoding == "gzip" else zlib.MAX_WBITS
    deflater = zlib.compressobj(wbits=wrapper)
    steps = (
        memoryview(buffer)[start : start + _STEP_BYTES]
        for buffer in buffers
        for start in range(0, len(buffer), _STEP_BYTES)
    )
    parts = [*map(deflater.compress, steps), deflater.flush()]
    return [part for part in parts if part]
