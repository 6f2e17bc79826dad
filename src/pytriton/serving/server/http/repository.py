# SPDX-License-Identifier: Apache-2.0
"""The HTTP endpoints that list, load and unload models."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from pytriton.protocol.repository import LoadOverrides, check_repository, read_index, read_unload
from pytriton.serving.server.api import documents

if TYPE_CHECKING:
    from pytriton.serving.engine.control import IndexEntry
    from pytriton.serving.server.api.repository_service import RepositoryService
    from pytriton.serving.server.http.bodies import Bodies, Deferred
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.reader import HttpRequest
    from pytriton.serving.server.http.routes import Route

RunTask = Callable[["HttpConnection", Coroutine[Any, Any, None]], "Exchange"]
RespondWhenKnown = Callable[["HttpConnection", Any, Callable[[Any], None]], "Exchange | None"]


class RepositoryEndpoints:
    """Parses requests, and answers when the models are loaded or unloaded."""

    def __init__(
        self,
        service: RepositoryService,
        bodies: Bodies,
        respond_when_known: RespondWhenKnown,
        run_task: RunTask,
    ) -> None:
        self._service = service
        self._bodies = bodies
        self._respond_when_known = respond_when_known
        self._run_task = run_task

    def index(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        def respond(entries: list[IndexEntry]) -> None:
            connection.respond(200, (documents.repository_index(entries),))

        check_repository(route.repository)
        entries = self._service.index(ready=read_index(self._bodies.settings(request)))
        return self._respond_when_known(connection, entries, respond)

    def load(self, connection: HttpConnection, request: HttpRequest, route: Route) -> HttpExchange:
        check_repository(route.repository)
        reading = self._bodies.load(request)
        if isinstance(reading, LoadOverrides):
            loading = self._service.load(route.model, reading)
        else:
            loading = self._load_later(route.model, reading)
        return self._run_task(connection, _respond_after(loading, connection))

    async def _load_later(self, name: str, read: Deferred[LoadOverrides]) -> None:
        await self._service.load(name, await read())

    def unload(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange:
        check_repository(route.repository)
        unload_dependents = read_unload(self._bodies.settings(request))
        unloading = self._service.unload(route.model, unload_dependents=unload_dependents)
        return self._run_task(connection, _respond_after(unloading, connection))


async def _respond_after(work: Coroutine[Any, Any, None], connection: HttpConnection) -> None:
    await work
    connection.respond(200)
