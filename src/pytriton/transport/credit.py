# SPDX-License-Identifier: Apache-2.0
"""How far a decoupled model may run ahead of its clients, and when it hears that they follow.

A model may have sent so many responses, and so many bytes, that its client has not taken. The
server tells it with `Credit` frames what was taken. Pure: no thread, no socket, no clock.
"""

from __future__ import annotations

from collections import deque

# Responses that may be sent to one request before credit comes, and the bytes after which a model
# waits although it has credit left.
RESPONSE_WINDOW = 64
RESPONSE_WINDOW_BYTES = 4 << 20
# After so many responses were taken the model hears that it may send as many more.
GRANT_RESPONSES = RESPONSE_WINDOW // 2
# The window has a size, too: larger responses are granted one by one, or it would never open again.
LARGE_RESPONSE_BYTES = RESPONSE_WINDOW_BYTES // RESPONSE_WINDOW


class CreditWindow:
    """What one request's client was sent and has not taken.

    Two counters for either thing, each with one writer: whoever sends, and whoever reads credit.
    """

    __slots__ = ("_sent", "_sent_bytes", "_sizes", "_taken", "_taken_bytes")

    def __init__(self) -> None:
        self._sent = self._sent_bytes = 0
        self._taken = self._taken_bytes = 0
        self._sizes: deque[int] = deque()

    @property
    def has_sent(self) -> bool:
        """Whether a response went already."""
        return self._sent > 0

    @property
    def is_open(self) -> bool:
        """Whether another response may be sent."""
        return (
            self._sent - self._taken < RESPONSE_WINDOW
            and self._sent_bytes - self._taken_bytes < RESPONSE_WINDOW_BYTES
        )

    @property
    def is_open_after_first(self) -> bool:
        """Like `is_open`, but the second response waits until the first one was taken.

        A quick generator would otherwise take the processor from those who have to carry the first
        one to its client.
        """
        return self._sent == self._taken or (self._taken > 0 and self.is_open)

    def spend(self, size: int) -> None:
        """A response of so many bytes goes."""
        self._sizes.append(size)
        self._sent += 1
        self._sent_bytes += size

    def add(self, count: int) -> None:
        """The client took so many responses."""
        for _ in range(min(count, len(self._sizes))):
            self._taken += 1
            self._taken_bytes += self._sizes.popleft()


def is_grant_due(taken_count: int, size: int) -> bool:
    """Whether to tell the model of `taken_count` responses, the last one of `size` bytes."""
    return taken_count >= GRANT_RESPONSES or size >= LARGE_RESPONSE_BYTES
