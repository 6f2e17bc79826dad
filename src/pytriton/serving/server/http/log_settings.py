# SPDX-License-Identifier: Apache-2.0
"""The HTTP endpoint that shows and changes the settings of the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytriton.protocol.log_settings import encode_log_settings, read_log_settings

if TYPE_CHECKING:
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.http.bodies import Bodies
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.reader import HttpRequest
    from pytriton.serving.server.http.routes import Route

RespondWhenKnown = Callable[["HttpConnection", Any, Callable[[Any], None]], "Exchange | None"]


class LogEndpoint:
    """Answers requests of the logging extension."""

    def __init__(
        self, engine: EngineClient, bodies: Bodies, respond_when_known: RespondWhenKnown
    ) -> None:
        self._engine = engine
        self._bodies = bodies
        self._respond_when_known = respond_when_known

    def answer(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        """Apply the changes in the body of a POST, and respond with all settings."""

        def respond(settings: dict[str, Any]) -> None:
            connection.respond(200, (encode_log_settings(settings),))

        changes: dict[str, Any] = {}
        if request.head.method == b"POST":
            changes = dict(read_log_settings(self._bodies.settings(request)))
        settings = self._engine.change_log_settings(changes)
        return self._respond_when_known(connection, settings, respond)
