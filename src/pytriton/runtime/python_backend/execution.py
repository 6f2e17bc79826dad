# SPDX-License-Identifier: Apache-2.0
"""Calls a model's `execute` with a batch, and sends its responses or its error.

The tensors of requests are views of the batch, not copies.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.backend.batch import cut
from pytriton.runtime.backend.failure_text import RuleError
from pytriton.runtime.pb_utils.request import (
    RELEASE_RESCHEDULE,
    InferenceRequest,
    ReceivedFields,
)
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend import answers
from pytriton.runtime.python_backend.device_tensors import exports_of
from pytriton.runtime.python_backend.replies import place
from pytriton.runtime.transport.frames import Execute, RequestDetails

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytriton.runtime.backend.batch import WorkerBatch
    from pytriton.runtime.backend.coroutines import CoroutineThread
    from pytriton.runtime.pb_utils.response import InferenceResponse
    from pytriton.runtime.python_backend.device_tensors import DeviceTensors
    from pytriton.runtime.python_backend.runtime import WorkerRuntime

    _Answered = Sequence[tuple[int, InferenceResponse | None]]


_NO_DETAILS = RequestDetails()


def make_requests(batch: WorkerBatch, device: DeviceTensors) -> list[InferenceRequest]:
    """Returns the requests of a batch, in order; from now on only they have its tensors."""
    execute = batch.execute
    try:
        columns = _columns(batch, device)
    except BaseException:
        device.end_unopened_inputs(execute.devices)
        raise
    del batch.received
    inputs: Iterable[Sequence[Tensor]]
    inputs = zip(*columns, strict=True) if columns else [()] * len(execute.rows)
    return InferenceRequest.received(
        batch, inputs, batch.batches.output_names, execute.outputs, _fields_of(execute)
    )


def _columns(batch: WorkerBatch, device: DeviceTensors) -> list[list[Tensor]]:
    """Returns each input as the tensors of all requests."""
    execute, received = batch.execute, batch.received
    rows = execute.rows
    is_cut = len(rows) > 1 and batch.batches.is_batching
    on_device = execute.devices[0].inputs if execute.devices else ()
    columns = []
    for ref in execute.inputs:
        if ref.name in on_device:
            columns.append(device.column(ref, execute.devices, rows))
            continue
        array = received.array(ref)
        parts = cut(array, rows, ref.shapes) if is_cut else [array]
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


class ModelExecution:
    """Runs the batches of one model. Coroutines respond on the event loop's thread, others here."""

    takes_device_memory = True

    def __init__(
        self,
        model: Any,
        model_path: str,
        runtime: WorkerRuntime,
        device: DeviceTensors,
        coroutines: CoroutineThread,
    ) -> None:
        # Triton notices this only with the first request. Here such a model never becomes ready.
        if not hasattr(model, "execute"):
            raise RuleError(f"Python model {model_path} does not implement `execute` method.")
        self._execute = model.execute
        self.is_async = inspect.iscoroutinefunction(model.execute)
        self._runtime = runtime
        self._device = device
        self._coroutines = coroutines

    def run(self, batch: WorkerBatch) -> None:
        """Call the model with a batch; see `Backend`."""
        try:
            batch.requests = requests = make_requests(batch, self._device)
            # A copy of the list, because the model may change it.
            batch.result = self._execute(requests[:])
            del requests
        except BaseException as error:  # noqa: BLE001  all that a model raises is sent as an error
            self._fail(batch, error)
            return
        if type(batch.result) is list or not isinstance(batch.result, Coroutine):
            self._answer(batch)
        else:
            self._start(batch)

    def _start(self, batch: WorkerBatch) -> None:
        if batch.is_decoupled:
            self._send_responses(batch, (), batch.execute.batch)
            batch.mark_returned()
        self._coroutines.submit(self._finish(batch))

    async def _finish(self, batch: WorkerBatch) -> None:
        try:
            try:
                batch.result = await batch.result
            except BaseException as error:  # noqa: BLE001  see `run`
                self._fail(batch, error)
            else:
                self._answer(batch)
        except ConnectionError:
            pass  # the server has ended; the model's thread notices that, too

    def _answer(self, batch: WorkerBatch) -> None:
        try:
            if batch.is_decoupled:
                answers.check_decoupled_return(batch.result, self._runtime.instance_name)
                self._return(batch, [None] * len(batch.requests))
            else:
                self._answer_coupled(batch)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001  invalid result, or tensors that cannot be sent
            self._fail(batch, error)

    def _answer_coupled(self, batch: WorkerBatch) -> None:
        execute, requests = batch.execute, batch.requests
        responses = answers.returned_responses(batch.result, requests)
        columns = None
        has_shared = False
        if execute.devices or execute.device_wishes:
            responses = [each for _, each in self._placed(batch, enumerate(responses))]
            has_shared = any(each is not None and exports_of(each.tensors) for each in responses)
        if not has_shared:  # else outputs are in several places
            columns = answers.batch_outputs(responses, requests, execute.rows)
        if columns is None:
            self._return(batch, responses)
            return
        # Now an output may be the only reference to an input's memory; then it needs no copy.
        del responses, requests
        batch.requests, batch.result = (), None
        times_ns = (batch.started_ns, time.monotonic_ns())
        batch.answer(
            functools.partial(
                answers.make_batch_result, execute.batch, execute.rows, times_ns, columns
            )
        )

    def _return(self, batch: WorkerBatch, responses: Sequence[InferenceResponse | None]) -> None:
        """Send the responses, and notify the server that `execute` returned."""
        requests = batch.requests
        answered = [
            (position, response)
            for position, (request, response) in enumerate(zip(requests, responses, strict=True))
            if response is not None
            or (request.release_flags == RELEASE_RESCHEDULE and batch.is_open(position))
        ]
        returned_batch = 0 if batch.is_returned else batch.execute.batch
        if answered or returned_batch:
            self._send_responses(batch, answered, returned_batch)
        for position, _ in answered:
            _close(requests[position])
        batch.requests, batch.result = (), None
        batch.mark_returned([position for position, _ in answered])

    def _placed(
        self, batch: WorkerBatch, responses: Iterable[tuple[int, InferenceResponse | None]]
    ) -> list[tuple[int, InferenceResponse | None]]:
        """Leave outputs of responses in GPU memory that belong there."""
        placed: list[tuple[int, InferenceResponse | None]] = []
        try:
            for position, response in responses:
                there = None if response is None else place(batch, position, response, self._device)
                placed.append((position, there))
        except BaseException:
            self._device.take_back_responses([response for _, response in placed])
            raise
        return placed

    def _send_responses(self, batch: WorkerBatch, answered: _Answered, returned_batch: int) -> None:
        """Send responses; if that fails, what others were to get of them is given up."""
        times_ns = (batch.started_ns, time.monotonic_ns())
        make = functools.partial(answers.make_responses, batch, times_ns, answered, returned_batch)
        try:
            batch.batches.outbox.send(make)
        except BaseException:
            if batch.execute.device_wishes:
                self._device.take_back_responses([response for _, response in answered])
            raise

    def _fail(self, batch: WorkerBatch, error: BaseException) -> None:
        """Fail the open requests of a batch; responses that senders hold are sent before."""
        if not isinstance(error, InvalidArgumentError):  # else it is the client's region
            self._runtime.log_failure(error)
        held = []
        for position, request in enumerate(batch.requests):
            if request.sender is not None:
                response = request.sender.take_held()
                if response is not None and batch.is_open(position):
                    held.append((position, response))
            _close(request)
        batch.requests, batch.result = (), None
        if held:
            self._send_held(batch, held)
        batch.fail(error)

    def _send_held(self, batch: WorkerBatch, held: _Answered) -> None:
        try:
            if batch.execute.devices or batch.execute.device_wishes:
                held = self._placed(batch, held)
            self._send_responses(batch, held, 0)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001  these requests then fail like the others
            self._runtime.log_failure(error)


def _close(request: InferenceRequest) -> None:
    if request.sender is not None:
        request.sender.mark_closed()
