# SPDX-License-Identifier: Apache-2.0
"""Tracks the batches that one instance runs: makes request frames and turns answers into outcomes.

Every instance that communicates in frames has a tracker. The tracker itself does no I/O.
"""

from __future__ import annotations

import time
from itertools import repeat
from typing import TYPE_CHECKING

from pytriton.base.errors import error_for_clients, error_from_code
from pytriton.base.messages import InferResponse, ResponseBurst
from pytriton.runtime.executor import device_regions
from pytriton.runtime.executor.batch_tensors import (
    add_columns,
    add_input,
    device_input,
    make_outputs,
    make_placed_output,
    make_tensor,
    output_columns,
    request_details,
    requested_outputs,
    reshape_inputs,
    reshape_outputs,
    split_output,
    split_rows,
)
from pytriton.runtime.executor.columns import find_runs
from pytriton.runtime.executor.device_blocks import is_sharing, ledger_of
from pytriton.runtime.executor.inference import CLOSED_SINK, Outcome, RunningBatch
from pytriton.runtime.transport.frames import (
    BatchFailure,
    BatchResult,
    Cancel,
    Credit,
    Execute,
    ResponsesFrame,
)
from pytriton.runtime.transport.peer_account import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pytriton.base.errors import ServerError
    from pytriton.base.failure_records import FailureOrigin
    from pytriton.base.messages import (
        DeviceBytes,
        DeviceExport,
        DeviceUse,
        ExecutionTrace,
        InferRequest,
        InferTensor,
        OutputBurst,
    )
    from pytriton.runtime.executor.columns import ChunkRun
    from pytriton.runtime.executor.inference import (
        BatchCosts,
        Inference,
        Instance,
        InstanceEvents,
        ModelLabels,
    )
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.frames import ResponseItem, ResponseRows
    from pytriton.runtime.transport.refs import TensorRef


