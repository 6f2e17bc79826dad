# SPDX-License-Identifier: Apache-2.0
"""The page on the metrics port: its files, its data, and requests that it passes to the engine.

Every request passes through `handle`, which finds its route, checks the method and authorisation.
What changes something, and the log, need the page's token in a header. A browser adds no header by
itself, so a page of another site can cause nothing here; the reader refuses its requests besides.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.errors import ServerError
from pytriton.base.model_spec import identifier_of
from pytriton.base.security import TRITON_ACCESS_HEADER
from pytriton.protocol.json_text import dump_json
from pytriton.serving.server.access.decisions import Denial, Scope
from pytriton.serving.server.api.authorization import (
    Authorization,
    RestrictedGroup,
    RestrictedProtocol,
)
from pytriton.serving.server.api.cluster_view import cluster_view
from pytriton.serving.server.api.documents import package_version
from pytriton.serving.server.api.refusals import Refusal
from pytriton.serving.server.api.status import HTTP_RESTRICTED, HTTP_STATUS
from pytriton.serving.server.http.api import HttpApi
from pytriton.serving.server.http.handler import HttpExchange, PendingExchange
from pytriton.serving.server.http.request import SMALL_BODY, HttpRequest
from pytriton.serving.server.http.static_files import (
    NO_SNIFFING,
    StaticFile,
    files_in,
    send_file,
)
from pytriton.serving.server.operations.openapi import openapi_text
from pytriton.serving.server.page import documents, routes
from pytriton.serving.server.page.documents import CurrentNumbers
from pytriton.serving.server.process.kept_lines import LineFilter, kept_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pytriton.runtime.transport.control import Started
    from pytriton.serving.engine.client import EngineClient, IndexEntry, ModelControl
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.served_model import ManagedModel
    from pytriton.serving.server.access.control import AccessControl
    from pytriton.serving.server.access.decisions import Client, HeaderLookup
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.request import RequestHead
    from pytriton.serving.server.options.server_options import ServerOptions
    from pytriton.serving.server.page.documents import ReadCluster, ReadMachine
    from pytriton.serving.server.page.history import History
    from pytriton.serving.server.page.routes import PageRoute

logger = logging.getLogger(__name__)

_PAGE = "page"
REFUSAL = (
    "this needs the token of the page: 'pytriton page' prints a link with it, for the user who "
    "runs the server"
)
_FOLDER = Path(__file__).parent / "static"
_DATA_HEADERS = b"Cache-Control: no-store\r\n" + NO_SNIFFING
_MODELS_AT_ONCE = 32
_MAX_QUERY = 300  # characters of what somebody looks for
_JSON = b"application/json"


class PageAccess:
    """Decides on requests of the page.

    Args:
        groups: The restricted APIs of the HTTP port. They are as restricted here as there.
        token: What the log and all actions need besides. It travels in the header of the access
            token, so it opens what that one opens, too.
        access: The policy, if there is one. All but files needs the token then, or a sender with
            the right to the page.
    """

    def __init__(
        self,
        groups: Sequence[RestrictedGroup],
        token: str,
        access: AccessControl | None = None,
    ) -> None:
        if not token:
            raise ValueError("expected a token, as an empty header would open the page")
        self._apis = Authorization(groups, RestrictedProtocol.HTTP)
        page = RestrictedGroup(apis=(_PAGE,), header=TRITON_ACCESS_HEADER, value=token)
        self._page = Authorization([page], RestrictedProtocol.HTTP)
        self._token = token
        self._policy = Authorization((), RestrictedProtocol.HTTP, access=access)
        # Others than the page's own, which a user has to give besides.
        others = [group for group in groups if group.header.lower() != TRITON_ACCESS_HEADER]
        self._apis_with_others = Authorization(others, RestrictedProtocol.HTTP)
        self.other_headers = sorted({group.header.lower() for group in others})
        self.headers_of_apis = {api: group.header for group in groups for api in group.apis}

    def admit(self, head: RequestHead, client: Client) -> RequestHead | Denial:
        """Decide on a sender by the policy, if there is one.

        Returns the head of its request; with the token, if the policy lets it have it.
        """
        header = head.headers.get
        if self._policy.access is None or self._page.refusal(_PAGE, header) is None:
            return head
        found = self._policy.decide(_PAGE, Scope.ALL, header, client)
        if isinstance(found, Denial):
            return found
        headers = {**head.headers, TRITON_ACCESS_HEADER.encode(): self._token.encode()}
        return msgspec.structs.replace(head, headers=headers)

    def refusal(self, api: str, header: HeaderLookup, *, needs_token: bool = False) -> str | None:
        """Returns the error message for a request; None if it is allowed.

        Its group is a name in `VALID_TRITON_ENDPOINTS`, or empty if it has none.
        """
        has_token = self._page.refusal(_PAGE, header) is None
        if needs_token and not has_token:
            return REFUSAL
        apis = self._apis_with_others if has_token else self._apis
        return apis.refusal(api, header) if api else None


def static_files() -> dict[str, StaticFile]:
    """Returns the files of the page by name."""
    return files_in(_FOLDER)


class PageApi:
    """Answers the requests of a browser with the page.

    Requests of its form go to `client`. `control` knows all models, also those that are not loaded;
    `read_machine` and `cluster` return the numbers of the machine and the state of the cluster;
    `history` has the samples of the last hour.
    """

    def __init__(
        self,
        engine: Engine,
        control: ModelControl,
        client: EngineClient,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        read_machine: ReadMachine,
        cluster: ReadCluster,
        history: History,
        ports: Started,
        started_s: float,
        access: AccessControl | None = None,
    ) -> None:
        self._ports = ports
        self._control = control
        self._client = client
        self._options = options
        self._loop = loop
        self._access = PageAccess(options.http_restricted, options.page.token, access)
        self._engine = engine
        self._cluster_status = cluster
        self._history = history
        self._current = CurrentNumbers(engine, read_machine, cluster)
        self._tasks = BackgroundTasks(loop)
        self._started_s = started_s
        self._http: HttpApi | None = None
        self._openapi_turn = asyncio.Lock()
        self._data: dict[str, Callable[[HttpRequest], Coroutine[Any, Any, bytes]]] = {
            "server": self._server,
            "models": self._models,
            "now": self._now,
            "samples": self._samples,
            "cluster": self._cluster,
            "log": self._log,
            "failures": self._failures,
            "failed_inputs": self._failed_inputs,
            "settings": self._settings,
            "openapi": self._openapi,
        }

    def close(self) -> None:
        """Cancel what is running when the server stops."""
        self._tasks.cancel()
        if self._http is not None:
            self._http.close()

    def handle(self, connection: HttpConnection, request: HttpRequest) -> HttpExchange | None:
        """Answer a request now, or return the exchange that will answer it."""
        route = routes.find(request.head.target.partition(b"?")[0])
        head = self._decide(request.head, connection, route)
        if isinstance(head, Refusal):
            headers = head.headers + _DATA_HEADERS
            connection.respond_error(head.status, head.message, headers)
            return None
        assert route is not None, "nothing is allowed without one"
        if route.kind == "file":
            send_file(connection, head, static_files()[route.name])
            return None
        request = HttpRequest(head, request.body, request.began_ns)
        if route.kind == "forwarded":
            return self._forward(connection, request, route)
        task = self._tasks.start(_answer(connection, self._data[route.name](request)))
        return PendingExchange(HttpExchange(), task)

    def route_refusal(self, head: RequestHead, client: Client) -> tuple[int, str] | None:
        """Returns why a request may have no large body; None if it may."""
        route = routes.find(head.target.partition(b"?")[0])
        found = self._decide(head, client, route)
        if isinstance(found, Refusal):
            return found[:2]
        assert route is not None, "nothing is allowed without one"
        return None if route.has_large_body else (400, SMALL_BODY)

    def _decide(
        self, head: RequestHead, client: Client, route: PageRoute | None
    ) -> RequestHead | Refusal:
        """Returns the head of a request that may do what it asks for; otherwise why it may not."""
        if route is None or (route.kind == "file" and route.name not in static_files()):
            return Refusal(404, "Not Found")
        if head.method not in route.methods:
            return Refusal(405, "Method Not Allowed", route.allow)
        if route.kind == "file":
            return head
        admitted = self._access.admit(head, client)
        if isinstance(admitted, Denial):
            return Refusal(admitted.http_status, admitted.message, admitted.headers)
        refusal = self._access.refusal(
            route.api, admitted.headers.get, needs_token=route.needs_token
        )
        return admitted if refusal is None else Refusal(HTTP_RESTRICTED, refusal)

    def _forward(
        self, connection: HttpConnection, request: HttpRequest, route: PageRoute
    ) -> HttpExchange | None:
        """Let the endpoint of the HTTP port answer an allowed request."""
        if self._http is None:  # made when the page is used first
            options = msgspec.structs.replace(
                self._options, allow_client_shared_memory=False, http_restricted=()
            )
            self._http = HttpApi(self._client, options, self._loop)
        headers = {k: v for k, v in request.head.headers.items() if k != b"accept-encoding"}
        head = msgspec.structs.replace(
            request.head, target=route.target, headers=headers, resolved=None, grant=None
        )
        return self._http.handle(connection, HttpRequest(head, request.body, request.began_ns))

    # Data

    async def _server(self, request: HttpRequest) -> bytes:
        header = request.head.headers.get
        facts = {
            "version": await asyncio.to_thread(package_version),
            "python": platform.python_version(),
            "pid": os.getpid(),
            "started": self._started_s,
            "is_allowed": self._access.refusal("", header, needs_token=True) is None,
            "other_headers": self._access.other_headers,
        }
        return dump_json(documents.server_document(self._options, self._ports, facts))

    async def _models(self, request: HttpRequest) -> bytes:
        entries = []
        rows = self._known_models(request.head.headers.get)
        for at, (entry, model) in enumerate(rows):
            entries.append(documents.model_entry(entry, model))
            if at % _MODELS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return dump_json({"models": entries})

    def _known_models(self, header: HeaderLookup) -> list[tuple[IndexEntry, ManagedModel | None]]:
        """Returns the models that a client may know; PageRefusalError if it may know none."""
        index_refusal = self._access.refusal("model-repository", header)
        metadata_refusal = self._access.refusal("metadata", header)
        if index_refusal is not None and metadata_refusal is not None:
            raise PageRefusalError(metadata_refusal)
        is_all = index_refusal is None
        entries = self._control.index(ready=not is_all)
        if metadata_refusal is not None:
            return [(entry, None) for entry in entries]
        return [(entry, self._served(entry)) for entry in entries]

    def _served(self, entry: IndexEntry) -> ManagedModel | None:
        if entry.state != documents.READY:
            return None
        identifier = identifier_of(entry.namespace, entry.name)
        return self._engine.find(identifier, entry.version)

    async def _now(self, request: HttpRequest) -> bytes:
        return b'{"started":%r,"now":%b}' % (self._started_s, await self._current.read())

    async def _samples(self, request: HttpRequest) -> bytes:
        now = await self._current.read()
        parts = self._history.after(_number_after(request))
        members = b",".join([b'"%b":%b' % (name.encode(), text) for name, text in parts.items()])
        last = self._history.last_number
        return b'{"started":%r,"last":%d,"now":%b,%b}' % (self._started_s, last, now, members)

    async def _cluster(self, request: HttpRequest) -> bytes:
        status = self._cluster_status()
        document = None
        if status is not None:
            view = cluster_view(status, self._engine.models())
            document = documents.cluster_document(view)
        return dump_json({"cluster": document})

    async def _log(self, request: HttpRequest) -> bytes:
        ring = kept_lines()
        lines, last = [], 0
        if ring is not None:
            last = ring.last_number
            lines = ring.after(_number_after(request), _line_filter(request))
            last = max([last, *(line.number for line in lines[-1:])])  # other threads write, too
        document = {"started": self._started_s, "last": last, "lines": lines}
        return msgspec.json.encode(document)

    async def _failures(self, request: HttpRequest) -> bytes:
        header = request.head.headers.get
        has_details = self._access.refusal("logging", header, needs_token=True) is None
        return dump_json(
            documents.failures_document(self._engine.failures, has_details=has_details)
        )

    async def _failed_inputs(self, request: HttpRequest) -> bytes:
        book = self._engine.failures
        if request.head.method == b"POST":
            return dump_json(documents.change_keeping(book, bytes(request.body)))
        return dump_json(documents.inputs_document(book, _number_in(request, "group")))

    async def _settings(self, request: HttpRequest) -> bytes:
        return dump_json({"settings": documents.settings_rows(self._options)})

    async def _openapi(self, request: HttpRequest) -> bytes:
        header = request.head.headers.get
        specs = [each.spec for _, each in self._known_models(header) if each is not None]
        host = (header(b"host") or b"localhost").decode("latin-1")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        scheme = "http" if self._options.tls is None else "https"
        url = f"{scheme}://{name}:{self._ports.http_port}" if self._ports.http_port else "/"
        headers_of_apis = self._access.headers_of_apis
        # In a thread, as each model has half a millisecond of schemas. One at a time: with threads
        # for 16 clients, each answer of the event loop took 15 ms instead of 3.
        async with self._openapi_turn:
            return await asyncio.to_thread(openapi_text, specs, url, headers_of_apis)


class PageRefusalError(Exception):
    """A client may not have what it asks for."""


async def _answer(connection: HttpConnection, work: Coroutine[Any, Any, bytes]) -> None:
    try:
        body = await work
    except PageRefusalError as refusal:
        connection.respond_error(HTTP_RESTRICTED, str(refusal), _DATA_HEADERS)
    except ServerError as error:
        connection.respond_error(HTTP_STATUS[error.code], error.message, _DATA_HEADERS)
    except Exception:
        logger.exception("data of the page could not be read")
        connection.respond_error(500, "the data could not be read; the log says why", _DATA_HEADERS)
    else:
        connection.respond(200, (body,), _JSON, _DATA_HEADERS)


def _query(request: HttpRequest, name: str, default: str = "") -> str:
    """Returns a value of the address, cut to a length."""
    query = parse_qs(request.head.target.partition(b"?")[2].decode("latin-1"))
    return query.get(name, [default])[0][:_MAX_QUERY]


def _line_filter(request: HttpRequest) -> LineFilter:
    level = _query(request, "level", "VERBOSE")
    return LineFilter(level, _query(request, "model"), _query(request, "text"))


def _number_after(request: HttpRequest) -> int:
    """Returns the number in `?after=<number>`; 0 if there is none."""
    return _number_in(request, "after")


def _number_in(request: HttpRequest, name: str) -> int:
    """Returns the number in `?<name>=<number>`; 0 if there is none."""
    text = _query(request, name, "0")
    return int(text) if text.isdecimal() and len(text) < 16 else 0
