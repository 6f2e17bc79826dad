# SPDX-License-Identifier: Apache-2.0
"""Tracks the batches that one instance runs: which requests are open, and what they cost.

Every instance that communicates in frames has a tracker, which does no I/O. `batch_frames.py` makes
the frames of batches, and reads the tensors of answers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytriton.base.errors import error_from_code
from pytriton.base.messages import ResponseBurst
from pytriton.runtime.executor.batch_frames import BatchWriter, TensorReader
from pytriton.runtime.executor.batch_tensors import split_rows
from pytriton.runtime.executor.device_blocks import ledger_of
from pytriton.runtime.executor.inference import Outcome, RunningBatch
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
    from collections.abc import Callable, Iterable, Sequence

    from pytriton.base.errors import ServerError
    from pytriton.base.failure_records import FailureOrigin
    from pytriton.base.messages import OutputBurst
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
        self._writer = BatchWriter(instance, labels)
        self._reader = TensorReader(instance, labels)
        self._traced = _TracedBatches(self._batch_of)
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
        batch_id = self._next_batch
        batch = RunningBatch(batch_id, inferences, now_ns, set(range(len(inferences))))
        frame = self._writer.write(batch, payload)
        costs = self.events.costs
        if costs is not None:
            size = _size_of_inputs(frame)
            costs.bytes_in += size
            if batch.is_traced:
                batch.bytes_in = size
        self._next_batch += 1
        self.running[batch_id] = self.executing[batch_id] = batch
        if batch.is_traced:
            self._traced.add(batch_id)
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
        error = None
        try:
            if not batch.started_ns <= started_ns <= finished_ns <= time.monotonic_ns():
                times_ns = self._plausible_times(times_ns, batch)
            self._reader.reshape(frame.outputs)
            outcomes = self._reader.outcomes(received, frame, batch)
        except ProtocolError:
            self.running[frame.batch] = batch  # the instance ends, and the batch with it
            raise
        except Exception as failure:  # noqa: BLE001  the requests of the batch end with it
            error = self._reader.read_error(failure)
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
            _charge(frame, costs, self._traced)
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

    def _handle_rows(
        self, received: Received, rows: ResponseRows, times_ns: tuple[int, int]
    ) -> None:
        """Report the bursts of a message, without those for requests that have ended."""
        outputs: list[list[OutputBurst]] = []
        error = None
        try:
            self._reader.reshape(rows.outputs)
            counts = [burst.count for burst in rows.bursts]
            outputs = split_rows(received, rows.outputs, counts)
        except ProtocolError:
            raise
        except Exception as failure:  # noqa: BLE001  it takes the place of the responses
            error = self._reader.read_error(failure)
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
                error = self._reader.read_error(failure)
                outcome = Outcome(item.position, None, error, item.is_final)
            if item.is_final:
                batch.open_positions.discard(item.position)
            if item.is_rescheduled:
                batch.is_rescheduled = True
            by_batch.setdefault(item.batch, (batch, []))[1].append(outcome)
        return by_batch, None

    def _outcome(self, received: Received, item: ResponseItem, batch: RunningBatch) -> Outcome:
        if item.is_rescheduled and not item.is_final:
            raise ProtocolError("expected that a request ends before it is executed again")
        request = batch.inferences[item.position].request
        response = self._reader.item_response(received, item, request)
        error = None
        if item.error is not None:
            error = self._error(item.error_code, item.error, item.origin, batch)
        return Outcome(item.position, response, error, item.is_final, item.is_rescheduled)

    def _error(
        self, code: int, text: str, origin: FailureOrigin | None, batch: RunningBatch
    ) -> ServerError:
        """Returns what clients get in place of answers; ValueError if there is no such code."""
        error = error_from_code(code, text, origin)
        return error if origin is None else self.events.shown(error, batch)

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
            error = self._reader.read_error(failure)
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


def _charge(frame: ResponsesFrame, costs: BatchCosts, traced: _TracedBatches) -> None:
    """Add the costs of a message."""
    costs.worker_ns += frame.processor_ns
    costs.to_gpu_bytes += frame.copied[0]
    costs.to_host_bytes += frame.copied[1]
    # One loop for all: with a call for each it takes three times as long.
    costs.bytes_out += sum([ref.size for item in frame.items for ref in item.outputs or ()])
    if frame.rows is not None:
        costs.bytes_out += _size(frame.rows.outputs)
    if traced:
        traced.charge(frame)


class _TracedBatches:
    """The batches with traced requests, whose costs are counted for themselves, too."""

    def __init__(self, find: Callable[[int], RunningBatch | None]) -> None:
        self._find = find
        self._ids: set[int] = set()  # some of them may have ended

    def __bool__(self) -> bool:
        return bool(self._ids)

    def add(self, batch_id: int) -> None:
        """Count one more."""
        self._forget_ended()
        self._ids.add(batch_id)

    def charge(self, frame: ResponsesFrame) -> None:
        """Tell them their parts of the costs of a message."""
        sizes: dict[int, int] = {frame.returned_batch: 0} if frame.returned_batch else {}
        for item in frame.items:
            sizes[item.batch] = sizes.get(item.batch, 0) + _size(item.outputs or ())
        if frame.rows is not None:
            bursts = frame.rows.bursts
            each = _size(frame.rows.outputs) // (sum([burst.count for burst in bursts]) or 1)
            for burst in bursts:
                sizes[burst.batch] = sizes.get(burst.batch, 0) + each * burst.count
        for batch_id, size in sizes.items():
            batch = self._find(batch_id)
            if batch is not None and batch.is_traced:
                batch.processor_ns += frame.processor_ns // len(sizes)
                batch.bytes_out += size
        self._forget_ended()

    def _forget_ended(self) -> None:
        self._ids = {each for each in self._ids if self._find(each) is not None}
