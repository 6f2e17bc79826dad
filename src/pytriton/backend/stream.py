# SPDX-License-Identifier: Apache-2.0
"""The account of one decoupled batch: its open requests, and how far ahead of them it may run."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pytriton.errors import ErrorCode
from pytriton.transport.frames import (
    RESPONSE_WINDOW,
    RESPONSE_WINDOW_BYTES,
    ResponseItem,
)

if TYPE_CHECKING:
    from pytriton.transport.frames import Execute

# What the span of a request says whose client did not wait for its end.
ABANDONED = "the client went away"


class _Window:
    """What one request's client has been sent and has not taken.

    The second response waits until the first one was taken: a quick generator would otherwise take
    the processor from those who have to carry the first one to its client.
    """

    __slots__ = ("_is_first_taken", "_sizes", "unacknowledged_bytes")

    def __init__(self) -> None:
        self._is_first_taken = False
        self._sizes: deque[int] = deque()
        self.unacknowledged_bytes = 0

    @property
    def is_open(self) -> bool:
        return not self._sizes or (
            self._is_first_taken
            and len(self._sizes) < RESPONSE_WINDOW
            and self.unacknowledged_bytes < RESPONSE_WINDOW_BYTES
        )

    def spend(self, size: int) -> None:
        self._sizes.append(size)
        self.unacknowledged_bytes += size

    def add(self, count: int) -> None:
        self._is_first_taken = True
        for _ in range(min(count, len(self._sizes))):
            self.unacknowledged_bytes -= self._sizes.popleft()


class StreamAccount:
    """A running batch of a decoupled model. Pure: no thread, no socket, no clock."""

    def __init__(self, execute: Execute) -> None:
        self.execute = execute
        self._windows = {position: _Window() for position in range(len(execute.rows))}

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for any of its requests."""
        return not self._windows

    @property
    def may_send(self) -> bool:
        """Whether every client can take another response."""
        return all(window.is_open for window in self._windows.values())

    def cancel(self, position: int) -> ResponseItem | None:
        """Drop a request; what to answer to it, if it was still open."""
        if self._windows.pop(position, None) is None:
            return None
        return ResponseItem(self.execute.batch, position, error="", error_code=ErrorCode.CANCELLED)

    def credit(self, position: int, count: int) -> None:
        """A client took responses."""
        window = self._windows.get(position)
        if window is not None:
            window.add(count)

    def filter(self, items: list[ResponseItem]) -> list[ResponseItem]:
        """The responses that somebody waits for; their credit is spent."""
        kept = []
        for item in items:
            window = self._windows.get(item.position)
            if window is not None:
                window.spend(sum(ref.size for ref in item.outputs or ()))
                kept.append(item)
        return kept

    def finish(self, error: str | None = None, error_code: int = 0) -> list[ResponseItem]:
        """The end of every request that is still open."""
        items = [
            ResponseItem(self.execute.batch, position, None, True, error, error_code)
            for position in self._windows
        ]
        self._windows.clear()
        return items
