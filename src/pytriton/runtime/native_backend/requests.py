# SPDX-License-Identifier: Apache-2.0
"""The requests of a batch as records in memory, whose tensors are not copied."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from pytriton.base.dtypes import BYTES
from pytriton.runtime.native_backend.memory import (
    Handles,
    Kept,
    address_of,
    field_address,
    put_field,
)
from pytriton.runtime.native_backend.records import (
    INPUT_WORDS,
    REQUEST_WORDS,
    InputWord,
    RequestWord,
)
from pytriton.runtime.transport.frames import RequestDetails

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.runtime.native_backend.answers import BackendResponse
    from pytriton.runtime.native_backend.outputs import BackendOutput
    from pytriton.runtime.native_backend.runs import BatchRun
    from pytriton.runtime.transport.channel import Received
    from pytriton.runtime.transport.refs import TensorRef

_NO_DETAILS = RequestDetails()
_MAX_LAYOUTS = 256
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
        "answer", "answer_count", "details", "handle", "handles", "inputs", "is_changed",
        "is_ended", "is_over", "is_rescheduled", "kept", "layout", "owned", "position", "run",
        "state_handles", "states",
    )  # fmt: skip

    def __init__(self, layout: _Layout, handle: int, kept: Kept, inputs: dict[bytes, int]) -> None:
        self.layout = layout
        self.handle = handle
        self.kept = kept
        self.inputs = inputs  # addresses of records, by name
        self.reset()

    def reset(self) -> None:
        """Forget the request for which the record was used."""
        self.run: BatchRun = None  # type: ignore[assignment]  # set before it is used
        self.position = 0
        self.details = _NO_DETAILS
        self.owned: Any = None  # what the record refers to: the message, and strings
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


class _Layout:
    """Requests whose tensors have the same shapes; unused records of them."""

    __slots__ = ("free", "signature")

    def __init__(self, signature: _Signature) -> None:
        self.signature = signature
        self.free: list[BackendRequest] = []


class BackendRequests:
    """The requests that the backend has not released.

    Args:
        output_names: All outputs of the model, which a request gets that names none.
        is_batching: Whether the first dimension of tensors is that of the batch.
    """

    def __init__(self, output_names: Sequence[str], *, is_batching: bool) -> None:
        self.live: Handles[BackendRequest] = Handles("a request")
        self._is_batching = is_batching
        self._kept = Kept()
        self._empty = self._kept.string("")
        self._names: dict[str, int] = {}
        self._output_names = tuple(output_names)
        self._output_table = self._kept.strings(output_names)
        self._layouts: dict[tuple[tuple[str, int], ...], dict[_Signature, _Layout]] = {}

    def add_batch(self, run: BatchRun, received: Received) -> list[BackendRequest]:
        """Make the requests of a batch."""
        execute = run.execute
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
            request.run, request.position, request.owned = run, position, owned
            index = _FIRST_BUFFER
            for _, _, address in cells:
                put_field(request.handle, index, address)
                index += INPUT_WORDS
            self.live.add_at(request.handle, request)
            requests.append(request)
        if execute.ids or execute.details or execute.parameters or execute.outputs:
            self._describe(requests, run)
        return requests

    def recycle(self, request: BackendRequest) -> None:
        """Use the record of a request again, to which nothing refers any more."""
        if request.is_changed:
            self._set_defaults(request)
        request.reset()
        request.layout.free.append(request)

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
        kept = Kept()
        handle = kept.words(*[0] * (shapes_at + sum(map(len, shapes))))
        shape_index = shapes_at
        inputs = {}
        for index, (ref, (shape, size)) in enumerate(zip(refs, layout.signature, strict=True)):
            at = field_address(handle, REQUEST_WORDS + INPUT_WORDS * index)
            put_field(at, InputWord.NAME, self._name(ref.name))
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
        values = (
            (RequestWord.ID, self._empty),
            (RequestWord.FLAGS, 0),
            (RequestWord.OUTPUT_COUNT, len(self._output_names)),
            (RequestWord.OUTPUT_NAMES, self._output_table),
            (RequestWord.TIMEOUT_US, 0),
            (RequestWord.PARAMETER_COUNT, 0),
        )
        for index, value in values:
            put_field(request.handle, index, value)

    def _name(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = self._kept.string(name)
        return self._names[name]

    def _describe(self, requests: list[BackendRequest], run: BatchRun) -> None:
        """Write what only some requests have: ids, flags, parameters, requested outputs."""
        execute = run.execute
        positions = {*execute.ids, *execute.details, *execute.parameters, *execute.outputs}
        for position in positions:
            request = requests[position]
            request.is_changed = True
            kept = Kept()
            request.owned = (request.owned, kept)
            handle = request.handle
            if position in execute.ids:
                put_field(handle, RequestWord.ID, kept.string(execute.ids[position]))
            if position in execute.details:
                request.details = details = execute.details[position]
                put_field(handle, RequestWord.FLAGS, details.flags)
                put_field(handle, RequestWord.TIMEOUT_US, details.timeout_us)
            if position in execute.parameters:
                count = len(execute.parameters[position])
                put_field(handle, RequestWord.PARAMETER_COUNT, count)
            if position in execute.outputs:
                # States are among them, which a backend returns in another way.
                names = [each for each in execute.outputs[position] if each in self._output_names]
                put_field(handle, RequestWord.OUTPUT_COUNT, len(names))
                put_field(handle, RequestWord.OUTPUT_NAMES, kept.strings(names))

    # Tensors

    def _cut(
        self, buffer: memoryview, ref: TensorRef, rows: Sequence[int]
    ) -> list[tuple[tuple[int, ...], int, int]]:
        """Returns the shape, size and address of an input of each request."""
        address = address_of(buffer) if ref.size else self._empty
        if len(rows) == 1 or not self._is_batching:
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
        if at > len(buffer):  # the backend would read what is behind it
            raise ValueError(f"expected elements within {len(buffer)} bytes, got {at}")
        sizes.append(at - start)
    return sizes
