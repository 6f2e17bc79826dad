# SPDX-License-Identifier: Apache-2.0
"""Content-Encoding of infer bodies: gzip and deflate both ways, bounded while inflating."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from pytriton.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytriton.dtypes import Buffer

SUPPORTED = ("gzip", "deflate")
ACCEPT_ENCODING = "gzip, deflate"  # the header that goes with the answer to an unknown encoding

_ANY_WRAPPER = zlib.MAX_WBITS | 32  # zlib or gzip, whichever the data begins with
_GZIP_WRAPPER = zlib.MAX_WBITS | 16
_STEP_BYTES = 256 << 10
_MAX_RATIO = 1040  # nothing inflates to more than 1032 times its size (RFC 1951)


def decompress(body: Buffer, encoding: str, limit_bytes: int) -> Buffer:
    """The body of a request that came with Content-Encoding `encoding`.

    It takes about 3 ms for each MiB that comes out, and other threads run meanwhile.

    Args:
        body: What came.
        encoding: `gzip`, `deflate` or `identity`; Triton takes either wrapper for both.
        limit_bytes: The most that it may become. Memory grows with what was inflated, never
            with what a header promises.

    Raises:
        UnsupportedError: The encoding is another one.
        InvalidArgumentError: The body is empty, damaged, cut short or grows beyond the limit.
    """
    inflated = decompress_small(body, encoding, limit_bytes, limit_bytes)
    assert inflated is not None, "only a body beyond the limit is not small"
    return inflated


def decompress_small(
    body: Buffer, encoding: str, limit_bytes: int, small_bytes: int
) -> Buffer | None:
    """Like `decompress`, but gives up with None once the body grows beyond `small_bytes`."""
    if encoding == "identity":
        return body
    if encoding not in SUPPORTED:
        raise UnsupportedError("Unsupported compression type")
    if not body:
        raise InvalidArgumentError("nothing to be decompressed")
    try:
        return _inflate(body, limit_bytes, small_bytes)
    except zlib.error as error:
        raise InvalidArgumentError(
            f"expected a request body in {encoding} format, got data that does not inflate: {error}"
        ) from None


def _inflate(body: Buffer, limit_bytes: int, small_bytes: int) -> memoryview | None:
    most = min(limit_bytes, small_bytes)
    # Pages that nothing is written to cost nothing; joining pieces would hold all other threads.
    memory = np.empty(min(most, _MAX_RATIO * len(body) + _STEP_BYTES), np.uint8).data
    size = 0
    for piece in _inflated_pieces(memoryview(body)):
        end = size + len(piece)
        if end > limit_bytes:
            raise InvalidArgumentError(
                f"Decompressed data size exceeds the maximum allowed value of {limit_bytes} bytes. "
                "Use --http-max-input-size to increase the limit."
            )
        if end > small_bytes:
            return None
        memory[size:end] = piece
        size = end
    return memory[:size]


def _inflated_pieces(body: memoryview) -> Iterator[bytes]:
    """What the body inflates to, in pieces; what follows its end is ignored.

    The input is given in steps too: what is left of it is copied after each.
    """
    inflater = zlib.decompressobj(_ANY_WRAPPER)
    for start in range(0, len(body), _STEP_BYTES):
        left: Buffer = body[start : start + _STEP_BYTES]
        while left and not inflater.eof:
            yield inflater.decompress(left, _STEP_BYTES)
            left = inflater.unconsumed_tail
    while not inflater.eof:
        piece = inflater.decompress(b"", _STEP_BYTES)  # what zlib itself held back
        if not piece:
            raise zlib.error("the data ends early")
        yield piece


def choose_encoding(accept_encoding: str) -> str:
    """The encoding of the answer to a client that sent this Accept-Encoding.

    The highest weight among `identity`, `deflate` and `gzip` wins, the first named on a tie.
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
    """The buffers, one after the other, in `gzip` or `deflate` format, as pieces to send in order.

    It takes about 40 ms for each MB, and other threads run meanwhile.
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
