# SPDX-License-Identifier: Apache-2.0
"""What a client has sent on a call that cannot take it yet: bytes as they came, in few buffers.

They are not acknowledged, so the window of the call bounds them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.dtypes import Buffer

# Smaller parts are put together: each byte may come in a frame of its own.
_JOINED_BYTES = 64 << 10


class HeldData:
    """Data in the order in which it came, and whether it is all."""

    __slots__ = ("is_ended", "parts")

    def __init__(self, data: Buffer, *, is_ended: bool) -> None:
        self.parts: deque[Buffer] = deque((data,) if data else ())
        self.is_ended = is_ended

    def add(self, data: Buffer, *, is_ended: bool) -> None:
        """Take more data."""
        self.is_ended = is_ended
        last = self.parts[-1] if self.parts else b""
        if isinstance(last, bytearray) and len(last) < _JOINED_BYTES:
            last += data
        elif data:
            self.parts.append(bytearray(data))

    def extend(self, later: HeldData) -> None:
        """Take what came after this."""
        self.is_ended = later.is_ended
        self.parts += later.parts
