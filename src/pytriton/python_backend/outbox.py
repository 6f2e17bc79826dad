# SPDX-License-Identifier: Apache-2.0
"""Writes a channel for all threads of a process.

Responses that are ready together travel together, which halves what each one costs. None waits for
long: a helper thread sends what is still there after a millisecond.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytriton.transport.frames import Responses

if TYPE_CHECKING:
    from pytriton.transport.channel import Channel, Payload
    from pytriton.transport.frames import Frame, ResponseItem

MAX_HELD = 16
_HOLD_NS = 1_000_000
_IDLE_ROUNDS = 10  # of the helper, before it goes to sleep


class Outbox:
    """The writing end of a channel; its lock also guards the arena, which has no other writer."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.uses_memory = False  # there is something for `trim` to give back, now or later
        self._turn = _Turn(self)
        self._posted: deque[Frame] = deque()
        self._items: list[ResponseItem] = []
        self._payload = channel.payload()  # of the items
        self._started_ns = 0
        self._held_ns = 0  # since when the items wait
        self._added_ns = 0
        self._is_used = threading.Event()
        self._is_closed = False
        self._helper: threading.Thread | None = None

    def send(self, make: Callable[[Payload], Frame]) -> None:
        """Send a frame whose tensors `make` puts into the payload, after all that came before."""
        with self._turn:
            if self._items or self._posted:
                self._flush()
            payload = self.channel.payload()
            self._send(make(payload), payload)

    def post(self, frame: Frame) -> None:
        """Send a frame without tensors. Finalizers may do that, wherever they interrupt."""
        self._posted.append(frame)
        self.send_posted()

    def send_posted(self) -> None:
        """Send what was posted, unless somebody else has a turn and will do it at its end."""
        while self._posted and self._turn.lock.acquire(blocking=False):
            try:
                # Without a server nothing is sent, which whoever reads hears, too.
                with contextlib.suppress(OSError):
                    self._flush_posted()
            finally:
                self._turn.lock.release()

    def respond(
        self, make: Callable[[Payload], ResponseItem], started_ns: int, *, at_once: bool
    ) -> None:
        """Send a response, at once or together with those that follow within a millisecond."""
        with self._turn:
            item = make(self._payload)
            now_ns = time.monotonic_ns()
            if not self._items:
                self._started_ns = started_ns
                # Responses that come slowly have nothing to wait for.
                self._held_ns = min(now_ns, self._added_ns + _HOLD_NS)
            self._items.append(item)
            is_due = now_ns - self._held_ns >= _HOLD_NS
            self._added_ns = now_ns
            if at_once or is_due or len(self._items) >= MAX_HELD or self._payload.blocks:
                self._flush()
            elif not self._is_used.is_set():
                self._use_helper()

    def flush(self) -> None:
        """Send what is held."""
        with self._turn:
            self._flush()

    def trim(self, idle_seconds: float) -> None:
        """Give memory that was unused for so long back to the system, and tell the server so."""
        with self._turn:
            arena = self.channel.arena
            self.channel.forget_segments(arena.trim(idle_seconds=idle_seconds))
            self.channel.send_notes()
            self.uses_memory = arena.reserved_bytes > 0

    def close(self) -> None:
        """End the helper; what was not sent is lost."""
        self._is_closed = True
        self._is_used.set()

    def _flush(self) -> None:
        self._flush_posted()
        if self._items:
            frame = Responses(self._started_ns, time.monotonic_ns(), self._items)
            payload, self._payload = self._payload, self.channel.payload()
            self._items = []
            self._send(frame, payload)

    def _send(self, frame: Frame, payload: Payload) -> None:
        if payload.blocks:
            self.uses_memory = True
        self.channel.send(frame, payload)

    def _flush_posted(self) -> None:
        while self._posted:
            self.channel.send(self._posted.popleft())

    def _use_helper(self) -> None:
        self._is_used.set()
        if self._helper is None:
            self._helper = threading.Thread(
                target=self._flush_late, name="pytriton-outbox", daemon=True
            )
            self._helper.start()

    def _flush_late(self) -> None:
        idle_rounds = 0
        while self._is_used.wait() and not self._is_closed:
            time.sleep(_HOLD_NS / 1e9)
            with self._turn, contextlib.suppress(OSError):  # as in `send_posted`
                idle_rounds = 0 if self._items else idle_rounds + 1
                if time.monotonic_ns() - self._held_ns >= _HOLD_NS:
                    self._flush()
                if idle_rounds > _IDLE_ROUNDS and not self._is_closed:
                    self._is_used.clear()

    def __repr__(self) -> str:
        return f"<Outbox items={len(self._items)} posted={len(self._posted)}>"


class _Turn:
    """The right to use the channel. What was posted meanwhile is sent at its end."""

    __slots__ = ("_outbox", "lock")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        self._outbox.send_posted()
