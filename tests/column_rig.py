# SPDX-License-Identifier: Apache-2.0
"""Chunks of requests for a model that doubles its input, and an instance without a process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from pytriton.base import dtypes
from pytriton.base.columns import ColumnKind
from pytriton.base.errors import InternalError
from pytriton.base.messages import InferRequest, InferTensor, RequestFields
from pytriton.runtime.executor.batch_tracker import BatchTracker
from pytriton.runtime.executor.columns import (
    ChunkSignature,
    make_members,
    shared_request,
)
from pytriton.runtime.executor.inference import Inference, ModelLabels
from pytriton.runtime.transport.frames import (
    BatchFailure,
    BatchResult,
    Execute,
    ResponseItem,
    ResponsesFrame,
)
from pytriton.runtime.transport.payload import Payload, Received
from pytriton.runtime.transport.refs import TensorRef
from pytriton.serving.engine.cache import ResponseStore
from pytriton.serving.engine.model import Model, VersionState
from tests.chunks import JoinedChunk, PiecesChunk
from tests.fakes import FakeClock, FakeLoop, RecordingSink, infer_request, model_spec

INT32 = dtypes.INT32
WIDTH = 2  # elements of a row
NAMES = ("x", "y")


def signature(**fields: Any) -> ChunkSignature:
    return ChunkSignature(
        tuple(ColumnKind(name, INT32, (WIDTH,), 4 * WIDTH) for name in NAMES), **fields
    )


class Ends:
    """How each member of chunks ended: what a sink heard, by chunk and index."""

    def __init__(self) -> None:
        self.heard: dict[tuple[int, int], list[Any]] = {}
        self.runs: list[tuple[int, int]] = []  # the members that were answered by one call
        self.failure: Exception | None = None  # raised by `on_rows`

    def on_rows(self, chunk, first, end, outputs, row):
        self.runs.append((first, end))
        if self.failure is not None:
            raise self.failure
        starts = chunk.row_starts
        for index in range(first, end):
            at = row + starts[index] - starts[first]
            until = at + starts[index + 1] - starts[index]
            answer = {
                column.name: np.frombuffer(
                    bytes(column.data[at * column.row_bytes : until * column.row_bytes]),
                    column.dtype.numpy,
                ).tolist()
                for column in outputs
            }
            self._add(chunk, index, answer)

    def on_outcome(self, chunk, index, response, error, *, is_refused):
        if error is not None:
            self._add(chunk, index, ("refused" if is_refused else "failed", error.message))
        else:
            self._add(chunk, index, values_of(response))

    def of(self, chunk) -> list[Any]:
        """The only end of each member."""
        ends = []
        for index in range(len(chunk.row_starts) - 1):
            (only,) = self.heard[id(chunk), index]
            ends.append(only)
        return ends

    def _add(self, chunk, index, what) -> None:
        self.heard.setdefault((id(chunk), index), []).append(what)


def values_of(response) -> dict[str, list[int]]:
    return {
        tensor.name: np.frombuffer(bytes(tensor.data), tensor.dtype.numpy).tolist()
        for tensor in response.outputs
    }


class DoublingInstance:
    """Keeps batches until a test lets it double them; runs in the test's own process."""

    def __init__(
        self,
        name: str,
        events: Any,
        *,
        batching: bool = True,
        version: str = "1",
        added: Sequence[str] = (),  # inputs that the server adds
    ) -> None:
        self.name = name
        self.frames: list[Execute] = []
        self.cancelled: list[tuple[int, int]] = []
        self.refusal: Exception | None = None  # raised by `execute`
        self.tracker = BatchTracker(
            self, ModelLabels("m", version, (*NAMES, *added), batching=batching), events
        )
        self._messages: dict[int, tuple[Execute, bytearray]] = {}  # of running batches
        self._is_open = True

    @property
    def free_slots(self) -> int:
        return 1 - len(self.tracker.executing) if self._is_open else 0

    @property
    def is_idle(self) -> bool:
        return not self.tracker.executing

    @property
    def executing_batches(self):
        return self.tracker.executing.keys()

    def start(self) -> None:
        assert self._is_open

    def execute(self, inferences, now_ns) -> None:
        if self.refusal is not None:
            raise self.refusal
        payload = Payload(None)
        frame = self.tracker.begin(inferences, now_ns, payload)
        self.frames.append(frame)
        self._messages[frame.batch] = (frame, bytearray(b"".join(payload.inline)))

    def cancel(self, inference) -> None:
        frame = self.tracker.cancel_frame(inference)
        if frame is not None:
            self.cancelled.append((frame.batch, frame.position))

    def grant(self, inference, count) -> None:
        raise AssertionError("no member has credit")

    def stop(self) -> None:
        self.die("the model was unloaded", is_lost=False)

    # What a test makes it do

    @property
    def running(self) -> list[int]:
        return list(self._messages)

    def double(self, batch: int | None = None) -> None:
        """Answer a batch with twice its inputs, in one result."""
        frame, arrays = self._take(batch)
        payload = Payload(None)
        refs = [_add(payload, name, 2 * array) for name, array in arrays.items()]
        self._answer(BatchResult(frame.batch, 0, 0, refs), payload)

    def double_by_item(self, batch: int | None = None, error: str | None = None) -> None:
        """Answer each request of a batch by itself; the first one with `error`, if given."""
        frame, arrays = self._take(batch)
        payload = Payload(None)
        items, row = [], 0
        for position, rows in enumerate(frame.rows):
            item = ResponseItem(frame.batch, position)
            if error is not None and not position:
                item.error, item.error_code = error, InternalError.code
            else:
                item.outputs = [
                    _add(payload, name, 2 * array[row : row + rows])
                    for name, array in arrays.items()
                ]
            items.append(item)
            row += rows
        self._answer(ResponsesFrame(0, 0, items), payload)

    def fail(self, batch: int | None = None) -> None:
        """Answer a batch with one error for all."""
        frame, _ = self._take(batch)
        failure = BatchFailure(frame.batch, 0, 0, "no", InternalError.code)
        self._answer(failure, Payload(None))

    def die(self, reason: str = "its process ended", *, is_lost: bool = True) -> None:
        if self._is_open:
            self._is_open = False
            self._messages.clear()
            self.tracker.fail_all(InternalError(reason), is_lost=is_lost)
            self.tracker.events.on_died(self, reason)

    def _take(self, batch: int | None) -> tuple[Execute, dict[str, np.ndarray]]:
        frame, message = self._messages.pop(batch or self.running[0])
        received = Received(frame, message, 0, {})
        return frame, {ref.name: received.array(ref) for ref in frame.inputs if ref.name in NAMES}

    def inputs(self) -> dict[str, list[Any]]:
        """The first value of each row of each input of the batch that runs."""
        frame, message = self._messages[self.running[0]]
        received = Received(frame, message, 0, {})
        return {ref.name: received.array(ref)[:, 0].tolist() for ref in frame.inputs}

    def _answer(self, frame: Any, payload: Payload) -> None:
        message = bytearray(b"".join(payload.inline))
        assert self.tracker.handle(Received(frame, message, 0, {}))


