# SPDX-License-Identifier: Apache-2.0
"""An instance in another process, reached over a channel: the server's end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pytriton.errors import InternalError, ServerError, error_from_code
from pytriton.executor.base import Outcome, RunningBatch
from pytriton.executor.batch_tensors import Column, details_of, make_tensor, place_input
from pytriton.executor.inference import Inference
from pytriton.messages import InferRequest, InferResponse, InferTensor
from pytriton.transport.frames import (
    BatchFailure,
    BatchResult,
    Cancel,
    Credit,
    Execute,
    Frame,
    Responses,
)
from pytriton.transport.unsent import UnsentSender

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Sequence

    from pytriton.executor.base import InstanceEvents
    from pytriton.executor.memory_keeper import MemoryKeeper
    from pytriton.transport.channel import Payload, Received
    from pytriton.transport.memory_channel import MemoryChannel as Channel

logger = logging.getLogger(__name__)

PROCESS_ENDED = "its process ended"
_MAX_ROUND_MESSAGES = 32


class ModelLabels:
    """The names that all responses of a model carry, and the order of its inputs."""

    __slots__ = ("batching", "has_details", "input_names", "name", "version")

    def __init__(
        self,
        name: str,
        version: str,
        input_names: Sequence[str],
        *,
        batching: bool,
        has_details: bool = False,
    ) -> None:
        self.name = name
        self.version = version
        self.input_names = tuple(input_names)
        self.batching = batching
        self.has_details = has_details  # instances are told what only a model.py asks for


class ChannelInstance:
    """Sends batches over a channel and turns what comes back into outcomes."""

    def __init__(
        self,
        name: str,
        labels: ModelLabels,
        channel: Channel,
        keeper: MemoryKeeper,
        loop: asyncio.AbstractEventLoop,
        events: InstanceEvents,
        concurrency: int = 1,
    ) -> None:
        self.name = name
        self._labels = labels
        self._channel = channel
        self._keeper = keeper
        self._loop = loop
        self._events = events
        self._concurrency = concurrency
        self._reads_ahead = concurrency > 1  # several messages may come at once
        self._round_messages = 1
        self._running: dict[int, RunningBatch] = {}
        self._next_batch = 1
        self._is_open = True
        channel.link.socket.setblocking(False)
        self._unsent = UnsentSender(
            loop, channel.link, lambda error: self._on_lost(_describe(error))
        )

    @property
    def free_slots(self) -> int:
        """How many more batches it takes now."""
        return self._concurrency - len(self._running) if self._is_open else 0

    @property
    def is_idle(self) -> bool:
        """Whether it runs nothing."""
        return not self._running

    @property
    def executing_batches(self) -> Collection[int]:
        """The ids of the batches that take its slots."""
        return self._running.keys()

    def hand_over(self, events: InstanceEvents) -> None:
        """Report to somebody else from now on."""
        self._events = events

    def inferences_of(self, batch_id: int) -> Sequence[Inference]:
        """The requests of a batch; none where it does not run any more."""
        batch = self._running.get(batch_id)
        return batch.inferences if batch is not None else ()

    def start(self) -> None:
        """Begin to report events."""
        self._keeper.add(self._channel)
        self._loop.add_reader(self._channel.fileno(), self._on_readable)

    def execute(self, inferences: list[Inference], now_ns: int) -> None:
        """Run requests together; ServerError where there is no room for their tensors."""
        batch_id = self._next_batch
        payload = self._channel.payload()
        batch = RunningBatch(batch_id, inferences, now_ns, set(range(len(inferences))))
        frame = self._make_frame(batch, inferences, payload)
        self._next_batch += 1
        self._running[batch_id] = batch
        try:
            self._send(frame, payload)
        except BaseException:
            del self._running[batch_id]
            raise
        if payload.blocks:
            self._keeper.touch()

    def cancel(self, inference: Inference) -> None:
        """Tell the model that nobody waits for this request any more."""
        if inference.batch_id in self._running:
            self._send(Cancel(inference.batch_id, inference.position), None)

    def grant(self, inference: Inference, count: int) -> None:
        """Let a decoupled model send so many more responses to this request."""
        if inference.batch_id in self._running:
            self._send(Credit(inference.batch_id, inference.position, count), None)

    def stop(self) -> None:
        """End it; open requests are failed."""
        self._end("the model was unloaded")

    def __repr__(self) -> str:
        return f"<ChannelInstance {self.name} running={len(self._running)} open={self._is_open}>"

    def _make_frame(
        self, batch: RunningBatch, inferences: list[Inference], payload: Payload
    ) -> Execute:
        labels = self._labels
        batch_id = batch.id
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
            inference.instance = self
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
                frame.traces[position] = inference.trace.context(is_model_file=labels.has_details)
        if labels.has_details:
            frame.details = details_of(requests)
        return frame

    def _send(self, frame: Frame, payload: Payload | None) -> None:
        try:
            self._channel.send(frame, payload)
        except OSError as error:
            # Later, as the caller does not expect outcomes before this returns.
            self._loop.call_soon(self._on_lost, _describe(error))
            return
        if self._channel.link.has_unsent:
            self._unsent.watch()

    def _on_readable(self) -> None:
        try:
            if self._is_open:
                self._read()
        except EOFError:
            self._on_lost(PROCESS_ENDED)
        except Exception:  # what it said is lost, so its requests would wait for ever
            logger.exception("instance %s: a message could not be read", self.name)
            self._on_lost("its answer could not be read")

    def _read(self) -> None:
        # What is read in one round of the loop leaves in one write. A response that comes alone
        # must not wait for others, so the rounds grow only while more is there than they take.
        for _ in range(self._round_messages):
            received = self._channel.receive()
            if received is None:
                self._round_messages = 1
                return
            self._on_message(received)
            if not self._is_open:
                return
        if self._reads_ahead:
            self._round_messages = min(2 * self._round_messages, _MAX_ROUND_MESSAGES)
        if self._channel.link.has_message:
            self._loop.call_soon(self._on_readable)

    def _on_message(self, received: Received) -> None:
        if received.uses_blocks:
            self._keeper.touch()
        frame = received.frame
        if isinstance(frame, BatchResult):
            self._on_batch_result(received, frame)
        elif isinstance(frame, Responses):
            self._on_responses(received, frame)
        elif isinstance(frame, BatchFailure):
            self._on_batch_failure(frame)
        else:
            self._on_other(received)

    def _on_other(self, received: Received) -> None:
        """Take a message that is no answer to a batch."""

    def _on_batch_result(self, received: Received, frame: BatchResult) -> None:
        batch = self._running[frame.batch]
        if len(batch.inferences) == 1:
            # Nothing to cut: this saves 4 microseconds of a single request's way.
            outputs = [make_tensor(received, ref) for ref in frame.outputs]
            outcomes = [Outcome(0, self._response(batch.inferences[0].request, outputs))]
        else:
            outcomes = self._cut(received, frame, batch)
        del self._running[frame.batch]
        batch.open_positions.clear()
        self._events.on_outcomes(self, batch, outcomes, (frame.started_ns, frame.finished_ns))

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

    def _on_responses(self, received: Received, frame: Responses) -> Collection[int]:
        """Report responses; the batches that they were for."""
        by_batch: dict[int, list[Outcome]] = {}
        labels = self._labels
        for item in frame.items:
            batch = self._running.get(item.batch)
            if batch is None or item.position not in batch.open_positions:
                continue
            response = error = None
            if item.error is not None:
                error = error_from_code(item.error_code, item.error)
            elif item.outputs is not None:
                response = InferResponse(
                    labels.name,
                    labels.version,
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
        for batch_id, outcomes in by_batch.items():
            batch = self._running[batch_id]
            if not batch.open_positions:
                del self._running[batch_id]
            times_ns = (frame.started_ns, frame.finished_ns)
            self._events.on_outcomes(self, batch, outcomes, times_ns)
        return by_batch

    def _on_batch_failure(self, frame: BatchFailure) -> None:
        batch = self._running.pop(frame.batch)
        error = error_from_code(frame.error_code, frame.error)
        self._fail(batch, error, (frame.started_ns, frame.finished_ns))

    def _fail(self, batch: RunningBatch, error: ServerError, times_ns: tuple[int, int]) -> None:
        outcomes = [Outcome(position, None, error) for position in sorted(batch.open_positions)]
        batch.open_positions.clear()
        self._events.on_outcomes(self, batch, outcomes, times_ns)

    def _on_lost(self, reason: str) -> None:
        self._end(reason)

    def _end(self, reason: str) -> None:
        if not self._is_open:
            return
        self._close()
        self._fail_all(self._make_error(reason))
        self._events.on_died(self, reason)

    def _make_error(self, reason: str) -> ServerError:
        return InternalError(
            f"Failed to process the request(s) for model instance '{self.name}', "
            f"message: the instance is gone, {reason}"
        )

    def _close(self) -> None:
        self._is_open = False
        self._loop.remove_reader(self._channel.fileno())
        self._unsent.stop()
        self._channel.close()
        self._keeper.remove(self._channel)

    def _fail_all(self, error: ServerError) -> None:
        running, self._running = self._running, {}
        for batch in running.values():
            self._fail(batch, error, (batch.started_ns, batch.started_ns))


def _describe(error: OSError) -> str:
    if isinstance(error, (BrokenPipeError, ConnectionResetError)):
        return PROCESS_ENDED
    return f"nothing can be sent to it: {error}"
