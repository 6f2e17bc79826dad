# SPDX-License-Identifier: Apache-2.0
"""Small infer requests that travel as columns, because many like them came before.

After some requests of one structure, later ones are read by a `JsonRequestPattern`, gathered into a
chunk and answered from the columns of a batch, without records and tensors for each. Requests that
differ in anything, even in a header that matters, take the ordinary way.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pytriton.base.messages import InferRequest, InferResponse, InferTensor
from pytriton.protocol.compression import choose_encoding
from pytriton.protocol.json_columns import (
    JsonRequestPattern,
    JsonResponsePattern,
    request_structure,
)
from pytriton.protocol.kserve_json import ALL_JSON
from pytriton.protocol.kserve_response import encode_infer_response
from pytriton.runtime.executor.columns import NO_FIELDS, MemberFields
from pytriton.serving.engine.validation import accepted_types
from pytriton.serving.server.api.background import MEDIUM_BYTES
from pytriton.serving.server.api.gatherer import ColumnSink, Iterations, can_be_columns
from pytriton.serving.server.http.bodies import as_server_error
from pytriton.serving.server.http.handler import HttpExchange
from pytriton.serving.server.http.infer import InferExchange, respond_server_error

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.errors import ServerError
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.json_columns import Structure
    from pytriton.runtime.executor.columns import OutputColumn
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.api.gatherer import GatheredChunk, Gatherer
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.infer import EngineService
    from pytriton.serving.server.http.reader import HttpRequest, RequestHead
    from pytriton.serving.server.http.routes import Route

MAX_BODY_BYTES = 4096
LEARNED_AFTER = 16  # requests of a structure; making a pattern takes as long as 40 requests save
MAX_LEARNED = 512  # structures of all models; each takes 10 KiB
MAX_COUNTED = 64  # structures of a model that are not learned yet
MAX_MODELS = 256

_SMALL = MEDIUM_BYTES  # of an output that is written at once
_data_of = attrgetter("data")

# A request with one of these headers is more than its JSON.
_OTHER_HEADERS = (b"content-encoding", b"inference-header-content-length")


def may_be_column(head: RequestHead) -> bool:
    """Returns whether request and response are plain JSON, and the connection is kept."""
    headers = head.headers
    # Responses of a chunk all have the same head, which keeps the connection.
    if head.is_http_10 or not head.keep_alive or head.content_length > MAX_BODY_BYTES:
        return False
    if any(name in headers for name in _OTHER_HEADERS):
        return False
    accepted = headers.get(b"accept-encoding")
    return accepted is None or choose_encoding(accepted.decode("latin-1")) == "identity"


class ColumnExchange(HttpExchange):
    """A request in a chunk."""

    __slots__ = ("_chunk", "_gatherer", "_index")

    def __init__(self, gatherer: Gatherer, chunk: GatheredChunk, index: int) -> None:
        self._gatherer = gatherer
        self._chunk = chunk
        self._index = index

    def abandon(self) -> None:
        self._gatherer.cancel(self._chunk, self._index)


class LoneExchange(InferExchange):
    """A request that is alone in its iteration, of a structure that was learned.

    `may_be_column` has made sure that its response is plain JSON on a connection that is kept.
    """

    __slots__ = ()

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        if response is None or max(map(len, map(_data_of, response.outputs)), default=0) > _SMALL:
            super().on_response(response, final=final)  # it may have to be written in a thread
            return
        _, (body,) = encode_infer_response(response, ALL_JSON)
        self._connection.respond_json(bytes(body))


class HttpColumns(ColumnSink[JsonResponsePattern]):
    """Reads, gathers and answers the requests of one structure for a model.

    `take` touches nothing of a request that it leaves to the ordinary way. The `request` is a valid
    one of the structure.
    """

    def __init__(
        self,
        service: EngineService,
        iterations: Iterations,
        spec: ModelSpec,
        request: InferRequest,
        structure: Structure,
    ) -> None:
        super().__init__(iterations, spec, request, JsonResponsePattern)
        self._service = service
        self._structure = structure
        self._request_pattern = JsonRequestPattern(structure, in_sequence=spec.sequence is not None)
        self._id_types = accepted_types(spec)
        self._tracing = None if service.headers is None else service.headers.tracing

    def take(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        """Serve a request; returns None if it has to be read in the ordinary way."""
        engine, spec = self._service.engine, self.spec
        model = engine.lookup(route.model, route.version)
        # A model that was replaced may have other inputs: its requests are learned anew.
        if model.spec is not spec:
            return None
        fields = NO_FIELDS
        inputs: Sequence[bytes] | None
        if spec.sequence is None:
            inputs = self._request_pattern.read(request.body)
        else:
            inputs, fields = self._read_in_sequence(request.body)
        if inputs is None:
            return None
        gatherer = self.gatherer
        if not gatherer.is_alone(model):
            # A chunk does not pass through the engine, which refuses requests of an exiting server.
            # A sampled request needs a record of its own, which its trace refers to.
            if engine.is_exiting or (
                self._tracing is not None and not self._tracing.passes(spec.name)
            ):
                return None
            chunk, index = gatherer.add(model, inputs, connection, fields)
            return ColumnExchange(gatherer, chunk, index)
        # Alone, a request is faster without a chunk; reading it by its pattern still saves time.
        tensors = {}
        for (name, dtype, shape), data in zip(self._structure, inputs, strict=True):
            tensors[name] = InferTensor(name, dtype, shape, data)
        record = InferRequest(spec.name, tensors)
        record.correlation_id, record.flags = fields.correlation_id, fields.flags
        exchange = LoneExchange(self._service, model, route.version, connection)
        exchange.began_ns = request.began_ns
        exchange.set_format(None, ALL_JSON)
        exchange.start(request.head, record)
        return exchange

    def _read_in_sequence(self, body: Buffer) -> tuple[Sequence[bytes] | None, MemberFields]:
        read = self._request_pattern.read_in_sequence(body)
        if read is None or type(read[1].sequence_id) not in self._id_types:
            return None, NO_FIELDS
        inputs, parameters = read
        return inputs, MemberFields(correlation_id=parameters.sequence_id, flags=parameters.flags)

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[OutputColumn], row: int
    ) -> None:
        """Answer requests whose outputs are in the columns of a batch."""
        # All bodies are made before one is sent: if this raises, nobody was answered (see
        # `ChunkSink`).
        bodies = self.response_pattern(outputs).encode(outputs, row, end - first)
        if bodies is None:
            self._respond_each(chunk, first, end, outputs, row)
            return
        # A client that has disconnected meanwhile has no current request: its body is dropped.
        for connection, body in zip(chunk.callers[first:end], bodies, strict=True):
            connection.respond_json(body)
        chunk.end(end - first)

    def _respond_each(
        self, chunk: Any, first: int, end: int, outputs: Sequence[OutputColumn], row: int
    ) -> None:
        """Answer one by one, because one of the responses has what a pattern cannot write (NaN)."""
        for index in range(first, end):
            response = self._response(outputs, row)
            row += self.rows or 1
            try:
                self.on_outcome(chunk, index, response, None, is_refused=False)
            except Exception as error:  # noqa: BLE001  it is logged
                self.on_outcome(chunk, index, None, as_server_error(error), is_refused=False)

    def _response(self, outputs: Sequence[OutputColumn], row: int) -> InferResponse:
        """Returns the response whose first row is `row`."""
        rows, spec = self.rows, self.spec
        tensors = []
        for column in outputs:
            shape = column.shape if rows is None else (rows, *column.shape)
            data = column.data[row * column.row_bytes : (row + (rows or 1)) * column.row_bytes]
            tensors.append(InferTensor(column.name, column.dtype, shape, data))
        return InferResponse(spec.name, str(spec.version), "", tensors, spec.answer_parameters)

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
        connection: HttpConnection = chunk.callers[index]
        if error is not None:
            respond_server_error(connection, error)
        else:
            exchange = InferExchange(self._service, chunk.model, "", connection)
            exchange.set_format(None, ALL_JSON)
            exchange.on_response(response, final=True)
        chunk.end(1)


class _ModelStructures:
    """The structures of requests for one model, whose version is written in one way."""

    __slots__ = ("counts", "learned", "spec")

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.counts: dict[Structure, int] = {}
        self.learned: dict[Structure, HttpColumns] = {}


class ColumnLearner:
    """Notices structures of requests that repeat, for all models of a port."""

    def __init__(self, service: EngineService, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._iterations = Iterations(service.engine, loop)
        self._models: dict[tuple[str, int, str], _ModelStructures] = {}
        self._learned_count = 0

    def learn(self, model: ServedModel, request: InferRequest) -> HttpColumns | None:
        """Learn from a request with JSON outputs; returns how to serve the next ones like it."""
        in_sequence = model.spec.sequence is not None
        structure = request_structure(request, in_sequence=in_sequence)
        if structure is None or not model.takes_columns:
            return None
        known = self._structures(model.spec, request.model_version)
        learned = known.learned.get(structure)
        if learned is not None:
            return learned
        counts = known.counts
        # Counting is cheap, but a client can send any number of structures, so both tables are
        # bounded.
        count = counts[structure] = counts.get(structure, 0) + 1
        if len(counts) > MAX_COUNTED:  # clients send all kinds of requests
            counts.clear()
        if count < LEARNED_AFTER:
            return None
        if not can_be_columns(request, model.spec):
            return None
        if self._learned_count >= MAX_LEARNED:
            # Requests in flight keep their columns: only the tables forget them.
            self._forget_all()
            known = self._structures(model.spec, request.model_version)
        learned = HttpColumns(self._service, self._iterations, model.spec, request, structure)
        known.learned[structure] = learned
        self._learned_count += 1
        return learned

    def _forget_all(self) -> None:
        """Begin anew, so that structures that were common once take no place for ever."""
        self._models.clear()
        self._learned_count = 0

    def _structures(self, spec: ModelSpec, version: str) -> _ModelStructures:
        key = (spec.name, spec.version, version)
        known = self._models.get(key)
        if known is None or known.spec is not spec:
            if len(self._models) >= MAX_MODELS:
                self._forget_all()
            known = self._models[key] = _ModelStructures(spec)
        return known
