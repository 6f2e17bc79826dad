# SPDX-License-Identifier: Apache-2.0
"""Routes the requests of the HTTP port, and passes those for inference to the engine.

Every request passes through `handle`, which routes it, checks authorisation and checks the method,
in this order. `management` answers the requests that are not inference.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.errors import (
    InvalidArgumentError,
    ServerError,
    UnavailableError,
    UnsupportedError,
)
from pytriton.base.messages import InferRequest, RequestPath
from pytriton.base.request_words import stream_route
from pytriton.serving.server.access.decisions import Denial
from pytriton.serving.server.api.authorization import Authorization, RestrictedProtocol
from pytriton.serving.server.api.refusals import (
    INFERENCE,
    ForbiddenError,
    Refusal,
    TooLargeError,
    note_forbidden,
    note_unread,
)
from pytriton.serving.server.api.status import HTTP_RESTRICTED
from pytriton.serving.server.api.turns import REQUEST_UNITS
from pytriton.serving.server.http.bodies import Bodies
from pytriton.serving.server.http.columns import BodyLayout, FormLearner, small_body_layout
from pytriton.serving.server.http.generate import (
    GenerateEvents,
    GenerateExchange,
    InferEvents,
    accepts_events,
)
from pytriton.serving.server.http.handler import HttpExchange, HttpHandler, PendingExchange
from pytriton.serving.server.http.infer import (
    EngineExchange,
    EngineService,
    HeaderUse,
    InferExchange,
    respond_server_error,
)
from pytriton.serving.server.http.management import ManagementEndpoints, answer_errors
from pytriton.serving.server.http.request import SIZE_HINT, Resolved
from pytriton.serving.server.http.routes import (
    INFERENCES,
    WITH_LARGE_BODIES,
    Route,
    Router,
    RouteTable,
    first_segment,
)
from pytriton.serving.server.operations.operation import Desk
from pytriton.serving.server.operations.table import OPERATIONS
from pytriton.serving.server.shared_memory.shared_memory import local_shared_memory

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from pytriton.base.model_spec import ModelSpec
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.access.control import AccessControl, Grant
    from pytriton.serving.server.access.decisions import Client
    from pytriton.serving.server.api.request_memory import RequestMemory
    from pytriton.serving.server.http.bodies import Deferred, ReadInfer
    from pytriton.serving.server.http.connection import HttpConnection, HttpRefusal
    from pytriton.serving.server.http.request import HttpRequest, RequestHead
    from pytriton.serving.server.operations.operation import Operation
    from pytriton.serving.server.options.server_options import ServerOptions
    from pytriton.serving.server.shared_memory.shared_memory import ClientSharedMemory

_MAX_DIGITS = 19  # of a valid length
# Kinds by status.
_UNREAD: dict[int, type[ServerError]] = {HTTP_RESTRICTED: ForbiddenError, 503: UnavailableError}


def unread_kind(status: int, message: str) -> type[ServerError]:
    """Returns the kind of error by which a request is noted that was refused before its body."""
    return (
        TooLargeError if message.endswith(SIZE_HINT) else _UNREAD.get(status, InvalidArgumentError)
    )


class OtherApi(Protocol):
    """Finds what answers the requests of another API on the port."""

    def resolve(self, connection: HttpConnection, head: RequestHead) -> Resolved | None:
        """Returns how an allowed request is answered; otherwise responds with an error."""

    def route_refusal(self, head: RequestHead, client: Client) -> tuple[int, str] | None:
        """Returns why a request may have no large body; see `HttpHandler.route_refusal`."""

    def on_unread(self, head: RequestHead, status: int, message: str) -> HttpRefusal:
        """Called when a request is refused; see `HttpHandler.on_unread`."""


class HttpApi(HttpHandler):
    """Answers the requests of all HTTP connections."""

    def __init__(
        self,
        engine: EngineClient,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        shared_memory: ClientSharedMemory | None = None,
        request_memory: RequestMemory | None = None,
        access: AccessControl | None = None,
        operations: Sequence[Operation] = OPERATIONS,
    ) -> None:
        origins = options.origin_policy(options.http.address)
        super().__init__(options.limits, loop, origins, request_memory)
        if options.grpc.allow and options.grpc.port:
            self.grpc_hint = f"{self.grpc_hint}, which is at port {options.grpc.port}"
        self.tasks = BackgroundTasks(loop)
        self._engine = engine
        self._router = Router(RouteTable(operations).resolve)
        # Called with the head of each request; None: nobody wants to know it.
        self.on_arrival: Callable[[RequestHead], None] | None = None
        # Of other APIs on this port, by the first segment of their paths.
        self.other_apis: dict[bytes, OtherApi] = {}
        # Set if somebody answers all other paths, to which nothing large is sent.
        self.resolve_unknown: Callable[[HttpConnection, RequestHead], Resolved | None] | None = None
        self.authorization = Authorization(
            options.http_restricted,
            RestrictedProtocol.HTTP,
            recording_token=options.page.token,
            access=access,
        )
        self._access = access
        if access is not None:
            access.on_changed.append(self.forget_heads)
        most = options.limits.http_max_input_bytes
        self._bodies = Bodies(loop, self.tasks, most, self.request_memory)
        pattern = options.http_header_forward_pattern
        self.is_timed = engine.observers.reads_origins
        headers = HeaderUse(pattern) if pattern or self.is_timed else None
        shared_memory = shared_memory or local_shared_memory(
            engine, loop, is_allowed=options.allow_client_shared_memory
        )
        self.service = EngineService(engine, headers, self._bodies, shared_memory)
        self._learner = FormLearner(self.service, loop)
        desk = Desk(engine, options.id, shared_memory)
        # Other APIs on this port answer by these, too.
        self.management = ManagementEndpoints(desk, self._bodies, self.tasks)
        self._handlers: dict[str, Callable[..., HttpExchange | None]] = {
            "infer": self._infer,
            "generate": self._generate,
            "generate_stream": self._generate_stream,
            **self.management.handlers(operations),
        }

    def body_memory(self, head: RequestHead, client: Client) -> memoryview:
        """Allocate memory for a large body, that of its model if possible, to avoid a copy."""
        route = self._router.resolve(head.target)
        if route is None or route.endpoint.handler != "infer":
            return super().body_memory(head, client)
        model = self._engine.find(route.model, route.version)
        memory = None
        # If not, it is refused when it was read; until then its memory is not the model's.
        if model is not None and self._is_allowed(client, head, route):
            announced = head.headers.get(b"inference-header-content-length", b"0")
            is_number = announced.isdigit() and len(announced) <= _MAX_DIGITS
            memory = model.body_memory(head.content_length, int(announced) if is_number else 0)
        return super().body_memory(head, client) if memory is None else memory

    def _is_allowed(self, client: Client, head: RequestHead, route: Route) -> bool:
        decision = self.authorization.decide(
            route.endpoint.api, route.subject, head.headers.get, client, is_counted=False
        )
        return not isinstance(decision, Denial)

    def route_refusal(self, head: RequestHead, client: Client) -> tuple[int, str] | None:
        """Returns why a request may have no large body: only tensors and files are large."""
        route = self._router.resolve(head.target)
        if route is None or route.endpoint.handler not in self._handlers:
            other = self.other_apis.get(first_segment(head.target))
            return (404, "Not Found") if other is None else other.route_refusal(head, client)
        if route.endpoint.handler not in WITH_LARGE_BODIES:
            return super().route_refusal(head, client)
        refusal, _ = self._decide(head, client, route)
        return None if refusal is None else refusal[:2]

    def _decide(
        self, head: RequestHead, client: Client, route: Route
    ) -> tuple[Refusal | None, Grant | None]:
        """Returns why a request may not do what it asks for, and who sends it, if that is known."""
        endpoint = route.endpoint
        decision = self.authorization.decide(endpoint.api, route.subject, head.headers.get, client)
        if isinstance(decision, Denial):
            refusal = Refusal(decision.http_status, decision.message, decision.headers)
            return refusal, decision.grant
        return None if head.method in endpoint.methods else endpoint.not_allowed, decision

    def handle(self, connection: HttpConnection, request: HttpRequest) -> HttpExchange | None:
        """Answer a request now, or return the exchange that will answer it."""
        if self.on_arrival is not None:
            self.on_arrival(request.head)
        # A head that was seen before, byte for byte, is routed and authorised already: 1 us less.
        resolved = request.head.resolved
        if resolved is None or (
            self._access is not None and not self._access.is_current(request.head.grant, connection)
        ):
            resolved = self._resolve_anew(connection, request)
            if resolved is None:
                return None
        try:
            forms = resolved.forms
            if forms is not None:
                exchange = forms.take(connection, request, resolved)
                if exchange is not None:
                    return exchange
            connection.turn.spend(REQUEST_UNITS)
            return resolved.handler(connection, request, resolved.route)
        except ServerError as error:
            self._note_refusal(resolved.route, error)
            respond_server_error(connection, error)
        return None

    def _note_refusal(self, route: Any, error: ServerError) -> None:
        """Note that a request for a model could not be read; those that could, the engine notes."""
        if isinstance(route, Route) and route.endpoint.handler in INFERENCES:
            self._engine.report_refusal(route.model, route.version, "", error)

    def on_unread(self, head: RequestHead, status: int, message: str) -> HttpRefusal:
        """Note a request for a model that was refused before its body was read to its end."""
        route = self._router.resolve(head.target)
        if route is None:
            other = self.other_apis.get(first_segment(head.target))
            if other is not None:
                return other.on_unread(head, status, message)
        elif route.endpoint.handler in INFERENCES:
            kind = unread_kind(status, message)
            note_unread(self._engine, kind, message, route.model, route.version)
        return super().on_unread(head, status, message)

    def _resolve_anew(self, connection: HttpConnection, request: HttpRequest) -> Resolved | None:
        """Find out what answers a request, and keep it with its head."""
        head = request.head
        if head.resolved is not None:
            # It is not true any more. A request of another client that began with the same bytes
            # may not be answered yet, and the head says whose it is.
            head = request.head = msgspec.structs.replace(head, resolved=None, grant=None)
        resolved = head.resolved = self._resolve(connection, head)
        if resolved is not None and head.grant is not None:
            resolved.principal = head.grant.name
        return resolved

    def _resolve(self, connection: HttpConnection, head: RequestHead) -> Resolved | None:
        """Find the method that answers an allowed request; otherwise respond with an error."""
        if self.answer_preflight(connection, head):
            return None
        route = self._router.resolve(head.target)
        if route is None or route.endpoint.handler not in self._handlers:
            other = self.other_apis.get(first_segment(head.target))
            resolve = self.resolve_unknown if other is None else other.resolve
            if resolve is not None:
                return resolve(connection, head)
            connection.respond_error(404, "Not Found")
            return None
        endpoint = route.endpoint
        if not self.admits(connection, head, route):
            return None
        headers = self.service.headers
        is_plain = headers is None or headers.fits_columns(head)
        if self.origins.has_cors and b"origin" in head.headers:
            is_plain = False  # answers of columns all have the same headers
        layout = small_body_layout(head) if is_plain else RequestPath.HEADERS
        resolved = Resolved(self._handlers[endpoint.handler], route, layout)
        if endpoint.handler == "infer" and isinstance(layout, BodyLayout):
            # Other heads may have said the same of their bodies.
            model = self._engine.find(route.model, route.version)
            if model is not None:
                resolved.forms = self._learner.find(model.spec, route.version, layout.encoding)
        return resolved

    def admits(self, connection: HttpConnection, head: RequestHead, route: Route) -> bool:
        """Check authorisation and the method; responds with an error if a request must not pass."""
        refusal, head.grant = self._decide(head, connection, route)
        if refusal is None:
            return True
        if route.endpoint.api == INFERENCE and refusal != route.endpoint.not_allowed:
            note_forbidden(self._engine, refusal.message, route.model, route.version)
        connection.respond_error(*refusal)
        return False

    def close(self) -> None:
        self.tasks.cancel()
        self._bodies.close()

    # Inference

    def _infer(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        model = self._engine.lookup(route.model, route.version)
        kind: type[InferExchange | InferEvents] = InferExchange
        if model.spec.decoupled:
            if not accepts_events(request.head.headers):
                raise _no_stream(model.spec)
            kind = InferEvents
        exchange = kind(self.service, model, route.version, connection)
        reading = self._bodies.infer(request, model)
        if isinstance(reading, tuple):
            resolved = request.head.resolved
            assert resolved is not None
            if isinstance(resolved.layout, BodyLayout):
                reading[0].model_version = route.version
                resolved.forms = self._learner.learn(model, *reading, request.body, resolved.layout)
            else:
                reading[0].path = resolved.layout
            exchange.submit(request.head, *reading)
            return exchange
        submit = partial(self._submit_later, exchange, request.head, reading)
        return self._read_later(connection, exchange, submit)

    async def _submit_later(
        self, exchange: InferExchange | InferEvents, head: RequestHead, read: Deferred[ReadInfer]
    ) -> None:
        request, output_format = await read()
        request.path = RequestPath.LARGE
        exchange.submit(head, request, output_format)

    def _generate(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        return self._begin_generate(GenerateExchange, connection, request, route)

    def _generate_stream(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        return self._begin_generate(GenerateEvents, connection, request, route)

    def _begin_generate(
        self,
        kind: type[GenerateExchange | GenerateEvents],
        connection: HttpConnection,
        request: HttpRequest,
        route: Route,
    ) -> HttpExchange:
        model = self._engine.lookup(route.model, route.version)
        exchange = kind(self.service, model, route.version, connection)
        reading = self._bodies.generate(request, model)
        if isinstance(reading, InferRequest):
            exchange.start(request.head, reading)
            return exchange

        async def submit_later() -> None:
            exchange.start(request.head, await reading())

        return self._read_later(connection, exchange, submit_later)

    def _read_later(
        self, connection: HttpConnection, exchange: EngineExchange, submit: Deferred[None]
    ) -> HttpExchange:
        """Read a request in the background and start it, unless the client disconnects."""

        async def begin() -> None:
            try:
                await submit()
            except ServerError as error:
                exchange.note_refusal(error)
                raise
            if connection.is_writing_paused:
                exchange.pause()

        return PendingExchange(exchange, self.tasks.start(answer_errors(connection, begin)))


def _no_stream(spec: ModelSpec) -> ServerError:
    """Returns the refusal of an infer request that cannot have the responses of its model."""
    refusal = "HTTP end point doesn't support models with decoupled transaction policy"
    if spec.is_annotated:
        refusal += f": {stream_route(spec.name)}"
    return UnsupportedError(refusal)
