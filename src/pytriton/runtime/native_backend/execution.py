# SPDX-License-Identifier: Apache-2.0
"""Calls a backend's execute function with a batch, and sends its answers.

A backend may also answer from threads of its own, after its function has returned. So a batch knows
which of its requests are open, cancelled and in credit until the last one is answered.
"""

from __future__ import annotations

import functools
import itertools
import struct
import threading
import time
from typing import TYPE_CHECKING

from pytriton.base.errors import InternalError, InvalidArgumentError, ServerError, sendable_text
from pytriton.base.failure_records import origin_of
from pytriton.runtime.native_backend.memory import WordArray
from pytriton.runtime.native_backend.outputs import (
    batch_columns,
    make_batch_result,
    make_single_item,
)
from pytriton.runtime.python_backend.flow_control import (
    OpenBatches,
    QueuedResponse,
    ResponseWindows,
)
from pytriton.runtime.transport.frames import BatchFailure, Execute, ResponseItem, ResponsesFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.runtime.native_backend.models import BackendStatistics
    from pytriton.runtime.native_backend.outputs import BackendResponse, OutputLane
    from pytriton.runtime.native_backend.plain_batches import PlainBatches, PlainReport
    from pytriton.runtime.native_backend.requests import BackendRequest, BackendRequests
    from pytriton.runtime.native_backend.responses import BackendResponses
    from pytriton.runtime.native_backend.server_objects import Errors
    from pytriton.runtime.python_backend.flow_control import ResponseWindow
    from pytriton.runtime.python_backend.mailbox import LoopReader
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.response_outbox import ResponseOutbox

    MakeItem = Callable[[Payload], ResponseItem]


class NativeRuns(OpenBatches["NativeRun"]):
    """The batches of an instance with requests that are not answered."""

    def __init__(
        self, outbox: ResponseOutbox, reader: LoopReader, *, is_decoupled: bool, is_batching: bool
    ) -> None:
        super().__init__(outbox, reader)
        self.is_decoupled = is_decoupled
        self.is_batching = is_batching

    def cancel_all(self) -> None:
        """Let threads that wait for clients continue, because the instance ends."""
        for run in list(self.open.values()):
            for position in range(len(run.execute.rows)):
                window = run.cancel(position)
                if window is not None:
                    window.on_delivered()


