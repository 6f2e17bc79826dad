# SPDX-License-Identifier: Apache-2.0
"""A running batch of a decoupled model: its open requests, and how far ahead of them it may run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.errors import ErrorCode
from pytriton.transport.credit import CreditWindow
from pytriton.transport.frames import ResponseItem

if TYPE_CHECKING:
    from pytriton.transport.frames import Execute

# What the span of a request says whose client did not wait for its end.
ABANDONED = "the client went away"


class StreamBatch:
    """A running batch of a decoupled model. Pure: no thread, no socket, no clock."""

    def __init__(self, execute: Execute) -> None:
        self.execute = execute
        self._windows = {position: CreditWindow() for position in range(len(execute.rows))}

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for any of its requests."""
        return not self._windows

    @property
    def may_send(self) -> bool:
        """Whether every client can take another response."""
        return all(window.is_open_after_first for window in self._windows.values())

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
