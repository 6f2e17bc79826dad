# SPDX-License-Identifier: Apache-2.0
"""The outputs of a backend: memory for them, and the messages that send them.

An output of all requests of a batch lies in one place, a lane, if each has the size that its rows
let expect. A whole lane is one tensor of the message, and a large one goes out by reference.
"""

from __future__ import annotations

import itertools
import threading
from ctypes import memset
from typing import TYPE_CHECKING

from pytriton.base.dtypes import BY_NUMBER, BYTES
from pytriton.base.errors import InternalError, InvalidArgumentError, ServerError, sendable_text
from pytriton.base.failure_records import origin_of
from pytriton.runtime.backend.batch import BatchReplies
from pytriton.runtime.native_backend.memory import address_of, view
from pytriton.runtime.transport.arena import DEFAULT_LIMIT_BYTES
from pytriton.runtime.transport.frames import BatchResult, ResponseItem
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES
from pytriton.runtime.transport.refs import TensorRef

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytriton.base.messages import ParameterValue
    from pytriton.runtime.backend.batch import Description, WorkerBatch
    from pytriton.runtime.native_backend.requests import BackendRequest
    from pytriton.runtime.native_backend.responses import OutputDescription
    from pytriton.runtime.transport.arena import Block
    from pytriton.runtime.transport.channel import Payload
    from pytriton.runtime.transport.response_outbox import ResponseOutbox


class OutputMemory:
    """Memory that C writes to: a block of shared memory, or bytes if it is small.

    It is zero at first: a backend that does not write all of it would otherwise send a client what
    was there before, the output of another one.
    """

    __slots__ = ("address", "block", "data", "size")

    def __init__(self, outbox: ResponseOutbox, size: int) -> None:
        self.size = size
        self.block: Block | None = None
        self.data: bytearray | memoryview = bytearray()
        if size > INLINE_TENSOR_BYTES:
            self.block = outbox.allocate(size)
        if self.block is not None:
            self.address = self.block.segment.address + self.block.offset
            memset(self.address, 0, size)
        else:
            self.data = bytearray(max(1, size))
            self.address = address_of(self.data)

    @classmethod
    def at(cls, address: int, size: int) -> OutputMemory:
        """Returns memory that C has, as long as requests refer to it."""
        memory = cls.__new__(cls)
        memory.address, memory.size, memory.block = address, size, None
        memory.data = view(address, size)
        return memory

    def add_to(self, payload: Payload, start: int, size: int) -> tuple[int, int]:
        """Add a part to a message; returns its block and offset, see `TensorRef`."""
        block = self.block
        if block is None:
            return payload.add((memoryview(self.data)[start : start + size],), size)
        if block not in payload.blocks:
            payload.give(block)
        return block.id, start