class NativeRun(ResponseWindows):
    """One batch, from its arrival to the last response to its requests.

    Attributes:
        is_collecting: Whether answers wait for that, so as to be sent in one message.
        thread: The thread that calls the backend's function.
        lanes: The outputs of the batch, while answers are collected.
        lock: Protects the two above, and the state of the batch's requests.
    """

    __slots__ = (
        "_open", "_runs", "is_collecting", "is_decoupled", "lanes", "lock", "outbox", "row_count",
        "row_starts", "thread",
    )  # fmt: skip

    def __init__(self, runs: NativeRuns, execute: Execute) -> None:
        super().__init__(execute, time.monotonic_ns())
        self.outbox = runs.outbox
        self.is_decoupled = runs.is_decoupled
        self.is_collecting = not runs.is_decoupled
        self.lock = threading.Lock()
        self.thread = threading.get_ident()
        self.lanes: dict[str, OutputLane] = {}
        self._runs = runs
        self._open = set(range(len(execute.rows)))
        self.row_starts, self.row_count = _starts(execute.rows if runs.is_batching else [1])
        runs.begin(self)

    @property
    def batches(self) -> NativeRuns:
        """See `ResponseWindows`."""
        return self._runs

    @property
    def is_over(self) -> bool:
        """See `ResponseWindows`."""
        return self.is_returned and not self._open

    def is_open(self, position: int) -> bool:
        """See `ResponseWindows`."""
        return position in self._open

    def mark_closed(self, position: int) -> None:
        """See `ResponseWindows`."""
        with self.lock:
            self._open.discard(position)

    def close(self, positions: Sequence[int]) -> None:
        """Mark requests as answered."""
        with self.lock:
            self._open.difference_update(positions)
        self.leave()

    def end(self) -> None:
        """Mark all requests as answered; no thread of the backend knows any of them."""
        self._open.clear()
        self._runs.open.pop(self.execute.batch, None)

    def mark_returned(self) -> None:
        """Mark the backend's function as returned; the caller has the lock.

        From now on, the threads of the backend answer by themselves.
        """
        self.is_returned = True
        self.is_collecting = False

    def send(
        self,
        position: int,
        make: MakeItem,
        *,
        is_final: bool,
        response: BackendResponse | None = None,
    ) -> None:
        """Send a response, or an end without one; see `ResponseWindows.hold` for slow clients.

        Of a decoupled model, `response` is what `make` sends, if that has tensors.

        Raises:
            InvalidArgumentError: The final response was sent before.
            OSError: The server has ended.
        """
        if position not in self._open:
            raise InvalidArgumentError(ALREADY_ANSWERED)
        window = self._windows.get(position)
        if response is not None and window is None:
            window = self._window(position)
        is_first = False
        is_queued = False
        if window is not None:
            window.thread = threading.get_ident()
            is_first = not window.has_sent
            if window.queue is not None or (response is not None and not window.is_satisfied()):
                queued = functools.partial(self._queued, make, response, window, is_final=is_final)
                is_queued = self.hold(position, window, queued, is_end=response is None)
        if not is_queued:
            spent = None if response is None else window
            self._send_made(make, spent, at_once=is_final or is_first)
        if is_final:
            self.close((position,))

    def _send_made(self, make: MakeItem, window: ResponseWindow | None, *, at_once: bool) -> None:
        counted = functools.partial(_make_counted, make, window)
        self.outbox.respond(counted, self.started_ns, at_once=at_once)

    def _queued(
        self,
        make: MakeItem,
        response: BackendResponse | None,
        window: ResponseWindow,
        *,
        is_final: bool,
    ) -> QueuedResponse:
        """Returns a response, which has memory of its own, or an end."""
        if response is None:  # made now: its request may be another one's when it is sent
            item = make(self.outbox.channel.payload())
            send = functools.partial(self._runs.send_item, self, item)
            return QueuedResponse(send, None, 0, is_final, is_end=True)
        size = sum([output.size for output in response.outputs])
        send = functools.partial(self._send_made, make, window, at_once=is_final)
        return QueuedResponse(send, None, size, is_final)

    def is_cancelled(self, position: int) -> bool:
        """Returns whether a request was cancelled."""
        if position not in self._cancelled:
            self._runs.mailbox.read_available()
        return position in self._cancelled


ALREADY_ANSWERED = "the final response to this request was sent already"


def _starts(rows: Sequence[int]) -> tuple[list[int], int]:
    """Returns the number of rows before each request, and that of all."""
    starts = list(itertools.accumulate(rows, initial=0))
    return starts, starts.pop()


def _make_counted(make: MakeItem, window: ResponseWindow | None, payload: Payload) -> ResponseItem:
    item = make(payload)
    if window is not None:
        window.spend(sum([ref.size for ref in item.outputs or ()]))
    return item


