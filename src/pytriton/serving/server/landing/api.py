# SPDX-License-Identifier: Apache-2.0
"""The landing page at `/` of the HTTP port: for browsers a page, for others addresses as JSON.

Its files tell nothing about the server. What the page shows comes from two documents, for which the
rules of the restricted API `metadata` apply; its forms send requests like any other client.
"""

from __future__ import annotations

import asyncio
import html
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from pytriton.base.request_words import expected_words, nearest_name
from pytriton.protocol.json_text import dump_json
from pytriton.serving.server.access.decisions import Denial, Scope, visible
from pytriton.serving.server.api.documents import TRITON_VERSION, package_version
from pytriton.serving.server.api.local_client import LocalClient
from pytriton.serving.server.http.connection import JSON_TYPE
from pytriton.serving.server.http.request import Resolved
from pytriton.serving.server.http.routes import HttpEndpoint, Route, request_path
from pytriton.serving.server.http.static_files import (
    HTML_TYPE,
    NO_SNIFFING,
    PAGE_POLICY,
    StaticFile,
    files_in,
    send_file,
)
from pytriton.serving.server.operations.openapi import openapi_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.base.model_spec import ModelSpec, ModelTensor
    from pytriton.runtime.transport.control import Started
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.access.control import Grant
    from pytriton.serving.server.http.api import HttpApi
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.request import HttpRequest, RequestHead
    from pytriton.serving.server.options.server_options import ServerOptions

    Answer = Callable[[HttpConnection, HttpRequest, Route], HttpExchange | None]

_FILES = b"/landing/"
_GET = frozenset({b"GET", b"HEAD"})
_OPEN = ""  # of files: they are in no group of restricted APIs
_PAGE = HttpEndpoint("page", _OPEN, _GET)
_FILE = HttpEndpoint("file", _OPEN, _GET)
_ENDPOINTS = {
    b"/": HttpEndpoint("addresses", "metadata", _GET, Scope.NONE),
    b"/docs": HttpEndpoint("docs", _OPEN, _GET),
    b"/openapi.json": HttpEndpoint("openapi", "metadata", _GET, Scope.FILTERED),
    b"/landing/models": HttpEndpoint("models", "metadata", _GET, Scope.FILTERED),
}
_UNKNOWN = HttpEndpoint("unknown", _OPEN, _GET)
_INDEX = "index.html"
_OWN_FILES = Path(__file__).parent / "static"
# Of the page on the metrics port: both look the same, and say the same of a model.
_SHARED_FILES = _OWN_FILES.parent.parent / "page" / "static"
_SHARED = ("page.css", "dom.js", "data.js", "theme.js", "icon.svg", "tensors.js", "examples.js")
_DATA_HEADERS = b"Cache-Control: no-store\r\nVary: Accept\r\n" + NO_SNIFFING
_MODELS_AT_ONCE = 32  # then other requests have their turn


def static_files() -> dict[str, StaticFile]:
    """Returns the files of the page by name."""
    shared = files_in(_SHARED_FILES)
    return {**{name: shared[name] for name in _SHARED}, **files_in(_OWN_FILES)}


