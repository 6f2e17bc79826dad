# SPDX-License-Identifier: Apache-2.0
"""Small requests over gRPC that travel as columns, because many like them came before.

After some requests of one layout, later ones are read by a pattern, gathered into a chunk and
answered from the columns of a batch, without records and tensors for each. They may differ in the
bytes of their tensors, in their ids and in the values of their parameters. Requests that differ in
anything else take the ordinary way, with the same answer. `stream` has the sink of streamed
requests.
"""

from __future__ import annotations

import math
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from google.protobuf.message import DecodeError

from pytriton.base.columns import Column
from pytriton.base.errors import ServerError
from pytriton.base.messages import (
    NO_FIELDS,
    InferRequest,
    RequestFields,
    RequestPath,
)
from pytriton.protocol.grpc import OK_TRAILERS, RESPONSE_HEADS
from pytriton.protocol.grpc.messages import PREFIX_BYTES
from pytriton.protocol.http2.frames import ResponseFrames
from pytriton.protocol.kserve_pb_response import encode_infer_response
from pytriton.protocol.pb_columns import (
    PbResponsePattern,
    layout_of,
    patterns_of_size,
    read_entries,
)
from pytriton.serving.engine.validation import accepted_types
from pytriton.serving.server.api.gatherer import ColumnSink, Iterations, can_be_columns
from pytriton.serving.server.grpc.call import IDENTITY, GrpcCall
from pytriton.serving.server.grpc.call_state import ENDED, OPEN

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import InferResponse
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.grpc import CallHead
    from pytriton.protocol.http2 import IncompleteInput
    from pytriton.protocol.pb_columns import PbRequestPattern, RequestLayout
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.api.gatherer import GatheredChunk, Gatherer
    from pytriton.serving.server.grpc.connection import GrpcConnection
    from pytriton.serving.server.grpc.guard import CallGuard

MAX_MESSAGE_BYTES = 4096
LEARN_EVERY = 16  # how many requests of a size take the ordinary way before one is learned
MAX_LAYOUTS = 256
_MAX_PATTERNS = 1024
_MAX_KNOWN_FIELDS = 1024

_Pattern = TypeVar("_Pattern", bound=PbResponsePattern)
_Columns = TypeVar("_Columns", bound="PbColumns[Any]")

_HEAD = RESPONSE_HEADS[IDENTITY]
# Looking up an enum's member takes 0.16 us on Python 3.11.
_NEW, _FORM, _ALONE = RequestPath.NEW, RequestPath.FORM, RequestPath.ALONE
_TRACED = RequestPath.TRACED
_NEVER = math.inf


class ColumnCall(GrpcCall):
    """A call whose request is in a chunk; it has received everything."""

    __slots__ = ("chunk", "gatherer", "index")

    def __init__(self, connection: GrpcConnection, stream_id: int, head: CallHead) -> None:
        # Only what such a call needs: the constructor of its base takes twice as long.
        self.connection = connection
        self.stream_id = stream_id
        self.head = head
        self.encoding = IDENTITY
        self.state = OPEN
        self.deadline_s = _NEVER
        self._has_head = False
        self._sends = None
        self.chunk: GatheredChunk | None = None
        self.gatherer: Gatherer
        self.index: int

    def incomplete_input(self) -> IncompleteInput | None:
        return None  # its whole request is in the chunk

    @property
    def upload_bytes(self) -> int:
        """See `GrpcCall.upload_bytes`."""
        return 0

    @property
    def held_bytes(self) -> int:
        """See `GrpcCall.held_bytes`."""
        return 0

    def _stop_input(self) -> None:
        """Do nothing: it has received everything."""

    def on_abandoned(self) -> None:
        if self.chunk is not None:
            self.gatherer.cancel(self.chunk, self.index)


