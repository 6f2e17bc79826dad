# SPDX-License-Identifier: Apache-2.0
"""Calls a backend's execute function with a batch, and sends what it answered until it returned."""

from __future__ import annotations

import functools
import struct
import time
from typing import TYPE_CHECKING

from pytriton.base.errors import InternalError, ServerError, sendable_text
from pytriton.runtime.native_backend.memory import WordArray
from pytriton.runtime.native_backend.outputs import (
    batch_columns,
    make_batch_result,
    make_single_item,
)
from pytriton.runtime.native_backend.runs import BatchRun
from pytriton.runtime.transport.frames import BatchFailure, Execute, ResponseItem, ResponsesFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.runtime.native_backend.models import BackendStatistics
    from pytriton.runtime.native_backend.requests import BackendRequest, BackendRequests
    from pytriton.runtime.native_backend.responses import BackendResponses
    from pytriton.runtime.native_backend.runs import BatchRuns
    from pytriton.runtime.native_backend.server_objects import Errors
    from pytriton.runtime.transport.channel import Payload, Received


class BatchExecution:
    """Runs the batches of one instance.

    Args:
        call: The backend's function; gets the address of an array of requests and their number,
            and returns an error of C or 0.
        runs: The open batches.
        requests: Makes requests of batches.
        responses: What is answered.
        errors: The errors of C.
        statistics: What the backend reports.
    """

    def __init__(
        self,
        call: Callable[[int, int], int],
        runs: BatchRuns,
        requests: BackendRequests,
        responses: BackendResponses,
        errors: Errors,
        statistics: BackendStatistics,
    ) -> None:
        self._call = call
        self._runs = runs
        self._requests = requests
        self._responses = responses
        self._errors = errors
        self._statistics = statistics
        self._handles = WordArray()

    def run(self, received: Received) -> None:
        """Call the backend with a batch; the batch is answered whatever the backend does.

        Raises:
            ConnectionError: The connection to the server has ended.
        """
        execute = received.frame
        assert isinstance(execute, Execute)
        run = BatchRun(self._runs, execute)
        try:
            requests = self._requests.add_batch(run, received)
        except (ValueError, struct.error) as fault:  # texts that are not what their tensor says
            self._fail(run, (), InternalError(f"the batch cannot be read: {fault}"))
            return
        except ServerError as lack:  # there was no room for its tensors
            self._fail(run, (), lack)
            return
        del received  # the requests keep it until they are released
        self._statistics.begin_batch()
        self._handles.fill([request.handle for request in requests])
        error = self._call(self._handles.address, len(requests))
        if error:
            self._fail(run, requests, self._errors.take(error))
            return
        try:
            self._finish(run, requests)
        except OSError:
            raise
        except ServerError as lack:  # there is no memory
            self._fail(run, requests, lack)
        except Exception as failure:  # noqa: BLE001  a text cannot be sent
            text = f"the responses could not be sent: {type(failure).__name__}: {failure}"
            self._fail(run, requests, InternalError(text))

    def _times_ns(self, run: BatchRun) -> tuple[int, int]:
        """Returns when the computation began and ended, as reported if that is possible."""
        now_ns = time.monotonic_ns()
        started_ns, ended_ns = self._statistics.computed_ns
        if run.started_ns <= started_ns <= ended_ns <= now_ns:
            return started_ns, ended_ns
        return run.started_ns, now_ns

    def _finish(self, run: BatchRun, requests: Sequence[BackendRequest]) -> None:
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

    def _fail(self, run: BatchRun, requests: Sequence[BackendRequest], error: ServerError) -> None:
        """Answer all requests with an error; they are not the backend's any more."""
        frame = BatchFailure(
            run.execute.batch, *self._times_ns(run), sendable_text(error.message), int(error.code)
        )
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
    run: BatchRun, times_ns: tuple[int, int], answered: Sequence[BackendRequest], payload: Payload
) -> ResponsesFrame:
    items: list[ResponseItem] = [make_single_item(request, payload) for request in answered]
    return ResponsesFrame(*times_ns, items, returned_batch=run.execute.batch)
