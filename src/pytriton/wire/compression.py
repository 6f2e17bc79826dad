# SPDX-License-Identifier: Apache-2.0
"""Content-Encoding of infer bodies: gzip and deflate both ways, bounded while inflating."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from pytriton.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.dtypes import Buffer

SUPPORTED = ("gzip", "deflate")
ACCEPT_ENCODING = "gzip, deflate"  # the header that goes with the answer to an unknown encoding

_ANY_WRAPPER = zlib.MAX_WBITS | 32  # zlib or gzip, whichever the data begins with
_GZIP_WRAPPER = zlib.MAX_WBITS | 16
_STEP_BYTES = 1 << 20


def decompress(body: Buffer, encoding: str, limit_bytes: int) -> Buffer:
    """The body of a request that came with Content-Encoding `encoding`.

    Args:
        body: What came.
        encoding: `gzip`, `deflate` or `identity`; Triton takes either wrapper for both.
        limit_bytes: The most that it may become. Memory grows with what was inflated, never
            with what a header promises.

    Raises:
        UnsupportedError: The encoding is another one.
        InvalidArgumentError: The body is empty, damaged, cut short or grows beyond the limit.
    """
    if encoding == "identity":
        return body
    if encoding not in SUPPORTED:
        raise UnsupportedError("Unsupported compression type")
    if not body:
        raise InvalidArgumentError("nothing to be decompressed")
    try:
        return _inflate(body, limit_bytes)
    except zlib.error as error:
        raise InvalidArgumentError(
            f"expected a request body in {encoding} format, got data that does not inflate: {error}"
        ) from None


def _inflate(body: Buffer, limit_bytes: int) -> bytes:
    inflater = zlib.decompressobj(_ANY_WRAPPER)
    parts: list[bytes] = []
    room = limit_bytes
    pending = inflater.decompress(body, min(_STEP_BYTES, room + 1))
    while pending:
        room -= len(pending)
        if room < 0:
            raise InvalidArgumentError(
                f"Decompressed data size exceeds the maximum allowed value of {limit_bytes} bytes. "
                "Use --http-max-input-size to increase the limit."
            )
        parts.append(pending)
        pending = inflater.decompress(inflater.unconsumed_tail, min(_STEP_BYTES, room + 1))
    if not inflater.eof:
        raise zlib.error("the data ends early")
    return b"".join(parts)


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


def compress(buffers: Iterable[Buffer], encoding: str) -> bytes:
    """The buffers, one after the other, in `gzip` or `deflate` format."""
    wrapper = _GZIP_WRAPPER if encoding == "gzip" else zlib.MAX_WBITS
    deflater = zlib.compressobj(wbits=wrapper)
    parts = [deflater.compress(buffer) for buffer in buffers]
    parts.append(deflater.flush())
    return b"".join(parts)