class PbColumns(ColumnSink[_Pattern]):
    """Gathers requests with one set of inputs for a model, and reads what else they have."""

    def __init__(
        self,
        iterations: Iterations,
        spec: ModelSpec,
        request: InferRequest,
        make_pattern: Callable[..., _Pattern],
    ) -> None:
        super().__init__(iterations, spec, request, make_pattern)
        self.is_sequence = spec.sequence is not None
        self._sequence_ids = accepted_types(spec)
        # By the entries of parameters, which often repeat. None: such a request is refused.
        self._fields: dict[tuple[bytes, ...], RequestFields | None] = {}

    def read_fields(self, request_id: bytes, entries: tuple[bytes, ...]) -> RequestFields | None:
        """Returns what a request has of its own; None if it has to take the ordinary way."""
        fields = NO_FIELDS
        if entries or self.is_sequence:
            try:
                known = self._fields[entries]
            except KeyError:
                known = self._read_entries(entries)
            if known is None:
                return None
            fields = known
        if not request_id:
            return fields
        try:
            text = request_id.decode()
        except UnicodeDecodeError:
            return None
        return fields.with_id(text)

    def _read_entries(self, entries: tuple[bytes, ...]) -> RequestFields | None:
        fields: RequestFields | None = None
        try:
            read = read_entries(entries)
        except (ServerError, DecodeError):
            pass
        else:
            correlation_id = read.correlation_id
            # 0 is no id of a sequence.
            if not self.is_sequence or (
                correlation_id and isinstance(correlation_id, self._sequence_ids)
            ):
                fields = read
        if len(self._fields) >= _MAX_KNOWN_FIELDS:
            self._fields.clear()
        self._fields[entries] = fields
        return fields


class CallColumns(PbColumns[PbResponsePattern]):
    """Gathers and answers calls of ModelInfer with one set of inputs for a model."""

    def __init__(self, iterations: Iterations, spec: ModelSpec, request: InferRequest) -> None:
        super().__init__(iterations, spec, request, PbResponsePattern)
        self._framed: PbResponsePattern | None = None  # the pattern that `_frames` are for
        self._frames: dict[int, ResponseFrames] = {}  # by the length of the id

    def add(
        self,
        call: ColumnCall,
        model: ServedModel,
        inputs: Sequence[bytes],
        fields: RequestFields,
    ) -> None:
        """Add a call to the next chunk."""
        call.gatherer = self.gatherer
        try:
            call.chunk, call.index = self.gatherer.add(model, inputs, call, fields)
        except Exception as error:  # noqa: BLE001  it is sent to the client
            call.connection.fail_call(call, error)

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[Column], row: int
    ) -> None:
        """Answer requests whose outputs are in the columns of a batch."""
        if any(column.offsets for column in outputs):
            self.respond_each(chunk, first, end, outputs, row)
            return
        pattern = self.response_pattern(outputs)
        if pattern is not self._framed:
            self._framed = pattern
            self._frames = {}
        frames: Iterable[ResponseFrames]
        if chunk.has_fields:
            ids = [fields.id.encode() for fields in chunk.fields[first:end]]
            frames = [self._frames_of(len(each)) for each in ids]
        else:
            ids = [b""] * (end - first)
            frames = repeat(self._frames_of(0), end - first)
        bodies = pattern.encode(outputs, row, ids)
        for call, frame, body in zip(chunk.callers[first:end], frames, bodies, strict=True):
            if call.state is not ENDED:
                call.state = ENDED
                connection = call.connection
                # If the client's windows are too small, its response is queued frame by frame.
                if not connection.http2.send_whole(call.stream_id, frame, body):
                    connection.http2.send_response(call.stream_id, _HEAD, body, OK_TRAILERS)
                connection.remove_call(call)
        chunk.end(end - first)

    def _frames_of(self, id_bytes: int) -> ResponseFrames:
        """Returns the frames of responses to requests whose ids have this length."""
        frames = self._frames.get(id_bytes)
        if frames is None:
            assert self._framed is not None
            size = self._framed.layout(id_bytes).size
            frames = self._frames[id_bytes] = ResponseFrames(_HEAD, size, OK_TRAILERS)
        return frames

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
        if call.state is ENDED:
            pass
        elif error is not None:
            call.fail(error)
        elif response is not None:
            call.respond(encode_infer_response(response))
        chunk.end(1)


