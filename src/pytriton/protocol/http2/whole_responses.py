# SPDX-License-Identifier: Apache-2.0
"""Frames of small responses that differ only in their stream and in their data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.protocol.http2 import frames

if TYPE_CHECKING:
    from collections.abc import Iterable

_ID_BYTES = 4


class ResponseFrames:
    """HEADERS, one DATA frame and trailers; each block fits into one frame of any client."""

    __slots__ = ("_after_data", "_before_data", "_before_head", "_trailers", "data_bytes")

    def __init__(self, head: bytes, data_bytes: int, trailers: bytes) -> None:
        self.data_bytes = data_bytes
        self._before_head = _start(frames.HEADERS, frames.END_HEADERS, len(head))
        self._before_data = head + _start(frames.DATA, 0, data_bytes)
        flags = frames.END_HEADERS | frames.END_STREAM
        self._after_data = _start(frames.HEADERS, flags, len(trailers))
        self._trailers = trailers

    def join(self, stream_id: int, data: Iterable[bytes]) -> bytes:
        """Returns the frames of a response with this data."""
        encoded_id = stream_id.to_bytes(_ID_BYTES, "big")
        return b"".join(
            (
                self._before_head,
                encoded_id,
                self._before_data,
                encoded_id,
                *data,
                self._after_data,
                encoded_id,
                self._trailers,
            )
        )


def _start(kind: int, flags: int, length: int) -> bytes:
    """Returns a frame header without the stream id at its end."""
    return frames.pack_header(length << 8 | kind, flags, 0)[:-_ID_BYTES]
