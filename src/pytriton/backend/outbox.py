# SPDX-License-Identifier: Apache-2.0
"""Responses on their way to the server: those that are ready together travel together.

A generator that yields quickly fills a message with several responses, which halves what each one
costs. None waits for long: a helper thread sends what is still there after a millisecond, even if
the generator's next step takes seconds.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from pytriton.transport.frames import Responses

if TYPE_CHECKING:
    from pytriton.transport.channel import Channel
    from pytriton.transport.frames import ResponseItem

HOLD_S = 0.001
MAX_HELD = 16
_IDLE_ROUNDS = 10  # of the helper, before it goes to sleep


class Outbox:
    """Collects response items for one channel. `lock` guards `payload` and `add`."""

    def __init__(self, channel: Channel) -> None:
        self.lock = threading.Lock()
        self.payload = channel.payload()  # where tensors of items to be added go
        self._channel = channel
        self._items: list[ResponseItem] = []
        self._started_ns = 0
        self._held_since = 0.0
        self._is_used = threading.Event()
        self._is_closed = False
        self._helper: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._items)

    def add(self, items: list[ResponseItem], started_ns: int) -> None:
        """Add items whose tensors are in `payload`; with the lock held."""
        if not self._items:
            self._started_ns = started_ns
            self._held_since = time.monotonic()
        self._items += items

    def flush(self) -> None:
        """Send everything now."""
        with self.lock:
            self._send()

    def hold(self) -> None:
        """Leave what is there for a later `flush`; after a millisecond it goes without one."""
        if self._items and not self._is_used.is_set():
            self._is_used.set()
            if self._helper is None:
                self._helper = threading.Thread(
                    target=self._flush_late, name="pytriton-outbox", daemon=True
                )
                self._helper.start()

    def close(self) -> None:
        """End the helper; what was not sent is lost."""
        self._is_closed = True
        self._is_used.set()

    def _send(self) -> None:
        if self._items:
            frame = Responses(self._started_ns, time.monotonic_ns(), self._items)
            payload, self.payload = self.payload, self._channel.payload()
            self._items = []
            self._channel.send(frame, payload)

    def _flush_late(self) -> None:
        idle_rounds = 0
        while self._is_used.wait() and not self._is_closed:
            time.sleep(HOLD_S)
            with self.lock:
                idle_rounds = 0 if self._items else idle_rounds + 1
                if self._items and time.monotonic() - self._held_since >= HOLD_S:
                    try:
                        self._send()
                    except OSError:
                        return  # the server is gone, which the instance's thread reads, too
                if idle_rounds > _IDLE_ROUNDS and not self._is_closed:
                    self._is_used.clear()
