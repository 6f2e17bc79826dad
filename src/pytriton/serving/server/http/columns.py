# SPDX-License-Identifier: Apache-2.0
"""Small infer requests that travel as columns, because many like them came before.

After some requests of one form, later ones are read by an `HttpRequestPattern`, gathered into a
chunk and answered from the columns of a batch, without records and tensors for each. Requests that
differ in more than their numbers, ids and parameters, or in a header that matters, take the
ordinary way.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pytriton.base.columns import Column
from pytriton.base.messages import InferRequest, InferResponse, RequestPath
from pytriton.protocol.compression import choose_encoding, compress
from pytriton.protocol.json_columns import HttpRequestPattern, HttpResponsePattern, request_form
from pytriton.protocol.kserve_response import encode_infer_response
from pytriton.serving.engine.validation import accepted_types
from pytriton.serving.server.api.background import MEDIUM_BYTES
from pytriton.serving.server.api.gatherer import ColumnSink, Iterations, can_be_columns
from pytriton.serving.server.http.handler import HttpExchange
from pytriton.serving.server.http.infer import InferExchange, respond_server_error
from pytriton.serving.server.http.region_forms import RegionForms

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import RequestFields
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.json_columns import RequestForm
    from pytriton.protocol.kserve_json import OutputFormat
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.api.gatherer import GatheredChunk, Gatherer
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.infer import EngineService
    from pytriton.serving.server.http.request import HttpRequest, RequestHead, Resolved
    from pytriton.serving.server.http.routes import Route

MAX_BODY_BYTES = 4096
LEARNED_AFTER = 16  # requests of a form; making a pattern takes as long as 40 requests save
LEARNED_AGAIN_AFTER = 10_000  # requests, if a pattern reads something else than the parser
MAX_LEARNED = 512  # forms of all models; each takes 10 KiB
MAX_COUNTED = 64  # forms of a model that are not learned yet
MAX_TABLES = 256
MAX_TRIED = 4  # forms by which a request is read, until one fits
MAX_KNOWN_TEXTS = 256  # of JSON before binary inputs, which need not be read again

_SMALL = MEDIUM_BYTES  # of an output that is written at once
_data_of = attrgetter("data")


class BodyLayout:
    """What the head of a request says about its body, and about that of its response."""

    __slots__ = ("encoding", "json_length", "last")

    def __init__(self, json_length: int | None, encoding: str) -> None:
        self.json_length = json_length  # None: all of it is JSON
        self.encoding = encoding  # of the response
        # The last form of a request with this head: bodies of one size often have one form.
        self.last: HttpColumns | None = None


def small_body_layout(head: RequestHead) -> BodyLayout | RequestPath:
    """Returns the layout of a request that may travel as a column; else why it may not."""
    headers = head.headers
    if head.content_length > MAX_BODY_BYTES:
        return RequestPath.LARGE
    # Responses of a chunk all have the same head, which keeps the connection.
    if head.is_http_10 or not head.keep_alive or b"content-encoding" in headers:
        return RequestPath.HEADERS
    json_length = None
    announced = headers.get(b"inference-header-content-length")
    if announced is not None:
        is_number = announced.isdigit() and len(announced) <= len(str(MAX_BODY_BYTES))
        if not is_number or not 0 < int(announced) <= head.content_length:
            return RequestPath.HEADERS
        json_length = int(announced)
    accepted = headers.get(b"accept-encoding")
    encoding = "identity" if accepted is None else choose_encoding(accepted.decode("latin-1"))
    return BodyLayout(json_length, encoding)


class ColumnExchange(HttpExchange):
    """A request in a chunk."""

    __slots__ = ("_chunk", "_gatherer", "_index")

    def __init__(self, gatherer: Gatherer, chunk: GatheredChunk, index: int) -> None:
        self._gatherer = gatherer
        self._chunk = chunk
        self._index = index

    def abandon(self) -> None:
        self._gatherer.cancel(self._chunk, self._index)


class SmallExchange(InferExchange):
    """A request of a form that was learned, with a response that is in no column.

    `small_body_layout` has made sure that the connection is kept after its response.
    """

    __slots__ = ()

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        if (
            response is None
            or self._accept_encoding is not None
            or max(map(len, map(_data_of, response.outputs)), default=0) > _SMALL
        ):
            super().on_response(response, final=final)  # it may have to be written in a thread
            return
        json_length, parts = encode_infer_response(response, self._format)
        self._connection.respond_small(json_length, b"".join(parts))


class HttpColumns(ColumnSink[HttpResponsePattern]):
    """Reads, gathers and answers the requests of one form for a model.

    The `request` is a valid one of the form.
    """

    protocol = "HTTP"

    def __init__(
        self,
        service: EngineService,
        iterations: Iterations,
        spec: ModelSpec,
        request: InferRequest,
        form: RequestForm,
        encoding: str,
    ) -> None:
        self._format = form.output_format
        make_pattern = partial(HttpResponsePattern, output_format=self._format)
        super().__init__(iterations, spec, request, make_pattern)
        self.pattern = HttpRequestPattern(form)
        # Whether all inputs are binary, and of fixed sizes.
        self.is_binary = all(each.is_binary and each.dtype.itemsize for each in form.inputs)
        self._service = service
        self._encoding = encoding

    def begin_alone(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        route: Route,
        model: ServedModel,
        inputs: Sequence[bytes],
        fields: RequestFields,
    ) -> HttpExchange:
        """Serve a request without a chunk, which is faster for one; its pattern has read it."""
        exchange = SmallExchange(self._service, model, route.version, connection)
        is_plain = self._encoding == "identity"
        exchange.set_format(None if is_plain else self._encoding.encode(), self._format)
        exchange.start(request.head, self.lone_request(inputs, fields), model)
        return exchange

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[Column], row: int
    ) -> None:
        """Answer requests whose outputs are in the columns of a batch."""
        ids = None
        if chunk.has_fields:
            ids = [fields.id for fields in chunk.fields[first:end]]
        bodies = self.response_pattern(outputs).encode(outputs, row, end - first, ids)
        if bodies is None:
            self.respond_each(chunk, first, end, outputs, row)
            return
        # All bodies are made before one is sent: if this raises, nobody was answered (see
        # `ChunkSink`).
        encoding, bodies = self._encoding, list(bodies)
        if encoding != "identity":
            bodies = [(length, b"".join(compress((body,), encoding))) for length, body in bodies]
        # A client that has disconnected meanwhile has no current request: its body is dropped.
        for connection, (length, body) in zip(chunk.callers[first:end], bodies, strict=True):
            connection.respond_small(length, body, encoding)
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
        connection: HttpConnection = chunk.callers[index]
        if error is not None:
            respond_server_error(connection, error)
        else:
            exchange = SmallExchange(self._service, chunk.model, "", connection)
            is_plain = self._encoding == "identity"
            exchange.set_format(None if is_plain else self._encoding.encode(), self._format)
            exchange.on_response(response, final=True)
        chunk.end(1)


class FormTable:
    """The forms of requests for one model that were learned, for one encoding of responses."""

    __slots__ = (
        "_engine",
        "_id_types",
        "_recent",
        "_texts",
        "counts",
        "learned",
        "passes",
        "spec",
    )

    def __init__(self, service: EngineService, spec: ModelSpec) -> None:
        self.spec = spec
        self.counts: dict[RequestForm, int] = {}
        self.learned: dict[RequestForm, HttpColumns] = {}
        self._engine = service.engine
        observers = service.engine.observers
        self.passes = observers.passes if observers.reads_origins else None
        self._id_types = accepted_types(spec)
        self._recent: list[HttpColumns] = []  # of `learned`, those used last, the latest first
        # Clients repeat the JSON before binary inputs, unless it has an id.
        self._texts: dict[bytes, tuple[HttpColumns, RequestFields]] = {}

    def add(self, form: RequestForm, columns: HttpColumns) -> None:
        self.learned[form] = columns
        self._prefer(columns)

    def take(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        resolved: Resolved,
    ) -> HttpExchange | None:
        """Serve a request; returns None, and has done nothing, if it takes the ordinary way."""
        engine = self._engine
        route = resolved.route
        model = engine.lookup(route.model, route.version)
        # A model that was replaced may have other inputs: its requests are learned anew.
        if model.spec is not self.spec:
            return None
        found = self._read(request.body, resolved.layout)
        if found is None:
            return None
        columns, inputs, fields = found
        resolved.layout.last = columns
        if resolved.principal:
            fields = fields.with_principal(resolved.principal)
        gatherer = columns.gatherer
        gatherer.count()
        if gatherer.is_alone(model):
            return columns.begin_alone(connection, request, route, model, inputs, fields)
        # A chunk does not pass through the engine, which refuses requests of an exiting server.
        if engine.is_exiting or (self.passes is not None and not self.passes(self.spec)):
            return None
        chunk, index = gatherer.add(model, inputs, connection, fields)
        return ColumnExchange(gatherer, chunk, index)

    def _read(
        self, body: Any, layout: BodyLayout
    ) -> tuple[HttpColumns, Sequence[bytes], RequestFields] | None:
        """Returns how to serve a request of a form that was learned; else None."""
        text, tail = split_body(body, layout.json_length)
        if tail:
            known = self._texts.get(text)
            if known is not None:
                inputs = known[0].pattern.split(tail)
                return None if inputs is None else (known[0], inputs, known[1])
        last = layout.last
        if last is not None and last.spec is self.spec and last not in self._recent[:1]:
            self._prefer(last)
        for columns in self._recent:
            read = columns.pattern.read(text, tail)
            if read is None:
                continue
            inputs, fields = read
            if not self._fits(fields):
                return None
            if columns is not self._recent[0]:
                self._prefer(columns)
            if columns.is_binary and not fields.id and not fields.correlation_id:
                if len(self._texts) >= MAX_KNOWN_TEXTS:
                    self._texts.clear()
                self._texts[text] = (columns, fields)
            return columns, inputs, fields
        return None

    def _fits(self, fields: RequestFields) -> bool:
        """Returns whether a request of a sequence is for a model with sequences, and so on."""
        if self.spec.sequence is None:
            return not (fields.correlation_id or fields.flags)
        return bool(fields.correlation_id) and type(fields.correlation_id) in self._id_types

    def _prefer(self, columns: HttpColumns) -> None:
        """Try this form first."""
        others = [each for each in self._recent if each is not columns]
        self._recent = [columns, *others[: MAX_TRIED - 1]]


def split_body(body: Any, json_length: int | None) -> tuple[bytes, bytes]:
    """Returns the JSON of a small body, and what follows."""
    text = bytes(body)
    return (text, b"") if json_length is None else (text[:json_length], text[json_length:])


class FormLearner:
    """Notices forms of requests that repeat, for all models of a port."""

    def __init__(self, service: EngineService, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._iterations = Iterations(service.engine, loop)
        # By the model, how clients write its version, and the encoding of their responses.
        self._tables: dict[tuple[str, int, str, str], FormTable] = {}
        self._learned_count = 0
        self._regions = RegionForms(service)

    def learn(
        self,
        model: ServedModel,
        request: InferRequest,
        output_format: OutputFormat,
        body: Any,
        layout: BodyLayout,
    ) -> FormTable | RegionForms | None:
        """Learn from a request in the ordinary way; returns how to serve the next ones like it.

        The request, which is not submitted yet, gets its path.
        """
        spec = model.spec
        form = request_form(request, output_format) if model.takes_columns else None
        if form is None:
            request.path = RequestPath.FORM if model.takes_columns else RequestPath.MODEL
            if request.uses_regions:
                return self._regions.learn(model, request, output_format, body, layout)
            return None
        table = self._table(spec, request.model_version, layout.encoding)
        request.path = RequestPath.NEW
        columns = table.learned.get(form)
        if columns is not None and table.passes is not None:
            request.path = RequestPath.TRACED
        elif columns is None:
            counts = table.counts
            # Counting is cheap, but a client can send any number of forms, so all tables are
            # bounded.
            count = counts[form] = counts.get(form, 0) + 1
            if len(counts) > MAX_COUNTED:  # clients send all kinds of requests
                counts.clear()
            if count < LEARNED_AFTER or not can_be_columns(request, spec, with_strings=True):
                return table
            if self._learned_count >= MAX_LEARNED:
                # Requests in flight keep their columns: only the tables forget them.
                self._forget_all()
                table = self._table(spec, request.model_version, layout.encoding)
            columns = HttpColumns(
                self._service, self._iterations, spec, request, form, layout.encoding
            )
            self._learned_count += 1
        if columns.pattern.learn(*split_body(body, layout.json_length), request):
            table.add(form, columns)
            layout.last = columns
        else:
            table.counts[form] = -LEARNED_AGAIN_AFTER
        return table

    def find(self, spec: ModelSpec, version: str, encoding: str) -> FormTable | None:
        """Returns the forms that were learned for a model."""
        return self._tables.get((spec.name, spec.version, version, encoding))

    def _forget_all(self) -> None:
        """Begin anew, so that forms that were common once take no place for ever."""
        self._tables.clear()
        self._learned_count = 0

    def _table(self, spec: ModelSpec, version: str, encoding: str) -> FormTable:
        key = (spec.name, spec.version, version, encoding)
        table = self._tables.get(key)
        if table is None or table.spec is not spec:
            if len(self._tables) >= MAX_TABLES:
                self._forget_all()
            table = self._tables[key] = FormTable(self._service, spec)
        return table
