# SPDX-License-Identifier: Apache-2.0
"""Small calls of ModelInfer that travel as columns, because many like them came before.

After some requests of one layout, later ones are read by a `RequestPattern`, gathered into a chunk
and answered from the columns of a batch, without records and tensors for each. Requests that differ
in anything but the bytes of their tensors take the ordinary way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.base import dtypes
from pytriton.base.errors import ServerError
from pytriton.protocol.grpc import OK_TRAILERS, RESPONSE_HEADS
from pytriton.protocol.grpc.messages import PREFIX_BYTES, pack_prefix
from pytriton.protocol.http2.whole_responses import ResponseFrames
from pytriton.protocol.kserve_pb_pattern import (
    RequestPattern,
    ResponsePattern,
    layout_of,
    structure_of,
)
from pytriton.protocol.kserve_pb_response import encode_infer_response
from pytriton.serving.engine.validation import validate
from pytriton.serving.server.api.gatherer import Iterations, gatherer_for
from pytriton.serving.server.grpc.call import IDENTITY, Call
from pytriton.serving.server.grpc.sequence_columns import MAX_LAYOUTS, SequenceColumnTable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import InferRequest, InferResponse
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.grpc import CallHead
    from pytriton.protocol.http2 import IncompleteInput
    from pytriton.protocol.kserve_pb_pattern import Layout
    from pytriton.runtime.executor.columns import OutputColumn
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.api.gatherer import GatheredChunk, Gatherer
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
        """Returns None: nothing is missing."""
        return None

    def on_abandoned(self) -> None:
        """Cancel the request."""
        if self.chunk is not None:
            self.gatherer.cancel(self.chunk, self.index)


class CallColumns:
    """Gathers and answers calls with one set of inputs for a model; it is their sink.

    Args:
        iterations: Tells when to submit what was gathered.
        spec: The specification of the model.
        request: A valid request of these.
    """

    def __init__(self, iterations: Iterations, spec: ModelSpec, request: InferRequest) -> None:
        self.spec = spec
        self.version = request.model_version
        self.gatherer = gatherer_for(iterations, spec, request, list(request.inputs), self)
        self._rows = request.rows if spec.max_batch_size else None
        self._answers: ResponsePattern | None = None
        self._frames: ResponseFrames

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[OutputColumn], row: int
    ) -> None:
        """Answer requests whose outputs are in the columns of a batch."""
        answers = self._answers
        if answers is None or answers.structure != structure_of(outputs):
            answers = self._answers = ResponsePattern(
                self.spec.name,
                str(self.spec.version),
                self._rows,
                outputs,
                self.spec.answer_parameters,
            )
            self._frames = ResponseFrames(_HEAD, answers.size, OK_TRAILERS)
        bodies = answers.encode(outputs, row, end - first)
        frames = self._frames
        for call, body in zip(chunk.callers[first:end], bodies, strict=True):
            if call.is_open:
                call.is_open = False
                connection = call.connection
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


class ColumnRequests(CallColumns):
    """Reads the calls of one layout, too.

    Args:
        engine: The engine.
        iterations: Tells when to submit what was gathered.
        spec: The specification of the model.
        request: A valid request of this layout.
        layout: Its layout.
        tracing: Traces requests, if the server does.
    """

    def __init__(
        self,
        engine: EngineClient,
        iterations: Iterations,
        spec: ModelSpec,
        request: InferRequest,
        layout: Layout,
        tracing: TraceBeginner | None,
    ) -> None:
        super().__init__(iterations, spec, request)
        self._engine = engine
        self._tracing = tracing
        self.pattern = RequestPattern(
            layout, [len(tensor.data) for tensor in request.inputs.values()]
        )

    def take(
        self, connection: CallConnection, stream_id: int, head: CallHead, framed: bytes
    ) -> Call | None:
        """Add a request to the next chunk; returns None if it has to take the ordinary way."""
        inputs = self.pattern.read(framed)
        if inputs is None:
            return None
        model = self._engine.find(self.spec.name, self.version)
        gatherer = self.gatherer
        if (
            model is None
            or model.spec is not self.spec
            or self._engine.is_exiting
            or gatherer.is_alone(model)
            or (self._tracing is not None and not self._tracing.passes(self.spec.name))
        ):
            return None
        call = ColumnCall(connection, stream_id, head)
        call.gatherer = gatherer
        try:
            call.chunk, call.index = gatherer.add(model, inputs, call)
        except Exception as error:  # noqa: BLE001  it is sent to the client
            connection.fail_call(call, error)
        return call


class ColumnTable:
    """The layouts of requests that repeat.

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
        self._learned: dict[Layout, ColumnRequests] = {}
        self._by_size: dict[int, list[ColumnRequests]] = {}
        self.sequences = SequenceColumnTable(engine, loop, CallColumns, tracing)

    def take(
        self, connection: CallConnection, stream_id: int, head: CallHead, framed: bytes
    ) -> Call | None:
        """Add a request to a chunk; returns None if it has to take the ordinary way."""
        for requests in self._by_size.get(len(framed), ()):
            call = requests.take(connection, stream_id, head, framed)
            if call is not None:
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
        call.gatherer = columns.gatherer
        sequence = (read.correlation_id, read.flags, "")
        try:
            added = columns.gatherer.add_in_sequence(model, read.inputs, call, sequence)
            call.chunk, call.index = added
        except Exception as error:  # noqa: BLE001  it is sent to the client
            connection.fail_call(call, error)
        return call

    def learn(
        self, model: ServedModel, request: InferRequest, message: bytes, raw: Sequence[Buffer]
    ) -> None:
        """Learn the layout of a request in which nothing but the tensors may differ."""
        layout = layout_of(message, raw)
        if layout is None or len(raw) != len(request.inputs) or not model.takes_columns:
            return
        known = self._learned.get(layout)
        if known is not None and known.spec is model.spec:
            return
        if any(tensor.dtype is dtypes.BYTES for tensor in request.inputs.values()):
            return
        try:
            validate(request, model.spec)
        except ServerError:
            return
        if len(self._learned) >= MAX_LAYOUTS:
            self._learned.clear()
        requests = ColumnRequests(
            self._engine, self._iterations, model.spec, request, layout, self._tracing
        )
        self._learned[layout] = requests
        self._by_size = {}
        for each in self._learned.values():
            self._by_size.setdefault(each.pattern.size, []).append(each)
