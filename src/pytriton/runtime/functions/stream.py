# SPDX-License-Identifier: Apache-2.0
"""A running batch of a decoupled model: its open requests and their flow control."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.errors import ErrorCode
from pytriton.runtime.transport.credit import CreditWindow
from pytriton.runtime.transport.frames import ResponseItem

if TYPE_CHECKING:
    from pytriton.runtime.transport.frames import Execute

# The error in the span of a request whose client disconnected.
ABANDONED = "the client went away"


class StreamBatch:
    """A running batch of a decoupled model, without threads, sockets and clocks."""

    def __init__(self, execute: Execute) -> None:
        self.execute = execute
        self._windows = {position: CreditWindow() for position in range(len(execute.rows))}

    @property
    def is_abandoned(self) -> bool:
        """Whether no client waits for any of its requests."""
        return not self._windows

    @property
    def may_send(self) -> bool:
        """Whether every client has credit for another response."""
        return all(window.is_open_after_first for window in self._windows.values())

    def cancel(self, position: int) -> ResponseItem | None:
        """Cancel a request; returns its response if it was still open."""
        if self._windows.pop(position, None) is None:
            return None
        return ResponseItem(self.execute.batch, position, error="", error_code=ErrorCode.CANCELLED)

    def credit(self, position: int, count: int) -> None:
        """Add credit after a client has read responses."""
        window = self._windows.get(position)
        if window is not None:
            window.add(count)

    def filter(self, items: list[ResponseItem]) -> list[ResponseItem]:
        """Return the responses that a client waits for, and use credit for them."""
        kept = []
        for item in items:
            window = self._windows.get(item.position)
            if window is not None:
                window.spend(sum(ref.size for ref in item.outputs or ()))
                kept.append(item)
        return kept

    def finish(self, error: str | None = None, error_code: int = 0) -> list[ResponseItem]:
        """End all open requests; returns their final responses."""
        items = [
            ResponseItem(self.execute.batch, position, None, True, error, error_code)
            for position in self._windows
        ]
        self._windows.clear()
        return items
