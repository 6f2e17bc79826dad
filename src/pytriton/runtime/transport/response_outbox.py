# SPDX-License-Identifier: Apache-2.0
"""Sends the frames of all threads of a process over one channel.

Responses that are ready together are sent together, those that are small and alike as rows. The
delay is short: a helper thread sends the responses that are still there after a millisecond. A
response that cannot be sent becomes an error, and no other response is lost with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pytriton.base.device_copies import CopyMeter
from pytriton.base.errors import ErrorCode, ServerError, sendable_text
from pytriton.base.failure_records import FailureOrigin
from pytriton.runtime.transport.frames import ANSWERS, ResponseItem, ResponsesFrame
from pytriton.runtime.transport.response_rows import HeldRows, make_item

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.runtime.transport.arena import Block
    from pytriton.runtime.transport.channel import Channel, Payload
    from pytriton.runtime.transport.frames import Answer, Frame
    from pytriton.runtime.transport.response_rows import Structure

logger = logging.getLogger(__name__)

MAX_HELD = 32  # responses in one message, if they are ready together
_MAX_HELD_BYTES = 32 << 10  # of rows, which then are inside the message
_HOLD_NS = 1_000_000
_METER_NS = 1_000_000
_IDLE_ROUNDS = 10  # without responses, before the helper thread sleeps


class ProcessorMeter:
    """Writes into answers how much processor time was used since it did so last.

    The system's clock of it takes as long as sending a small answer, so answers that follow one
    another within a millisecond have nothing, and the next one after that has it.

    It counts a whole process, or only the thread that has made it: then answers that another
    thread sends have nothing, either.

    Attributes:
        due_ns: Answers that were finished before need no stamp.
        copies: What was copied between host and GPU, which each answer tells.
    """

    __slots__ = ("_clock", "_last_ns", "_thread", "copies", "due_ns")

    def __init__(self, *, of_thread: bool = False) -> None:
        self._clock = time.thread_time_ns if of_thread else time.process_time_ns
        self._thread = threading.get_ident() if of_thread else 0
        self._last_ns = self._clock()
        self.copies = CopyMeter(self._thread)
        self.due_ns = 0

    def stamp(self, frame: Answer) -> None:
        """Write into an answer what was used, now that it is due."""
        if self._thread and self._thread != threading.get_ident():
            return
        self.due_ns = frame.finished_ns + _METER_NS
        now_ns = self._clock()
        frame.processor_ns = now_ns - self._last_ns
        self._last_ns = now_ns


class ResponseOutbox:
    """The writing end of a channel; its lock also protects the arena, which has no other writer."""

    def __init__(self, channel: Channel, meter: ProcessorMeter | None = None) -> None:
        self.channel = channel
        self._meter = meter or ProcessorMeter()
        self.uses_memory = False  # `trim` has memory to give back, now or later
        self._send_lock = _SendLock(self)
        self._posted: deque[Frame] = deque()
        self._items: list[ResponseItem] = []
        self._payload = channel.payload()  # of the items
        self._rows = HeldRows()
        self._started_ns = 0
        self._held_ns = 0  # when the first of the items was added
        self._added_ns = 0
        self._is_helper_awake = threading.Event()
        self._is_closed = False
        self._helper: threading.Thread | None = None

    def __len__(self) -> int:
        return self._rows.count + len(self._items)

    @property
    def is_full(self) -> bool:
        """Whether as many responses wait as one message should have."""
        rows = self._rows
        return rows.count + len(self._items) >= MAX_HELD or rows.size >= _MAX_HELD_BYTES

    def send(self, make: Callable[[Payload], Frame]) -> None:
        """Send a frame, whose tensors `make` adds to the payload, after all earlier ones.

        Raises:
            OSError: The server has closed the connection.
            Exception: The frame could not be made or encoded, and nothing of it was sent.
        """
        with self._send_lock:
            # Order is kept: what the server hears of a batch last must not overtake its responses.
            if self._posted or len(self):
                self._flush()
            payload = self.channel.payload()
            self._send(make(payload), payload)

    def allocate(self, size: int) -> Block | None:
        """Returns memory for a tensor of a later frame; None if it will be inside its message.

        Raises:
            UnavailableError: The arena is full.
        """
        with self._send_lock:
            arena = self.channel.arena
            if arena is None:
                return None
            self.uses_memory = True
            return arena.allocate(size)

    def post(self, frame: Frame) -> None:
        """Send a frame without tensors. May be called by finalizers, at any point of any thread."""
        # Appending is atomic. A finalizer may run while its own thread holds the lock, so that
        # waiting for the lock here would wait for ever.
        self._posted.append(frame)
        self.send_posted()

    def send_posted(self) -> None:
        """Send posted frames, unless another thread has the lock: it sends them when it unlocks."""
        while self._posted and self._send_lock.lock.acquire(blocking=False):
            try:
                self._flush_posted()
            finally:
                self._send_lock.lock.release()

    def respond(
        self, make: Callable[[Payload], ResponseItem], started_ns: int, *, at_once: bool
    ) -> None:
        """Send a response, at once or together with those that follow within a millisecond."""
        with self._send_lock:
            item = make(self._payload)
            is_due = self._hold_next(started_ns)
            self._items.append(item)
            payload = self._payload
            # A large response gains nothing by company, and its memory is busy while it waits. One
            # that passes on GPU memory that was lent must not be overtaken by the end of the lease.
            is_large = payload.has_views or bool(payload.blocks) or item.device is not None
            is_due = is_due or at_once or is_large or self.is_full
            if is_due or not (self._is_helper_awake.is_set() or self._use_helper()):
                self._flush()

    def respond_small(
        self,
        request: tuple[int, int],
        structure: Structure,
        data: Sequence[bytes],
        size: int,
        started_ns: int,
        *,
        at_once: bool,
    ) -> None:
        """Like `respond`, for a small response that is not the last one; see `HeldRows.add`."""
        with self._send_lock.lock:  # as in `add`
            is_due = self._hold_next(started_ns)
            # Rows are sent before items: what follows an item of its request is an item, too.
            follows_item = self._items and self._has_item(request)
            if follows_item or not self._rows.add(request, structure, data, size):
                self._items.append(make_item(self._payload, *request, structure, data))
            is_due = is_due or at_once or self.is_full
            if is_due or not (self._is_helper_awake.is_set() or self._use_helper()):
                self._flush()
        if self._posted:
            self.send_posted()

    def _hold_next(self, started_ns: int) -> bool:
        """Note the times of a response; returns whether those that wait are due."""
        now_ns = time.monotonic_ns()
        if not self._rows.count and not self._items:
            self._started_ns = started_ns
            # If responses are rare, there are no others to wait for.
            self._held_ns = min(now_ns, self._added_ns + _HOLD_NS)
        self._added_ns = now_ns
        return now_ns - self._held_ns >= _HOLD_NS

    def add(self, make: Callable[[Payload], list[ResponseItem]], started_ns: int) -> None:
        """Hold responses until the next `flush`, or after `hold` for at most a millisecond.

        Large tensors that are not in shared memory are sent at once: the model may change them.
        """
        with self._send_lock.lock:  # the same as `_send_lock`, 0.4 us less for each response
            items = make(self._payload)
            if not len(self):
                self._started_ns = started_ns
                self._held_ns = time.monotonic_ns()
            self._items += items
            if self._payload.has_views:
                self._flush()
        if self._posted:
            self.send_posted()

    def add_small(
        self,
        request: tuple[int, int],
        structure: Structure,
        data: Sequence[bytes],
        size: int,
        started_ns: int,
    ) -> None:
        """Like `add`, for a small response that is not the last one; see `HeldRows.add`."""
        with self._send_lock.lock:
            if not self._rows.count and not self._items:
                self._started_ns = started_ns
                self._held_ns = time.monotonic_ns()
            # Rows are sent before items: what follows an item of its request is an item, too.
            follows_item = self._items and self._has_item(request)
            if follows_item or not self._rows.add(request, structure, data, size):
                self._items.append(make_item(self._payload, *request, structure, data))
        if self._posted:
            self.send_posted()

    def _has_item(self, request: tuple[int, int]) -> bool:
        return any((item.batch, item.position) == request for item in self._items)

    def hold(self) -> None:
        """Leave held responses to a later `flush`; at the latest they go after a millisecond."""
        has_responses = self._rows.count or self._items
        if has_responses and not self._is_helper_awake.is_set() and not self._use_helper():
            self.flush()

    def flush(self) -> None:
        """Send held responses and posted frames."""
        with self._send_lock:
            self._flush()

    def trim(self, idle_seconds: float) -> None:
        """Give back memory that was unused for `idle_seconds`, and tell the server."""
        with self._send_lock:
            self.channel.trim(idle_seconds)
            self.uses_memory = self.channel.reserved_bytes > 0

    def close(self) -> None:
        """End the helper thread; responses that were not sent are lost."""
        self._is_closed = True
        self._is_helper_awake.set()

    def __repr__(self) -> str:
        return f"<ResponseOutbox items={len(self)} posted={len(self._posted)}>"

    def _flush(self) -> None:
        """Send all; raises only OSError, as the caller may not own the responses that fail."""
        self._flush_posted()
        items, payload, rows = self._items, self._payload, self._rows
        if not items and not rows.count:
            return
        times_ns = (self._started_ns, time.monotonic_ns())
        try:
            record = rows.record(payload) if rows.count else None
            self._send(ResponsesFrame(*times_ns, items, rows=record), payload)
        except OSError:
            raise
        except Exception:  # noqa: BLE001  the response that failed is found and logged below
            own = self.channel.payload()
            self._send_one_by_one(rows.items(own), own, times_ns)
            self._send_one_by_one(items, payload, times_ns)
        finally:
            # Also after an error: each was sent, or replaced by an error, or the peer is gone.
            self._items = []
            self._payload = self.channel.payload()
            self._rows = HeldRows()

    def _send_one_by_one(
        self, items: Iterable[ResponseItem], payload: Payload, times_ns: tuple[int, int]
    ) -> None:
        for item in items:
            try:
                self._send(ResponsesFrame(*times_ns, [item]), payload)
            except Exception as error:  # noqa: PERF203  each is tried, even if others failed
                if isinstance(error, OSError):
                    raise
                logger.exception("a response could not be sent, its request gets an error")
                failed = ResponsesFrame(*times_ns, [failed_item(item, error)])
                self._send(failed, self.channel.payload())

    def _send(self, frame: Frame, payload: Payload) -> None:
        if payload.blocks:
            self.uses_memory = True
        if isinstance(frame, ANSWERS):
            meter = self._meter
            if frame.finished_ns >= meter.due_ns:
                meter.stamp(frame)
            frame.copied = meter.copies.take()
        self.channel.send(frame, payload)

    def _flush_posted(self) -> None:
        while self._posted:
            frame = self._posted.popleft()
            try:
                self.channel.send(frame)
            except OSError:
                pass  # the server has ended; the reading thread notices that, too
            except Exception:
                logger.exception("a message could not be sent: %r", type(frame).__name__)

    def _use_helper(self) -> bool:
        """Leave held responses to the helper thread; returns False if it cannot be started."""
        if self._helper is None:
            helper = threading.Thread(target=self._flush_late, name="pytriton-outbox", daemon=True)
            try:
                helper.start()
            except RuntimeError:  # the process may have no more threads
                return False
            self._helper = helper
        self._is_helper_awake.set()
        return True

    def _flush_late(self) -> None:
        idle_rounds = 0
        # It sleeps and looks, instead of being woken for each response, as long as some come.
        while self._is_helper_awake.wait() and not self._is_closed:
            time.sleep(_HOLD_NS / 1e9)
            try:
                with self._send_lock:
                    idle_rounds = 0 if len(self) else idle_rounds + 1
                    if len(self) and time.monotonic_ns() - self._held_ns >= _HOLD_NS:
                        self._flush()
                    if idle_rounds > _IDLE_ROUNDS and not self._is_closed:
                        self._is_helper_awake.clear()
            except OSError:
                return  # as in `_flush_posted`
            except Exception:
                logger.exception("held responses could not be sent")


def failed_item(item: ResponseItem, error: Exception) -> ResponseItem:
    """Returns the error that replaces a response."""
    origin = None
    if isinstance(error, ServerError):
        text, code = sendable_text(error.message), int(error.code)
    else:
        origin = FailureOrigin(type(error).__name__)
        text = sendable_text(f"the response could not be sent: {type(error).__name__}: {error}")
        code = int(ErrorCode.INTERNAL)
    # With its tensors in GPU memory: the server releases them.
    return ResponseItem(
        item.batch,
        item.position,
        None,
        item.is_final,
        text,
        code,
        origin=origin,
        device=item.device,
    )


class _SendLock:
    """Protects the channel. Frames that were posted meanwhile are sent after unlocking."""

    __slots__ = ("_outbox", "lock")

    def __init__(self, outbox: ResponseOutbox) -> None:
        self._outbox = outbox
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        self._outbox.send_posted()
