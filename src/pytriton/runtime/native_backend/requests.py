# SPDX-License-Identifier: Apache-2.0
"""TRITONBACKEND_Request and _Input: the requests of a batch as records in memory.

Tensors are not copied. The functions that only read a field are in `records.py`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Protocol

from pytriton.base.dtypes import BYTES
from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import (
    Handles,
    KeptRecords,
    address_of,
    decoded,
    field_address,
    put_bool,
    put_field,
    put_half_word,
    put_word,
    word,
)
from pytriton.runtime.native_backend.records import (
    INPUT_WORDS,
    REQUEST_GETTERS,
    REQUEST_WORDS,
    InputWord,
    RequestWord,
    field_functions,
)
from pytriton.runtime.native_backend.server_objects import stored_parameter
from pytriton.runtime.transport.frames import RequestDetails

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytriton.runtime.native_backend.outputs import (
        BackendOutput,
        BackendResponse,
        CollectedAnswers,
    )
    from pytriton.runtime.transport.channel import Received
    from pytriton.runtime.transport.frames import Execute
    from pytriton.runtime.transport.refs import TensorRef

NO_DETAILS = RequestDetails()
_MAX_LAYOUTS = 256
_MAX_OUTPUT_TABLES = 256
_FIRST_BUFFER = REQUEST_WORDS + InputWord.BUFFER
_LENGTH = struct.Struct("<I")
# The shape and the size of each input of a request.
_Signature = tuple[tuple[tuple[int, ...], int], ...]


class BackendRequest:
    """One request, as C knows it by the address of its record.

    Records are used again for later requests with tensors of the same shapes, in which only few
    words differ: making one takes 8 us, and changing one takes 1 us.
    """

    __slots__ = (
        "answer",
        "answer_count",
        "collected",
        "details",
        "handle",
        "handles",
        "inputs",
        "is_changed",
        "is_ended",
        "is_over",
        "is_rescheduled",
        "kept",
        "layout",
        "owned",
        "position",
        "state_handles",
        "states",
    )  # fmt: skip

    def __init__(
        self, layout: RecordOwner, handle: int, kept: KeptRecords | None, inputs: dict[bytes, int]
    ) -> None:
        self.layout = layout
        self.handle = handle
        self.kept = kept  # the memory of the record, unless it is C's
        self.inputs = inputs  # addresses of records, by name
        self.reset()

    def reset(self) -> None:
        """Forget the request for which the record was used."""
        self.collected: CollectedAnswers = None  # type: ignore[assignment]  # set before it is used
        self.position = 0
        self.details = NO_DETAILS
        self.owned: Any = None  # kept alive for the record: the message, and strings
        self.is_changed = False  # words beside the buffers differ from the layout's
        self.is_rescheduled = False
        # One item for each handle with which the backend may answer: the request, factories and
        # responses. A list, because threads can change and read it without a lock.
        self.handles = [None]
        # Of a model that is not decoupled: its response, their number, and whether it was the last.
        self.answer: BackendResponse | None = None
        self.answer_count = 0
        self.is_ended = False
        self.is_over = False  # a thread is about to end it, and no other may
        self.state_handles: list[int] = []
        self.states: dict[str, BackendOutput] | None = (
            None  # new states, sent with the next response
        )


class ReadRequest(Protocol):
    """A request, for functions that only read it."""

    owned: Any  # kept alive as long as the request

    @property
    def collected(self) -> CollectedAnswers:
        """Its batch."""

    @property
    def position(self) -> int:
        """Its index in the batch."""

    @property
    def details(self) -> RequestDetails:
        """What only some requests have."""

    @property
    def inputs(self) -> dict[bytes, int]:
        """The addresses of the records of its inputs, by name."""


class RecordOwner(Protocol):
    """Gives records to requests."""

    def take_back(self, request: BackendRequest) -> None:
        """Take the record of a request to which nothing refers any more; any thread calls it."""


class _Layout:
    """Requests whose tensors have the same shapes; unused records of them."""

    __slots__ = ("free", "signature")

    def __init__(self, signature: _Signature) -> None:
        self.signature = signature
        self.free: list[BackendRequest] = []

    def take_back(self, request: BackendRequest) -> None:
        """Use a record again."""
        self.free.append(request)


class BackendRequests:
    """The requests that the backend has not released.

    Args:
        output_names: All outputs of the model, which a request gets that names none.
        is_batching: Whether the first dimension of tensors is that of the batch.

    Attributes:
        live: The requests with objects.
        find_plain: Finds a request that has no object, because Python does not execute its batch.
    """

    def __init__(self, output_names: Sequence[str], *, is_batching: bool) -> None:
        self.live: Handles[BackendRequest] = Handles("a request")
        self.find_plain: Callable[[int], ReadRequest | None] | None = None
        self.is_batching = is_batching
        self._kept = KeptRecords()
        self.empty_text = self._kept.string("")
        self._names: dict[str, int] = {}
        self._output_names = tuple(output_names)
        # The number and the names of requested outputs, by the outputs that a client names.
        self._output_tables: dict[tuple[str, ...] | None, tuple[int, int]] = {
            None: (len(output_names), self._kept.strings(output_names))
        }
        self._layouts: dict[tuple[tuple[str, int], ...], dict[_Signature, _Layout]] = {}

    def add_batch(self, collected: CollectedAnswers, received: Received) -> list[BackendRequest]:
        """Make the requests of a batch."""
        execute = collected.execute
        refs = execute.inputs
        buffers = [received.buffer(ref) for ref in refs]
        columns = [
            self._cut(buffer, ref, execute.rows) for buffer, ref in zip(buffers, refs, strict=True)
        ]
        owned = (received, buffers)
        layouts = self._layouts_of(refs)
        requests = []
        for position in range(len(execute.rows)):
            cells = [column[position] for column in columns]
            signature = tuple([(shape, size) for shape, size, _ in cells])
            layout = layouts.get(signature)
            if layout is None:
                layout = layouts[signature] = _Layout(signature)
            request = layout.free.pop() if layout.free else self._make(layout, refs)
            request.collected, request.position, request.owned = collected, position, owned
            index = _FIRST_BUFFER
            for _, _, address in cells:
                put_field(request.handle, index, address)
                index += INPUT_WORDS
            self.live.add_at(request.handle, request)
            requests.append(request)
        if execute.ids or execute.details or execute.parameters or execute.outputs:
            self._describe(requests, collected)
        return requests

    def find(self, handle: int) -> ReadRequest:
        """Returns a request to read; InvalidArgumentError if there is none with this handle."""
        if self.find_plain is not None and (found := self.find_plain(handle)) is not None:
            return found
        return self.live.get(handle)

    def recycle(self, request: BackendRequest) -> None:
        """Use the record of a request again, to which nothing refers any more."""
        if request.is_changed:
            self._set_defaults(request)
        request.reset()
        request.layout.take_back(request)

    # Records

    def _layouts_of(self, refs: Sequence[TensorRef]) -> dict[_Signature, _Layout]:
        key = tuple([(ref.name, ref.dtype) for ref in refs])
        layouts = self._layouts.get(key)
        if layouts is None or len(layouts) > _MAX_LAYOUTS:
            layouts = self._layouts[key] = {}
        return layouts

    def _make(self, layout: _Layout, refs: Sequence[TensorRef]) -> BackendRequest:
        count = len(refs)
        shapes_at = REQUEST_WORDS + INPUT_WORDS * count
        shapes = [shape for shape, _ in layout.signature]
        kept = KeptRecords()
        handle = kept.words(*[0] * (shapes_at + sum(map(len, shapes))))
        shape_index = shapes_at
        inputs = {}
        for index, (ref, (shape, size)) in enumerate(zip(refs, layout.signature, strict=True)):
            at = field_address(handle, REQUEST_WORDS + INPUT_WORDS * index)
            put_field(at, InputWord.NAME, self.name_address(ref.name))
            put_field(at, InputWord.SHAPE, field_address(handle, shape_index))
            put_field(at, InputWord.SIZE, size)
            put_field(at, InputWord.DATATYPE, ref.dtype)
            put_field(at, InputWord.DIMS_COUNT, len(shape))
            for extent in shape:
                put_field(handle, shape_index, extent)
                shape_index += 1
            inputs[ref.name.encode()] = at
        request = BackendRequest(layout, handle, kept, inputs)
        put_field(handle, RequestWord.INPUT_COUNT, count)
        put_field(handle, RequestWord.INPUTS, field_address(handle, REQUEST_WORDS))
        self._set_defaults(request)
        return request

    def _set_defaults(self, request: BackendRequest) -> None:
        output_count, output_names = self._output_tables[None]
        values = (
            (RequestWord.ID, self.empty_text),
            (RequestWord.FLAGS, 0),
            (RequestWord.OUTPUT_COUNT, output_count),
            (RequestWord.OUTPUT_NAMES, output_names),
            (RequestWord.TIMEOUT_US, 0),
            (RequestWord.PARAMETER_COUNT, 0),
        )
        for index, value in values:
            put_field(request.handle, index, value)

    def name_address(self, name: str) -> int:
        """Returns the address of the name of an input, which stays."""
        if name not in self._names:
            self._names[name] = self._kept.string(name)
        return self._names[name]

    def _describe(self, requests: list[BackendRequest], collected: CollectedAnswers) -> None:
        """Write what only some requests have: ids, flags, parameters, requested outputs."""
        execute, kept = collected.execute, KeptRecords()
        for position, index, value in self.descriptions(execute, execute.outputs, kept):
            request = requests[position]
            put_field(request.handle, index, value)
            if not request.is_changed:
                request.is_changed = True
                request.owned = (request.owned, kept)
        for position, details in execute.details.items():
            requests[position].details = details

    def descriptions(
        self, execute: Execute, outputs: Mapping[int, Sequence[str]], kept: KeptRecords
    ) -> list[tuple[int, int, int]]:
        """Returns the words of records that differ from those of other requests.

        Args:
            execute: The batch.
            outputs: The requested outputs, by position.
            kept: Gets what the words refer to.

        Returns:
            The position of each request, the index of the word, and its value.
        """
        words = [
            (position, RequestWord.ID, kept.string(text)) for position, text in execute.ids.items()
        ]
        for position, details in execute.details.items():
            words.append((position, RequestWord.FLAGS, details.flags))
            words.append((position, RequestWord.TIMEOUT_US, details.timeout_us))
        for position, parameters in execute.parameters.items():
            words.append((position, RequestWord.PARAMETER_COUNT, len(parameters)))
        for position, wanted in outputs.items():
            count, table = self.output_table(wanted, kept)
            words.append((position, RequestWord.OUTPUT_COUNT, count))
            words.append((position, RequestWord.OUTPUT_NAMES, table))
        return words

    def output_table(self, wanted: Sequence[str] | None, kept: KeptRecords) -> tuple[int, int]:
        """Returns the number of requested outputs, and the address of their names; None: all.

        `kept` gets the names, unless they are kept for later requests as well.
        """
        key = None if wanted is None else tuple(wanted)
        table = self._output_tables.get(key)
        if table is None:
            # States are among them, which a backend returns in another way.
            names = [each for each in key or () if each in self._output_names]
            if len(self._output_tables) < _MAX_OUTPUT_TABLES:
                table = self._output_tables[key] = len(names), self._kept.strings(names)
            else:
                table = len(names), kept.strings(names)
        return table

    # Tensors

    def _cut(
        self, buffer: memoryview, ref: TensorRef, rows: Sequence[int]
    ) -> list[tuple[tuple[int, ...], int, int]]:
        """Returns the shape, size and address of an input of each request."""
        address = address_of(buffer) if ref.size else self.empty_text
        if len(rows) == 1 or not self.is_batching:
            return [(ref.shape, ref.size, address)]
        shapes = ref.shapes or [(count, *ref.shape[1:]) for count in rows]
        if ref.dtype == BYTES.number:
            sizes = _bytes_sizes(buffer, shapes)
        else:
            elements = [_product(shape) for shape in shapes]
            item = ref.size // (sum(elements) or 1)
            sizes = [each * item for each in elements]
        cells = []
        for shape, size in zip(shapes, sizes, strict=True):
            cells.append((shape, size, address))
            address += size
        return cells


def _product(shape: Sequence[int]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


def _bytes_sizes(buffer: memoryview, shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Returns the size of each request's elements, which each begin with their length."""
    sizes, at = [], 0
    for shape in shapes:
        start = at
        for _ in range(_product(shape)):
            at += 4 + _LENGTH.unpack_from(buffer, at)[0]
        if at > len(buffer):  # the backend would read beyond the buffer
            raise ValueError(f"expected elements within {len(buffer)} bytes, got {at}")
        sizes.append(at - start)
    return sizes


