# SPDX-License-Identifier: Apache-2.0
"""An instance in another process, reached over a channel: the server's end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pytriton.dtypes import BY_NUMBER, BYTES
from pytriton.errors import InternalError, ServerError, error_from_code
from pytriton.executor.base import Outcome, RunningBatch
from pytriton.messages import InferRequest, InferResponse, InferTensor
from pytriton.transport.frames import (
    BatchFailure,
    BatchResult,
    Cancel,
    Credit,
    Execute,
    Responses,
    TensorRef,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.executor.base import InstanceEvents
    from pytriton.executor.memory_keeper import MemoryKeeper
    from pytriton.transport.channel import Channel, Payload, Received

logger = logging.getLogger(__name__)

_MAX_ROUND_MESSAGES = 32


class ModelLabels:
    """The names that all responses of a model carry, and the order of its inputs."""

    __slots__ = ("batching", "input_names", "name", "version")

    def __init__(
        self, name: str, version: str, input_names: Sequence[str], *, batching: bool
    ) -> None:
        self.name = name
        self.version = version
        self.input_names = tuple(input_names)
        self.batching = batching


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
        self._round_messages = 1
        self._running: dict[int, RunningBatch] = {}
        self._next_batch = 1
        self._is_open = True
        channel.link.socket.setblocking(False)

    @property
    def free_slots(self) -> int:
        """How many more batches it takes now."""
        return self._concurrency - len(self._running) if self._is_open else 0

    @property
    def is_idle(self) -> bool:
        """Whether it runs nothing."""
        return not self._running

    def start(self) -> None:
        """Begin to report events."""
        self._keeper.add(self._channel)
        self._loop.add_reader(self._channel.fileno(), self._on_readable)

    def execute(self, requests: list[InferRequest], now_ns: int) -> None:
        """Run requests together; ServerError where there is no room for their tensors."""
        batch_id = self._next_batch
        payload = self._channel.payload()
        frame = self._make_frame(batch_id, requests, payload)
        self._next_batch += 1
        self._running[batch_id] = RunningBatch(
            batch_id, requests, now_ns, set(range(len(requests)))
        )
        try:
            self._send(frame, payload)
        except BaseException:
            del self._running[batch_id]
            raise
        if payload.blocks:
            self._keeper.touch()

    def cancel(self, request: InferRequest) -> None:
        """Tell the model that nobody waits for this request any more."""
        if request.batch_id in self._running:
            self._send(Cancel(request.batch_id, request.position), None)

    def grant(self, request: InferRequest, count: int) -> None:
        """Let a decoupled model send so many more responses to this request."""
        if request.batch_id in self._running:
            self._send(Credit(request.batch_id, request.position, count), None)

    def stop(self) -> None:
        """End it; open requests are failed."""
        self._end("the model was unloaded")

    def __repr__(self) -> str:
        return f"<ChannelInstance {self.name} running={len(self._running)} open={self._is_open}>"

    def _make_frame(self, batch_id: int, requests: list[InferRequest], payload: Payload) -> Execute:
        labels = self._labels
        first = requests[0]
        refs = [
            _place(payload, name, requests, batching=labels.batching)
            for name in labels.input_names
            if name in first.inputs
        ]
        frame = Execute(batch_id, [request.rows for request in requests], refs)
        for position, request in enumerate(requests):
            request.instance = self
            request.batch_id = batch_id
            request.position = position
            if request.parameters:
                frame.parameters[position] = request.parameters
            if request.outputs is not None:
                frame.outputs[position] = list(request.outputs)
            if request.id:
                frame.ids[position] = request.id
            if request.traceparent is not None:
                frame.traceparents[position] = request.traceparent
        return frame

    def _send(self, frame: Execute | Cancel | Credit, payload: Payload | None) -> None:
        try:
            self._channel.send(frame, payload)
        except OSError as error:
            # Later, as the caller does not expect outcomes before this returns.
            self._loop.call_soon(self._end, _describe(error))
            return
        if self._channel.link.has_unsent:
            self._loop.add_writer(self._channel.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        try:
            self._channel.link.flush()
        except OSError as error:
            self._end(_describe(error))
            return
        if not self._channel.link.has_unsent:
            self._loop.remove_writer(self._channel.fileno())

    def _on_readable(self) -> None:
        try:
            if self._is_open:
                self._read()
        except EOFError:
            self._end("its process ended")
        except Exception:  # what it said is lost, so its requests would wait for ever
            logger.exception("instance %s: a message could not be read", self.name)
            self._end("its answer could not be read")

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
        if self._concurrency > 1:
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

    def _on_batch_result(self, received: Received, frame: BatchResult) -> None:
        batch = self._running[frame.batch]
        if len(batch.requests) == 1:
            # Nothing to cut: this saves 4 microseconds of a single request's way.
            outputs = [_tensor(received, ref) for ref in frame.outputs]
            outcomes = [Outcome(0, self._response(batch.requests[0], outputs))]
        else:
            outcomes = self._cut(received, frame, batch)
        del self._running[frame.batch]
        batch.open_positions.clear()
        self._events.on_outcomes(self, batch, outcomes, (frame.started_ns, frame.finished_ns))

    def _cut(self, received: Received, frame: BatchResult, batch: RunningBatch) -> list[Outcome]:
        columns = [_Column(received, ref, batch.requests) for ref in frame.outputs]
        outcomes = []
        row = 0
        for position, request in enumerate(batch.requests):
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

    def _on_responses(self, received: Received, frame: Responses) -> None:
        by_batch: dict[int, list[Outcome]] = {}
        labels = self._labels
        for item in frame.items:
            batch = self._running[item.batch]
            if item.position not in batch.open_positions:
                continue
            response = error = None
            if item.error is not None:
                error = error_from_code(item.error_code, item.error)
            elif item.outputs is not None:
                response = InferResponse(
                    labels.name,
                    labels.version,
                    batch.requests[item.position].id,
                    [_tensor(received, ref) for ref in item.outputs],
                    item.parameters,
                )
            if item.is_final:
                batch.open_positions.discard(item.position)
            outcome = Outcome(item.position, response, error, item.is_final)
            by_batch.setdefault(item.batch, []).append(outcome)
        for batch_id, outcomes in by_batch.items():
            batch = self._running[batch_id]
            if not batch.open_positions:
                del self._running[batch_id]
            times_ns = (frame.started_ns, frame.finished_ns)
            self._events.on_outcomes(self, batch, outcomes, times_ns)

    def _on_batch_failure(self, frame: BatchFailure) -> None:
        batch = self._running.pop(frame.batch)
        error = error_from_code(frame.error_code, frame.error)
        self._fail(batch, error, (frame.started_ns, frame.finished_ns))

    def _fail(self, batch: RunningBatch, error: ServerError, times_ns: tuple[int, int]) -> None:
        outcomes = [Outcome(position, None, error) for position in sorted(batch.open_positions)]
        batch.open_positions.clear()
        self._events.on_outcomes(self, batch, outcomes, times_ns)

    def _end(self, reason: str) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        self._keeper.remove(self._channel)
        self._channel.close()
        running, self._running = self._running, {}
        error = InternalError(
            f"Failed to process the request(s) for model instance '{self.name}', "
            f"message: the instance is gone, {reason}"
        )
        for batch in running.values():
            self._fail(batch, error, (batch.started_ns, batch.started_ns))
        self._events.on_died(self, reason)


def _describe(error: OSError) -> str:
    if isinstance(error, (BrokenPipeError, ConnectionResetError)):
        return "its process ended"
    return f"nothing can be sent to it: {error}"


class _Column:
    """One output of a whole batch, and how to cut a request's part out of it."""

    __slots__ = ("_buffer", "_ends", "_name", "_row_bytes", "_tail", "dtype")

    def __init__(self, received: Received, ref: TensorRef, requests: list[InferRequest]) -> None:
        self.dtype = BY_NUMBER[ref.dtype]
        self._name = ref.name
        self._tail = ref.shape[1:]
        self._buffer = received.buffer(ref)
        self._row_bytes = ref.size // ref.shape[0] if ref.shape[0] else 0
        self._ends: list[int] = []
        if self.dtype is BYTES:
            end = 0
            for size in ref.pieces:
                end += size
                self._ends.append(end)
            assert len(self._ends) == len(requests)

    def cut(self, position: int, row: int, end: int) -> InferTensor:
        if self._ends:
            start_byte = self._ends[position - 1] if position else 0
            data = self._buffer[start_byte : self._ends[position]]
        else:
            row_bytes = self._row_bytes
            data = self._buffer[row * row_bytes : end * row_bytes]
        return InferTensor(self._name, self.dtype, (end - row, *self._tail), data)


def _tensor(received: Received, ref: TensorRef) -> InferTensor:
    return InferTensor(ref.name, BY_NUMBER[ref.dtype], ref.shape, received.buffer(ref))


def _place(
    payload: Payload, name: str, requests: list[InferRequest], *, batching: bool
) -> TensorRef:
    """Copy one input of all requests, in order, to where the instance reads the batch."""
    first = requests[0].inputs[name]
    if len(requests) == 1:
        pieces, shape = [first.data], first.shape
    else:
        pieces = [request.inputs[name].data for request in requests]
        shape = first.shape
        if batching:
            shape = (sum(request.rows for request in requests), *shape[1:])
    size = sum(map(len, pieces))
    block, offset = payload.add(pieces, size)
    return TensorRef(name, first.dtype.number, shape, offset, size, block)
