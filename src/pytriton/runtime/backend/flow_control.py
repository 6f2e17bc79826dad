# SPDX-License-Identifier: Apache-2.0
"""Flow control of responses in a process that runs a model: who waits for a client, and what.

A response whose client has no credit
makes its sender wait if that sender serves only this request. Others must not wait: an event loop,
or a thread that sends for several requests. What they send is queued here, and goes out when the
client has taken more.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pytriton.base.errors import ErrorCode
from pytriton.runtime.backend.batch import WorkerBatch
from pytriton.runtime.backend.windows import Others, ResponseQueue
from pytriton.runtime.transport.frames import ResponseItem
from pytriton.runtime.transport.response_outbox import failed_item

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.runtime.backend.batch import BatchReplies, Description
    from pytriton.runtime.backend.mailbox import LoopReader, Mailbox, Waiter
    from pytriton.runtime.backend.windows import QueuedResponse, ResponseWindow
    from pytriton.runtime.transport.channel import Received
    from pytriton.runtime.transport.frames import Cancel, Credit
    from pytriton.runtime.transport.response_outbox import ResponseOutbox as Outbox

# How many bytes of responses may wait for credit here, for one request and for all of an instance.
# If more is to wait, the request for which most does is ended.
MAX_QUEUED_BYTES = 64 << 20
MAX_QUEUED_BYTES_OF_ALL = 256 << 20
_ENTRY_BYTES = 512  # of memory for each response, beside its tensors
TOO_SLOW = (
    "the request was ended because its client reads too slowly: {bytes} bytes of responses wait"
)


class OpenBatches:
    """The open batches of an instance, by their numbers, and what waits for their clients.

    Args:
        outbox: Sends responses.
        reader: Reads messages while nobody else does; None for functions, which wait for credit
            without it.
        output_names: All outputs of the model.
        is_decoupled: Whether it sends any number of responses to a request.
        is_batching: Whether its inputs have a batch dimension, along which they are cut.

    Attributes:
        replies: How its responses become messages; the backend sets it when it is loaded.
        describe: Returns what clients get of an error that fails a batch; set likewise.
        is_model_process: False in processes that the model forked: only their parent may respond.
        lock: Protects what waits. Nobody reads messages or waits while holding it.
        model_thread: The thread that calls the model with batches.
        waiting: The windows for which threads sleep.
    """

    replies: BatchReplies
    describe: Callable[[WorkerBatch, BaseException], Description]
    mailbox: Mailbox
    _reader: LoopReader

    def __init__(
        self,
        outbox: Outbox,
        reader: LoopReader | None,
        output_names: Sequence[str],
        *,
        is_decoupled: bool,
        is_batching: bool,
    ) -> None:
        self.open: dict[int, WorkerBatch] = {}
        self.outbox = outbox
        self.output_names = output_names
        self.is_decoupled = is_decoupled
        self.is_batching = is_batching
        self.is_model_process = True
        self.lock = threading.Lock()
        self.model_thread = threading.get_ident()
        self.waiting: dict[ResponseWindow, None] = {}
        if reader is not None:
            self.mailbox, self._reader = reader.mailbox, reader
        self._queued_bytes = 0
        self._queues: dict[ResponseQueue, ResponseWindow] = {}

    def on_fork(self) -> None:
        """Mark this as a process that the model forked."""
        self.is_model_process = False

    def begin(self, received: Received) -> WorkerBatch:
        """Returns the batch of a message, which is open from now on."""
        made = WorkerBatch(self, received)
        self.open[made.execute.batch] = made
        if self.waiting:
            # A sender may be what has to answer this one, so it must not sleep any more.
            with self.lock:
                for window in list(self.waiting):
                    self._wake(window)
        return made

    def cancel_all(self) -> None:
        """Let senders that wait for clients continue, because the instance ends."""
        for each in list(self.open.values()):
            for position in range(len(each.execute.rows)):
                window = each.cancel(position)
                if window is not None:
                    window.on_delivered()

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

    def others(self, run: WorkerBatch, position: int) -> Others:
        """Returns whether this thread serves other requests than the one given."""
        thread = threading.get_ident()
        found = Others.NONE
        for batch in list(self.open.values()):
            each = batch.sends_for(thread, position if batch is run else -1)
            if each is Others.SOME:
                return each
            if each is Others.PERHAPS:
                found = each
        # The batch that the model's thread is about to take may be for this thread, too.
        return Others.PERHAPS if self.mailbox.jobs.messages else found

    def add(
        self, run: WorkerBatch, position: int, window: ResponseWindow, entry: QueuedResponse
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
        if window.is_satisfied():  # asked last, as in `add_sleeper`
            self._proceed(window)

    def add_sleeper(self, window: ResponseWindow) -> threading.Lock:
        """Returns a lock that is released when something has changed. The caller has the lock."""
        wakeup = threading.Lock()
        wakeup.acquire()
        window.sleepers.append(wakeup)
        self.waiting[window] = None
        self._reader.add(window)
        # Asked last: who brings credit, or the end, sees the sleeper only from now on.
        if self.mailbox.is_over or window.is_satisfied():
            self._wake(window)
        return wakeup

    def proceed(self, window: ResponseWindow) -> None:
        """Send what waits for a window, as far as that may be, and wake its sleepers.

        Raises:
            OSError: The server has ended.
        """
        with self.lock:
            self._proceed(window)

    def _proceed(self, window: ResponseWindow) -> None:
        queue = window.queue
        if queue is not None and self.mailbox.is_over:
            self._drop(queue)
        elif queue is not None and not queue.is_dead:
            self._send_waiting(window, queue)
        self._wake(window)

    def send_item(self, run: WorkerBatch, item: ResponseItem) -> None:
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