class OutputLane:
    """An output of all requests of a batch, row after row."""

    __slots__ = ("filled", "place", "row_bytes")

    def __init__(self, place: OutputMemory, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.place = place
        self.filled: set[int] = set()  # the positions of the requests that have their part


class CollectedAnswers:
    """The answers to one batch while they wait for its function to return, for one message.

    Attributes:
        batch: The batch.
        is_collecting: Whether they wait; answers to a decoupled model's requests do not.
        has_returned: From then on the threads of the backend answer by themselves.
        thread: The thread that calls the backend's function.
        lanes: The outputs of the batch.
        lock: Protects the above, and the state of the batch's requests.
    """

    __slots__ = (
        "batch", "execute", "has_returned", "is_collecting", "lanes", "lock", "outbox",
        "row_count", "row_starts", "thread",
    )  # fmt: skip

    def __init__(self, batch: WorkerBatch) -> None:
        self.batch = batch
        self.execute = batch.execute
        self.outbox = batch.batches.outbox
        self.is_collecting = not batch.is_decoupled
        self.has_returned = False
        self.lock = threading.Lock()
        self.thread = threading.get_ident()
        self.lanes: dict[str, OutputLane] = {}
        rows = batch.execute.rows if batch.batches.is_batching else [1]
        self.row_starts = list(itertools.accumulate(rows, initial=0))  # of each request
        self.row_count = self.row_starts.pop()


class BackendOutput:
    """One output of a response, or one new state of a request."""

    __slots__ = ("description", "dtype", "name", "place", "shape", "size", "start")

    def __init__(self, name: str, dtype: int, shape: tuple[int, ...]) -> None:
        if dtype not in BY_NUMBER:
            raise InvalidArgumentError(f"expected a datatype for output '{name}', got {dtype}")
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.size = 0
        self.start = 0
        self.place: OutputMemory | None = None
        self.description: OutputDescription | None = None  # once the backend has asked for it

    def allocate(self, outbox: ResponseOutbox, size: int) -> int:
        """Give the output memory of its own; returns its address."""
        _check_size(self.name, size)
        self.place = OutputMemory(outbox, size)
        self.size, self.start = size, 0
        return self.place.address

    def allocate_in(self, lane: OutputLane, row: int, size: int) -> int:
        """Give the output its part of a lane; returns its address."""
        self.place = lane.place
        self.size, self.start = size, row * lane.row_bytes
        return self.place.address + self.start

    def check(self) -> None:
        """Raise InternalError if its bytes are not those of its shape."""
        dtype = BY_NUMBER[self.dtype]
        expected = dtype.itemsize
        for extent in self.shape:
            expected *= extent
        is_valid = dtype is BYTES or expected == self.size
        if not is_valid or (self.shape and min(self.shape) < 0):
            raise InternalError(
                f"output tensor shape does not match size of output for '{self.name}'"
            )

    def content(self) -> memoryview:
        """Returns its bytes, which are not in shared memory or were not sent."""
        if self.place is None:
            return memoryview(b"")
        place = self.place
        whole = memoryview(place.data) if place.block is None else place.block.view()
        return whole[self.start : self.start + self.size]

    def add_to(self, payload: Payload) -> TensorRef:
        """Add the output to a message."""
        if self.place is None:
            block, offset = payload.add((), 0)
        else:
            block, offset = self.place.add_to(payload, self.start, self.size)
        return TensorRef(self.name, self.dtype, self.shape, offset, self.size, block)


def _check_size(name: str, size: int) -> None:
    if size > DEFAULT_LIMIT_BYTES:
        raise InvalidArgumentError(
            f"expected at most {DEFAULT_LIMIT_BYTES} bytes for output '{name}', got {size}"
        )


def are_alike(outputs: Sequence[BackendOutput], rows: Sequence[int]) -> bool:
    """Returns whether outputs of several requests differ only in their number of rows."""
    first = outputs[0]
    name, dtype, tail = first.name, first.dtype, first.shape[1:]
    return all(
        each.shape == (count, *tail) and each.dtype == dtype and each.name == name
        for each, count in zip(outputs, rows, strict=True)
    )


def add_column(
    payload: Payload, outputs: Sequence[BackendOutput], lane: OutputLane | None, row_count: int
) -> TensorRef:
    """Add an output of all requests of a batch to a message, as one tensor."""
    first = outputs[0]
    shape = (row_count, *first.shape[1:])
    # Only of strings the receiver cannot tell where the part of a request ends.
    sizes = [output.size for output in outputs]
    listed = sizes if first.dtype == BYTES.number else []
    if lane is not None and all(output.place is lane.place for output in outputs):
        size = lane.place.size
        block, offset = lane.place.add_to(payload, 0, size)
    else:
        size = sum(sizes)
        block, offset = payload.add([output.content() for output in outputs], size)
    return TensorRef(first.name, first.dtype, shape, offset, size, block, listed)


NOT_ANSWERED = "the backend released the request without a final response"


class BackendResponse:
    """A response that the backend makes."""

    __slots__ = ("error", "handles", "outputs", "parameters", "request", "states")

    def __init__(self, request: BackendRequest) -> None:
        self.request = request
        self.outputs: list[BackendOutput] = []
        self.handles: list[int] = []  # of its outputs
        self.parameters: dict[str, ParameterValue] | None = None
        self.error: ServerError | None = None
        self.states: Mapping[str, BackendOutput] = {}  # new ones, which are sent with it


def check_outputs(response: BackendResponse) -> ServerError | None:
    """Returns an error if an output cannot be sent."""
    try:
        for output in response.outputs:
            output.check()
    except ServerError as error:
        return error
    return None


def make_item(
    batch: WorkerBatch, position: int, response: BackendResponse, is_final: bool, payload: Payload
) -> ResponseItem:
    """Returns one response with new states, or one error."""
    if response.error is not None:
        return _error_item(batch, position, response.error, is_final=is_final)
    wanted = batch.execute.outputs.get(position)
    refs = [
        output.add_to(payload)
        for output in response.outputs
        if wanted is None or output.name in wanted
    ]
    refs += [state.add_to(payload) for state in response.states.values()]
    number = batch.execute.batch
    return ResponseItem(number, position, refs, is_final, parameters=response.parameters)


def make_single_item(request: BackendRequest, payload: Payload) -> ResponseItem:
    """Returns the only response to a request of a model that is not decoupled, or an error."""
    batch, position, answer = request.collected.batch, request.position, request.answer
    if request.is_rescheduled:
        return ResponseItem(batch.execute.batch, position, is_rescheduled=True)
    if not request.is_ended:
        return _error_item(batch, position, InternalError(NOT_ANSWERED))
    if request.answer_count > 1:
        error = InternalError(f"expected a single response, got {request.answer_count}")
        return _error_item(batch, position, error)
    if answer is None:
        return ResponseItem(batch.execute.batch, position)
    answer.states, request.states = request.states or {}, None
    return make_item(batch, position, answer, True, payload)


def _error_item(
    batch: WorkerBatch, position: int, error: ServerError, *, is_final: bool = True
) -> ResponseItem:
    text = sendable_text(error.message)
    return ResponseItem(batch.execute.batch, position, None, is_final, text, int(error.code))


class NativeReplies(BatchReplies):
    """See `BatchReplies`: responses have memory of their own, which is sent as it is."""

    def item(
        self,
        batch: WorkerBatch,
        position: int,
        response: BackendResponse,
        is_final: bool,
        payload: Payload,
    ) -> ResponseItem:
        """See `BatchReplies`."""
        return make_item(batch, position, response, is_final, payload)

    def kept(
        self, batch: WorkerBatch, position: int, response: BackendResponse
    ) -> tuple[BackendResponse, int, None]:
        """See `BatchReplies`."""
        return response, sum([output.size for output in response.outputs]), None


def describe(_batch: WorkerBatch, error: BaseException) -> Description:
    """Returns what clients get of an error that fails a batch."""
    if not isinstance(error, ServerError):  # a text cannot be sent
        name = type(error).__name__
        error = InternalError(f"the responses could not be sent: {name}: {error}")
    return sendable_text(error.message), int(error.code), origin_of(error)


def batch_columns(requests: Sequence[BackendRequest]) -> list[list[BackendOutput]] | None:
    """Returns the outputs of a whole batch, if each can be sent as one tensor; otherwise None.

    For that, every request must have one final response with the same outputs, which may differ
    only in their number of rows.
    """
    table = []
    for request in requests:
        response: BackendResponse | None = request.answer
        if response is None or request.answer_count != 1 or not request.is_ended:
            return None
        if request.is_rescheduled:
            return None
        if response.error is not None or response.parameters:
            return None
        outputs = response.outputs
        if request.states:
            outputs = [*outputs, *request.states.values()]
        table.append(outputs)
    width = len(table[0])
    if len(table) == 1:
        return [[output] for output in table[0]]
    if any(len(outputs) != width for outputs in table):
        return None
    columns = [list(column) for column in zip(*table, strict=True)]
    rows = requests[0].collected.execute.rows
    return columns if all(are_alike(column, rows) for column in columns) else None


def make_batch_result(
    collected: CollectedAnswers,
    times_ns: tuple[int, int],
    columns: Sequence[Sequence[BackendOutput]],
    payload: Payload,
) -> BatchResult:
    """Returns the frame with a response to each request; an output holds the whole batch."""
    refs = [
        column[0].add_to(payload)
        if len(column) == 1
        else add_column(payload, column, collected.lanes.get(column[0].name), collected.row_count)
        for column in columns
    ]
    return BatchResult(collected.execute.batch, *times_ns, refs)
