# SPDX-License-Identifier: Apache-2.0
"""Small requests over gRPC that travel as columns, because many like them came before.

After some requests of one layout, later ones are read by a pattern, gathered into a chunk and
answered from the columns of a batch, without records and tensors for each. Requests that differ in
anything but the bytes of their tensors, or the ids and flags of their sequences, take the ordinary
way, with the same answer. `stream` has the sink of streamed requests.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pytriton.base.messages import NO_FIELDS, MemberFields
from pytriton.protocol.grpc import OK_TRAILERS, RESPONSE_HEADS
from pytriton.protocol.grpc.messages import PREFIX_BYTES, pack_prefix
from pytriton.protocol.http2.frames import ResponseFrames
from pytriton.protocol.kserve_pb_response import encode_infer_response
from pytriton.protocol.pb_columns import (
    PbRequestPattern,
    PbResponsePattern,
    SequencePattern,
    layout_of,
    sequence_layout_of,
)
from pytriton.serving.server.api.gatherer import ColumnSink, Iterations, can_be_columns
from pytriton.serving.server.grpc.call import IDENTITY, GrpcCall

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.errors import ServerError
    from pytriton.base.messages import InferRequest, InferResponse
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.grpc import CallHead
    from pytriton.protocol.http2 import IncompleteInput
    from pytriton.protocol.pb_columns import Layout, SequenceLayout, SequenceRequest
    from pytriton.runtime.executor.columns import OutputColumn
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.api.gatherer import GatheredChunk, Gatherer
    from pytriton.serving.server.grpc.call import CallConnection
    from pytriton.serving.server.tracing.tracing import TraceBeginner

MAX_MESSAGE_BYTES = 4096
LEARN_EVERY = 16  # how many requests of a layout take the ordinary way
MAX_LAYOUTS = 256

_Columns = TypeVar("_Columns", bound=ColumnSink[Any])
_Key = TypeVar("_Key")
_Reader = TypeVar("_Reader", bound="SizedPattern")

_HEAD = RESPONSE_HEADS[IDENTITY]


class ColumnCall(GrpcCall):
    """A call whose request is in a chunk; it has received everything."""

    __slots__ = ("chunk", "gatherer", "index")

    def __init__(self, connection: CallConnection, stream_id: int, head: CallHead) -> None:
        # Only what such a call needs: the constructor of its base takes twice as long.
        self.connection = connection
        self.stream_id = stream_id
        self.head = head
        self.encoding = IDENTITY
        self.is_open = True
        self.deadline_s = math.inf
        self._has_head = False
        self._sends = None
        self.chunk: GatheredChunk | None = None
        self.gatherer: Gatherer
        self.index: int

    def incomplete_input(self) -> IncompleteInput | None:
        return None  # its whole request is in the chunk

    def on_abandoned(self) -> None:
        if self.chunk is not None:
            self.gatherer.cancel(self.chunk, self.index)


class CallColumns(ColumnSink[PbResponsePattern]):
    """Gathers and answers calls of ModelInfer with one set of inputs for a model."""

    def __init__(self, iterations: Iterations, spec: ModelSpec, request: InferRequest) -> None:
        super().__init__(iterations, spec, request, PbResponsePattern)
        self._framed: PbResponsePattern | None = None  # the pattern that `_frames` are for
        self._frames: ResponseFrames

    def add(
        self,
        call: ColumnCall,
        model: ServedModel,
        inputs: Sequence[bytes],
        fields: MemberFields = NO_FIELDS,
    ) -> None:
        """Add a call to the next chunk."""
        call.gatherer = self.gatherer
        try:
            call.chunk, call.index = self.gatherer.add(model, inputs, call, fields)
        except Exception as error:  # noqa: BLE001  it is sent to the client
            call.connection.fail_call(call, error)

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[OutputColumn], row: int
    ) -> None:
        """Answer requests whose outputs are in the columns of a batch."""
        pattern = self.response_pattern(outputs)
        if pattern is not self._framed:
            self._framed = pattern
            self._frames = ResponseFrames(_HEAD, pattern.size, OK_TRAILERS)
        frames = self._frames
        bodies = pattern.encode(outputs, row, end - first)
        for call, body in zip(chunk.callers[first:end], bodies, strict=True):
            if call.is_open:
                call.is_open = False
                connection = call.connection
                # If the client's windows are too small, its response is queued frame by frame.
                if not connection.http2.send_whole(call.stream_id, frames, body):
                    connection.http2.send_response(call.stream_id, _HEAD, body, OK_TRAILERS)
                connection.remove_call(call)
        chunk.end(end - first)

    def on_outcome(
        self,
        chunk: Any,
        index: int,
        response: InferResponse | None,
        error: ServerError | None,
        *,
        is_refused: bool,
    ) -> None:
        """Answer one request like one that is not in a chunk."""
        call: ColumnCall = chunk.callers[index]
        if not call.is_open:
            pass
        elif error is not None:
            call.fail(error)
        elif response is not None:
            call.respond(encode_infer_response(response))
        chunk.end(1)


class ColumnTable:
    """The layouts of requests of ModelInfer that repeat, those of sequences among them."""

    def __init__(
        self,
        engine: EngineClient,
        loop: asyncio.AbstractEventLoop,
        tracing: TraceBeginner | None = None,
    ) -> None:
        self._engine = engine
        self._tracing = tracing
        self._iterations = Iterations(engine, loop)
        self._layouts: LayoutTable[Layout, PbRequestPattern, CallColumns] = LayoutTable()
        self.sequences = SequenceColumnTable(engine, loop, CallColumns, tracing)

    def take(
        self, connection: CallConnection, stream_id: int, head: CallHead, framed: bytes
    ) -> GrpcCall | None:
        """Add a request to a chunk; returns None if it has to take the ordinary way."""
        # A layout fixes all bytes but those of tensors, so its messages have one size. Few share
        # one.
        for pattern, columns in self._layouts.by_size.get(len(framed), ()):
            inputs = pattern.read(framed)
            if inputs is not None:
                model = gathering_model(self._engine, columns, self._tracing)
                if model is None:
                    return None
                call = ColumnCall(connection, stream_id, head)
                columns.add(call, model, inputs)
                return call
        return self._take_in_sequence(connection, stream_id, head, framed)

    def _take_in_sequence(
        self, connection: CallConnection, stream_id: int, head: CallHead, framed: bytes
    ) -> GrpcCall | None:
        size = len(framed) - PREFIX_BYTES
        sequences = self.sequences
        # Patterns of sequences read messages without a prefix, as streams have them.
        if not sequences.has_size(size) or not framed.startswith(pack_prefix(False, size)):
            return None
        found = sequences.find(framed[PREFIX_BYTES:])
        if found is None:
            return None
        model, columns, read = found
        call = ColumnCall(connection, stream_id, head)
        fields = MemberFields(correlation_id=read.correlation_id, flags=read.flags)
        columns.add(call, model, read.inputs, fields)
        return call

    def learn(
        self, model: ServedModel, request: InferRequest, message: bytes, raw: Sequence[Buffer]
    ) -> None:
        """Learn the layout of a request in which nothing but the tensors may differ."""
        layout = layout_of(message, raw)
        if layout is None or len(raw) != len(request.inputs) or not model.takes_columns:
            return
        if self._layouts.is_known(layout, model.spec) or not can_be_columns(request, model.spec):
            return
        # The same model may have several layouts: clients may write fields in any order.
        sizes = [len(tensor.data) for tensor in request.inputs.values()]
        columns = CallColumns(self._iterations, model.spec, request)
        self._layouts.keep(layout, PbRequestPattern(layout, sizes), columns)


class SequenceColumnTable(Generic[_Columns]):
    """The layouts of requests of sequences that repeat.

    `make_columns` makes the sink of requests like a valid one; calls and streams have their own.
    """

    def __init__(
        self,
        engine: EngineClient,
        loop: asyncio.AbstractEventLoop,
        make_columns: Callable[[Iterations, ModelSpec, InferRequest], _Columns],
        tracing: TraceBeginner | None = None,
    ) -> None:
        self._engine = engine
        self._tracing = tracing
        self._make_columns = make_columns
        self._iterations = Iterations(engine, loop)
        self._counts: dict[int, int] = {}  # of requests in the ordinary way, by size
        self._layouts: LayoutTable[SequenceLayout, SequencePattern, _Columns] = LayoutTable()
        # By what the requests of a chunk have in common: several layouts may share one.
        self._columns: dict[Any, _Columns] = {}
        self._last: _Columns | None = None  # to which a request was added

    def has_size(self, size: int) -> bool:
        """Returns whether a message of this size may have a layout that was learned."""
        return size in self._layouts.by_size

    def find(self, message: bytes) -> tuple[ServedModel, _Columns, SequenceRequest] | None:
        """Read a request that has to be added to its columns now; None: by the ordinary way."""
        for pattern, columns in self._layouts.by_size.get(len(message), ()):
            request = pattern.read(message)
            if request is not None:
                model = gathering_model(self._engine, columns, self._tracing)
                if model is None:
                    return None
                # Requests of one sequence may differ in their layouts, but must keep their order.
                if self._last is not columns:
                    self.submit()
                    self._last = columns
                return model, columns, request
        return None

    def submit(self) -> None:
        """Submit the gathered requests now, because a later one takes another way."""
        if self._last is not None:
            self._last.gatherer.submit()

    def learn(
        self, model: ServedModel, request: InferRequest, message: Buffer, raw: Sequence[Buffer]
    ) -> None:
        """Count a request that takes the ordinary way; after some, learn its layout."""
        size = len(message)
        if size > MAX_MESSAGE_BYTES or not isinstance(message, bytes):
            return
        count = self._counts[size] = self._counts.get(size, 0) + 1
        # Requests that keep taking the ordinary way pay for learning now and then.
        if count % LEARN_EVERY or not model.takes_columns:
            return
        layout = sequence_layout_of(message, raw)
        if layout is None or not can_be_columns(request, model.spec):
            return
        if self._layouts.is_known(layout, model.spec):
            return
        pattern = SequencePattern(layout)
        read = pattern.read(message)
        # A pattern that reads something else than the parser would answer wrongly for ever after.
        if read is not None and _agrees(read, request):
            columns = self._columns_for(model.spec, request)
            if self._layouts.keep(layout, pattern, columns):
                self._columns.clear()

    def _columns_for(self, spec: ModelSpec, request: InferRequest) -> _Columns:
        """Returns the columns of requests that may share a chunk with this one."""
        # Chunks have one signature; layouts may differ in ids and flags only.
        tensors = [(each.name, each.dtype, each.shape) for each in request.inputs.values()]
        key = (spec.name, request.model_version, tuple(tensors), request.outputs)
        columns = self._columns.get(key)
        if columns is None or columns.spec is not spec:
            columns = self._columns[key] = self._make_columns(self._iterations, spec, request)
        return columns


def _agrees(read: SequenceRequest, request: InferRequest) -> bool:
    """Returns whether the pattern of a layout reads the same in a message as the parser does."""
    return (
        read.id == request.id.encode()
        and read.correlation_id == request.correlation_id
        and read.flags == request.flags
        and list(read.inputs) == [tensor.data for tensor in request.inputs.values()]
        and not (request.parameters or request.priority or request.timeout_us)
    )


def gathering_model(
    engine: EngineClient, columns: ColumnSink[Any], tracing: TraceBeginner | None
) -> ServedModel | None:
    """Count a request; returns the model that it is gathered for, or None.

    None means that it takes the ordinary way, which also finds the error, if there is one: the
    model was replaced or is gone, the server exits, the request is alone, or it is to be traced.
    """
    spec = columns.spec
    model = engine.find(spec.name, columns.version)
    if (
        model is None
        or model.spec is not spec
        or engine.is_exiting
        or columns.gatherer.is_alone(model)
        or (tracing is not None and not tracing.passes(spec.name))
    ):
        return None
    return model


class SizedPattern(Protocol):
    """Reads messages of one layout, which all have the same size."""

    @property
    def size(self) -> int: ...


class LayoutTable(Generic[_Key, _Reader, _Columns]):
    """The layouts that were learned: how each is read, and where its requests are gathered."""

    def __init__(self) -> None:
        self._learned: dict[_Key, tuple[_Reader, _Columns]] = {}
        # The size of a message is known before any of it is read, and tells most layouts apart.
        self.by_size: dict[int, list[tuple[_Reader, _Columns]]] = {}

    def is_known(self, layout: _Key, spec: ModelSpec) -> bool:
        """Returns whether a layout was learned for this model, and not for one before it."""
        known = self._learned.get(layout)
        return known is not None and known[1].spec is spec

    def keep(self, layout: _Key, pattern: _Reader, columns: _Columns) -> bool:
        """Learn a layout; returns whether the others were forgotten, because there are too many."""
        is_full = len(self._learned) >= MAX_LAYOUTS
        if is_full:
            self._learned.clear()
        self._learned[layout] = (pattern, columns)
        self.by_size = {}
        for each in self._learned.values():
            self.by_size.setdefault(each[0].size, []).append(each)
        return is_full