class BatchTracker:
    """The running batches of an instance. Reports outcomes to the instance's owner.

    An instance that `reports_return` tells when its model has returned from a batch. The batch then
    frees its slot, although responses may follow. Otherwise a batch occupies its slot until all its
    requests are answered. `others` are the kinds of frames that it may send beside answers; None:
    its owner knows them.
    """

    def __init__(
        self,
        instance: Instance,
        labels: ModelLabels,
        events: InstanceEvents,
        *,
        reports_return: bool = False,
        others: tuple[type, ...] | None = None,
    ) -> None:
        self._others = others
        self.events = events
        self.running: dict[int, RunningBatch] = {}  # batches with responses to come
        # Batches that occupy a slot.
        self.executing: dict[int, RunningBatch] = {} if reports_return else self.running
        self._instance = instance
        self._labels = labels
        self._next_batch = 1
        self._traced: set[int] = set()  # batches with traced requests; some of them may have ended
        self._end: ServerError | None = None  # set when the instance has ended

    @property
    def has_requests(self) -> bool:
        """Whether a batch is executed, or has responses to come."""
        return bool(self.running or self.executing)

    def expect_no_return(self) -> None:
        """Let batches occupy their slots until they are answered; none may run yet."""
        self.executing = self.running

    def inferences_of(self, batch_id: int) -> Sequence[Inference]:
        """Returns the requests of a batch; none if it is not running any more."""
        batch = self._batch_of(batch_id)
        return batch.inferences if batch is not None else ()

    def _batch_of(self, batch_id: int) -> RunningBatch | None:
        return self.executing.get(batch_id) or self.running.get(batch_id)

    def call_depth_of(self, batch_id: int) -> int:
        """Returns how deep the calls are that a batch was made by; 0 if it is not running."""
        batch = self._batch_of(batch_id)
        if batch is None:
            return 0
        if batch.call_depth < 0:  # each call of each of its requests asks for it
            batch.call_depth = max(each.request.call_depth for each in batch.inferences)
        return batch.call_depth

    def principal_of(self, batch_id: int) -> str:
        """Returns who has sent the requests of a batch; empty if they are of several."""
        principals = {each.request.fields.principal for each in self.inferences_of(batch_id)}
        return principals.pop() if len(principals) == 1 else ""

    # Frames to the instance

    def begin(self, inferences: list[Inference], now_ns: int, payload: Payload) -> Execute:
        """Add a batch; returns its frame and writes its tensors to `payload`.

        Raises:
            ServerError: The instance has ended, or there is no memory for the tensors.
        """
        if self._end is not None:
            raise self._end
        labels = self._labels
        if labels.keeps_inputs:
            payload.lends = False
        batch_id = self._next_batch
        batch = RunningBatch(batch_id, inferences, now_ns, set(range(len(inferences))))
        is_lone = len(inferences) == 1 and inferences[0].chunk is None
        if not is_lone and (runs := find_runs(inferences)):
            frame = self._columns_frame(batch, runs, payload)
        else:
            frame = self._requests_frame(batch, payload)
        if batch.has_others:
            self._describe_others(batch, frame)
        else:
            instance = self._instance
            for inference in inferences:
                inference.instance = instance
        if labels.input_reshapes:
            reshape_inputs(frame.inputs, labels.input_reshapes, batching=labels.batching)
        if labels.is_model_file:
            frame.details = request_details([inference.request for inference in inferences])
        costs = self.events.costs
        if costs is not None:
            costs.bytes_in += _size_of_inputs(frame)
        self._next_batch += 1
        self.running[batch_id] = self.executing[batch_id] = batch
        return frame

    def _requests_frame(self, batch: RunningBatch, payload: Payload) -> Execute:
        """Returns the frame of a batch without chunks."""
        requests = [inference.request for inference in batch.inferences]
        rows = [request.rows for request in requests]
        frame = Execute(batch.id, rows, self._add_inputs(requests, sum(rows), payload))
        if requests[0].device is not None:
            frame.devices = self._lend_device_inputs(batch, requests)
        return frame

    def discard(self, batch_id: int) -> None:
        """Remove a batch that could not be sent; no outcomes are reported."""
        batch = self.running.pop(batch_id, None)
        self.executing.pop(batch_id, None)
        ledger = ledger_of(self._instance)
        if batch is not None and batch.leases and ledger is not None:
            ledger.end_leases(batch.leases)

    def cancel_frame(self, inference: Inference) -> Cancel | None:
        """Returns the frame that cancels a request; None if its batch was answered."""
        if inference.chunk is not None:
            return self._cancel_member(inference)
        if inference.batch_id not in self.running:
            return None
        return Cancel(inference.batch_id, inference.position)

    def _cancel_member(self, inference: Inference) -> Cancel | None:
        # Members do not know their batch and position: that saves 0.1 us for each.
        chunk, index = inference.chunk, inference.index
        for batch in self.running.values():
            for run in batch.runs:
                if run.chunk is chunk and run.first <= index < run.end:
                    return Cancel(batch.id, run.position + index - run.first)
        return None

    def open_cancel_frames(self) -> list[Cancel]:
        """Returns the frames that cancel all open requests."""
        batches = self.running.values()
        return [Cancel(each.id, position) for each in batches for position in each.open_positions]

    def credit_frame(self, inference: Inference, count: int) -> Credit | None:
        """Returns the frame that grants more responses; None if the batch was answered."""
        if inference.batch_id not in self.running:
            return None
        return Credit(inference.batch_id, inference.position, count)

    def _columns_frame(
        self, batch: RunningBatch, runs: list[ChunkRun], payload: Payload
    ) -> Execute:
        """Returns the frame of a batch with members of chunks, and adds the runs to the batch."""
        rows: list[int] = []
        for run in runs:
            rows += run.rows_of_each()
        batch.runs = runs
        batch.has_others = len(rows) < len(batch.inferences)
        if batch.has_others:
            rows = [inference.request.rows for inference in batch.inferences]
        batch.rows = sum(rows)
        refs = add_columns(payload, batch, batching=self._labels.batching)
        if len(refs) < len(self._labels.input_names):  # a scheduler may have added others
            requests = [inference.request for inference in batch.inferences]
            refs += self._add_inputs(requests, batch.rows, payload, {ref.name for ref in refs})
        frame = Execute(batch.id, rows, refs)
        are_all_wanted = self._labels.are_all_wanted
        for run in runs:
            chunk = run.chunk
            if not are_all_wanted(chunk.signature.outputs):
                frame.outputs.update(requested_outputs(run))
            if chunk.has_fields:
                _describe_members(run, frame)
            if chunk.trace is not None:
                self._trace(batch, frame, chunk.trace, range(run.first, run.end), run.position)
        return frame

    def _trace(
        self,
        batch: RunningBatch,
        frame: Execute,
        trace: ExecutionTrace,
        indices: range,
        position: int,
    ) -> None:
        """Note that requests of a batch are traced: what it costs is counted for itself, too."""
        if not batch.is_traced:
            batch.is_traced = True
            self._forget_traced()
            self._traced.add(batch.id)
            if self.events.costs is not None:
                batch.bytes_in = _size_of_inputs(frame)
        first, end = indices.start, indices.stop
        is_model_file = self._labels.is_model_file
        for index, context in trace.contexts(first, end, is_model_file=is_model_file):
            frame.traces[position + index - first] = context

    def _describe_others(self, batch: RunningBatch, frame: Execute) -> None:
        """Add what requests have that are no members of chunks: ids, parameters, traces."""
        instance, batch_id, labels = self._instance, batch.id, self._labels
        for position, inference in enumerate(batch.inferences):
            inference.instance = instance
            if inference.chunk is not None:
                continue
            inference.batch_id = batch_id
            inference.position = position
            request = inference.request
            if request.fields.parameters:
                frame.parameters[position] = request.fields.parameters
            if request.outputs is not None and not labels.are_all_wanted(request.outputs):
                frame.outputs[position] = list(labels.returned_outputs(request.outputs))
            if request.fields.id:
                frame.ids[position] = request.fields.id
            if request.device_wish is not None and is_sharing(instance):
                frame.device_wishes[position] = request.device_wish
            if inference.trace is not None:
                index = inference.index
                self._trace(batch, frame, inference.trace, range(index, index + 1), position)

    def _add_inputs(
        self,
        requests: list[InferRequest],
        row_count: int,
        payload: Payload,
        columns: Collection[str] = (),
    ) -> list[TensorRef]:
        """Add those inputs that are no columns, each of all requests."""
        batching, ragged = self._labels.batching, self._labels.ragged_inputs
        first_inputs = requests[0].inputs
        # Requests of a batch have the same of their inputs in GPU memory: see `device_batch_key`.
        device = requests[0].device
        on_device = () if device is None else device.inputs
        for request in requests if device is not None else ():
            device_regions.use(request.device, self._instance)  # type: ignore[arg-type]  # see above
        return [
            device_input(name, requests, row_count, batching=batching, ragged=name in ragged)
            if name in on_device
            else add_input(
                payload, name, requests, row_count, batching=batching, ragged=name in ragged
            )
            for name in self._labels.input_names
            if name in first_inputs and name not in columns
        ]

    def _lend_device_inputs(
        self, batch: RunningBatch, requests: list[InferRequest]
    ) -> dict[int, DeviceUse]:
        """Returns where inputs and outputs of requests are that are in GPU memory."""
        ledger = ledger_of(self._instance)
        uses: dict[int, DeviceUse] = {}
        for position, request in enumerate(requests):
            assert request.device is not None, "it has the batch key of others that have it"
            use = request.device
            if ledger is not None:
                use = ledger.lend_use(use, request.inputs)
                batch.leases += [place.lease for place in use.inputs.values() if place.lease]
            uses[position] = use
        return uses

    # Answers of the instance

    def handle(self, received: Received) -> bool:
        """Report the outcomes in an answer; returns False if the message is not an answer.

        A batch whose answer cannot be processed fails; other batches are not concerned.

        Raises:
            ProtocolError: The answer is to a batch that is not running, or is none that this
                instance may give.
        """
        frame = received.frame
        if isinstance(frame, BatchResult):
            self._handle_result(received, frame)
        elif isinstance(frame, ResponsesFrame):
            self._handle_responses(received, frame)
        elif isinstance(frame, BatchFailure):
            self._handle_failure(frame)
        elif self._others is None or isinstance(frame, self._others):
            return False
        else:
            kind = type(frame).__name__
            raise ProtocolError(f"expected an answer, got a frame {kind}")
        return True

    def fail_all(self, error: ServerError, *, is_lost: bool = False) -> None:
        """Fail all open requests, as the instance ends; `is_lost`: its owner has not stopped it."""
        self._end = error
        running = list(self.running.values())
        self.running.clear()
        self.executing.clear()
        for batch in running:
            batch.is_lost = is_lost
            self._fail(batch, error, (batch.started_ns, batch.started_ns))

    def _handle_result(self, received: Received, frame: BatchResult) -> None:
        batch = self.running.pop(frame.batch, None)
        self.executing.pop(frame.batch, None)
        if batch is None:
            self._check_closed(frame.batch)
            return
        started_ns, finished_ns = frame.started_ns, frame.finished_ns
        times_ns = (started_ns, finished_ns)
        try:
            if not batch.started_ns <= started_ns <= finished_ns <= time.monotonic_ns():
                times_ns = self._plausible_times(times_ns, batch)
            error = self._reshape(frame.outputs) if self._labels.output_reshapes else None
            outcomes = self._outcomes(received, frame, batch) if error is None else []
        except ProtocolError:
            self.running[frame.batch] = batch  # the instance ends, and the batch with it
            raise
        except Exception as failure:  # noqa: BLE001  the requests of the batch end with it
            error = self._read_error(failure)
        costs = self.events.costs
        if costs is not None:
            costs.worker_ns += frame.processor_ns
            costs.to_gpu_bytes += frame.copied[0]
            costs.to_host_bytes += frame.copied[1]
            for ref in frame.outputs:
                costs.bytes_out += ref.size
            if batch.is_traced:
                batch.processor_ns += frame.processor_ns
                batch.bytes_out += _size(frame.outputs)
        if error is not None:
            batch.answered = ()
            self._fail(batch, error, times_ns)
            return
        batch.open_positions.clear()
        self.events.on_outcomes(self._instance, batch, outcomes, times_ns)

    def _plausible_times(
        self, times_ns: tuple[int, int], batch: RunningBatch | None
    ) -> tuple[int, int]:
        """Returns when a model computed something, of an answer to a batch or to several.

        Raises:
            ProtocolError: The model has not been there then.
        """
        now_ns = time.monotonic_ns()
        started_ns, finished_ns = times_ns
        began_ns = 0 if batch is None else batch.started_ns
        if getattr(self._instance, "node", ""):  # another machine, which has a clock of its own
            return now_ns - max(0, min(finished_ns - started_ns, now_ns - began_ns)), now_ns
        if not 0 <= started_ns <= finished_ns <= now_ns:
            raise ProtocolError(
                f"expected times in their order that are not after {now_ns}, got {started_ns} and "
                f"{finished_ns}"
            )
        return max(started_ns, began_ns), max(finished_ns, began_ns)

    def _read_error(self, error: Exception) -> ServerError:
        """Returns the error of requests whose answer could not be read."""
        return error_for_clients(error, f"it read an answer of model {self._labels.name}")

    def _outcomes(
        self, received: Received, frame: BatchResult, batch: RunningBatch
    ) -> list[Outcome]:
        if batch.runs and self._answer_runs(received, frame, batch):
            return self._split_others(received, frame, batch) if batch.has_others else []
        if len(batch.inferences) == 1:
            # There is nothing to split; skipping that saves 4 microseconds for a single request.
            request = batch.inferences[0].request
            outputs = _outputs(received, request, frame.outputs)
            return [Outcome(0, self._response(request, outputs))]
        return self._split(received, frame, batch)

    def _reshape(self, outputs: list[TensorRef]) -> ServerError | None:
        reshapes = self._labels.output_reshapes
        if not reshapes:
            return None
        return reshape_outputs(outputs, reshapes, batching=self._labels.batching)

    def _split(self, received: Received, frame: BatchResult, batch: RunningBatch) -> list[Outcome]:
        requests = [inference.request for inference in batch.inferences]
        rows = [request.rows for request in requests]
        outputs = [split_output(received, ref, rows) for ref in frame.outputs]
        parts = zip(*outputs, strict=True) if outputs else repeat((), len(rows))
        return [
            Outcome(position, self._response(request, list(tensors)))
            for position, (request, tensors) in enumerate(zip(requests, parts, strict=True))
        ]

    def _answer_runs(self, received: Received, frame: BatchResult, batch: RunningBatch) -> bool:
        """Answer the members of chunks by columns; returns False if that is not possible."""
        batching = self._labels.batching
        columns = output_columns(received, frame.outputs, batch, batching=batching)
        if columns is None:
            return False
        for run in batch.runs:
            wanted = run.chunk.signature.outputs
            run.outputs = columns
            if wanted is not None:
                run.outputs = [column for column in columns if column.name in wanted]
        batch.answered = batch.runs
        return True

    def _split_others(
        self, received: Received, frame: BatchResult, batch: RunningBatch
    ) -> list[Outcome]:
        """Returns the outcomes of the requests that are no members of chunks."""
        inferences = batch.inferences
        others = [each for each in inferences if each.chunk is None]
        if all(each.sink is CLOSED_SINK and each.owner is None for each in set(others)):
            return []  # null requests have no client
        return [
            outcome
            for outcome in self._split(received, frame, batch)
            if inferences[outcome.position].chunk is None
        ]

    def _response(self, request: InferRequest, outputs: list[InferTensor]) -> InferResponse:
        labels = self._labels
        if request.outputs is not None:
            wanted = labels.returned_outputs(request.outputs)
            outputs = [output for output in outputs if output.name in wanted]
        return InferResponse(labels.name, labels.version, request.fields.id, outputs)

    def _handle_responses(self, received: Received, frame: ResponsesFrame) -> None:
        returned = None
        if frame.returned_batch:
            if self.executing is self.running:
                raise ProtocolError(
                    f"expected answers to batch {frame.returned_batch}, got its return"
                )
            returned = self.executing.pop(frame.returned_batch, None)
        times_ns = (frame.started_ns, frame.finished_ns)
        if not 0 <= times_ns[0] <= times_ns[1] <= time.monotonic_ns():
            times_ns = self._plausible_times(times_ns, None)
        costs = self.events.costs
        if costs is not None:
            self._charge(frame, costs)
        if frame.rows is not None:
            self._handle_rows(received, frame.rows, times_ns)
        by_batch, breach = self._outcomes_by_batch(received, frame)
        for batch_id, (batch, outcomes) in by_batch.items():
            if not batch.open_positions:
                # It is gone if the outcomes of another batch made their receiver stop the instance.
                self.running.pop(batch_id, None)
            own_ns = times_ns if times_ns[0] >= batch.started_ns else _since(batch, times_ns)
            self.events.on_outcomes(self._instance, batch, outcomes, own_ns)
        if breach is not None:
            raise breach
        if returned is not None and returned.id not in by_batch:
            self.events.on_outcomes(self._instance, returned, [], times_ns)

    def _charge(self, frame: ResponsesFrame, costs: BatchCosts) -> None:
        """Add the costs of a message."""
        costs.worker_ns += frame.processor_ns
        costs.to_gpu_bytes += frame.copied[0]
        costs.to_host_bytes += frame.copied[1]
        # One loop for all: with a call for each it takes three times as long.
        costs.bytes_out += sum([ref.size for item in frame.items for ref in item.outputs or ()])
        if frame.rows is not None:
            costs.bytes_out += _size(frame.rows.outputs)
        if self._traced:
            self._charge_traced(frame)

    def _charge_traced(self, frame: ResponsesFrame) -> None:
        """Tell those batches that are traced their parts of the costs of a message."""
        sizes: dict[int, int] = {frame.returned_batch: 0} if frame.returned_batch else {}
        for item in frame.items:
            sizes[item.batch] = sizes.get(item.batch, 0) + _size(item.outputs or ())
        if frame.rows is not None:
            bursts = frame.rows.bursts
            each = _size(frame.rows.outputs) // (sum([burst.count for burst in bursts]) or 1)
            for burst in bursts:
                sizes[burst.batch] = sizes.get(burst.batch, 0) + each * burst.count
        for batch_id, size in sizes.items():
            batch = self._batch_of(batch_id)
            if batch is not None and batch.is_traced:
                batch.processor_ns += frame.processor_ns // len(sizes)
                batch.bytes_out += size
        self._forget_traced()

    def _forget_traced(self) -> None:
        """Forget traced batches that have ended."""
        self._traced = {each for each in self._traced if self._batch_of(each) is not None}

    def _handle_rows(
        self, received: Received, rows: ResponseRows, times_ns: tuple[int, int]
    ) -> None:
        """Report the bursts of a message, without those for requests that have ended."""
        outputs: list[list[OutputBurst]] = []
        try:
            error = self._reshape(rows.outputs)
            if error is None:
                counts = [burst.count for burst in rows.bursts]
                outputs = split_rows(received, rows.outputs, counts)
        except ProtocolError:
            raise
        except Exception as failure:  # noqa: BLE001  it takes the place of the responses
            error = self._read_error(failure)
        labels = self._labels
        for number, ref in enumerate(rows.bursts):
            position = ref.position
            batch = self.running.get(ref.batch)
            if batch is None or position not in batch.open_positions:
                continue
            own_ns = times_ns if times_ns[0] >= batch.started_ns else _since(batch, times_ns)
            if error is not None:
                failures = [Outcome(position, None, error, is_final=False)] * ref.count
                self.events.on_outcomes(self._instance, batch, failures, own_ns)
                continue
            request = batch.inferences[position].request
            burst = ResponseBurst(
                labels.name, labels.version, request.fields.id, ref.count, outputs[number]
            )
            self.events.on_burst(self._instance, batch, position, burst, own_ns)

    def _outcomes_by_batch(
        self, received: Received, frame: ResponsesFrame
    ) -> tuple[dict[int, tuple[RunningBatch, list[Outcome]]], ProtocolError | None]:
        """Returns the outcomes of each batch, without those for requests that have ended.

        They are those before the first item that breaks a rule, which is returned as well.
        """
        by_batch: dict[int, tuple[RunningBatch, list[Outcome]]] = {}
        for item in frame.items:
            batch = self.running.get(item.batch)
            if batch is None or item.position not in batch.open_positions:
                ledger = ledger_of(self._instance) if item.device is not None else None
                if ledger is not None and item.device is not None:
                    ledger.drop(item.device.values())
                continue
            try:
                outcome = self._outcome(received, item, batch)
            except ProtocolError as breach:
                return by_batch, breach
            except Exception as failure:  # noqa: BLE001  it takes the place of the response
                error = self._read_error(failure)
                outcome = Outcome(item.position, None, error, item.is_final)
            if item.is_final:
                batch.open_positions.discard(item.position)
            if item.is_rescheduled:
                batch.is_rescheduled = True
            by_batch.setdefault(item.batch, (batch, []))[1].append(outcome)
        return by_batch, None

    def _outcome(self, received: Received, item: ResponseItem, batch: RunningBatch) -> Outcome:
        labels = self._labels
        response: InferResponse | None = None
        error: ServerError | None = None
        request = batch.inferences[item.position].request
        if item.is_rescheduled and not item.is_final:
            raise ProtocolError("expected that a request ends before it is executed again")
        # First, so that they are released if there is an error.
        taken = None if item.device is None else self._take_exports(request, item.device)
        if item.error is not None:
            error = self._error(item.error_code, item.error, item.origin, batch)
        elif item.outputs is not None and (error := self._reshape(item.outputs)) is None:
            outputs = _outputs(received, request, item.outputs, taken)
            response = InferResponse(
                labels.name, labels.version, request.fields.id, outputs, item.parameters
            )
        return Outcome(item.position, response, error, item.is_final, item.is_rescheduled)

    def _error(
        self, code: int, text: str, origin: FailureOrigin | None, batch: RunningBatch
    ) -> ServerError:
        """Returns what clients get in place of answers; ValueError if there is no such code."""
        error = error_from_code(code, text, origin)
        return error if origin is None else self.events.shown(error, batch)

    def _take_exports(
        self, request: InferRequest, exports: dict[str, DeviceExport]
    ) -> dict[str, DeviceBytes]:
        ledger = ledger_of(self._instance)
        if ledger is None or request.device_wish is None:
            raise ProtocolError("expected outputs on the host, got some in GPU memory")
        return ledger.take_all(exports)

    def _handle_failure(self, frame: BatchFailure) -> None:
        batch = self.running.get(frame.batch) or self.executing.get(frame.batch)
        if batch is None:
            self._check_closed(frame.batch)
            return
        times_ns = (frame.started_ns, frame.finished_ns)
        if not batch.started_ns <= times_ns[0] <= times_ns[1] <= time.monotonic_ns():
            times_ns = self._plausible_times(times_ns, batch)
        self.running.pop(frame.batch, None)
        self.executing.pop(frame.batch, None)
        costs = self.events.costs
        if costs is not None:
            costs.worker_ns += frame.processor_ns
            costs.to_gpu_bytes += frame.copied[0]
            costs.to_host_bytes += frame.copied[1]
            batch.processor_ns += frame.processor_ns
        try:
            error = self._error(frame.error_code, frame.error, frame.origin, batch)
        except ValueError as failure:  # there is no such code
            error = self._read_error(failure)
        self._fail(batch, error, times_ns)

    def _fail(self, batch: RunningBatch, error: ServerError, times_ns: tuple[int, int]) -> None:
        outcomes = [Outcome(position, None, error) for position in sorted(batch.open_positions)]
        batch.open_positions.clear()
        self.events.on_outcomes(self._instance, batch, outcomes, times_ns)

    def _check_closed(self, batch_id: int) -> None:
        if self._end is None:
            raise ProtocolError(
                f"expected an answer to a running batch, got one to batch {batch_id}"
            )


