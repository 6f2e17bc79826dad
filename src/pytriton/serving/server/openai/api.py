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
    UnsupportedError,
)
from pytriton.protocol.openai.documents import model_document
from pytriton.protocol.openai.embeddings import read_embeddings
from pytriton.protocol.openai.errors import OpenAIError, unknown_model, wrong
from pytriton.protocol.openai.generation import check_served, read_generation
from pytriton.protocol.openai.members import Members
from pytriton.serving.server.access.decisions import Denial, Reason, Scope, visible
from pytriton.serving.server.api.refusals import (
    INFERENCE,
    ForbiddenError,
    TooLargeError,
    note_forbidden,
)
from pytriton.serving.server.http.api import Resolved
from pytriton.serving.server.http.connection import JSON_TYPE
from pytriton.serving.server.http.reader import SMALL_BODY
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

    from pytriton.base.messages import InferRequest
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.access.control import Grant
    from pytriton.serving.server.access.decisions import Client
    from pytriton.serving.server.http.api import HttpApi
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.reader import HttpRequest, RequestHead
    from pytriton.serving.server.openai.exchanges import PartsExchange

    Handler = Callable[[HttpConnection, HttpRequest, Route, str], HttpExchange | None]

MAX_BODY_BYTES = 8 << 20  # it is read at once: 8 MiB take up to 0.1 s

_GET = frozenset({b"GET", b"HEAD"})
_POST = frozenset({b"POST"})
_BY_BODY = Scope.NONE  # the body names the model, which is decided on when it is read
_MODELS = HttpEndpoint("models", "metadata", _GET, Scope.FILTERED)
_MODEL = HttpEndpoint("model", "metadata", _GET)
_ENDPOINTS: dict[bytes, HttpEndpoint] = {
    b"/v1/models": _MODELS,
    b"/v1/chat/completions": HttpEndpoint("chat", "inference", _POST, _BY_BODY),
    b"/v1/completions": HttpEndpoint("completions", "inference", _POST, _BY_BODY),
    b"/v1/embeddings": HttpEndpoint("embeddings", "inference", _POST, _BY_BODY),
}
_ANY = HttpEndpoint("unknown", "inference", frozenset(), Scope.NONE)
_MODEL_PATH = b"/v1/models/"
_NO_COMPRESSION = "expected a body without compression"
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded", 503: "unavailable"}  # of denials
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
        return None if route.endpoint.scope is _BY_BODY else (400, SMALL_BODY)

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
        name = ""
        try:
            members = _read(request)
            name = members.text("model")
            self._check_right(request.head, name)
            model = self._model_of(name, route.endpoint.handler)
            begin = self._embed if route.endpoint.handler == "embeddings" else self._generate
            return begin(connection, request, route, identifier, members, name, model)
        except Exception as error:
            problem = as_openai_error(error)
            noted = error if isinstance(error, ServerError) else _noted(problem)
            self._engine.report_refusal(name, "", identifier, noted)
            raise problem from error

    def _generate(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        route: Route,
        identifier: str,
        members: Members,
        name: str,
        model: ServedModel,
    ) -> HttpExchange:
        is_chat = route.endpoint.handler == "chat"
        generation = read_generation(members, model.spec, is_chat=is_chat)
        for each in generation.requests:
            each.operation = "chat" if is_chat else "text_completion"
        kind = EventsAnswer if generation.is_stream else WholeAnswer
        exchange = kind(connection, identifier, name, model.spec, generation)
        return self._start(exchange, model, request, generation.requests)

    def _embed(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        route: Route,
        identifier: str,
        members: Members,
        name: str,
        model: ServedModel,
    ) -> HttpExchange:
        openai = model.spec.openai
        assert openai is not None
        job = read_embeddings(members, model.spec)
        for each in job.requests:
            each.operation = "embeddings"
        bodies = self._http.service.bodies
        exchange = EmbeddingsExchange(connection, identifier, name, openai.embedding, job, bodies)
        return self._start(exchange, model, request, job.requests)

    def _check_right(self, head: RequestHead, name: str) -> None:
        """Raise an error if the sender has no right to the model of its request."""
        access = self._http.authorization.access
        if access is not None and name:
            denial = access.refusal(head.grant, INFERENCE, name)
            if denial is not None:
                raise _denied(denial)

    def _model_of(self, name: str, route: str) -> ServedModel:
        """Returns the model of a request, which the route must serve."""
        if not name:
            raise wrong("model", "expected the name of a model as 'model', got none")
        model = self._engine.lookup(name)
        check_served(model.spec, name, route)
        return model

    def _start(
        self,
        exchange: PartsExchange,
        model: ServedModel,
        request: HttpRequest,
        requests: list[InferRequest],
    ) -> HttpExchange:
        service = self._http.service
        try:
            exchange.start(service, model, request.head, requests, request.began_ns)
        except Exception:
            exchange.abandon()  # nobody takes what the parts that have begun would answer
            raise
        return exchange


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


def _read(request: HttpRequest) -> Members:
    """Returns the members of a request."""
    size = len(request.body)
    if size > MAX_BODY_BYTES:
        raise OpenAIError(
            413,
            f"expected a body of at most {MAX_BODY_BYTES} bytes, got {size}",
            code="request_too_large",
        )
    encoding = request.head.headers.get(b"content-encoding", b"identity")
    if encoding.lower() != b"identity":
        raise OpenAIError(400, f"{_NO_COMPRESSION}, got {encoding.decode('latin-1')}")
    return Members(request.body)


def _noted(problem: OpenAIError) -> ServerError:
    """Returns how a refusal is noted: as one of Triton's kinds, where there is one."""
    message = problem.message
    if message.startswith(_NO_COMPRESSION):
        message = _NO_COMPRESSION  # without what the header says
    return _KINDS.get(problem.status, InvalidArgumentError)(message)
