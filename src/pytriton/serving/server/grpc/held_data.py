# SPDX-License-Identifier: Apache-2.0
"""Received data of a call that cannot process it yet, unparsed and in few buffers.

It is not acknowledged, so the window of the stream limits its size.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer

# Smaller parts are joined, because a client may send each byte in a separate frame.
_JOINED_BYTES = 64 << 10


class HeldData:
    """Data in the order of its arrival, and whether the stream ends after it."""

    __slots__ = ("is_ended", "parts")

    def __init__(self, data: Buffer, *, is_ended: bool) -> None:
        self.parts: deque[Buffer] = deque((data,) if data else ())
        self.is_ended = is_ended

    def add(self, data: Buffer, *, is_ended: bool) -> None:
        self.is_ended = is_ended
        last = self.parts[-1] if self.parts else b""
        if isinstance(last, bytearray) and len(last) < _JOINED_BYTES:
            last += data
        elif data:
            self.parts.append(bytearray(data))

    def extend(self, later: HeldData) -> None:
        """Append data that came later."""
        self.is_ended = later.is_ended
        self.parts += later.parts