def _since(batch: RunningBatch, times_ns: tuple[int, int]) -> tuple[int, int]:
    """Returns times of responses that waited for others, which have that of the first of them."""
    began_ns = batch.started_ns
    return max(times_ns[0], began_ns), max(times_ns[1], began_ns)


def _outputs(
    received: Received,
    request: InferRequest,
    refs: list[TensorRef],
    taken: Mapping[str, DeviceBytes] | None = None,
) -> list[InferTensor]:
    """Returns the outputs of a response; those that were `taken` are in GPU memory."""
    device = request.device
    if taken is None and device is None:
        return make_outputs(received, refs)
    tensors: dict[int, InferTensor] = {}
    for index, ref in enumerate(refs):
        if taken is not None and ref.name in taken:
            tensors[index] = make_tensor(received, ref)
            tensors[index].data = taken[ref.name]
        # One that has bytes was not written to the client's memory, of which that is told.
        elif device is not None and not ref.size and ref.name in device.outputs:
            tensors[index] = make_placed_output(ref, device.outputs[ref.name])
    on_host = [ref for index, ref in enumerate(refs) if index not in tensors]
    rest = iter(make_outputs(received, on_host))
    return [tensors.get(index) or next(rest) for index in range(len(refs))]


def _size(tensors: Iterable[TensorRef]) -> int:
    size = 0
    for ref in tensors:
        size += ref.size
    return size


def _size_of_inputs(frame: Execute) -> int:
    """Returns the bytes that the server passes on: those in GPU memory cost it nothing."""
    size = _size(frame.inputs)
    if frame.devices:
        on_device = frame.devices[0].inputs
        size -= _size(ref for ref in frame.inputs if ref.name in on_device)
    return size


def _describe_members(run: ChunkRun, frame: Execute) -> None:
    """Add the ids and parameters of members that have a record each."""
    for position, member in enumerate(run.chunk.members[run.first : run.end], run.position):
        request = member.request
        if request.fields.id:
            frame.ids[position] = request.fields.id
        if request.fields.parameters:
            frame.parameters[position] = request.fields.parameters
