# SPDX-License-Identifier: Apache-2.0
"""One batch in the process that runs its model, from its arrival to the last answer.

A `WorkerBatch` owns its inputs and their rows, which of its requests are open or cancelled, the
credit of their clients, and all that is sent for them, also if they fail. It serves models of all
kinds; `BatchReplies` say how their own responses look in a message. Requests refer to their batch,
but the batch refers to them only until its function has returned, so their arrays are freed when
the model drops them.
"""

from __future__ import annotations

import functools
import threading
import time
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.errors import ErrorCode
from pytriton.runtime.backend.failure_text import RuleError
from pytriton.runtime.backend.windows import (
    Others,
    QueuedResponse,
    ResponseQueue,
    ResponseWindow,
    SenderTurn,
    is_event_loop,
)
from pytriton.runtime.transport.arena import block_bytes
from pytriton.runtime.transport.credit import CreditWindow
from pytriton.runtime.transport.frames import BatchFailure, Execute, ResponseItem, ResponsesFrame
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from numpy.typing import NDArray

    from pytriton.base.failure_records import FailureOrigin
    from pytriton.runtime.backend.flow_control import OpenBatches
    from pytriton.runtime.backend.mailbox import Waiter
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.frames import Answer
    from pytriton.runtime.transport.response_rows import Structure

    # What clients get of an error, its code, and where it comes from.
    Description = tuple[str, int, FailureOrigin | None]


class BatchReplies:
    """How the responses of one kind of model become messages."""

    def send(
        self, batch: WorkerBatch, position: int, response: Any | None, *, is_final: bool
    ) -> None:
        """Send what the sender of a request was given: a response, the end, or both."""
        batch.send(position, response, is_final=is_final)

    def packed(
        self, batch: WorkerBatch, position: int, response: Any
    ) -> tuple[Structure, list[bytes], int] | None:
        """Returns what rows need of a response, see `HeldRows`; None if it is not small."""
        return None

    def item(
        self, batch: WorkerBatch, position: int, response: Any, is_final: bool, payload: Payload
    ) -> ResponseItem:
        """Returns a response with its tensors in a message."""
        raise NotImplementedError

    def kept(
        self, batch: WorkerBatch, position: int, response: Any
    ) -> tuple[Any, int, Callable[[], None] | None]:
        """Returns a response as it is now, its size in bytes, and how it is given up."""
        raise NotImplementedError


def cut(
    array: NDArray[Any], rows: Sequence[int], shapes: Sequence[tuple[int, ...]] = ()
) -> list[NDArray[Any]]:
    """Split a tensor of a batch into the tensors of its requests.

    With `shapes` they differ, and the tensor is flat.
    """
    if shapes:
        sizes = [prod(shape) for shape in shapes]
        ends = accumulate(sizes)
        return [
            array[end - size : end].reshape(shape)
            for end, size, shape in zip(ends, sizes, shapes, strict=True)
        ]
    count = rows[0]
    if rows.count(count) == len(rows) and isinstance(array, np.ndarray):
        # Takes half as long as slicing.
        return list(array.reshape(len(rows), count, *array.shape[1:]))
    return [array[end - count : end] for end, count in zip(accumulate(rows), rows, strict=True)]