class NativeExecution:
    """Runs the batches of one instance.

    Args:
        call: The backend's function; gets the address of an array of requests and their number,
            and returns an error of C or 0.
        runs: The open batches.
        requests: Makes requests of batches.
        responses: The answers.
        errors: The errors of C.
        statistics: The reports of the backend.
        plain: Executes batches without Python, if that is possible here.
    """

    def __init__(
        self,
        call: Callable[[int, int], int],
        runs: NativeRuns,
        requests: BackendRequests,
        responses: BackendResponses,
        errors: Errors,
        statistics: BackendStatistics,
        plain: PlainBatches | None = None,
    ) -> None:
        self._call = call
        self._runs = runs
        self._requests = requests
        self._responses = responses
        self._errors = errors
        self._statistics = statistics
        self._plain = plain
        self._handles = WordArray()

    def run(self, received: Received) -> None:
        """Call the backend with a batch; the batch is answered whatever the backend does.

        Raises:
            ConnectionError: The connection to the server has ended.
        """
        execute = received.frame
        assert isinstance(execute, Execute)
        run = NativeRun(self._runs, execute)
        self._statistics.begin_batch()
        try:
            report = None if self._plain is None else self._plain.execute(run, received)
            requests = (
                self._requests.add_batch(run, received) if report is None else report.requests
            )
        except (ValueError, struct.error) as fault:  # strings that do not fit their tensor
            self._fail(run, (), InternalError(f"the batch cannot be read: {fault}"))
            return
        except ServerError as lack:  # there was no room for its tensors
            self._fail(run, (), lack)
            return
        del received  # the requests keep it until they are released
        if report is None:
            self._handles.fill([request.handle for request in requests])
            error = self._call(self._handles.address, len(requests))
        else:
            error = report.error
        if error:
            self._fail(run, requests, self._errors.take(error))
            return
        try:
            if report is not None and report.outputs is not None:
                self._finish_plain(run, report)
            else:
                self._finish(run, requests)
        except OSError:
            raise
        except ServerError as lack:  # there is no memory
            self._fail(run, requests, lack)
        except Exception as failure:  # noqa: BLE001  a text cannot be sent
            text = f"the responses could not be sent: {type(failure).__name__}: {failure}"
            self._fail(run, requests, InternalError(text))

    def _times_ns(self, run: NativeRun) -> tuple[int, int]:
        """Returns when the computation began and ended, as reported if that is possible."""
        now_ns = time.monotonic_ns()
        started_ns, ended_ns = self._statistics.computed_ns()
        if run.started_ns <= started_ns <= ended_ns <= now_ns:
            return started_ns, ended_ns
        return run.started_ns, now_ns

    def _finish_plain(self, run: NativeRun, report: PlainReport) -> None:
        assert self._plain is not None, "the report is its own"
        times_ns = self._times_ns(run)
        make = functools.partial(self._plain.make_result, run, times_ns, report)
        self._runs.outbox.send(make)
        run.end()

    def _finish(self, run: NativeRun, requests: Sequence[BackendRequest]) -> None:
        times_ns = self._times_ns(run)
        is_coupled = not run.is_decoupled
        with run.lock:
            run.mark_returned()
            answered = [
                each
                for each in requests
                if each.is_rescheduled or (is_coupled and (each.is_ended or not each.handles))
            ]
            for request in answered:
                request.is_over = True  # for this thread to end, also if others drop it meanwhile
        columns = batch_columns(answered) if len(answered) == len(requests) else None
        if columns is not None:
            make_result = functools.partial(make_batch_result, run, times_ns, columns)
            self._runs.outbox.send(make_result)
        else:
            make = functools.partial(_make_responses, run, times_ns, answered)
            self._runs.outbox.send(make)
        run.close([request.position for request in answered])
        for request in answered:
            request.is_over = False
        for request in requests:
            self._responses.end_if_over(request)

    def _fail(self, run: NativeRun, requests: Sequence[BackendRequest], error: ServerError) -> None:
        """Answer all requests with an error; they are not the backend's any more."""
        batch, times_ns = run.execute.batch, self._times_ns(run)
        text, code = sendable_text(error.message), int(error.code)
        origin = origin_of(error)
        failed = functools.partial(ResponseItem, batch, error=text, error_code=code, origin=origin)
        frame: BatchFailure | ResponsesFrame = BatchFailure(batch, *times_ns, text, code, origin)
        if run.fail_queued(failed):
            items = [failed(each) for each in range(len(run.execute.rows)) if run.is_open(each)]
            frame = ResponsesFrame(*times_ns, items, returned_batch=batch)
        self._runs.outbox.send(lambda _: frame)
        with run.lock:
            run.mark_returned()
            for request in requests:
                if request.handle in self._requests.live:
                    self._requests.live.discard(request.handle)
                    request.owned = None
                    request.handles.pop()
                request.is_over = False
        run.close(range(len(run.execute.rows)))
        for request in requests:
            self._responses.end_if_over(request)


def _make_responses(
    run: NativeRun, times_ns: tuple[int, int], answered: Sequence[BackendRequest], payload: Payload
) -> ResponsesFrame:
    items: list[ResponseItem] = [make_single_item(request, payload) for request in answered]
    return ResponsesFrame(*times_ns, items, returned_batch=run.execute.batch)