_CPU = 0  # TRITONSERVER_MEMORY_CPU


class RequestFunctions:
    """Functions on requests that the backend has not released."""

    def __init__(self, requests: BackendRequests) -> None:
        self._live = requests.live
        self._find = requests.find

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Returns the functions that only read a field."""
        return field_functions("a request", self._live, REQUEST_GETTERS)

    @export("TRITONBACKEND_RequestInputByIndex")
    def _input_by_index(self, request: int, index: int, out: int) -> None:
        put_word(out, self._input(request, index))

    @export("TRITONBACKEND_RequestInputName")
    def _input_name(self, request: int, index: int, out: int) -> None:
        put_word(out, word(self._input(request, index), InputWord.NAME))

    def _input(self, handle: int, index: int) -> int:
        request = self._find(handle)
        count = len(request.inputs)
        if index >= count:
            raise _refusal(request, f"out of bounds index {index}: request has {count} inputs")
        return field_address(handle, REQUEST_WORDS + INPUT_WORDS * index)

    @export("TRITONBACKEND_RequestInput")
    def _input_by_name(self, handle: int, name: bytes | None, out: int) -> None:
        request = self._find(handle)
        found = request.inputs.get(name or b"")
        if found is None:
            put_word(out, 0)
            raise _refusal(request, f"unknown request input name {decoded(name)}")
        put_word(out, found)

    @export("TRITONBACKEND_RequestOutputName")
    def _output_name(self, handle: int, index: int, out: int) -> None:
        request = self._find(handle)
        count = word(handle, RequestWord.OUTPUT_COUNT)
        if index >= count:
            put_word(out, 0)
            raise _refusal(
                request, f"out of bounds index {index}: request has {count} requested outputs"
            )
        put_word(out, word(word(handle, RequestWord.OUTPUT_NAMES), index))

    @export("TRITONBACKEND_RequestOutputBufferProperties")
    def _output_properties(
        self, request: int, name: bytes, size: int, memory_type: int, memory_id: int
    ) -> None:
        self._find(request)
        put_half_word(memory_type, _CPU)
        put_word(memory_id, 0)

    @export("TRITONBACKEND_RequestCorrelationId")
    def _correlation_id(self, request: int, out: int) -> None:
        found = self._find(request)
        value = found.details.correlation_id
        if isinstance(value, str):
            raise _refusal(found, "correlation ID in request is not an unsigned int")
        put_word(out, value)

    @export("TRITONBACKEND_RequestCorrelationIdString")
    def _correlation_id_string(self, request: int, out: int) -> None:
        found = self._find(request)
        value = found.details.correlation_id
        if not isinstance(value, str):
            raise _refusal(found, "correlation ID in request is not a string")
        put_word(out, _keep(found).string(value))

    @export("TRITONBACKEND_RequestIsCancelled")
    def _is_cancelled(self, request: int, out: int) -> None:
        found = self._find(request)
        put_bool(out, found.collected.batch.is_cancelled(found.position))

    @export("TRITONBACKEND_RequestTrace")
    def _trace(self, request: int, out: int) -> None:
        self._find(request)
        put_word(out, 0)

    @export("TRITONBACKEND_RequestParameter")
    def _parameter(self, request: int, index: int, key: int, kind: int, value: int) -> None:
        found = self._find(request)
        parameters = found.collected.execute.parameters.get(found.position, {})
        if index >= len(parameters):
            raise InvalidArgumentError(
                f"out of bounds index {index}: request has {len(parameters)} parameters"
            )
        name = list(parameters)[index]
        kept = _keep(found)
        number, address = stored_parameter(kept, parameters[name])
        put_word(key, kept.string(name))
        put_half_word(kind, number)
        put_word(value, address)

    @export("TRITONBACKEND_InputProperties")
    def _properties(
        self, this: int, name: int, datatype: int, shape: int, dims: int, size: int, buffers: int
    ) -> None:
        if not this:
            raise InvalidArgumentError("expected a handle of an input, got NULL")
        if name:
            put_word(name, word(this, InputWord.NAME))
        if datatype:
            put_half_word(datatype, word(this, InputWord.DATATYPE))
        if shape:
            put_word(shape, word(this, InputWord.SHAPE))
        if dims:
            put_half_word(dims, word(this, InputWord.DIMS_COUNT))
        if size:
            put_word(size, word(this, InputWord.SIZE))
        if buffers:
            put_half_word(buffers, 1)

    @export("TRITONBACKEND_InputPropertiesForHostPolicy")
    def _properties_for_policy(self, this: int, policy: bytes | None, *outs: int) -> None:
        self._properties(this, *outs)

    @export("TRITONBACKEND_InputBuffer")
    def _buffer(
        self, this: int, index: int, buffer: int, size: int, memory_type: int, memory_id: int
    ) -> None:
        if not this:
            raise InvalidArgumentError("expected a handle of an input, got NULL")
        put_word(buffer, 0 if index else word(this, InputWord.BUFFER))
        put_word(size, 0 if index else word(this, InputWord.SIZE))
        put_half_word(memory_type, _CPU)
        put_word(memory_id, 0)

    @export("TRITONBACKEND_InputBufferForHostPolicy")
    def _buffer_for_policy(self, this: int, policy: bytes | None, *rest: int) -> None:
        self._buffer(this, *rest)


def _refusal(request: ReadRequest, text: str) -> InvalidArgumentError:
    """Returns an error with the id of its request, as Triton writes it."""
    name = request.collected.execute.ids.get(request.position) or "<id_unknown>"
    return InvalidArgumentError(f"[request id: {name}] {text}")


def _keep(request: ReadRequest) -> KeptRecords:
    """Returns memory that lives as long as a request."""
    kept = KeptRecords()
    request.owned = (request.owned, kept)
    return kept
