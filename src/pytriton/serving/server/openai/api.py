# SPDX-License-Identifier: Apache-2.0
"""OpenAI's routes on the HTTP port, for models that have opted in."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

import orjson

from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ServerError,
    UnavailableError,
    UnsupportedError,
)
from pytriton.protocol.openai.documents import model_document
from pytriton.protocol.openai.embeddings import EmbeddingJob
from pytriton.protocol.openai.errors import OpenAIError, unknown_model, wrong
from pytriton.protocol.openai.generation import check_served
from pytriton.protocol.openai.large_body import decode_large, encode_task, read_work
from pytriton.protocol.openai.members import DocumentMembers
from pytriton.serving.server.access.decisions import Denial, Reason, Scope, visible
from pytriton.serving.server.api.background import SMALL_BYTES
from pytriton.serving.server.api.documents import TRITON_VERSION
from pytriton.serving.server.api.local_client import LocalClient
from pytriton.serving.server.api.refusals import (
    INFERENCE,
    ForbiddenError,
    TooLargeError,
    note_forbidden,
    note_unread,
)
from pytriton.serving.server.http.api import unread_kind
from pytriton.serving.server.http.connection import JSON_TYPE, REFUSAL_HEADERS, HttpRefusal
from pytriton.serving.server.http.handler import HttpExchange, PendingExchange
from pytriton.serving.server.http.request import SMALL_BODY, Resolved
from pytriton.serving.server.http.routes import HttpEndpoint, Route, request_path
from pytriton.serving.server.openai.exchanges import (
    EmbeddingsExchange,
    EventsAnswer,
    WholeAnswer,
    as_openai_error,
    id_header,
    request_id,
    respond_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.openai.large_body import Work
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.access.control import Grant
    from pytriton.serving.server.access.decisions import Client
    from pytriton.serving.server.http.api import HttpApi
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.request import HttpRequest, RequestHead
    from pytriton.serving.server.openai.exchanges import PartsExchange

    Handler = Callable[[HttpConnection, HttpRequest, Route, str], HttpExchange | None]

_GET = frozenset({b"GET", b"HEAD"})
_POST = frozenset({b"POST"})
_MODELS = HttpEndpoint("models", "metadata", _GET, Scope.FILTERED)
_MODEL = HttpEndpoint("model", "metadata", _GET)
_ENDPOINTS: dict[bytes, HttpEndpoint] = {
    b"/v1/models": _MODELS,
    b"/health": HttpEndpoint("live", "health", _GET, Scope.NONE),
    b"/health/ready": HttpEndpoint("ready", "health", _GET, Scope.NONE),
    b"/ping": HttpEndpoint("live", "health", _GET, Scope.NONE),
    b"/version": HttpEndpoint("version", "metadata", _GET, Scope.NONE),
    b"/v1/chat/completions": HttpEndpoint("chat", "inference", _POST, Scope.BY_BODY),
    b"/v1/completions": HttpEndpoint("completions", "inference", _POST, Scope.BY_BODY),
    b"/v1/embeddings": HttpEndpoint("embeddings", "inference", _POST, Scope.BY_BODY),
}
_ANY = HttpEndpoint("unknown", "inference", frozenset(), Scope.NONE)
_MODEL_PATH = b"/v1/models/"
_NO_COMPRESSION = "expected a body without compression"
_CODES = {
    401: "invalid_api_key",
    403: "permission_denied",
    404: "unknown_url",
    405: "method_not_allowed",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    503: "unavailable",
}  # of refusals
_SERVER_FAILURE = 500
_KINDS: dict[int, type[ServerError]] = {
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    413: TooLargeError,
    500: InternalError,
    501: UnsupportedError,
}


class OpenAIApi:
    """Answers the requests of OpenAI's clients.

    Args:
        http: The API of the port, whose way to the engine and whose authorisation it uses.
        engine: The engine.
        created: When the models were made, as far as clients are told: the server's start.
    """

    def __init__(self, http: HttpApi, engine: EngineClient, created: int) -> None:
        self._http = http
        self._engine = engine
        self._created = created
        self._handlers: dict[str, Handler] = {
            "live": self._live,
            "ready": self._ready,
            "version": self._version,
            "models": self._models,
            "model": self._model,
            "chat": self._infer,
            "completions": self._infer,
            "embeddings": self._infer,
        }

    def resolve(self, connection: HttpConnection, head: RequestHead) -> Resolved | None:
        """Find the method that answers an allowed request; otherwise respond with an error."""
        route = _find_route(head)
        problem, head.grant = self._decide(head, connection, route)
        if problem is not None:
            respond_error(connection, problem, request_id(head))
            return None
        return Resolved(self._answer, route)

    def route_refusal(self, head: RequestHead, client: Client) -> tuple[int, str] | None:
        """Returns why a request may have no large body; None if it may."""
        route = _find_route(head)
        problem, _ = self._decide(head, client, route)
        if problem is not None:
            return problem.status, problem.message
        return None if route.endpoint.scope is Scope.BY_BODY else (400, SMALL_BODY)

    def on_unread(self, head: RequestHead, status: int, message: str) -> HttpRefusal:
        """Note a request that is refused before its body was read; returns the answer."""
        kind = unread_kind(status, message)
        if _find_route(head).endpoint.scope is Scope.BY_BODY:
            note_unread(self._engine, kind, message)
        if kind is TooLargeError:
            status = 413
        problem = OpenAIError(
            status,
            message,
            code=_CODES.get(status),
            kind="server_error" if status >= _SERVER_FAILURE else "invalid_request_error",
            headers=REFUSAL_HEADERS.get(status, b"") + id_header(request_id(head)),
        )
        return HttpRefusal(status, problem.body(), problem.headers)

    def _decide(
        self, head: RequestHead, client: Client, route: Route
    ) -> tuple[OpenAIError | None, Grant | None]:
        """Returns why a request may not do what it asks for, and who sends it, if that is known."""
        endpoint = route.endpoint
        decision = self._http.authorization.decide(
            endpoint.api, route.subject, head.headers.get, client, accepts_bearer=True
        )
        if isinstance(decision, Denial):
            if endpoint.api == INFERENCE and endpoint is not _ANY:
                note_forbidden(self._engine, decision.message)
            return _denied(decision), decision.grant
        return self._wrong_request(head, endpoint), decision

    def _wrong_request(self, head: RequestHead, endpoint: HttpEndpoint) -> OpenAIError | None:
        """Returns why nothing answers an allowed request."""
        method = head.method.decode("latin-1")
        if endpoint is _ANY:
            shown = (request_path(head.target) or b"").decode("latin-1")
            return OpenAIError(404, f"Unknown request: {method} {shown}.", code="unknown_url")
        if head.method not in endpoint.methods:
            return OpenAIError(
                405,
                f"Expected {' or '.join(sorted(map(bytes.decode, endpoint.methods)))} "
                f"for this path, got {method}.",
                code="method_not_allowed",
                headers=endpoint.allow,
            )
        return None

    def _find(self, name: str) -> ServedModel | None:
        model = self._engine.find(name)
        return None if model is None or model.spec.openai is None else model

    def _answer(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        identifier = request_id(request.head)
        try:
            return self._handlers[route.endpoint.handler](connection, request, route, identifier)
        except Exception as error:  # noqa: BLE001  it is answered, and logged if it is unexpected
            respond_error(connection, as_openai_error(error), identifier)
            return None

    # Endpoints

    def _live(
        self, connection: HttpConnection, request: HttpRequest, route: Route, identifier: str
    ) -> None:
        if self._engine.is_exiting:
            raise UnavailableError("Server exiting")
        connection.respond(200, (), JSON_TYPE, id_header(identifier))

    def _ready(
        self, connection: HttpConnection, request: HttpRequest, route: Route, identifier: str
    ) -> HttpExchange | None:
        def respond(problem: str) -> None:
            if problem:  # it names models, to which the client may have no right
                error = as_openai_error(UnavailableError("the server is not ready"))
                respond_error(connection, error, identifier)
            else:
                connection.respond(200, (), JSON_TYPE, id_header(identifier))

        return self._http.management.respond_when_known(
            connection, self._engine.ask(LocalClient.problem), respond
        )

    def _version(
        self, connection: HttpConnection, request: HttpRequest, route: Route, identifier: str
    ) -> None:
        self._respond(connection, {"version": TRITON_VERSION}, identifier)

    def _models(
        self, connection: HttpConnection, request: HttpRequest, route: Route, identifier: str
    ) -> None:
        ready = visible(request.head.grant, self._engine.ready_models(), str)
        names = [name for name in ready if self._find(name)]
        data = [model_document(name, self._created) for name in names]
        self._respond(connection, {"object": "list", "data": data}, identifier)

    def _model(
        self, connection: HttpConnection, request: HttpRequest, route: Route, identifier: str
    ) -> None:
        if self._find(route.model) is None:
            raise unknown_model(route.model)
        self._respond(connection, model_document(route.model, self._created), identifier)

    def _respond(self, connection: HttpConnection, document: object, identifier: str) -> None:
        connection.respond(200, (orjson.dumps(document),), JSON_TYPE, id_header(identifier))

    def _infer(
        self, connection: HttpConnection, request: HttpRequest, route: Route, identifier: str
    ) -> HttpExchange:
        if len(request.body) > SMALL_BYTES:
            late = PendingExchange(HttpExchange())
            reading = self._begin_later(late, connection, request, route, identifier)
            late.task = self._http.tasks.start(reading)
            return late
        name = ""
        try:
            _check_encoding(request.head)
            members = DocumentMembers(request.body)
            name = members.text("model")
            model = self._allowed_model(request.head, name, route)
            work = read_work(members, model.spec, route.endpoint.handler)
            return self._begin(connection, request, identifier, name, model, work)
        except Exception as error:
            raise self._refused(name, identifier, error) from error

    async def _begin_later(
        self,
        late: PendingExchange,
        connection: HttpConnection,
        request: HttpRequest,
        route: Route,
        identifier: str,
    ) -> None:
        """Have a large body read by another process, then begin to answer its request."""
        name, handler = "", route.endpoint.handler
        try:
            _check_encoding(request.head)
            task = encode_task(handler, self._specs(handler))
            name, problem, work = decode_large(
                *await self._http.service.bodies.openai(request, task)
            )
            if problem is not None and not name:
                raise problem  # noqa: TRY301  as if it had been read here
            model = self._allowed_model(request.head, name, route)
            if problem is not None:
                raise problem  # noqa: TRY301  as if it had been read here
            if work is None:
                raise UnavailableError(f"the model '{name}' has changed while its request was read")  # noqa: TRY301
            exchange = self._begin(connection, request, identifier, name, model, work)
        except Exception as error:  # noqa: BLE001  it is answered, and logged if it is unexpected
            respond_error(connection, self._refused(name, identifier, error), identifier)
        else:
            late.exchange = exchange
            if connection.is_writing_paused:
                exchange.pause()

    def _refused(self, name: str, identifier: str, error: Exception) -> OpenAIError:
        """Note a request for a model that is refused before the engine gets it."""
        problem = as_openai_error(error)
        noted = error if isinstance(error, ServerError) else _noted(problem)
        self._engine.report_refusal(name, "", identifier, noted)
        return problem

    def _specs(self, route: str) -> dict[str, ModelSpec]:
        """Returns the models that a route serves."""
        found = {name: self._find(name) for name in self._engine.ready_models()}
        return {
            name: model.spec
            for name, model in found.items()
            if model is not None and getattr(model.spec.openai, route)
        }

    def _begin(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        identifier: str,
        name: str,
        model: ServedModel,
        work: Work,
    ) -> HttpExchange:
        """Pass the requests for the model to the engine."""
        service, spec = self._http.service, model.spec
        exchange: PartsExchange
        if isinstance(work, EmbeddingJob):
            assert spec.openai is not None
            operation = "embeddings"
            exchange = EmbeddingsExchange(
                connection, identifier, name, spec.openai.embedding, work, service.bodies
            )
        else:
            operation = "chat" if work.is_chat else "text_completion"
            kind = EventsAnswer if work.is_stream else WholeAnswer
            exchange = kind(connection, identifier, name, spec, work)
        for each in work.requests:
            each.operation = operation
        try:
            exchange.start(service, model, request.head, work.requests)
        except Exception:
            exchange.abandon()  # nobody takes what the parts that have begun would answer
            raise
        return exchange

    def _allowed_model(self, head: RequestHead, name: str, route: Route) -> ServedModel:
        """Returns the model of a request, to which its sender needs a right."""
        access = self._http.authorization.access
        if access is not None and name:
            assert head.grant is not None, "nobody comes here unknown"
            denial = access.refusal(head.grant, INFERENCE, name)
            if denial is not None:
                raise _denied(denial)
        if not name:
            raise wrong("model", "expected the name of a model as 'model', got none")
        model = self._engine.lookup(name)
        check_served(model.spec, name, route.endpoint.handler)
        return model


def _find_route(head: RequestHead) -> Route:
    """Returns the route of a request."""
    path = request_path(head.target) or b""
    if path.startswith(_MODEL_PATH) and len(path) > len(_MODEL_PATH):
        return Route(_MODEL, unquote(path.removeprefix(_MODEL_PATH).decode("latin-1")))
    return Route(_ENDPOINTS.get(path, _ANY))


def _denied(denial: Denial) -> OpenAIError:
    """Returns how a refusal looks to OpenAI's clients, which know a restricted API by 401."""
    status, message = denial.http_status, denial.message
    headers, code = denial.headers, _CODES.get(status, "permission_denied")
    if denial.reason is Reason.RESTRICTED:
        status, code = 401, _CODES[401]
        message = f"{message} or a bearer token with its value"
        headers = b"WWW-Authenticate: Bearer\r\n"
    return OpenAIError(status, message, code=code, headers=headers)


def _check_encoding(head: RequestHead) -> None:
    encoding = head.headers.get(b"content-encoding", b"identity")
    if encoding.lower() != b"identity":
        raise OpenAIError(400, f"{_NO_COMPRESSION}, got {encoding.decode('latin-1')}")


def _noted(problem: OpenAIError) -> ServerError:
    """Returns how a refusal is noted: as one of Triton's kinds, where there is one."""
    message = problem.message
    if message.startswith(_NO_COMPRESSION):
        message = _NO_COMPRESSION  # without what the header says
    return _KINDS.get(problem.status, InvalidArgumentError)(message)
