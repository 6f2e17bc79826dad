# SPDX-License-Identifier: Apache-2.0
"""Calls a model's `execute` with a batch, and sends its responses or its error.

The tensors of requests are views of the batch, not copies.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Coroutine
from math import prod
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.pb_utils.request import (
    RELEASE_RESCHEDULE,
    InferenceRequest,
    ReceivedFields,
)
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend import answers
from pytriton.runtime.python_backend.batch_run import BatchRun
from pytriton.runtime.python_backend.device_tensors import exports_of
from pytriton.runtime.python_backend.failure_text import RuleError
from pytriton.runtime.transport.frames import (
    BatchFailure,
    Execute,
    RequestDetails,
    ResponseItem,
    ResponsesFrame,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from pytriton.runtime.pb_utils.response import InferenceResponse
    from pytriton.runtime.python_backend.batch_run import BatchRegistry
    from pytriton.runtime.python_backend.runtime import WorkerRuntime
    from pytriton.runtime.python_backend.worker import CoroutineThread
    from pytriton.runtime.transport.channel import Payload, Received

    _Answered = Sequence[tuple[int, InferenceResponse | None]]


_NO_DETAILS = RequestDetails()


def make_requests(received: Received, run: BatchRun, runs: BatchRegistry) -> list[InferenceRequest]:
    """Returns the requests of a batch, in order."""
    execute = run.execute
    try:
        columns = _columns(received, execute, runs)
    except BaseException:
        runs.device.end_unopened_inputs(execute.devices)
        raise
    inputs: Iterable[Sequence[Tensor]]
    inputs = zip(*columns, strict=True) if columns else [()] * len(execute.rows)
    return InferenceRequest.received(
        run, inputs, runs.output_names, execute.outputs, _fields_of(execute)
    )


def _columns(received: Received, execute: Execute, runs: BatchRegistry) -> list[list[Tensor]]:
    """Returns each input as the tensors of all requests."""
    is_cut = len(execute.rows) > 1 and runs.is_batching
    on_device = execute.devices[0].inputs if execute.devices else ()
    columns = []
    for ref in execute.inputs:
        if ref.name in on_device:
            columns.append(runs.device.column(ref, execute.devices, execute.rows))
            continue
        array = received.array(ref)
        parts = [array]
        if is_cut:
            parts = _cut_ragged(array, ref.shapes) if ref.shapes else _cut(array, execute.rows)
        columns.append(Tensor.of_arrays(ref.name, parts))
    return columns


def _fields_of(execute: Execute) -> dict[int, ReceivedFields]:
    """Returns what requests have beside their tensors, by position; most have nothing."""
    ids, parameters, traces = execute.ids, execute.parameters, execute.traces
    all_details = execute.details
    fields = {}
    for position in {*ids, *parameters, *traces, *all_details}:
        details = all_details.get(position, _NO_DETAILS)
        fields[position] = ReceivedFields(
            ids.get(position, ""),
            details.correlation_id,
            details.flags,
            details.timeout_us,
            parameters.get(position),
            traces.get(position),
        )
    return fields


def _cut(array: NDArray[Any], rows: list[int]) -> list[NDArray[Any]]:
    """Split a batch into the rows of each request."""
    count = rows[0]
    if rows.count(count) == len(rows):
        # Takes half as long as slicing.
        return list(array.reshape(len(rows), count, *array.shape[1:]))
    parts = []
    at = 0
    for count in rows:
        parts.append(array[at : at + count])
        at += count
    return parts


def _cut_ragged(array: NDArray[Any], shapes: list[tuple[int, ...]]) -> list[NDArray[Any]]:
    """Split all elements of a batch into the tensor of each request."""
    parts = []
    at = 0
    for shape in shapes:
        end = at + prod(shape)
        parts.append(array[at:end].reshape(shape))
        at = end
    return parts


class _ExecuteCall:
    """A batch, the requests that `execute` gets for it, and its result."""

    __slots__ = ("requests", "result", "run")

    def __init__(self, run: BatchRun) -> None:
        self.run = run
        self.requests: list[InferenceRequest] = []
        self.result: Any = None

    def clear(self) -> None:
        """Drop the requests and the result."""
        self.requests = []
        self.result = None


class ModelExecution:
    """Runs the batches of one model. Coroutines respond on the event loop's thread, others here."""

    def __init__(
        self,
        model: Any,
        model_path: str,
        runs: BatchRegistry,
        runtime: WorkerRuntime,
        coroutines: CoroutineThread,
    ) -> None:
        # Triton notices this only with the first request. Here such a model never becomes ready.
        if not hasattr(model, "execute"):
            raise RuleError(f"Python model {model_path} does not implement `execute` method.")
        self._execute = model.execute
        self.is_async = inspect.iscoroutinefunction(model.execute)
        self._runs = runs
        self._outbox = runs.outbox
        self._runtime = runtime
        self._coroutines = coroutines

    def run(self, received: Received) -> None:
        """Call the model with a batch; the batch is answered whatever the model does.

        Raises:
            ConnectionError: The connection to the server has ended.
        """
        execute = received.frame
        assert isinstance(execute, Execute)
        call = _ExecuteCall(BatchRun(self._runs, execute, time.monotonic_ns()))
        self._runtime.set_batch(execute.batch, execute.ids or None)
        try:
            self._run(call, received)
        finally:
            self._runtime.set_batch(0)

    def _run(self, call: _ExecuteCall, received: Received) -> None:
        try:
            call.requests = make_requests(received, call.run, self._runs)
            # A copy of the list, because the model may change it.
            call.result = self._execute(call.requests[:])
        except BaseException as error:  # noqa: BLE001  all that a model raises is sent as an error
            self._fail(call, error)
            return
        if type(call.result) is list or not isinstance(call.result, Coroutine):
            self._answer(call)
        else:
            self._start(call)

    def _start(self, call: _ExecuteCall) -> None:
        run = call.run
        if self._runs.is_decoupled:
            frame = ResponsesFrame(
                run.started_ns, time.monotonic_ns(), [], returned_batch=run.execute.batch
            )
            self._outbox.send(lambda _: frame)
            run.mark_returned()
        self._coroutines.submit(self._finish(call))

    async def _finish(self, call: _ExecuteCall) -> None:
        try:
            try:
                call.result = await call.result
            except BaseException as error:  # noqa: BLE001  see `_run`
                self._fail(call, error)
            else:
                self._answer(call)
        except ConnectionError:
            pass  # the server has ended; the model's thread notices that, too

    def _answer(self, call: _ExecuteCall) -> None:
        try:
            if self._runs.is_decoupled:
                answers.check_decoupled_return(call.result, self._runtime.instance_name)
                self._return(call, [None] * len(call.requests))
            else:
                self._answer_coupled(call)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001  invalid result, or tensors that cannot be sent
            self._fail(call, error)

    def _answer_coupled(self, call: _ExecuteCall) -> None:
        run, execute = call.run, call.run.execute
        responses = answers.returned_responses(call.result, call.requests)
        columns = None
        has_shared = False
        if run.has_device:
            responses = [each for _, each in self._placed(run, enumerate(responses))]
            has_shared = any(each is not None and exports_of(each.tensors) for each in responses)
        if not has_shared:  # else outputs are in several places
            columns = answers.batch_outputs(responses, call.requests, execute.rows)
        if columns is None:
            self._return(call, responses)
            return
        # Now an output may be the only reference to an input's memory; then it needs no copy.
        del responses
        call.clear()
        times_ns = (run.started_ns, time.monotonic_ns())
        self._outbox.send(
            functools.partial(
                answers.make_batch_result, execute.batch, execute.rows, times_ns, columns
            )
        )
        run.end()

    def _return(self, call: _ExecuteCall, responses: Sequence[InferenceResponse | None]) -> None:
        """Send the responses, and notify the server that `execute` returned."""
        run = call.run
        answered = [
            (position, response)
            for position, (request, response) in enumerate(
                zip(call.requests, responses, strict=True)
            )
            if response is not None
            or (request.release_flags == RELEASE_RESCHEDULE and run.is_open(position))
        ]
        times_ns = (run.started_ns, time.monotonic_ns())
        returned_batch = 0 if run.is_returned else run.execute.batch
        if answered or returned_batch:
            self._send_responses(run, times_ns, answered, returned_batch)
        for position, _ in answered:
            _close(call.requests[position])
        run.mark_returned([position for position, _ in answered])

    def _placed(
        self, run: BatchRun, responses: Iterable[tuple[int, InferenceResponse | None]]
    ) -> list[tuple[int, InferenceResponse | None]]:
        """Leave outputs of responses in GPU memory that belong there; see `BatchRun.placed`."""
        placed: list[tuple[int, InferenceResponse | None]] = []
        try:
            for position, response in responses:
                there = None if response is None else run.placed(position, response)
                placed.append((position, there))
        except BaseException:
            self._runs.device.take_back_responses([response for _, response in placed])
            raise
        return placed

    def _send_responses(
        self, run: BatchRun, times_ns: tuple[int, int], answered: _Answered, returned_batch: int
    ) -> None:
        """Send responses; if that fails, what others were to get of them is given up."""
        make = functools.partial(self._make_responses, run, times_ns, answered, returned_batch)
        try:
            self._outbox.send(make)
        except BaseException:
            if run.execute.device_wishes:
                self._runs.device.take_back_responses([response for _, response in answered])
            raise

    def _make_responses(
        self,
        run: BatchRun,
        times_ns: tuple[int, int],
        answered: _Answered,
        returned_batch: int,
        payload: Payload,
    ) -> ResponsesFrame:
        """Returns the frame; a response of None means that the request is to be executed again."""
        batch = run.execute.batch
        has_shared = bool(run.execute.device_wishes)
        items = [
            answers.make_item(
                payload, batch, position, response, run.names(position), has_shared=has_shared
            )
            if response is not None
            else ResponseItem(batch, position, is_rescheduled=True)
            for position, response in answered
        ]
        return ResponsesFrame(*times_ns, items, returned_batch=returned_batch)

    def _fail(self, call: _ExecuteCall, error: BaseException) -> None:
        """Fail the open requests of a batch; responses that senders hold are sent before."""
        run = call.run
        times_ns = (run.started_ns, time.monotonic_ns())
        if not isinstance(error, InvalidArgumentError):  # else it is the client's region
            self._runtime.log_failure(error)
        held = []
        for position, request in enumerate(call.requests):
            if request.sender is not None:
                response = request.sender.take_held()
                if response is not None and run.is_open(position):
                    held.append((position, response))
            _close(request)
        if held:
            self._send_held(run, times_ns, held)
        answers.send_or_shorten(functools.partial(self._send_failure, run, times_ns), error)
        run.end()

    def _send_failure(self, run: BatchRun, times_ns: tuple[int, int], error: BaseException) -> None:
        text, code, origin = answers.failure_of(self._runtime.instance_name, error)
        batch = run.execute.batch
        failed = functools.partial(ResponseItem, batch, error=text, error_code=code, origin=origin)
        if run.fail_queued(failed) or run.is_returned:
            items = [failed(position) for position in run.open_positions]
            returned = 0 if run.is_returned else batch
            self._outbox.send(lambda _: ResponsesFrame(*times_ns, items, returned_batch=returned))
        else:
            self._outbox.send(lambda _: BatchFailure(batch, *times_ns, text, code, origin))

    def _send_held(self, run: BatchRun, times_ns: tuple[int, int], held: _Answered) -> None:
        try:
            placed = self._placed(run, held) if run.has_device else held
            self._send_responses(run, times_ns, placed, 0)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001  these requests then fail like the others
            self._runtime.log_failure(error)


def _close(request: InferenceRequest) -> None:
    if request.sender is not None:
        request.sender.mark_closed()
