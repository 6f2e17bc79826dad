# SPDX-License-Identifier: Apache-2.0
"""Recognises whole answers of ModelInfer that differ from one before in stream and data only.

To compare the rest takes 0.7 us; to read the three frames one after the other takes 2.5 us.
"""

from __future__ import annotations

from pytriton.protocol.http2 import frames

_HEAD = frames.HEADER_BYTES
_FIXED = 5  # the bytes of a frame's head before its stream: length, type, flags


class RepeatedAnswer:
    """The frames of an answer: headers, one message, and trailers.

    Attributes:
        size: The bytes of the whole answer.
        data_bytes: The bytes of its DATA frame's content.
        trailers: The header block of its trailers.
    """

    __slots__ = (
        "_data_at",
        "_data_end",
        "_first",
        "_headers",
        "_last",
        "data_bytes",
        "size",
        "trailers",
    )

    def __init__(self, answer: bytes, headers_end: int, data_end: int) -> None:
        self.size = len(answer)
        self.data_bytes = data_end - headers_end - _HEAD
        self._data_at = headers_end
        self._first = answer[:_FIXED]
        self._headers = answer[_HEAD : headers_end + _FIXED]  # and how the DATA frame begins
        self._data_end = data_end
        self._last = answer[data_end : data_end + _FIXED]
        self.trailers = answer[data_end + _HEAD :]

    def stream(self, data: bytes, at: int) -> int:
        """The stream of such an answer at an offset; 0 if there is another thing."""
        data_end = at + self._data_end
        stream = data[at + _FIXED : at + _HEAD]
        if (
            data.startswith(self._first, at)
            and data.startswith(self._headers, at + _HEAD)
            and data.startswith(self._last, data_end)
            and data.startswith(self.trailers, data_end + _HEAD)
            and data.startswith(stream, data_end + _FIXED)
            and data.startswith(stream, at + self._data_at + _FIXED)
        ):
            return int.from_bytes(stream, "big")
        return 0


def repeated_answer(data: bytes) -> RepeatedAnswer | None:
    """The pattern of what was received, if that is one whole answer in three frames."""
    kinds: list[tuple[int, int]] = []
    streams: set[int] = set()
    ends = [0]
    while len(data) - ends[-1] >= _HEAD and len(kinds) < 4:
        word, flags, stream = frames.unpack_header(data, ends[-1])
        kinds.append((word & 0xFF, flags))
        streams.add(stream)
        ends.append(ends[-1] + _HEAD + (word >> 8))
    is_usual = kinds == [
        (frames.HEADERS, frames.END_HEADERS),
        (frames.DATA, 0),
        (frames.HEADERS, frames.END_HEADERS | frames.END_STREAM),
    ]
    if not is_usual or len(streams) > 1 or ends[-1] != len(data):
        return None
    return RepeatedAnswer(data, ends[1], ends[2])