class ColumnTable(Generic[_Columns]):
    """The layouts of requests that repeat: how each is read, and where its requests are gathered.

    `make_columns` makes the sink of requests like a valid one; calls and streams have their own.
    `is_framed` says that messages have gRPC's prefix when they are taken.
    """

    def __init__(
        self,
        engine: EngineClient,
        loop: asyncio.AbstractEventLoop,
        make_columns: Callable[[Iterations, ModelSpec, InferRequest], _Columns],
        *,
        is_framed: bool,
    ) -> None:
        self._engine = engine
        observers = engine.observers
        self._passes = observers.passes if observers.reads_origins else None
        self._make_columns = make_columns
        self._is_framed = is_framed
        self._iterations = Iterations(engine, loop)
        self._counts: dict[int, int] = {}  # of requests in the ordinary way, by size
        self._layouts: dict[RequestLayout, _Columns] = {}
        # The size of a message is known before any of it is read, and tells most layouts apart.
        self._by_size: dict[int, list[tuple[PbRequestPattern, _Columns]]] = {}
        self._pattern_count = 0
        # By what the requests of a chunk have in common: several layouts may share one.
        self._columns: dict[Any, _Columns] = {}
        self._last: _Columns | None = None  # to which a request of a sequence was added
        self._left = _NEW  # why the last message has to take the ordinary way
        self.guard: CallGuard | None = None  # set by the owner; None: there is no policy

    def find(  # noqa: C901  one pass: each call would take 0.1 us
        self, message: bytes, head: CallHead, connection: GrpcConnection
    ) -> tuple[ServedModel, _Columns, Sequence[bytes], RequestFields, bool] | None:
        """Read a request of a known layout; None: it takes the ordinary way, where `learn` is next.

        Returns its model, its columns, its inputs, what else it has of its own, and whether it is
        alone: then it is better not added to its columns. Otherwise it has to be added now.
        """
        size = len(message)
        known = self._by_size.get(size)
        if known is None:
            known = self._find_patterns(size)
        holes = None
        for found in known:
            pattern, columns = found
            holes = pattern.read(message)
            if holes is not None:
                if found is not known[0]:  # the next one of this size probably has this layout
                    known.remove(found)
                    known.insert(0, found)
                break
        if holes is None:
            self._left = _NEW
            return None
        fields = NO_FIELDS
        if pattern.heads or columns.is_sequence:
            read = columns.read_fields(*pattern.split_heads(holes))
            if read is None:
                self._left = _FORM
                return None
            fields, holes = read, holes[pattern.heads :]
        spec, engine = columns.spec, self._engine
        model = engine.find(spec.identifier, columns.version)
        # The ordinary way also finds the error, if there is one: the model may be gone.
        # So does it refuse one without a right to its model.
        if (
            model is None
            or model.spec is not spec
            or engine.is_exiting
            or (self.guard is not None and not self.guard.allows(connection, head, spec.name))
        ):
            self._left = _NEW
            return None
        gatherer = columns.gatherer
        gatherer.count()
        is_alone = gatherer.is_alone(model)
        if self._passes is not None and not is_alone and not self._passes(spec):
            self._left = _TRACED
            return None
        # Requests of one sequence may differ in their layouts, but must keep their order.
        if columns.is_sequence:
            if is_alone or self._last is not columns:
                self.submit()
            self._last = columns
        own = fields.with_principal(head.principal) if head.principal else fields
        return model, columns, holes, own, is_alone

    def _find_patterns(self, size: int) -> list[tuple[PbRequestPattern, _Columns]]:
        """Returns the patterns of messages of a size that is read for the first time."""
        if size > MAX_MESSAGE_BYTES + PREFIX_BYTES or not self._layouts:
            return []
        if self._pattern_count >= _MAX_PATTERNS:
            self._by_size.clear()
            self._pattern_count = 0
        patterns = patterns_of_size(size, self._layouts, is_framed=self._is_framed)
        found = [
            (pattern, columns)
            for pattern, columns in zip(patterns, self._layouts.values(), strict=True)
            if pattern is not None
        ]
        self._pattern_count += len(found)
        self._by_size[size] = found
        return found

    def leave_alone(self) -> None:
        """Let a request that is alone take the ordinary way."""
        self._left = _ALONE

    def submit(self) -> None:
        """Submit the gathered requests of sequences now, because a later one takes another way."""
        if self._last is not None:
            self._last.gatherer.submit()

    def learn(
        self, model: ServedModel, request: InferRequest, message: Buffer, raw: Sequence[Buffer]
    ) -> None:
        """Count a request that takes the ordinary way; after some, learn its layout.

        The request, which is not submitted yet, gets its path.
        """
        size = len(message)
        request.path, self._left = self._left, _NEW
        if size > MAX_MESSAGE_BYTES or not isinstance(message, bytes):
            request.path = RequestPath.LARGE
            return
        if not model.takes_columns:
            request.path = RequestPath.MODEL
            return
        count = self._counts[size] = self._counts.get(size, 0) + 1
        # Requests that keep taking the ordinary way pay for learning now and then.
        if count % LEARN_EVERY:
            return
        layout = layout_of(message, raw)
        if layout is None or len(raw) != len(request.inputs):
            return
        known = self._layouts.get(layout)
        if (known is not None and known.spec is model.spec) or not can_be_columns(
            request, model.spec
        ):
            return
        columns = self._columns_for(model.spec, request)
        # A pattern that reads something else than the parser would answer wrongly for ever after.
        if self._agrees(layout, columns, message, request):
            self._keep(layout, columns)

    def _keep(self, layout: RequestLayout, columns: _Columns) -> None:
        if len(self._layouts) >= MAX_LAYOUTS:
            self._layouts.clear()
            self._columns.clear()
        self._layouts[layout] = columns
        self._by_size.clear()
        self._pattern_count = 0

    def _columns_for(self, spec: ModelSpec, request: InferRequest) -> _Columns:
        """Returns the columns of requests that may share a chunk with this one."""
        # Chunks have one signature; layouts may differ in ids and parameters only.
        tensors = [(each.name, each.dtype, each.shape) for each in request.inputs.values()]
        key = (spec.name, request.model_version, tuple(tensors), request.outputs)
        columns = self._columns.get(key)
        if columns is None or columns.spec is not spec:
            columns = self._columns[key] = self._make_columns(self._iterations, spec, request)
        return columns

    def _agrees(
        self, layout: RequestLayout, columns: _Columns, message: bytes, request: InferRequest
    ) -> bool:
        """Returns whether the pattern of a layout reads the same in a message as the parser did."""
        (pattern,) = patterns_of_size(len(message), [layout], is_framed=False)
        holes = None if pattern is None else pattern.read(message)
        if pattern is None or holes is None:
            return False
        read = columns.read_fields(*pattern.split_heads(holes))
        inputs = [tensor.data for tensor in request.inputs.values()]
        return list(holes[pattern.heads :]) == inputs and read == request.fields


class CallTable(ColumnTable[CallColumns]):
    """The layouts of requests of ModelInfer that repeat.

    `begin_alone` serves a request that was read, but is better not gathered.
    """

    def __init__(
        self,
        engine: EngineClient,
        loop: asyncio.AbstractEventLoop,
        begin_alone: Callable[[GrpcConnection, int, CallHead, ServedModel, InferRequest], GrpcCall],
    ) -> None:
        super().__init__(engine, loop, CallColumns, is_framed=True)
        self._begin_alone = begin_alone

    def take(
        self, connection: GrpcConnection, stream_id: int, head: CallHead, framed: bytes
    ) -> GrpcCall | None:
        """Serve a request of a known layout; returns None if it has to take the ordinary way."""
        taken = self.find(framed, head, connection)
        if taken is None:
            return None
        model, columns, inputs, fields, is_alone = taken
        if is_alone:
            request = columns.lone_request(inputs, fields)
            return self._begin_alone(connection, stream_id, head, model, request)
        call = ColumnCall(connection, stream_id, head)
        columns.add(call, model, inputs, fields)
        return call
