# SPDX-License-Identifier: Apache-2.0
"""Flow control and cancellation of the requests of a batch, as the model's process sees them.

Batches of a `model.py` and of a compiled backend share it; what else they are differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from pytriton.runtime.python_backend.mailbox import Waiter
from pytriton.runtime.transport.credit import CreditWindow

if TYPE_CHECKING:
    from pytriton.runtime.transport.channel import Received
    from pytriton.runtime.transport.frames import Cancel, Credit


class ResponseWindow(CreditWindow, Waiter):
    """The flow control window of one request, for which senders wait."""

    __slots__ = ("_is_cancelled",)

    def __init__(self) -> None:
        super().__init__()
        self._is_cancelled = False

    def is_satisfied(self) -> bool:
        """Returns whether another response may be sent."""
        return self._is_cancelled or self.is_open

    def cancel(self) -> None:
        """Let senders continue: the request was cancelled, so there is no client to wait for."""
        self._is_cancelled = True


class ResponseWindows:
    """The windows of a batch, and which of its requests were cancelled, by their positions."""

    __slots__ = ("_cancelled", "_windows")

    def __init__(self) -> None:
        self._cancelled: set[int] = set()
        self._windows: dict[int, ResponseWindow] = {}

    def cancel(self, position: int) -> Waiter | None:
        """Mark a request as cancelled; returns its window, for which senders may wait."""
        self._cancelled.add(position)
        window = self._windows.get(position)
        if window is not None:
            window.cancel()
        return window

    def credit(self, position: int, count: int) -> Waiter | None:
        """Add credit to a request; returns its window, for which senders may wait."""
        window = self._windows.get(position)
        if window is not None:
            window.add(count)
        return window

    def _window(self, position: int) -> ResponseWindow:
        window = self._windows.get(position)
        if window is None:
            window = self._windows[position] = ResponseWindow()
            if position in self._cancelled:  # checked last: another thread may cancel meanwhile
                window.cancel()
        return window


Batch = TypeVar("Batch", bound=ResponseWindows)


class OpenBatches(Generic[Batch]):
    """The open batches of an instance, by their numbers."""

    def __init__(self) -> None:
        self.open: dict[int, Batch] = {}

    def on_cancel(self, received: Received) -> Waiter | None:
        """Mark a request as cancelled."""
        frame: Cancel = received.frame  # type: ignore[assignment]  # registered for these only
        batch = self.open.get(frame.batch)
        return None if batch is None else batch.cancel(frame.position)

    def on_credit(self, received: Received) -> Waiter | None:
        """Add credit for the responses that a client has consumed."""
        frame: Credit = received.frame  # type: ignore[assignment]  # registered for these only
        batch = self.open.get(frame.batch)
        return None if batch is None else batch.credit(frame.position, frame.count)