class WorkerBatch:
    """The requests of one message, by their positions in it.

    Attributes:
        batches: The open batches of the instance.
        execute: The message.
        received: The message with its tensors; the backend deletes it when it needs it no more.
        on_cancel: Called with the position of a request that was cancelled; None: nobody waits.
        on_credit: Called when a client has consumed responses.
        requests: What the model's function gets for it, and `result` what that has returned; both
            only until the batch is answered or the function has returned.
        started_ns: When the batch came.
        is_returned: Whether the server was notified that the model's function returned.
    """

    __slots__ = (
        "_cancelled", "_clients", "_closed", "_is_ended", "_windows",
        "batches", "execute", "is_returned", "on_cancel", "on_credit", "received", "requests",
        "result", "started_ns",
    )  # fmt: skip

    def __init__(self, batches: OpenBatches, received: Received) -> None:
        execute = received.frame
        assert isinstance(execute, Execute)
        self.batches = batches
        self.received = received
        self.on_cancel: Callable[[int], None] | None = None
        self.on_credit: Callable[[], None] | None = None
        self.requests: Sequence[Any] = ()
        self.result: Any = None
        self.execute = execute
        self.started_ns = time.monotonic_ns()
        self.is_returned = False
        self._is_ended = False
        self._closed: set[int] = set()
        self._cancelled: set[int] = set()
        self._windows: dict[int, ResponseWindow] = {}
        self._clients: dict[int, CreditWindow] = {}  # in place of these, if generators work on it

    # Its requests

    @property
    def is_decoupled(self) -> bool:
        """Whether its model sends any number of responses to a request."""
        return self.batches.is_decoupled

    @property
    def is_over(self) -> bool:
        """Whether the model has answered all requests, and the server knows that it returned."""
        return self._is_ended or (self.is_returned and len(self._closed) == len(self.execute.rows))

    @property
    def open_positions(self) -> list[int]:
        """The positions of the requests that wait for their final response."""
        return [position for position in range(len(self.execute.rows)) if self.is_open(position)]

    def is_open(self, position: int) -> bool:
        """Returns whether the model has not sent the final response to a request."""
        return not self._is_ended and position not in self._closed

    def context(self, position: int) -> RequestPlace:
        """Returns the connection of a request to the server; see `RequestBatch`."""
        return RequestPlace(self, position)

    def names(self, position: int) -> Collection[str]:
        """Returns the outputs that a request's client wants."""
        return self.execute.outputs.get(position, self.batches.output_names)

    def is_cancelled(self, position: int) -> bool:
        """Returns whether a request was cancelled."""
        if position in self._cancelled:
            return True
        if self.batches.is_model_process:
            self.batches.mailbox.read_available()
        return position in self._cancelled

    def cancel(self, position: int) -> Waiter | None:
        """Mark a request as cancelled; returns its window, for which senders may wait."""
        self._cancelled.add(position)
        if self.on_cancel is not None:
            self.on_cancel(position)
        window = self._windows.get(position)
        if window is not None:
            window.cancel()
        return window

    def credit(self, position: int, count: int) -> Waiter | None:
        """Add credit to a request; returns its window, for which senders may wait."""
        window = self._windows.get(position)
        if window is not None:
            window.add(count)
        elif position in self._clients:
            self._clients[position].add(count)
            if self.on_credit is not None:
                self.on_credit()
        return window

    # Its answers

    def allocate(self, size: int) -> NDArray[np.uint8] | None:
        """Returns memory for an output; None for one that will be inside its message."""
        if size <= INLINE_TENSOR_BYTES:
            return None
        block = self.batches.outbox.allocate(size)
        return None if block is None else block_bytes(block)

    def answer(self, make: Callable[[Payload], Answer]) -> None:
        """Send a message that answers all requests."""
        self.batches.outbox.send(make)
        self._is_ended = True
        if self._windows:
            self.leave()
        else:
            self.batches.open.pop(self.execute.batch, None)

    def mark_returned(self, answered: Iterable[int] = ()) -> None:
        """Mark the model's function as returned and some requests as answered."""
        self._closed.update(answered)
        self.is_returned = True
        self.leave()

    def close(self, position: int) -> None:
        """Note that a request gets no more responses of the model."""
        self._closed.add(position)
        if self.is_returned:
            self.leave()

    def fail(self, error: BaseException, times_ns: tuple[int, int] | None = None) -> str:
        """Answer the open requests with an error; what waits for their clients goes before it.

        Returns:
            The text that clients get.

        Raises:
            OSError: The server has ended.
        """
        times_ns = times_ns or (self.started_ns, time.monotonic_ns())
        try:
            text = self._send_failure(times_ns, error)
        except OSError:
            raise
        except Exception as failure:  # noqa: BLE001  no memory for a long text: send a short one
            text = self._send_failure(times_ns, RuleError(f"{type(failure).__name__}: {failure}"))
        self._is_ended = True
        self.leave()
        return text

    def _send_failure(self, times_ns: tuple[int, int], error: BaseException) -> str:
        batch = self.execute.batch
        text, code, origin = self.batches.describe(self, error)
        failed = functools.partial(ResponseItem, batch, error=text, error_code=code, origin=origin)
        frame: Answer = BatchFailure(batch, *times_ns, text, code, origin)
        if self._fail_queued(failed) or self.is_returned:
            items = [failed(position) for position in self.open_positions]
            returned = 0 if self.is_returned else batch
            frame = ResponsesFrame(*times_ns, items, returned_batch=returned)
        self.batches.outbox.send(lambda _: frame)
        return text

    def respond(self, position: int, make: Callable[[Payload], ResponseItem]) -> None:
        """Send the only response to a request, for which nothing waits."""
        self.batches.outbox.respond(make, self.started_ns, at_once=True)
        self.close(position)

    def send(
        self,
        position: int,
        response: Any | None,
        *,
        is_final: bool,
        end: ResponseItem | None = None,
    ) -> None:
        """Send a response, or the end; waits or queues it while its client has no credit.

        Args:
            position: The request.
            response: In the form that the `BatchReplies` of the model know; None: only the end.
            is_final: Whether it is the last one.
            end: What is sent if there is no response; None: that the request has ended.

        Raises:
            OSError: The server has ended.
            Exception: The response could not be made a message; nothing of it was sent.
        """
        if response is None:
            self._send_end(position, end, is_final=is_final)
            return
        batches = self.batches
        window = None
        is_first = False
        if batches.is_decoupled:  # else there is one response
            window = self._windows.get(position) or self._window(position)
            if not (window.is_open or window.is_cancelled) or window.queue is not None:
                queued = functools.partial(
                    self._queued, position, window, response, is_final=is_final
                )
                if self._hold(position, window, queued):
                    if is_final:
                        self.close(position)
                    return
            window.thread = threading.get_ident()
            is_first = not window.has_sent
            if not is_final:
                packed = batches.replies.packed(self, position, response)
                if packed is not None:
                    self._send_packed(position, window, packed, at_once=is_first)
                    return
        make = functools.partial(self._make_item, position, response, window, is_final)
        batches.outbox.respond(make, self.started_ns, at_once=is_final or is_first)
        if is_final:
            self.close(position)

    def _send_end(self, position: int, end: ResponseItem | None, *, is_final: bool) -> None:
        item = end or ResponseItem(self.execute.batch, position, None, is_final)
        window = self._windows.get(position)
        batches = self.batches
        send = functools.partial(batches.send_item, self, item)
        if window is None or window.queue is None:
            send()
        else:
            entry = QueuedResponse(send, None, 0, is_final, is_end=True)
            if not self._hold(position, window, lambda: entry, is_end=True):
                send()
        if is_final:
            self.close(position)

    def _send_packed(
        self,
        position: int,
        window: ResponseWindow,
        packed: tuple[Structure, list[bytes], int],
        *,
        at_once: bool = False,
    ) -> None:
        window.spend(packed[2])
        request = (self.execute.batch, position)
        self.batches.outbox.respond_small(request, *packed, self.started_ns, at_once=at_once)

    def _make_item(
        self,
        position: int,
        response: Any,
        window: ResponseWindow | None,
        is_final: bool,
        payload: Payload,
    ) -> ResponseItem:
        item = self.batches.replies.item(self, position, response, is_final, payload)
        if window is not None:
            window.spend(sum([ref.size for ref in item.outputs or ()]))
        return item

    # Clients without credit

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

    def _hold(
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
            make: Returns what is queued.
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
                if turn is SenderTurn.QUEUE and entry is not None:
                    batches.add(self, position, window, entry)
                    return True
                wakeup = batches.add_sleeper(window) if turn is SenderTurn.SLEEP else None
            if turn is SenderTurn.SEND:
                return False
            if turn is SenderTurn.DROP:
                (entry or make()).drop()
                return True
            if turn is SenderTurn.QUEUE:
                entry = make()  # without the lock: it may take a while
            elif wakeup is not None:
                wakeup.acquire()
            elif turn is SenderTurn.READ:
                batches.mailbox.wait(window)
            else:
                batches.end_largest(window)

    def _queued(
        self, position: int, window: ResponseWindow, response: Any, *, is_final: bool
    ) -> QueuedResponse:
        """Returns a response as it is now: the model may change its tensors once it was sent."""
        window.thread = threading.get_ident()
        replies, outbox = self.batches.replies, self.batches.outbox
        if not is_final:
            packed = replies.packed(self, position, response)
            if packed is not None:
                small = functools.partial(self._send_packed, position, window, packed)
                return QueuedResponse(small, None, packed[2], is_final=False)
        kept, size, drop = replies.kept(self, position, response)
        make = functools.partial(self._make_item, position, kept, window, is_final)
        send = functools.partial(outbox.respond, make, self.started_ns, at_once=is_final)
        return QueuedResponse(send, drop, size, is_final)

    def _turn(self, position: int, window: ResponseWindow, *, is_end: bool) -> SenderTurn:
        """Returns what the sender of a response has to do; the caller has the lock."""
        queue = window.queue
        if queue is None and (is_end or window.is_satisfied()):
            return SenderTurn.SEND
        if queue is not None and queue.is_dead:
            return SenderTurn.DROP
        return SenderTurn.QUEUE if is_end else self._turn_without_credit(position, queue)

    def _turn_without_credit(self, position: int, queue: ResponseQueue | None) -> SenderTurn:
        batches = self.batches
        if batches.mailbox.is_over:
            raise EOFError
        has_room = batches.has_room_for(queue)
        if not self.is_returned and threading.get_ident() == batches.model_thread:
            # Other batches do not come before this one has returned: only requests of its own are
            # delayed if it waits, as it may after all.
            if has_room and len(self.execute.rows) > 1 and len(self.open_positions) > 1:
                return SenderTurn.QUEUE
            return SenderTurn.READ if queue is None else SenderTurn.SLEEP
        others = Others.SOME if is_event_loop() else batches.others(self, position)
        if has_room and others is not Others.NONE:
            return SenderTurn.QUEUE
        return SenderTurn.END if others is Others.SOME else SenderTurn.SLEEP

    def sends_for(self, thread: int, except_position: int) -> Others:
        """Returns whether a thread serves requests of this batch, other than the one given."""
        found = Others.NONE
        for position in self.open_positions:
            window = self._windows.get(position)
            if position == except_position:
                continue
            if window is None:
                found = Others.PERHAPS
            elif window.thread == thread:
                return Others.SOME
        return found

    def _fail_queued(self, failed: Callable[[int], ResponseItem]) -> bool:
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
                self._closed.add(position)
                if not queue.is_dead:
                    send = functools.partial(batches.send_item, self, failed(position))
                    batches.add(self, position, window, QueuedResponse(send, None, 0, True, True))
        return has_queued

    # Generators: each step answers all requests, and waits until all of their clients have credit

    def open_windows(self) -> None:
        """Count what each client gets from the first response on."""
        self._clients = {position: CreditWindow() for position in range(len(self.execute.rows))}

    @property
    def is_abandoned(self) -> bool:
        """Whether no client waits for any of its requests."""
        return not self._clients

    @property
    def may_send(self) -> bool:
        """Whether every client has credit for another response."""
        for window in self._clients.values():  # noqa: SIM110  `all` takes 0.5 us more for each response
            if not window.is_open_after_first:
                return False
        return True

    def spend(self, position: int, size: int) -> bool:
        """Use credit for a response of `size` bytes; returns False if no client waits for it."""
        window = self._clients.get(position)
        if window is None:
            return False
        window.spend(size)
        return True

    def filter(self, items: list[ResponseItem]) -> list[ResponseItem]:
        """Return the responses that a client waits for, and use credit for them."""
        return [
            item
            for item in items
            if self.spend(item.position, sum([ref.size for ref in item.outputs or ()]))
        ]

    def give_up(self, position: int) -> list[ResponseItem]:
        """End a request whose client has cancelled it; returns its response if it was open."""
        if self._clients.pop(position, None) is None:
            return []
        if not self._clients:
            self._forget()
        batch = self.execute.batch
        return [ResponseItem(batch, position, error="", error_code=ErrorCode.CANCELLED)]

    def finish(self, error: BaseException | None = None) -> list[ResponseItem]:
        """End all open requests, and the batch; returns their final responses."""
        text: str | None = None
        code, origin = 0, None
        if error is not None:
            text, code, origin = self.batches.describe(self, error)
        batch = self.execute.batch
        items = [
            ResponseItem(batch, position, None, True, text, code, origin=origin)
            for position in self._clients
        ]
        self._clients.clear()
        self._forget()
        return items

    def _forget(self) -> None:
        self.batches.open.pop(self.execute.batch, None)
        # They refer to this batch, which would keep its memory until garbage is collected.
        self.on_cancel = self.on_credit = None


class RequestPlace:
    """One request of a batch, as its `InferenceRequest` and its sender see it."""

    __slots__ = ("_batch", "_position")

    def __init__(self, batch: WorkerBatch, position: int) -> None:
        self._batch = batch
        self._position = position

    def send(self, response: Any | None, *, is_final: bool) -> None:
        """See `RequestContext`."""
        batch = self._batch
        batch.batches.replies.send(batch, self._position, response, is_final=is_final)

    def is_cancelled(self) -> bool:
        """See `RequestContext`."""
        return self._batch.is_cancelled(self._position)
