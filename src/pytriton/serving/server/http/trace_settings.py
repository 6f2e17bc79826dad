# SPDX-License-Identifier: Apache-2.0
"""The HTTP endpoint of the trace extension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.protocol.trace_settings import encode_trace_settings, read_trace_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.http.bodies import Bodies
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.reader import HttpRequest
    from pytriton.serving.server.http.routes import Route


class TraceEndpoint:
    """Answers requests for the trace settings of the server or of a model.

    Args:
        engine: The engine.
        bodies: Reads the bodies of requests.
        respond_when_known: Responds with an answer of the engine, now or when it has come.
    """

    def __init__(
        self,
        engine: EngineClient,
        bodies: Bodies,
        respond_when_known: Callable[
            [HttpConnection, Any, Callable[[Any], None]], HttpExchange | None
        ],
    ) -> None:
        self._engine = engine
        self._bodies = bodies
        self._respond_when_known = respond_when_known

    def settings(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        """Respond with the settings, after the changes in the body of a POST."""

        def respond(settings: dict[str, list[str]]) -> None:
            connection.respond(200, (encode_trace_settings(settings),))

        changes: dict[str, list[str]] = {}
        if request.head.method == b"POST":
            changes = read_trace_settings(self._bodies.settings(request))
        settings = self._engine.change_trace_settings(route.model, changes)
        return self._respond_when_known(connection, settings, respond)
