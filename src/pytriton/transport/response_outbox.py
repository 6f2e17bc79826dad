# SPDX-License-Identifier: Apache-2.0
"""Writes a channel for all threads of a process.

Responses that are ready together travel together, which halves what each one costs. None waits for
long: a helper thread sends what is still there after a millisecond. Whatever a model hands over,
nobody else's response is lost: one that cannot be sent becomes an error of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytriton.errors import ErrorCode, sendable_text
from pytriton.transport.frames import ResponseItem, Responses

if TYPE_CHECKING:
    from pytriton.transport.channel import Channel, Payload
    from pytriton.transport.frames import Frame

logger = logging.getLogger(__name__)

MAX_HELD = 16
_HOLD_NS = 1_000_000
_IDLE_ROUNDS = 10  # of the helper, before it goes to sleep


class ResponseOutbox:
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

    def __len__(self) -> int:
        return len(self._items)

    def send(self, make: Callable[[Payload], Frame]) -> None:
        """Send a frame whose tensors `make` puts into the payload, after all that came before.

        Raises:
            OSError: the server is gone.
            Exception: the frame could not be made or encoded, and nothing of it was sent.
        """
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

    def add(self, make: Callable[[Payload], list[ResponseItem]], started_ns: int) -> None:
        """Keep responses until the next `flush`, or the next millisecond after a `hold`."""
        with self._turn:
            items = make(self._payload)
            if not self._items:
                self._started_ns = started_ns
                self._held_ns = time.monotonic_ns()
            self._items += items

    def hold(self) -> None:
        """Leave what is there for a later `flush`; after a millisecond it goes without one."""
        if self._items and not self._is_used.is_set():
            self._use_helper()

    def flush(self) -> None:
        """Send what is held."""
        with self._turn:
            self._flush()

    def trim(self, idle_seconds: float) -> None:
        """Give memory that was unused for so long back to the system, and tell the server so."""
        with self._turn:
            self.channel.trim(idle_seconds)
            self.uses_memory = self.channel.reserved_bytes > 0

    def close(self) -> None:
        """End the helper; what was not sent is lost."""
        self._is_closed = True
        self._is_used.set()

    def __repr__(self) -> str:
        return f"<ResponseOutbox items={len(self._items)} posted={len(self._posted)}>"

    def _flush(self) -> None:
        """Send what waits; only OSError gets out of here, as the caller may wait for others."""
        self._flush_posted()
        if not self._items:
            return
        items, payload = self._items, self._payload
        times_ns = (self._started_ns, time.monotonic_ns())
        try:
            self._send(Responses(*times_ns, items), payload)
        except OSError:
            raise
        except Exception:  # noqa: BLE001  which of them it was is found out and logged below
            self._send_one_by_one(items, payload, times_ns)
        finally:
            self._items = []
            self._payload = self.channel.payload()

    def _send_one_by_one(
        self, items: list[ResponseItem], payload: Payload, times_ns: tuple[int, int]
    ) -> None:
        for item in items:
            try:
                self._send(Responses(*times_ns, [item]), payload)
            except Exception as error:  # noqa: PERF203  each is tried, whatever befell the others
                if isinstance(error, OSError):
                    raise
                logger.exception("a response could not be sent, its request gets an error")
                failed = Responses(*times_ns, [_failed(item, error)])
                self._send(failed, self.channel.payload())

    def _send(self, frame: Frame, payload: Payload) -> None:
        if payload.blocks:
            self.uses_memory = True
        self.channel.send(frame, payload)

    def _flush_posted(self) -> None:
        while self._posted:
            frame = self._posted.popleft()
            try:
                self.channel.send(frame)
            except OSError:
                pass  # without a server nothing is sent, which whoever reads hears, too
            except Exception:
                logger.exception("a message could not be sent: %r", type(frame).__name__)

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
            try:
                with self._turn:
                    idle_rounds = 0 if self._items else idle_rounds + 1
                    if self._items and time.monotonic_ns() - self._held_ns >= _HOLD_NS:
                        self._flush()
                    if idle_rounds > _IDLE_ROUNDS and not self._is_closed:
                        self._is_used.clear()
            except OSError:
                return  # as in `_flush_posted`
            except Exception:
                logger.exception("held responses could not be sent")


def _failed(item: ResponseItem, error: Exception) -> ResponseItem:
    """The error that takes a response's place."""
    text = sendable_text(f"the response could not be sent: {type(error).__name__}: {error}")
    code = int(ErrorCode.INTERNAL)
    return ResponseItem(item.batch, item.position, None, item.is_final, text, code)


class _Turn:
    """The right to use the channel. What was posted meanwhile is sent at its end."""

    __slots__ = ("_outbox", "lock")

    def __init__(self, outbox: ResponseOutbox) -> None:
        self._outbox = outbox
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        self._outbox.send_posted()
