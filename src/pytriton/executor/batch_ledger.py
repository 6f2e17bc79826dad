# SPDX-License-Identifier: Apache-2.0
"""The batches that one instance runs: what it is sent for them, and what its answers mean.

Every kind of instance that speaks in frames has one. It sends nothing and reads nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.errors import error_from_code
from pytriton.executor.base import Outcome, RunningBatch
from pytriton.executor.batch_tensors import Column, details_of, make_tensor, place_input
from pytriton.messages import InferResponse
from pytriton.transport.frames import BatchFailure, BatchResult, Cancel, Credit, Execute, Responses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.errors import ServerError
    from pytriton.executor.base import Instance, InstanceEvents
    from pytriton.executor.inference import Inference
    from pytriton.messages import InferRequest, InferTensor
    from pytriton.transport.channel import Payload, Received


class ModelLabels:
    """The names that all responses of a model carry, and the order of its inputs.

    Args:
        name: of the model.
        version: of the model.
        input_names: in the order in which instances get them.
        batching: whether inputs have a batch dimension, along which requests are joined.
        is_model_file: whether it is a model.py, which is told more of a request than a callable.
    """

    __slots__ = ("batching", "input_names", "is_model_file", "name", "version")

    def __init__(
        self,
        name: str,
        version: str,
        input_names: Sequence[str],
        *,
        batching: bool,
        is_model_file: bool = False,
    ) -> None:
        self.name = name
        self.version = version
        self.input_names = tuple(input_names)
        self.batching = batching
        self.is_model_file = is_model_file


class BatchLedger:
    """The running batches of an instance, whose owner hears of outcomes.

    Args:
        instance: that runs them.
        labels: of its model.
        events: of the owner; may be replaced.
        tells_return: whether the instance says when its model returned from a batch, which then
            takes no slot any more although answers may be to come. Otherwise a batch takes its slot
            until all its requests are answered.
    """

    def __init__(
        self,
        instance: Instance,
        labels: ModelLabels,
        events: InstanceEvents,
        *,
        tells_return: bool = False,
    ) -> None:
        self.events = events
        self.running: dict[int, RunningBatch] = {}  # with answers to come
        # Those that take a slot.
        self.executing: dict[int, RunningBatch] = {} if tells_return else self.running
        self._instance = instance
        self._labels = labels
        self._next_batch = 1
        self._is_closed = False

    def inferences_of(self, batch_id: int) -> Sequence[Inference]:
        """The requests of a batch; none where it does not run any more."""
        batch = self.executing.get(batch_id) or self.running.get(batch_id)
        return batch.inferences if batch is not None else ()

    # What the instance is sent

    def begin(self, inferences: list[Inference], now_ns: int, payload: Payload) -> Execute:
        """Put down a batch; the frame that has it run, with its tensors in `payload`."""
        batch_id = self._next_batch
        batch = RunningBatch(batch_id, inferences, now_ns, set(range(len(inferences))))
        frame = self._make_frame(batch, payload)
        self._next_batch += 1
        self.running[batch_id] = self.executing[batch_id] = batch
        return frame

    def give_up(self, batch_id: int) -> None:
        """A batch could not be sent: nothing is reported of it."""
        self.running.pop(batch_id, None)
        self.executing.pop(batch_id, None)

    def cancel_frame(self, inference: Inference) -> Cancel | None:
        """What tells the model that nobody waits for a request; None where it is answered."""
        if inference.batch_id not in self.running:
            return None
        return Cancel(inference.batch_id, inference.position)

    def credit_frame(self, inference: Inference, count: int) -> Credit | None:
        """What lets the model send more responses to a request; None where it is answered."""
        if inference.batch_id not in self.running:
            return None
        return Credit(inference.batch_id, inference.position, count)

    def _make_frame(self, batch: RunningBatch, payload: Payload) -> Execute:
        labels = self._labels
        batch_id = batch.id
        inferences = batch.inferences
        requests = [inference.request for inference in inferences]
        first_inputs = requests[0].inputs
        refs = [
            place_input(payload, name, requests, batching=labels.batching)
            for name in labels.input_names
            if name in first_inputs
        ]
        frame = Execute(batch_id, [request.rows for request in requests], refs)
        for position, inference in enumerate(inferences):
            request = inference.request
            inference.instance = self._instance
            inference.batch_id = batch_id
            inference.position = position
            if request.parameters:
                frame.parameters[position] = request.parameters
            if request.outputs is not None:
                frame.outputs[position] = list(request.outputs)
            if request.id:
                frame.ids[position] = request.id
            if inference.trace is not None:
                batch.is_traced = True
                context = inference.trace.context(is_model_file=labels.is_model_file)
                frame.traces[position] = context
        if labels.is_model_file:
            frame.details = details_of(requests)
        return frame

    # What it answers

    def take(self, received: Received) -> bool:
        """Report what an answer says; whether the message was an answer.

        Raises:
            ValueError: it answers a batch that does not run.
        """
        frame = received.frame
        if isinstance(frame, BatchResult):
            self._take_result(received, frame)
        elif isinstance(frame, Responses):
            self._take_responses(received, frame)
        elif isinstance(frame, BatchFailure):
            self._take_failure(frame)
        else:
            return False
        return True

    def fail_all(self, error: ServerError) -> None:
        """The instance ends: its open requests fail, and later answers are ignored."""
        self._is_closed = True
        running = list(self.running.values())
        self.running.clear()
        self.executing.clear()
        for batch in running:
            self._fail(batch, error, (batch.started_ns, batch.started_ns))

    def _take_result(self, received: Received, frame: BatchResult) -> None:
        batch = self.running.pop(frame.batch, None)
        self.executing.pop(frame.batch, None)
        if batch is None:
            self._check_closed(frame.batch)
            return
        if len(batch.inferences) == 1:
            # Nothing to cut: this saves 4 microseconds of a single request's way.
            outputs = [make_tensor(received, ref) for ref in frame.outputs]
            outcomes = [Outcome(0, self._response(batch.inferences[0].request, outputs))]
        else:
            outcomes = self._cut(received, frame, batch)
        batch.open_positions.clear()
        times_ns = (frame.started_ns, frame.finished_ns)
        self.events.on_outcomes(self._instance, batch, outcomes, times_ns)

    def _cut(self, received: Received, frame: BatchResult, batch: RunningBatch) -> list[Outcome]:
        requests = [inference.request for inference in batch.inferences]
        columns = [Column(received, ref, requests) for ref in frame.outputs]
        outcomes = []
        row = 0
        for position, request in enumerate(requests):
            end = row + request.rows
            outputs = [column.cut(position, row, end) for column in columns]
            outcomes.append(Outcome(position, self._response(request, outputs)))
            row = end
        return outcomes

    def _response(self, request: InferRequest, outputs: list[InferTensor]) -> InferResponse:
        if request.outputs is not None:
            outputs = [output for output in outputs if output.name in request.outputs]
        labels = self._labels
        return InferResponse(labels.name, labels.version, request.id, outputs)

    def _take_responses(self, received: Received, frame: Responses) -> None:
        returned = None
        if frame.returned_batch:
            returned = self.executing.pop(frame.returned_batch, None)
        by_batch = self._sort(received, frame)
        times_ns = (frame.started_ns, frame.finished_ns)
        for batch_id, outcomes in by_batch.items():
            batch = self.running[batch_id]
            if not batch.open_positions:
                del self.running[batch_id]
            self.events.on_outcomes(self._instance, batch, outcomes, times_ns)
        if returned is not None and returned.id not in by_batch:
            self.events.on_outcomes(self._instance, returned, [], times_ns)

    def _sort(self, received: Received, frame: Responses) -> dict[int, list[Outcome]]:
        """The outcomes of each batch, without those that come too late."""
        by_batch: dict[int, list[Outcome]] = {}
        for item in frame.items:
            batch = self.running.get(item.batch)
            if batch is None or item.position not in batch.open_positions:
                continue
            response = error = None
            if item.error is not None:
                error = error_from_code(item.error_code, item.error)
            elif item.outputs is not None:
                response = InferResponse(
                    self._labels.name,
                    self._labels.version,
                    batch.inferences[item.position].request.id,
                    [make_tensor(received, ref) for ref in item.outputs],
                    item.parameters,
                )
            if item.is_final:
                batch.open_positions.discard(item.position)
            outcome = Outcome(item.position, response, error, item.is_final, item.is_rescheduled)
            if item.is_rescheduled:
                batch.is_rescheduled = True
            by_batch.setdefault(item.batch, []).append(outcome)
        return by_batch

    def _take_failure(self, frame: BatchFailure) -> None:
        returned = self.executing.pop(frame.batch, None)
        batch = self.running.pop(frame.batch, None) or returned
        if batch is None:
            self._check_closed(frame.batch)
            return
        error = error_from_code(frame.error_code, frame.error)
        self._fail(batch, error, (frame.started_ns, frame.finished_ns))

    def _fail(self, batch: RunningBatch, error: ServerError, times_ns: tuple[int, int]) -> None:
        outcomes = [Outcome(position, None, error) for position in sorted(batch.open_positions)]
        batch.open_positions.clear()
        self.events.on_outcomes(self._instance, batch, outcomes, times_ns)

    def _check_closed(self, batch_id: int) -> None:
        if not self._is_closed:
            raise ValueError(f"expected an answer to a running batch, got one to batch {batch_id}")