def _add(payload: Payload, name: str, array: np.ndarray) -> TensorRef:
    data = array.tobytes()
    block, offset = payload.add([data], len(data))
    dtype = dtypes.from_numpy(array.dtype)
    assert dtype is not None
    return TensorRef(name, dtype.number, array.shape, offset, len(data), block)


class ColumnScene:
    """A ready model with doubling instances; ordinary requests and chunks may be submitted."""

    def __init__(
        self,
        clock: FakeClock,
        instances: int = 1,
        cache: ResponseStore | None = None,
        **spec: Any,
    ) -> None:
        self.clock = clock
        self.loop = FakeLoop(clock)
        self.model = Model(model_spec(**spec), self.loop, cache)
        batching = self.model.spec.max_batch_size > 0
        self.instances = [
            DoublingInstance(f"m_0_{number}", self.model, batching=batching)
            for number in range(instances)
        ]
        for instance in self.instances:
            self.model.add_instance(instance)
        self.model.become(VersionState.READY)
        self.ends = Ends()
        self.chunks: list[Any] = []
        self.values: list[list[list[int]]] = []  # of each chunk: the input of each member
        self.members: list[list[Inference]] = []
        self.sinks: list[RecordingSink] = []  # of ordinary requests
        self.inputs: list[list[int]] = []  # of ordinary requests
        self._next = 0
        self.loop.run()

    @property
    def instance(self) -> DoublingInstance:
        (only,) = self.instances
        return only

    def submit_chunk(
        self,
        rows: list[int],
        *,
        joined: bool = True,
        details: list[dict[str, int]] | None = None,
        wanted: tuple[str, ...] | None = None,
        runs: bool = True,
        values: list[list[int]] | None = None,
        **submit: Any,
    ):
        """Submit a chunk whose members have these rows; returns it. Its members are kept."""
        values = values or [self._new_values(each) for each in rows]
        cells = [np.array(each, np.int32).tobytes() for each in values]
        kept = signature(outputs=wanted)
        starts: Sequence[int] = [0, *accumulate(rows)]
        if len(set(rows)) == 1:
            starts = range(0, starts[-1] + 1, rows[0])
        if joined:
            column = memoryview(b"".join(cells))
            chunk: Any = JoinedChunk.of(kept, self.ends, (column, column), starts)
        else:
            chunk = PiecesChunk.of(kept, self.ends, (cells, cells), starts)
        shared: dict[Any, InferRequest] = {}
        requests = []
        for number, each in enumerate(rows):
            own = details[number] if details else {}
            key = (each, *sorted(own.items()))
            if key not in shared:
                fields = RequestFields(**own)
                shared[key] = shared_request("m", kept, self.clock.now_ns, fields, rows=each)
            requests.append(shared[key])
        members = make_members(chunk, self.model, requests)
        self.chunks.append(chunk)
        self.values.append(values)
        self.members.append(members)
        self.model.submit_chunk(members, self.clock.now_ns, **submit)
        if runs:
            self.loop.run()
        return chunk

    def submit(
        self, rows: int = 1, values: list[int] | None = None, **fields: Any
    ) -> RecordingSink:
        """Submit an ordinary request."""
        values = values or self._new_values(rows)
        data = np.array(values, np.int32).tobytes()
        inputs = {name: InferTensor(name, INT32, (rows, WIDTH), data) for name in NAMES}
        request = infer_request("m", inputs, rows=rows, received_ns=self.clock.now_ns, **fields)
        sink = RecordingSink()
        self.sinks.append(sink)
        self.inputs.append(values)
        self.model.submit(Inference(request, sink, owner=self.model), self.clock.now_ns)
        return sink

    def doubled(self, chunk) -> list[Any]:
        """The right answers to the members of a chunk."""
        number = self.chunks.index(chunk)
        names = chunk.signature.outputs or NAMES
        return [{name: [2 * v for v in values] for name in names} for values in self.values[number]]

    def _new_values(self, rows: int) -> list[int]:
        self._next += rows * WIDTH
        return list(range(self._next - rows * WIDTH, self._next))


def random_details(dice: random.Random) -> dict[str, int]:
    """A priority and a queue timeout; most requests have neither."""
    details = {}
    if dice.random() < 0.3:
        details["priority"] = dice.randint(1, 3)
    if dice.random() < 0.3:
        details["timeout_us"] = dice.choice([500, 5000])
    return details
