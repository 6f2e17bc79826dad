# SPDX-License-Identifier: Apache-2.0
"""Flow control of responses in a process that runs a model: who waits for a client, and what.

Batches of a `model.py` and of a compiled backend share it. A response whose client has no credit
makes its sender wait if that sender serves only this request. Others must not wait: an event loop,
or a thread that sends for several requests. What they send is queued here, and goes out when the
client has taken more.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytriton.base.errors import ErrorCode
from pytriton.runtime.python_backend.mailbox import Waiter
from pytriton.runtime.transport.credit import CreditWindow
from pytriton.runtime.transport.frames import ResponseItem
from pytriton.runtime.transport.response_outbox import failed_item

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.runtime.python_backend.mailbox import LoopReader
    from pytriton.runtime.transport.channel import Received
    from pytriton.runtime.transport.frames import Cancel, Credit, Execute
    from pytriton.runtime.transport.response_outbox import ResponseOutbox

# How many bytes of responses may wait for credit here, for one request and for all of an instance.
# If more is to wait, the request for which most does is ended.
MAX_QUEUED_BYTES = 64 << 20
MAX_QUEUED_BYTES_OF_ALL = 256 << 20
_ENTRY_BYTES = 512  # of memory for each response, beside its tensors
TOO_SLOW = (
    "the request was ended because its client reads too slowly: {bytes} bytes of responses wait"
)


class ResponseWindow(CreditWindow, Waiter):
    """The flow control window of one request, for which senders wait.

    Attributes:
        queue: The responses that wait for credit; None if there are none. Later ones must not
            overtake them.
        sleepers: Locks of the threads that wait until something has changed.
        thread: The thread that sent last.
    """

    __slots__ = ("_batches", "_is_cancelled", "queue", "sleepers", "thread")

    def __init__(self, batches: OpenBatches[Any]) -> None:
        super().__init__()
        self.queue: ResponseQueue | None = None
        self.sleepers: list[threading.Lock] = []
        self.thread = 0
        self._batches = batches
        self._is_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        """Whether there is no client any more."""
        return self._is_cancelled

    def is_satisfied(self) -> bool:
        """Returns whether another response may be sent."""
        return self._is_cancelled or self.is_open

    def cancel(self) -> None:
        """Let senders continue: the request was cancelled, so there is no client to wait for."""
        self._is_cancelled = True

    def on_delivered(self) -> None:
        """Send what waits, and let sleeping senders look again."""
        if self.queue is not None or self.sleepers:
            self._batches.proceed(self)


@dataclasses.dataclass(slots=True)
class QueuedResponse:
    """A response that waits; nothing that the model changes later changes it.

    Attributes:
        send: Sends it.
        give_up: Tells that its tensors were not sent, if that matters to anybody.
        size: Of its tensors, in bytes.
        is_final: Whether it is the last one.
        is_end: Whether it has no tensors, so that it needs no credit.
    """

    send: Callable[[], None]
    give_up: Callable[[], None] | None
    size: int
    is_final: bool
    is_end: bool = False

    def drop(self) -> None:
        """Forget it instead of sending it."""
        if self.give_up is not None:
            self.give_up()


class ResponseQueue:
    """The responses to one request that wait for credit.

    Attributes:
        is_dead: The request was ended because too much waited: all later responses are dropped.
    """

    __slots__ = ("entries", "is_dead", "position", "run", "size")

    def __init__(self, run: ResponseWindows, position: int) -> None:
        self.run = run
        self.position = position
        self.entries: deque[QueuedResponse] = deque()
        self.size = 0
        self.is_dead = False


class _Turn(enum.Enum):
    """What a sender without credit has to do."""

    SEND = enum.auto()  # there is credit by now
    READ = enum.auto()  # wait for credit, and read messages meanwhile
    SLEEP = enum.auto()  # wait until something has changed
    QUEUE = enum.auto()
    DROP = enum.auto()  # the request was ended
    END = enum.auto()  # end the request for which most waits


class _Others(enum.Enum):
    """Whether a thread serves other requests than the one for which it sends."""

    NONE = enum.auto()
    PERHAPS = enum.auto()  # there is a request that nobody has answered yet
    SOME = enum.auto()


class ResponseWindows:
    """The windows of a batch, and which of its requests were cancelled, by their positions.

    Attributes:
        execute: The message with the batch.
        is_returned: Whether the server was notified that the model's function returned.
        started_ns: When the batch came.
    """

    __slots__ = ("_cancelled", "_windows", "execute", "is_returned", "started_ns")

    def __init__(self, execute: Execute, started_ns: int) -> None:
        self.execute = execute
        self.started_ns = started_ns
        self.is_returned = False
        self._cancelled: set[int] = set()
        self._windows: dict[int, ResponseWindow] = {}

    @property
    def batches(self) -> OpenBatches[Any]:
        """The batches of the instance."""
        raise NotImplementedError

    @property
    def is_over(self) -> bool:
        """Whether the model has answered all requests."""
        raise NotImplementedError

    def is_open(self, position: int) -> bool:
        """Returns whether the model has not sent the final response to a request."""
        raise NotImplementedError

    def mark_closed(self, position: int) -> None:
        """Note that a request gets no more responses of the model."""
        raise NotImplementedError

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
            window = self._windows[position] = ResponseWindow(self.batches)
            if position in self._cancelled:  # checked last: another thread may cancel meanwhile
                window.cancel()
        return window

    def leave(self) -> None:
        """Forget the batch once all is answered and sent."""
        if self.is_over and not (self._windows and self._has_waiting()):
            self.batches.open.pop(self.execute.batch, None)

    def _has_waiting(self) -> bool:
        queues = [window.queue for window in list(self._windows.values())]
        return any(queue is not None and not queue.is_dead for queue in queues)

    def hold(
        self,
        position: int,
        window: ResponseWindow,
        make: Callable[[], QueuedResponse],
        *,
        is_end: bool = False,
    ) -> bool:
        """Return once a response may be sent, or was queued; returns whether it was.

        Args:
            position: The request.
            window: Its window, which is closed, or for which responses wait.
            make: Returns what is queued: a copy, or what owns the memory.
            is_end: Whether the response has no tensors, and so needs no credit.

        Raises:
            EOFError: The server has ended.
        """
        batches = self.batches
        if window.queue is None:
            batches.outbox.flush()  # so that the client gets what was sent before
        batches.mailbox.read_available()  # credit may have come, and this thread may never wait
        entry: QueuedResponse | None = None
        while True:
            with batches.lock:
                turn = self._turn(position, window, is_end=is_end)
                if turn is _Turn.QUEUE and entry is not None:
                    batches.add(self, position, window, entry)
                    return True
                wakeup = batches.add_sleeper(window) if turn is _Turn.SLEEP else None
            if turn is _Turn.SEND:
                return False
            if turn is _Turn.DROP:
                (entry or make()).drop()
                return True
            if turn is _Turn.QUEUE:
                entry = make()  # without the lock: it may take a while
            elif wakeup is not None:
                wakeup.acquire()
            elif turn is _Turn.READ:
                batches.mailbox.wait(window)
            else:
                batches.end_largest(window)

    def _turn(self, position: int, window: ResponseWindow, *, is_end: bool) -> _Turn:
        """Returns what the sender of a response has to do; the caller has the lock."""
        queue = window.queue
        if queue is None and (is_end or window.is_satisfied()):
            return _Turn.SEND
        if queue is not None and queue.is_dead:
            return _Turn.DROP
        return _Turn.QUEUE if is_end else self._turn_without_credit(position, queue)

    def _turn_without_credit(self, position: int, queue: ResponseQueue | None) -> _Turn:
        batches = self.batches
        if batches.mailbox.is_over:
            raise EOFError
        has_room = batches.has_room_for(queue)
        if not self.is_returned and threading.get_ident() == batches.model_thread:
            # Other batches do not come before this one has returned: only requests of its own are
            # delayed if it waits, as it may after all.
            count = len(self.execute.rows)
            if has_room and count > 1 and sum(map(self.is_open, range(count))) > 1:
                return _Turn.QUEUE
            return _Turn.READ if queue is None else _Turn.SLEEP
        others = _Others.SOME if _is_event_loop() else batches.others(self, position)
        if has_room and others is not _Others.NONE:
            return _Turn.QUEUE
        return _Turn.END if others is _Others.SOME else _Turn.SLEEP

    def sends_for(self, thread: int, except_position: int) -> _Others:
        """Returns whether a thread serves requests of this batch, other than the one given."""
        found = _Others.NONE
        for position in range(len(self.execute.rows)):
            if position == except_position or not self.is_open(position):
                continue
            window = self._windows.get(position)
            if window is None:
                found = _Others.PERHAPS
            elif window.thread == thread:
                return _Others.SOME
        return found

    def fail_queued(self, failed: Callable[[int], ResponseItem]) -> bool:
        """End open requests whose responses wait with an error behind these.

        Returns whether there are requests for which responses wait, or that were ended: no message
        may then fail the whole batch.
        """
        has_queued = False
        batches = self.batches
        for position, window in list(self._windows.items()):
            with batches.lock:
                queue = window.queue
                if queue is None:
                    continue
                has_queued = True
                if not self.is_open(position):
                    continue
                self.mark_closed(position)
                if not queue.is_dead:
                    send = functools.partial(batches.send_item, self, failed(position))
                    batches.add(self, position, window, QueuedResponse(send, None, 0, True, True))
        return has_queued


Batch = TypeVar("Batch", bound=ResponseWindows)


def _is_event_loop() -> bool:
    """Returns whether this thread runs coroutines: if it waited, all of them would."""
    loops = sys.modules.get("asyncio.events")
    return loops is not None and loops._get_running_loop() is not None  # noqa: SLF001  documented


class OpenBatches(Generic[Batch]):
    """The open batches of an instance, by their numbers, and what waits for their clients.

    Args:
        outbox: Sends responses.
        reader: Reads messages while nobody else does.

    Attributes:
        lock: Protects what waits. Nobody reads messages or waits while holding it.
        model_thread: The thread that calls the model with batches.
        waiting: The windows for which threads sleep.
    """

    def __init__(self, outbox: ResponseOutbox, reader: LoopReader) -> None:
        self.open: dict[int, Batch] = {}
        self.outbox = outbox
        self.mailbox = reader.mailbox
        self.lock = threading.Lock()
        self.model_thread = threading.get_ident()
        self.waiting: dict[ResponseWindow, None] = {}
        self._reader = reader
        self._queued_bytes = 0
        self._queues: dict[ResponseQueue, ResponseWindow] = {}

    def begin(self, batch: Batch) -> None:
        """Add a batch."""
        self.open[batch.execute.batch] = batch
        if self.waiting:
            # A sender may be what has to answer this one, so it must not sleep any more.
            with self.lock:
                for window in list(self.waiting):
                    self._wake(window)

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

    def has_room_for(self, queue: ResponseQueue | None) -> bool:
        """Returns whether another response may wait; the last one may exceed the bounds."""
        if queue is not None and queue.size >= MAX_QUEUED_BYTES:
            return False
        return self._queued_bytes < MAX_QUEUED_BYTES_OF_ALL

    def others(self, run: ResponseWindows, position: int) -> _Others:
        """Returns whether this thread serves other requests than the one given."""
        thread = threading.get_ident()
        found = _Others.NONE
        for batch in list(self.open.values()):
            each = batch.sends_for(thread, position if batch is run else -1)
            if each is _Others.SOME:
                return each
            if each is _Others.PERHAPS:
                found = each
        # The batch that the model's thread is about to take may be for this thread, too.
        return _Others.PERHAPS if self.mailbox.jobs.messages else found

    def add(
        self, run: ResponseWindows, position: int, window: ResponseWindow, entry: QueuedResponse
    ) -> None:
        """Queue a response. The caller has the lock."""
        queue = window.queue
        if queue is None:
            queue = ResponseQueue(run, position)
            self._queues[queue] = window
            window.queue = queue
            self._reader.add(window)
        queue.entries.append(entry)
        self._count(queue, entry.size + _ENTRY_BYTES)

    def add_sleeper(self, window: ResponseWindow) -> threading.Lock:
        """Returns a lock that is released when something has changed. The caller has the lock."""
        wakeup = threading.Lock()
        wakeup.acquire()
        window.sleepers.append(wakeup)
        self.waiting[window] = None
        self._reader.add(window)
        if self.mailbox.is_over:  # asked last: else the reader wakes it
            self._wake(window)
        return wakeup

    def proceed(self, window: ResponseWindow) -> None:
        """Send what waits for a window, as far as that may be, and wake its sleepers.

        Raises:
            OSError: The server has ended.
        """
        with self.lock:
            queue = window.queue
            if queue is not None and self.mailbox.is_over:
                self._drop(queue)
            elif queue is not None and not queue.is_dead:
                self._send_waiting(window, queue)
            self._wake(window)

    def send_item(self, run: ResponseWindows, item: ResponseItem) -> None:
        """Send a response without tensors."""
        self.outbox.respond(lambda _: item, run.started_ns, at_once=item.is_final)

    def end_largest(self, window: ResponseWindow) -> None:
        """End a request for which too much waits: this one, or that for which most does."""
        with self.lock:
            queue = window.queue
            if queue is None or queue.size < MAX_QUEUED_BYTES:
                if self._queued_bytes < MAX_QUEUED_BYTES_OF_ALL:
                    return  # it was sent meanwhile
                queue = max(self._queues, key=lambda each: each.size)
                window = self._queues[queue]
            run, position = queue.run, queue.position
            text = TOO_SLOW.format(bytes=queue.size)
            self._drop(queue)
            queue.is_dead = True
            run.cancel(position)
            self._wake(window)
            code = int(ErrorCode.UNAVAILABLE)
            item = ResponseItem(run.execute.batch, position, None, True, text, code)
            self.send_item(run, item)
            run.leave()

    def _send_waiting(self, window: ResponseWindow, queue: ResponseQueue) -> None:
        entries = queue.entries
        has_sent = False
        while entries and (entries[0].is_end or window.is_satisfied()):
            entry = entries[0]
            if not window.is_cancelled or entry.is_final:
                self._send(queue, entry)
                has_sent = True
            else:
                entry.drop()
            entries.popleft()  # not before: a sender that finds nothing here sends at once
            self._count(queue, -entry.size - _ENTRY_BYTES)
        if not entries:
            window.queue = None
            del self._queues[queue]
            queue.run.leave()
        if has_sent:
            self.outbox.flush()

    def _send(self, queue: ResponseQueue, entry: QueuedResponse) -> None:
        try:
            entry.send()
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001  the model is not there to get it
            item = ResponseItem(queue.run.execute.batch, queue.position, None, entry.is_final)
            self.send_item(queue.run, failed_item(item, error))

    def _drop(self, queue: ResponseQueue) -> None:
        for entry in queue.entries:
            entry.drop()
        queue.entries.clear()
        self._count(queue, -queue.size)
        self._queues.pop(queue, None)

    def _count(self, queue: ResponseQueue, size: int) -> None:
        queue.size += size
        self._queued_bytes += size

    def _wake(self, window: ResponseWindow) -> None:
        sleepers, window.sleepers = window.sleepers, []
        for wakeup in sleepers:
            wakeup.release()
        self.waiting.pop(window, None)
        if window.queue is None or window.queue.is_dead:
            self._reader.remove(window)
