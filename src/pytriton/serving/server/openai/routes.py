# SPDX-License-Identifier: Apache-2.0
"""The entry to OpenAI's routes: without a model that has opted in, they do not exist."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytriton.base.lazy_module import LazyModule
from pytriton.serving.server.http.connection import plain_refusal

if TYPE_CHECKING:
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.access.decisions import Client
    from pytriton.serving.server.http.api import HttpApi
    from pytriton.serving.server.http.connection import HttpConnection, HttpRefusal
    from pytriton.serving.server.http.request import RequestHead, Resolved
    from pytriton.serving.server.openai import api
    from pytriton.serving.server.openai.api import OpenAIApi
else:
    api = LazyModule("pytriton.serving.server.openai.api")

# The first segments of the paths: besides OpenAI's, those where its clients look for health.
SEGMENTS = (b"v1", b"health", b"ping", b"version")


class OpenAIRoutes:
    """Passes requests on if there is a model for them.

    The code that answers them is imported with the first of them: it takes 27 ms, and most servers
    never need it.
    """

    def __init__(self, http: HttpApi, engine: EngineClient) -> None:
        self._http = http
        self._engine = engine
        self._created = int(time.time())
        self._some_model = ""  # one that had opted in when it was last looked for
        self._api: OpenAIApi | None = None

    def resolve(self, connection: HttpConnection, head: RequestHead) -> Resolved | None:
        """Find the method that answers an allowed request; otherwise respond with an error."""
        # When the server exits, models end before connections; errors are OpenAI's until the end.
        if self._is_served() or self._engine.is_exiting:
            return self._opened().resolve(connection, head)
        if self._http.resolve_unknown is not None:
            return self._http.resolve_unknown(connection, head)
        connection.respond_error(404, "Not Found")
        return None

    def route_refusal(self, head: RequestHead, client: Client) -> tuple[int, str] | None:
        """Returns why a request may have no large body; None if it may."""
        if not self._is_served():
            return 404, "Not Found"
        return self._opened().route_refusal(head, client)

    def on_unread(self, head: RequestHead, status: int, message: str) -> HttpRefusal:
        """Note a request that is refused before its body was read; returns the answer."""
        if not self._is_served() and not self._engine.is_exiting:
            return plain_refusal(status, message)
        return self._opened().on_unread(head, status, message)

    def _opened(self) -> OpenAIApi:
        if self._api is None:
            self._api = api.OpenAIApi(self._http, self._engine, self._created)
        return self._api

    def _is_served(self) -> bool:
        """Returns whether a model has opted in."""
        if not self._has_opted_in(self._some_model):
            names = self._engine.ready_models()
            self._some_model = next((name for name in names if self._has_opted_in(name)), "")
        return bool(self._some_model)

    def _has_opted_in(self, name: str) -> bool:
        model = self._engine.find(name) if name else None
        return model is not None and model.spec.openai is not None