class LandingApi:
    """Answers the requests of the page, and for paths that nothing else answers."""

    def __init__(self, http: HttpApi, engine: EngineClient, options: ServerOptions) -> None:
        self._http = http
        self._engine = engine
        self._options = options
        self._headers_of_apis = {
            api: group.header for group in options.http_restricted for api in group.apis
        }
        self._openapi_turn = asyncio.Lock()
        self._handlers: dict[str, Answer] = {
            "page": self._page,
            "file": self._file,
            "docs": self._docs,
            "addresses": self._addresses,
            "openapi": self._openapi,
            "models": self._models,
            "unknown": self._unknown,
        }

    def resolve(
        self, connection: HttpConnection, head: RequestHead, *, is_for_browser: bool
    ) -> Resolved | None:
        """Find the method that answers an allowed request; otherwise respond with an error."""
        path = request_path(head.target) or b""
        endpoint, name = _ENDPOINTS.get(path, _UNKNOWN), ""
        if path == b"/" and is_for_browser:
            endpoint = _PAGE
        elif endpoint is _UNKNOWN and path.startswith(_FILES):
            name = path.removeprefix(_FILES).decode("latin-1")
            if name not in static_files():
                connection.respond_error(404, "Not Found")
                return None
            endpoint = _FILE
        route = Route(endpoint, name)
        if not self._http.admits(connection, head, route):
            return None
        return Resolved(self._handlers[endpoint.handler], route)

    # Files

    def _page(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        send_file(connection, request.head, static_files()[_INDEX], vary=b"Accept")

    def _file(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        send_file(connection, request.head, static_files()[route.model])

    def _docs(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        # Relative, so that it also leads there if a proxy serves this port below another path.
        connection.respond(307, (), HTML_TYPE, b"Location: ./\r\n" + NO_SNIFFING)

    def _unknown(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        """Tell a person where what they look for may be; programs get the usual 404."""
        path = request_path(request.head.target) or b""
        body = _unknown_page(path, self._nearest_model(connection, request.head, path))
        headers = b"Cache-Control: no-store\r\nVary: Accept\r\n" + PAGE_POLICY
        connection.respond(404, (body,), HTML_TYPE, headers)

    def _nearest_model(self, connection: HttpConnection, head: RequestHead, path: bytes) -> str:
        """Returns the model that a path names, or nearly names; empty if it may not be told."""
        found = self._http.authorization.decide(
            "metadata", Scope.FILTERED, head.headers.get, connection, is_counted=False
        )
        if isinstance(found, Denial):
            return ""
        name = unquote(path.decode("latin-1")).strip("/").rpartition("/")[2]
        names = visible(found, self._engine.ready_models(), str)
        return name if name in names else nearest_name(name, names)

    # Documents

    def _addresses(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        def respond(ports: Started) -> None:
            document = {
                "name": self._options.id,
                "version": TRITON_VERSION,
                **_addresses(self._options, ports, request.head),
            }
            connection.respond(200, (dump_json(document),), JSON_TYPE, _DATA_HEADERS)

        return self._http.management.respond_when_known(
            connection, self._engine.ask(LocalClient.ports), respond
        )

    def _models(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        head = request.head
        return self._http.management.run_task(
            connection, self._send_models(connection, head, head.grant)
        )

    async def _send_models(
        self, connection: HttpConnection, head: RequestHead, grant: Grant | None
    ) -> None:
        entries = []
        for at, specs in enumerate(self._ready_specs(grant)):
            entries.append(model_document(specs))
            if at % _MODELS_AT_ONCE == 0:
                await asyncio.sleep(0)
        answer = self._engine.ask(LocalClient.ports)
        ports = await answer if asyncio.iscoroutine(answer) else answer
        document = {
            "id": self._options.id,
            "version": await asyncio.to_thread(package_version),
            "addresses": _addresses(self._options, ports, head),
            "models": entries,
        }
        connection.respond(200, (dump_json(document),), JSON_TYPE, _DATA_HEADERS)

    def _openapi(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        grant = request.head.grant
        return self._http.management.run_task(connection, self._send_openapi(connection, grant))

    async def _send_openapi(self, connection: HttpConnection, grant: Grant | None) -> None:
        specs = [spec for specs in self._ready_specs(grant) for spec in specs]
        write = partial(openapi_text, specs, "/", self._headers_of_apis)
        async with self._openapi_turn:  # as on the metrics port, one at a time and in a thread
            body = await asyncio.to_thread(write)
        connection.respond(200, (body,), JSON_TYPE, _DATA_HEADERS)

    def _ready_specs(self, grant: Grant | None) -> list[list[ModelSpec]]:
        """Returns the versions of each model that is ready, and that a sender may know."""
        found = []
        for name in visible(grant, self._engine.ready_models(), str):
            versions = self._engine.ready_versions(name)
            models = [self._engine.find(name, str(version)) for version in versions]
            specs = [model.spec for model in models if model is not None]
            if specs:  # a name of several models in namespaces means none of them
                found.append(specs)
        return found


def _addresses(options: ServerOptions, ports: Started, head: RequestHead) -> dict[str, str]:
    """Returns the addresses of everything that is served, as this client reaches the machine.

    That of HTTP is what the client wrote: the port of a container may have another number outside.
    """
    place = (head.headers.get(b"host") or b"localhost:%d" % ports.http_port).decode("latin-1")
    host = place if place.endswith("]") else place.rpartition(":")[0] or place
    # A proxy may encrypt what is not encrypted here; only it knows.
    web = "https" if options.tls is not None else "http"
    http = f"{web}://{place}"
    found = {"http": http}
    if ports.grpc_port:
        scheme = "grpcs" if options.grpc_tls is not None else "grpc"
        found["grpc"] = f"{scheme}://{host}:{ports.grpc_port}"
    if ports.metrics_port:
        found["metrics"] = f"{web}://{host}:{ports.metrics_port}/metrics"
        if options.has_page:
            found["page"] = f"{web}://{host}:{ports.metrics_port}/"
    return {**found, "docs": f"{http}/docs", "openapi": f"{http}/openapi.json"}


def model_document(versions: list[ModelSpec]) -> dict[str, Any]:
    """Returns what the page shows of a model: its newest version that is ready."""
    spec = versions[-1]
    documentation = spec.documentation
    return {
        "name": spec.name,
        "versions": [str(each.version) for each in versions],
        "description": documentation.text,
        "result": documentation.output,
        "decoupled": spec.decoupled,
        "is_sequence": spec.sequence is not None,
        "is_annotated": spec.is_annotated,
        "max_batch_size": spec.max_batch_size,
        "openai": spec.openai is not None,
        "examples": {**_message_example(spec), **documentation.examples},
        "inputs": [
            {**_tensor(each), "description": documentation.inputs.get(each.name, "")}
            for each in spec.inputs.values()
        ],
        "outputs": [_tensor(each) for each in spec.outputs.values()],
    }


def _message_example(spec: ModelSpec) -> dict[str, str]:
    """Returns the example of an input that takes a chat as JSON; any other text would fail."""
    name = "" if spec.openai is None else spec.openai.messages
    return {name: '[{"role": "user", "content": "Hello"}]'} if name else {}


def _tensor(tensor: ModelTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.dtype.name,
        "shape": list(tensor.shape),
        "dims": list(tensor.dims),
        "optional": tensor.optional,
        "words": expected_words(tensor),
    }


_UNKNOWN_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Not found</title>
<link rel="icon" href="{up}landing/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="{up}landing/page.css">
<link rel="stylesheet" href="{up}landing/landing.css">
<script src="{up}landing/theme.js"></script>
</head>
<body>
<header class="bar">
<a class="brand" href="{up}">
<img src="{up}landing/icon.svg" alt="" width="26" height="26">pytriton</a>
</header>
<main>
<section class="card">
<h1>Nothing is at <code>{path}</code></h1>
{hint}
<p><a href="{up}">All models of this server</a></p>
</section>
</main>
</body>
</html>
"""


def _unknown_page(path: bytes, model: str) -> bytes:
    """Returns a page for a path that leads nowhere, with the model that may have been meant."""
    shown = unquote(path.decode("latin-1"), errors="replace")
    shown = f"{shown[:80]}…" if len(shown) > 80 else shown
    hint = "<p>This server answers the KServe v2 protocol, whose paths begin with /v2.</p>"
    up = "../" * (path.count(b"/") - 1) or "./"
    if model:
        address = f"/v2/models/{quote(model, safe='')}/generate"
        hint = (
            f"<p>The model <b>{html.escape(model)}</b> answers POST requests at "
            f"<code>{html.escape(address)}</code>. "
            f'<a href="{up}#{html.escape(quote(model, safe=""))}">Try it</a></p>'
        )
    page = _UNKNOWN_PAGE.format(path=html.escape(shown), hint=hint, up=up)
    return page.encode("utf-8", "replace")
