# SPDX-License-Identifier: Apache-2.0
"""Batches that a backend executes without calling Python, where a C compiler is there.

`plain_batches.c` has the functions that a backend calls for each request, and says what a plain
batch is. Python gives it a batch as one array of words, and gets one report. As soon as a backend
does something else with a batch, Python adopts it: it makes the objects that it would have made,
and everything goes on as without the C part.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton.base.dtypes import BY_NUMBER, BYTES
from pytriton.runtime.native_backend.compiled_code import load_compiled
from pytriton.runtime.native_backend.memory import (
    KeptRecords,
    WordArray,
    address_of,
    content,
    field_address,
    word,
    words,
)
from pytriton.runtime.native_backend.outputs import (
    BackendOutput,
    BackendResponse,
    OutputLane,
    OutputMemory,
)
from pytriton.runtime.native_backend.records import INPUT_WORDS, REQUEST_WORDS
from pytriton.runtime.native_backend.requests import NO_DETAILS, BackendRequest
from pytriton.runtime.transport.arena import DEFAULT_LIMIT_BYTES
from pytriton.runtime.transport.frames import BatchResult
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES
from pytriton.runtime.transport.refs import TensorRef

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.runtime.native_backend.callbacks import Callbacks
    from pytriton.runtime.native_backend.outputs import CollectedAnswers
    from pytriton.runtime.native_backend.requests import BackendRequests
    from pytriton.runtime.native_backend.responses import BackendResponses
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.frames import Execute, RequestDetails

_SOURCE = Path(__file__).with_name("plain_batches.c")
# The functions of the API that are in C, with their names there, in the order of its `host`.
_FUNCTIONS = {
    "TRITONBACKEND_ResponseNew": "pytriton_response_new",
    "TRITONBACKEND_ResponseOutput": "pytriton_response_output",
    "TRITONBACKEND_OutputBuffer": "pytriton_output_buffer",
    "TRITONBACKEND_ResponseSend": "pytriton_response_send",
    "TRITONBACKEND_RequestRelease": "pytriton_request_release",
}
_MAX_OUTPUTS = 32
# The numbers of words in structures of C.
_BATCH_WORDS, _ANSWER_WORDS, _LANE_WORDS, _REPORT_WORDS = 7, 4, 4, 4
_SIZE = 3  # of an output
_DIMS = 5  # where the shape of an output begins
_OUTPUT_WORDS = _DIMS + 8
_REFUSED, _OPEN = 0, 2  # the status of a report; 1: the batch was plain
_OUTPUT_BITS = 8  # of the handle of a response


class PlainReport:
    """What became of a batch: its outputs if it was plain, otherwise its requests and an error.

    Attributes:
        outputs: The records of the outputs of the whole batch; None: it was not plain.
        outputs_of_all: The address of the records of all requests.
        requests: The requests of a batch that was not plain.
        error: What its function has returned.
    """

    __slots__ = ("error", "outputs", "outputs_of_all", "requests")

    def __init__(
        self,
        outputs: Sequence[int] | None,
        outputs_of_all: int = 0,
        requests: Sequence[BackendRequest] = (),
        error: int = 0,
    ) -> None:
        self.outputs = outputs
        self.outputs_of_all = outputs_of_all
        self.requests = requests
        self.error = error


class _Running:
    """The batch that is executed."""

    __slots__ = ("adopted", "collected", "owned", "row_count")

    def __init__(self, collected: CollectedAnswers, row_count: int, owned: Any) -> None:
        self.collected = collected
        self.row_count = row_count
        self.owned = owned  # kept alive for the requests
        self.adopted: list[BackendRequest] = []


class _PlainRequest:
    """A request of the batch that is executed, for functions that only read it."""

    __slots__ = ("_handle", "_running", "position")

    def __init__(self, running: _Running, handle: int, position: int) -> None:
        self._running = running
        self._handle = handle
        self.position = position

    @property
    def collected(self) -> CollectedAnswers:
        """Its batch."""
        return self._running.collected

    @property
    def details(self) -> RequestDetails:
        """What only some requests have."""
        return self.collected.execute.details.get(self.position, NO_DETAILS)

    @property
    def inputs(self) -> dict[bytes, int]:
        """The addresses of the records of its inputs, by name."""
        return _input_records(self._handle, self.collected.execute)

    @property
    def owned(self) -> Any:
        """What is kept alive with it: here, with all of the batch."""
        return self._running.owned

    @owned.setter
    def owned(self, value: Any) -> None:
        self._running.owned = value


def _input_records(request: int, execute: Execute) -> dict[bytes, int]:
    first = field_address(request, REQUEST_WORDS)
    return {
        ref.name.encode(): field_address(first, INPUT_WORDS * index)
        for index, ref in enumerate(execute.inputs)
    }


class PlainBatches:
    """Executes batches of one instance of a model that is not decoupled.

    Args:
        requests: The requests of batches that are not plain.
        responses: The responses to them.
        output_names: The outputs of the model.

    Raises:
        NoCompilerError: There is no compiler, and nothing was compiled before.
        CompiledCodeError: The C part cannot be used for another reason.
    """

    def __init__(
        self, requests: BackendRequests, responses: BackendResponses, output_names: Sequence[str]
    ) -> None:
        self._requests = requests
        self._responses = responses
        self._output_names = output_names
        self._kept = KeptRecords()
        self._order = WordArray()
        self._running: _Running | None = None
        self._adopting = threading.Lock()
        library = load_compiled(_SOURCE)
        self._execute = library.pytriton_execute
        self._execute.restype, self._execute.argtypes = ctypes.c_uint64, [ctypes.c_uint64]
        self._connect = library.pytriton_connect
        self._connect.restype, self._connect.argtypes = None, [ctypes.c_uint64]
        # They keep the interpreter's lock: each takes less time than to release and to acquire it.
        quick = ctypes.PyDLL(library._name, handle=library._handle)  # noqa: SLF001  the only way
        self._detach, self._recycle = quick.pytriton_detach, quick.pytriton_recycle
        self._detach.restype, self._detach.argtypes = ctypes.c_uint64, []
        self._find = quick.pytriton_find
        self._find.restype, self._find.argtypes = ctypes.c_int64, [ctypes.c_uint64]
        self._recycle.restype, self._recycle.argtypes = None, [ctypes.c_uint64]
        self._lane_maker = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(
            self._make_lane
        )
        self.addresses = {name: _address(library[symbol]) for name, symbol in _FUNCTIONS.items()}

    @staticmethod
    def serves(output_names: Sequence[str], *, is_decoupled: bool) -> bool:
        """Returns whether batches of a model can be plain."""
        return not is_decoupled and len(output_names) <= _MAX_OUTPUTS

    def connect(self, instance: int, execute: Any, callbacks: Callbacks) -> None:
        """Set the backend's function and those of Python; the thread that calls executes batches.

        Args:
            instance: The handle of the instance.
            execute: The backend's function.
            callbacks: Has the functions of Python, for all that is not plain.
        """
        kept = self._kept
        numbers = range(max(BY_NUMBER) + 1)
        sizes = [BY_NUMBER[each].itemsize if each in BY_NUMBER else -1 for each in numbers]
        values = [
            instance,
            _address(execute),
            len(self._output_names),
            kept.strings(self._output_names),
            self._requests.empty_text,
            INLINE_TENSOR_BYTES,
            DEFAULT_LIMIT_BYTES,
            len(sizes),
            kept.words(*sizes),
            *[callbacks.address(name) for name in _FUNCTIONS],
            _address(self._lane_maker),
        ]
        self._connect(kept.words(*values))
        self._called = (execute, callbacks)  # kept, as C has their addresses
        self._requests.live.find_more = self.adopt
        self._requests.find_plain = self._find_request
        self._responses.find_more_with(self.adopt)

    def execute(self, collected: CollectedAnswers, received: Received) -> PlainReport | None:
        """Execute a batch; None if nothing was done, because it cannot be plain.

        Raises:
            ServerError: There was no room for its tensors.
        """
        order = self._make_order(collected, received)
        if order is None:
            return None
        self._order.fill(order)
        report = self._execute(self._order.address)
        status, error, outputs_of_all, count = words(report, _REPORT_WORDS)
        if status == _OPEN:
            self.adopt()
        running, self._running = self._running, None
        assert running is not None
        if status == _REFUSED:
            return None
        if status == _OPEN:
            return PlainReport(None, requests=running.adopted, error=error)
        outputs = words(field_address(report, _REPORT_WORDS), _OUTPUT_WORDS * count)
        return PlainReport(outputs, outputs_of_all)

    def make_result(
        self,
        collected: CollectedAnswers,
        times_ns: tuple[int, int],
        report: PlainReport,
        payload: Payload,
    ) -> BatchResult:
        """Returns the frame with a response to each request of a plain batch."""
        outputs, execute = report.outputs, collected.execute
        assert outputs is not None, "it was plain"
        refs = []
        for at in range(0, len(outputs), _OUTPUT_WORDS):
            name_index, dtype, dims, size, address = outputs[at : at + _DIMS]
            name = self._output_names[name_index]
            lane = collected.lanes.get(name)
            if lane is None:
                block, offset = payload.add((content(address, size),), size)
            else:
                block, offset = lane.place.add_to(payload, 0, size)
            shape = outputs[at + _DIMS : at + _DIMS + dims]
            refs.append(TensorRef(name, dtype, tuple(shape), offset, size, block))
            if dtype == BYTES.number and len(execute.rows) > 1:
                first = field_address(report.outputs_of_all, at)
                refs[-1].pieces = self._sizes(first, len(execute.rows))
        return BatchResult(execute.batch, *times_ns, refs)

    def _sizes(self, first: int, count: int) -> list[int]:
        """Returns the size of an output of each request, from the record of the first one."""
        stride = _OUTPUT_WORDS * len(self._output_names)
        return [word(first, stride * position + _SIZE) for position in range(count)]

    def _make_order(self, collected: CollectedAnswers, received: Received) -> list[int] | None:
        """Returns a batch as C gets it (see there); None if it cannot be plain."""
        execute, requests = collected.execute, self._requests
        rows, row_count, count = execute.rows, collected.row_count, len(execute.rows)
        is_split = count > 1
        if not is_split:  # its tensors are not cut
            rows, row_count = [1], 1
        elif not row_count:
            return None
        kept = KeptRecords()
        wanted = outputs = execute.outputs
        names = None
        if outputs and len(outputs) == count:
            (names, *others) = outputs.values()
            if others.count(names) == count - 1:  # nearly always all clients want the same
                wanted = {}
            else:
                names = None
        order = [count, row_count, len(execute.inputs), *requests.output_table(names, kept), 0]
        buffers = []
        for ref in execute.inputs:
            shape, size = ref.shape, ref.size
            if is_split and not _can_be_split(ref, row_count):
                return None
            buffer = received.buffer(ref)
            buffers.append(buffer)
            address = address_of(buffer) if size else requests.empty_text
            name = requests.name_address(ref.name)
            order += (name, ref.dtype, address, size, len(shape), *shape)
        order += rows
        if execute.ids or execute.details or execute.parameters or wanted:
            changes = requests.descriptions(execute, wanted, kept)
            order[5] = len(changes)
            order += itertools.chain.from_iterable(changes)
        self._running = _Running(collected, row_count, (received, buffers, kept))
        return order

    def _find_request(self, handle: int) -> _PlainRequest | None:
        running = self._running
        position = -1 if running is None else self._find(handle)
        if running is None or position < 0:
            return None
        return _PlainRequest(running, handle, position)

    def _make_lane(self, name: int, row_bytes: int) -> int:
        """Make the lane of a large output; returns its address, or 0 if there is no memory."""
        running = self._running
        # If there is no memory, Python's function for the output finds that, too, and says it.
        with contextlib.suppress(Exception):
            if running is not None:
                place = OutputMemory(running.collected.outbox, row_bytes * running.row_count)
                lane = OutputLane(place, row_bytes)
                running.collected.lanes[self._output_names[name]] = lane
                return place.address
        return 0

    # Batches that turn out not to be plain

    def adopt(self) -> None:
        """Make Python's objects of the batch that is executed; any thread may call this."""
        with self._adopting:  # another thread that needs the objects waits until they are there
            batch = self._detach()
            if batch:
                assert self._running is not None, "there is one as long as C has its batch"
                self._running.adopted = self._make_requests(self._running, batch)

    def _make_requests(self, running: _Running, batch: int) -> list[BackendRequest]:
        collected, execute = running.collected, running.collected.execute
        count, records, record_bytes, answers, outputs, lanes, first = words(batch, _BATCH_WORDS)
        self._adopt_lanes(running, lanes)
        owner = _AdoptedMemory(batch, count, self._recycle)
        states = words(answers, _ANSWER_WORDS * count)
        requests = []
        for position in range(count):
            record = records + position * record_bytes
            request = BackendRequest(owner, record, None, _input_records(record, execute))
            request.collected, request.position, request.owned = collected, position, running.owned
            request.details = execute.details.get(position, NO_DETAILS)
            at = _ANSWER_WORDS * position
            is_released, has_response, is_sent, output_count = states[at : at + _ANSWER_WORDS]
            if has_response:
                place = field_address(outputs, _OUTPUT_WORDS * len(self._output_names) * position)
                response = BackendResponse(request)
                response.outputs = self._make_outputs(collected, position, place, output_count)
                handle = first + (position << _OUTPUT_BITS)
                self._responses.adopt(response, handle, is_sent=bool(is_sent))
            if is_released:
                request.owned = None
                request.handles.pop()
            else:
                self._requests.live.add_at(record, request)
            requests.append(request)
        return requests

    def _adopt_lanes(self, running: _Running, lanes: int) -> None:
        records = words(lanes, _LANE_WORDS * len(self._output_names))
        for index, name in enumerate(self._output_names):
            at = _LANE_WORDS * index
            address, row_bytes, size = records[at : at + 3]
            if address and name not in running.collected.lanes:
                running.collected.lanes[name] = OutputLane(
                    OutputMemory.at(address, size), row_bytes
                )

    def _make_outputs(
        self, collected: CollectedAnswers, position: int, address: int, count: int
    ) -> list[BackendOutput]:
        records = words(address, _OUTPUT_WORDS * count)
        outputs = []
        for at in range(0, len(records), _OUTPUT_WORDS):
            name, dtype, dims, size, address = records[at : at + _DIMS]
            shape = tuple(records[at + _DIMS : at + _DIMS + dims])
            output = BackendOutput(self._output_names[name], dtype, shape)
            if address:
                lane = collected.lanes[output.name]
                lane.filled.add(position)
                output.place, output.size = lane.place, size
                output.start = address - lane.place.address
            outputs.append(output)
        return outputs


def _can_be_split(ref: TensorRef, row_count: int) -> bool:
    """Returns whether an input has the same shape for each row of the batch."""
    if ref.shapes or not ref.shape or ref.shape[0] != row_count:
        return False
    return ref.dtype == BYTES.number or not ref.size % row_count


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class _AdoptedMemory:
    """The memory that an adopted batch has in C, until the last of its requests has ended."""

    __slots__ = ("_batch", "_count", "_ended", "_recycle")

    def __init__(self, batch: int, count: int, recycle: Callable[[int], None]) -> None:
        self._batch = batch
        self._count = count
        self._recycle = recycle
        self._ended = itertools.count(1)  # `next` is atomic

    def take_back(self, request: BackendRequest) -> None:
        """Count a request that has ended."""
        if next(self._ended) == self._count:
            self._recycle(self._batch)
