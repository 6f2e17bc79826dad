# SPDX-License-Identifier: Apache-2.0
"""Reads the answers of an instance: makes responses and columns of the tensors in its messages.

Which batches are answered, and who hears of it, the tracker of the instance knows.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from pytriton.base.errors import error_for_clients
from pytriton.base.messages import InferResponse
from pytriton.runtime.executor.batch_tensors import (
    make_outputs,
    make_placed_output,
    make_tensor,
    output_columns,
    reshape_outputs,
    split_output,
)
from pytriton.runtime.executor.device_blocks import ledger_of
from pytriton.runtime.executor.inference import CLOSED_SINK, Outcome
from pytriton.runtime.transport.peer_account import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import DeviceBytes, DeviceExport, InferRequest, InferTensor
    from pytriton.runtime.executor.inference import Instance, ModelLabels, RunningBatch
    from pytriton.runtime.transport.channel import Received
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
            outputs = _outputs(received, request, frame.outputs)
            return [Outcome(0, self._response(request, outputs))]
        return self._split(received, frame, batch)

    def reshape(self, outputs: list[TensorRef]) -> ServerError | None:
        """Give outputs the shapes that clients see; returns an error if that is not possible."""
        reshapes = self._labels.output_reshapes
        if not reshapes:
            return None
        return reshape_outputs(outputs, reshapes, batching=self._labels.batching)

    def read_error(self, error: Exception) -> ServerError:
        """Returns the error of requests whose answer could not be read."""
        return error_for_clients(error, f"it read an answer of model {self._labels.name}")

    def item_response(
        self, received: Received, item: ResponseItem, request: InferRequest
    ) -> tuple[InferResponse | None, ServerError | None]:
        """Returns the response in a part of a message, or an error in its place, or neither."""
        # First, so that they are released if there is an error.
        taken = None if item.device is None else self._take_exports(request, item.device)
        if item.error is not None or item.outputs is None:
            return None, None
        error = self.reshape(item.outputs)
        if error is not None:
            return None, error
        labels, outputs = self._labels, _outputs(received, request, item.outputs, taken)
        response = InferResponse(labels.name, labels.version, request.id, outputs, item.parameters)
        return response, None

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
        return InferResponse(labels.name, labels.version, request.id, outputs)

    def _take_exports(
        self, request: InferRequest, exports: dict[str, DeviceExport]
    ) -> dict[str, DeviceBytes]:
        ledger = ledger_of(self._instance)
        if ledger is None or request.device_wish is None:
            raise ProtocolError("expected outputs on the host, got some in GPU memory")
        return ledger.take_all(exports)


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
