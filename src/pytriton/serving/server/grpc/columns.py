# SPDX-License-Identifier: Apache-2.0
"""Small calls of ModelInfer that travel as columns, because many like them came before.

After some requests of one layout, later ones are read by a `RequestPattern`, gathered into a chunk
and answered from the columns of a batch, without records and tensors for each. Requests that differ
in anything but the bytes of their tensors take the ordinary way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.protocol.grpc import OK_TRAILERS, RESPONSE_HEADS
from pytriton.protocol.grpc.messages import PREFIX_BYTES, pack_prefix
from pytriton.protocol.http2.whole_responses import ResponseFrames
from pytriton.protocol.kserve_pb_pattern import RequestPattern, ResponsePattern, layout_of
from pytriton.protocol.kserve_pb_response import encode_infer_response
from pytriton.serving.server.api.gatherer import ColumnSink, Iterations, can_be_columns
from pytriton.serving.server.grpc.call import IDENTITY, Call
from pytriton.serving.server.grpc.sequence_columns import (
    LayoutTable,
    SequenceColumnTable,
    gathering_model,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.errors import ServerError
    from pytriton.base.messages import InferRequest, InferResponse
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.grpc import CallHead
    from pytriton.protocol.http2 import IncompleteInput
    from pytriton.protocol.kserve_pb_pattern import Layout
    from pytriton.runtime.executor.columns import OutputColumn
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.api.gatherer import GatheredChunk, Gatherer, SequencePlace
    from pytriton.serving.server.grpc.call import CallConnection
    from pytriton.serving.server.tracing.tracing import TraceBeginner

_HEAD = RESPONSE_HEADS[IDENTITY]


class ColumnCall(Call):
    """A call whose request is in a chunk; it has received everything."""

    __slots__ = ("chunk", "gatherer", "index")

    def __init__(self, connection: CallConnection, stream_id: int, head: CallHead) -> None:
        # Only what such a call needs: the constructor of its base takes twice as long.
        self.connection = connection
        self.stream_id = stream_id
        self.head = head
        self.encoding = IDENTITY
        self.is_open = True
        self.timer = None
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


class CallColumns(ColumnSink[ResponsePattern]):
    """Gathers and answers calls of ModelInfer with one set of inputs for a model."""

    def __init__(self, iterations: Iterations, spec: ModelSpec, request: InferRequest) -> None:
        super().__init__(iterations, spec, request, ResponsePattern)
        self._framed: ResponsePattern | None = None  # the pattern that `_frames` are for
        self._frames: ResponseFrames

    def add(
        self,
        call: ColumnCall,
        model: ServedModel,
        inputs: Sequence[bytes],
        sequence: SequencePlace | None = None,
    ) -> None:
        """Add a call to the next chunk."""
        call.gatherer = self.gatherer
        try:
            call.chunk, call.index = self.gatherer.add(model, inputs, call, sequence)
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
    """The layouts of requests that repeat, those of sequences among them.

    Args:
        engine: The engine.
        loop: The event loop.
        tracing: Traces requests, if the server does.
    """

    def __init__(
        self,
        engine: EngineClient,
        loop: asyncio.AbstractEventLoop,
        tracing: TraceBeginner | None = None,
    ) -> None:
        self._engine = engine
        self._tracing = tracing
        self._iterations = Iterations(engine, loop)
        self._layouts: LayoutTable[Layout, RequestPattern, CallColumns] = LayoutTable()
        self.sequences = SequenceColumnTable(engine, loop, CallColumns, tracing)

    def take(
        self, connection: CallConnection, stream_id: int, head: CallHead, framed: bytes
    ) -> Call | None:
        """Add a request to a chunk; returns None if it has to take the ordinary way."""
        for pattern, columns in self._layouts.of_size(len(framed)):
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
    ) -> Call | None:
        size = len(framed) - PREFIX_BYTES
        sequences = self.sequences
        if not sequences.has_size(size) or not framed.startswith(pack_prefix(False, size)):
            return None
        found = sequences.find(framed[PREFIX_BYTES:])
        if found is None:
            return None
        model, columns, read = found
        call = ColumnCall(connection, stream_id, head)
        columns.add(call, model, read.inputs, (read.correlation_id, read.flags, ""))
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
        sizes = [len(tensor.data) for tensor in request.inputs.values()]
        columns = CallColumns(self._iterations, model.spec, request)
        self._layouts.keep(layout, RequestPattern(layout, sizes), columns)
