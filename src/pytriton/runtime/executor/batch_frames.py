# SPDX-License-Identifier: Apache-2.0
"""The messages about a batch: what an instance is told of its requests, and what it answers.

Both have the tensors. Which batches run, what they cost, and who hears of an answer, the tracker of
the instance knows.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from pytriton.base.errors import error_for_clients
from pytriton.base.messages import InferResponse
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
)
from pytriton.runtime.executor.columns import find_runs
from pytriton.runtime.executor.device_blocks import is_sharing, ledger_of
from pytriton.runtime.executor.inference import CLOSED_SINK, Outcome
from pytriton.runtime.transport.frames import Execute
from pytriton.runtime.transport.peer_account import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import (
        DeviceBytes,
        DeviceExport,
        DeviceUse,
        ExecutionTrace,
        InferRequest,
        InferTensor,
    )
    from pytriton.runtime.executor.columns import ChunkRun
    from pytriton.runtime.executor.inference import (
        Inference,
        Instance,
        ModelLabels,
        RunningBatch,
    )
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.frames import BatchResult, ResponseItem
    from pytriton.runtime.transport.refs import TensorRef


class TensorReader:
    """Reads what one instance answers."""

    def __init__(self, instance: Instance, labels: ModelLabels) -> None:
        self._instance = instance
        self._labels = labels

    def outcomes(
        self, received: Received, frame: BatchResult, batch: RunningBatch
    ) -> list[Outcome]:
        """Returns the outcomes of a batch that is answered at once."""
        if batch.runs and self._answer_runs(received, frame, batch):
            return self._split_others(received, frame, batch) if batch.has_others else []
        if len(batch.inferences) == 1:
            # There is nothing to split; skipping that saves 4 microseconds for a single request.
            request = batch.inferences[0].request
            if request.device is None:
                outputs = make_outputs(received, frame.outputs)
            else:
                outputs = _device_outputs(received, request, frame.outputs)
            return [Outcome(0, self._response(request, outputs))]
        return self._split(received, frame, batch, range(len(batch.inferences)))

    def reshape(self, outputs: list[TensorRef]) -> None:
        """Give outputs the shapes that clients see.

        Raises:
            InternalError: One of them has another size.
        """
        labels = self._labels
        if labels.output_reshapes:
            reshape_outputs(outputs, labels.output_reshapes, batching=labels.batching)

    def read_error(self, error: Exception) -> ServerError:
        """Returns the error of requests whose answer could not be read."""
        return error_for_clients(error, f"it read an answer of model {self._labels.name}")

    def item_response(
        self, received: Received, item: ResponseItem, request: InferRequest
    ) -> InferResponse | None:
        """Returns the response in a part of a message; None if that has an error, or the end."""
        # First, so that they are released if there is an error.
        taken = None if item.device is None else self._take_exports(request, item.device)
        refs, labels = item.outputs, self._labels
        if refs is None or item.error is not None:
            return None
        if labels.output_reshapes:
            self.reshape(refs)
        if taken is None and request.device is None:
            outputs = make_outputs(received, refs)
        else:
            outputs = _device_outputs(received, request, refs, taken)
        return InferResponse(
            labels.name, labels.version, request.fields.id, outputs, item.parameters
        )

    def _split(
        self,
        received: Received,
        frame: BatchResult,
        batch: RunningBatch,
        positions: Sequence[int],
    ) -> list[Outcome]:
        """Returns the outcomes of the requests at these positions."""
        inferences = batch.inferences
        rows = [inference.request.rows for inference in inferences]
        outputs = [split_output(received, ref, rows, positions) for ref in frame.outputs]
        parts = zip(*outputs, strict=True) if outputs else repeat((), len(positions))
        return [
            Outcome(position, self._response(inferences[position].request, list(tensors)))
            for position, tensors in zip(positions, parts, strict=True)
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
        others = [position for position, each in enumerate(inferences) if each.chunk is None]
        if all(_is_null(inferences[position]) for position in others):
            return []
        return self._split(received, frame, batch, others)

    def _response(self, request: InferRequest, outputs: list[InferTensor]) -> InferResponse:
        labels = self._labels
        if request.outputs is not None:
            wanted = labels.returned_outputs(request.outputs)
            outputs = [output for output in outputs if output.name in wanted]
        return InferResponse(labels.name, labels.version, request.fields.id, outputs)

    def _take_exports(
        self, request: InferRequest, exports: dict[str, DeviceExport]
    ) -> dict[str, DeviceBytes]:
        ledger = ledger_of(self._instance)
        if ledger is None or request.device_wish is None:
            raise ProtocolError("expected outputs on the host, got some in GPU memory")
        return ledger.take_all(exports)


def _is_null(inference: Inference) -> bool:
    """Returns whether a request has no client, as those that fill batches of sequences."""
    return inference.sink is CLOSED_SINK and inference.owner is None


def _device_outputs(
    received: Received,
    request: InferRequest,
    refs: list[TensorRef],
    taken: Mapping[str, DeviceBytes] | None = None,
) -> list[InferTensor]:
    """Returns the outputs of a response; those that were `taken` are in GPU memory.

    So are those that the instance has written to memory of the client.
    """
    device = request.device
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


class BatchWriter:
    """Makes the frames of batches for one instance."""

    def __init__(self, instance: Instance, labels: ModelLabels) -> None:
        self._instance = instance
        self._labels = labels

    def write(self, batch: RunningBatch, payload: Payload) -> Execute:
        """Returns the frame of a batch, and writes its tensors to `payload`.

        Raises:
            ServerError: There is no memory for the tensors.
        """
        labels = self._labels
        if labels.keeps_inputs:
            payload.lends = False
        inferences = batch.inferences
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
        return frame

    def _requests_frame(self, batch: RunningBatch, payload: Payload) -> Execute:
        """Returns the frame of a batch without chunks."""
        requests = [inference.request for inference in batch.inferences]
        rows = [request.rows for request in requests]
        frame = Execute(batch.id, rows, self._add_inputs(requests, sum(rows), payload))
        if requests[0].device is not None:
            frame.devices = self._lend_device_inputs(batch, requests)
        return frame

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
        """Pass on that requests of a batch are traced."""
        batch.is_traced = True
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


def _describe_members(run: ChunkRun, frame: Execute) -> None:
    """Add the ids and parameters of members that have a record each."""
    for position, member in enumerate(run.chunk.members[run.first : run.end], run.position):
        request = member.request
        if request.fields.id:
            frame.ids[position] = request.fields.id
        if request.fields.parameters:
            frame.parameters[position] = request.fields.parameters
