# SPDX-License-Identifier: Apache-2.0
"""Calls a backend's execute function with a batch, and sends its answers.

A backend may also answer from threads of its own, after its function has returned.
"""

from __future__ import annotations

import functools
import struct
import time
from typing import TYPE_CHECKING

from pytriton.base.errors import InternalError, ServerError
from pytriton.runtime.native_backend.memory import WordArray
from pytriton.runtime.native_backend.outputs import (
    CollectedAnswers,
    batch_columns,
    make_batch_result,
    make_single_item,
)
from pytriton.runtime.transport.frames import ResponseItem, ResponsesFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.runtime.backend.batch import WorkerBatch
    from pytriton.runtime.native_backend.models import BackendStatistics
    from pytriton.runtime.native_backend.plain_batches import PlainBatches, PlainReport
    from pytriton.runtime.native_backend.requests import BackendRequest, BackendRequests
    from pytriton.runtime.native_backend.responses import BackendResponses
    from pytriton.runtime.native_backend.server_objects import Errors
    from pytriton.runtime.transport.channel import Payload


class NativeExecution:
    """Runs the batches of one instance.

    Args:
        call: The backend's function; gets the address of an array of requests and their number,
            and returns an error of C or 0.
        requests: Makes requests of batches.
        responses: The answers.
        errors: The errors of C.
        statistics: The reports of the backend.
        plain: Executes batches without Python, if that is possible here.
    """

    def __init__(
        self,
        call: Callable[[int, int], int],
        requests: BackendRequests,
        responses: BackendResponses,
        errors: Errors,
        statistics: BackendStatistics,
        plain: PlainBatches | None = None,
    ) -> None:
        self._call = call
        self._requests = requests
        self._responses = responses
        self._errors = errors
        self._statistics = statistics
        self._plain = plain
        self._handles = WordArray()

    def run(self, batch: WorkerBatch) -> None:
        """Call the backend with a batch; see `Backend`."""
        collected, received = CollectedAnswers(batch), batch.received
        self._statistics.begin_batch()
        try:
            report = None if self._plain is None else self._plain.execute(collected, received)
            requests = (
                self._requests.add_batch(collected, received) if report is None else report.requests
            )
        except (ValueError, struct.error) as fault:  # strings that do not fit their tensor
            self._fail(collected, (), InternalError(f"the batch cannot be read: {fault}"))
            return
        except ServerError as lack:  # there was no room for its tensors
            self._fail(collected, (), lack)
            return
        del received, batch.received  # the requests keep it until they are released
        if report is None:
            self._handles.fill([request.handle for request in requests])
            error = self._call(self._handles.address, len(requests))
        else:
            error = report.error
        if error:
            self._fail(collected, requests, self._errors.take(error))
            return
        try:
            if report is not None and report.outputs is not None:
                self._finish_plain(collected, report)
            else:
                self._finish(collected, requests)
        except OSError:
            raise
        except Exception as failure:  # noqa: BLE001  there is no memory, or a text cannot be sent
            self._fail(collected, requests, failure)

    def _times_ns(self, batch: WorkerBatch) -> tuple[int, int]:
        """Returns when the computation began and ended, as reported if that is possible."""
        now_ns = time.monotonic_ns()
        started_ns, ended_ns = self._statistics.computed_ns()
        if batch.started_ns <= started_ns <= ended_ns <= now_ns:
            return started_ns, ended_ns
        return batch.started_ns, now_ns

    def _finish_plain(self, collected: CollectedAnswers, report: PlainReport) -> None:
        assert self._plain is not None, "the report is its own"
        times_ns = self._times_ns(collected.batch)
        make = functools.partial(self._plain.make_result, collected, times_ns, report)
        collected.batch.answer(make)

    def _finish(self, collected: CollectedAnswers, requests: Sequence[BackendRequest]) -> None:
        batch = collected.batch
        times_ns = self._times_ns(batch)
        is_coupled = not batch.is_decoupled
        with collected.lock:
            collected.has_returned, collected.is_collecting = True, False
            answered = [
                each
                for each in requests
                if each.is_rescheduled or (is_coupled and (each.is_ended or not each.handles))
            ]
            for request in answered:
                request.is_over = True  # for this thread to end, also if others drop it meanwhile
        columns = batch_columns(answered) if len(answered) == len(requests) else None
        if columns is not None:
            make_result = functools.partial(make_batch_result, collected, times_ns, columns)
            batch.batches.outbox.send(make_result)
        else:
            make = functools.partial(_make_responses, batch, times_ns, answered)
            batch.batches.outbox.send(make)
        batch.mark_returned([request.position for request in answered])
        for request in answered:
            request.is_over = False
        for request in requests:
            self._responses.end_if_over(request)

    def _fail(
        self,
        collected: CollectedAnswers,
        requests: Sequence[BackendRequest],
        error: Exception,
    ) -> None:
        """Answer all requests with an error; they are not the backend's any more."""
        batch = collected.batch
        batch.fail(error, self._times_ns(batch))
        with collected.lock:
            collected.has_returned, collected.is_collecting = True, False
            for request in requests:
                if request.handle in self._requests.live:
                    self._requests.live.discard(request.handle)
                    request.owned = None
                    request.handles.pop()
                request.is_over = False
        for request in requests:
            self._responses.end_if_over(request)


def _make_responses(
    batch: WorkerBatch,
    times_ns: tuple[int, int],
    answered: Sequence[BackendRequest],
    payload: Payload,
) -> ResponsesFrame:
    items: list[ResponseItem] = [make_single_item(request, payload) for request in answered]
    return ResponsesFrame(*times_ns, items, returned_batch=batch.execute.batch)
