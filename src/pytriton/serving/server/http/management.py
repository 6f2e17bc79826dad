# SPDX-License-Identifier: Apache-2.0
"""The HTTP endpoints that list, load and unload models."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import orjson

from pytriton.base.errors import InvalidArgumentError
from pytriton.protocol.repository import LoadOverrides, check_repository, read_index, read_unload
from pytriton.protocol.settings import (
    encode_log_settings,
    encode_trace_settings,
    read_log_settings,
    read_trace_settings,
)
from pytriton.protocol.shared_memory import check_cuda_region, read_system_region
from pytriton.serving.server.api import documents

if TYPE_CHECKING:
    from pytriton.serving.engine.client import Answer, EngineClient, IndexEntry
    from pytriton.serving.server.api.repository_service import RepositoryService
    from pytriton.serving.server.http.bodies import Bodies, Deferred
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.reader import HttpRequest
    from pytriton.serving.server.http.routes import Route
    from pytriton.serving.server.shared_memory.regions import Region
    from pytriton.serving.server.shared_memory.shared_memory import ClientSharedMemory

RunTask = Callable[["HttpConnection", Coroutine[Any, Any, None]], "HttpExchange"]
RespondWhenKnown = Callable[["HttpConnection", Any, Callable[[Any], None]], "HttpExchange | None"]


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


class SharedMemoryEndpoints:
    """Parses requests, and answers when all front ends know the change."""

    def __init__(
        self,
        shared_memory: ClientSharedMemory,
        bodies: Bodies,
        respond_when_known: RespondWhenKnown,
    ) -> None:
        self._shared_memory = shared_memory
        self._bodies = bodies
        self._respond_when_known = respond_when_known

    def handlers(self) -> dict[str, Callable[..., HttpExchange | None]]:
        """Returns the methods that answer, by the names in the table of routes."""
        return {
            "system_memory_status": self.status,
            "system_memory_register": self.register,
            "system_memory_unregister": self.unregister,
            "cuda_memory_status": self.cuda_status,
            "cuda_memory_register": self.cuda_register,
            "cuda_memory_unregister": self.cuda_unregister,
        }

    def status(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        """List one region or all."""
        regions = self._shared_memory.status(route.region)
        connection.respond(200, (orjson.dumps([_document(region) for region in regions]),))

    def register(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        self._shared_memory.check_allowed()
        if not route.region:
            raise InvalidArgumentError(
                "'region name' is necessary to register system shared memory region"
            )
        region = read_system_region(self._bodies.settings(request))
        registered = self._shared_memory.register(route.region, *region)
        return self._respond_after(connection, registered)

    def unregister(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        """Unregister a region, or all without a name."""
        self._shared_memory.check_allowed()
        return self._respond_after(connection, self._shared_memory.unregister(route.region))

    def cuda_status(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        """List no region: there are none of CUDA memory."""
        self._shared_memory.check_cuda_status(route.region)
        connection.respond(200, (b"[]",))

    def cuda_register(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        """Refuse to register a region of CUDA memory."""
        self._shared_memory.check_allowed()
        if not route.region:  # only HTTP checks this, as in Triton
            raise InvalidArgumentError(
                "'region name' is necessary to register cuda shared memory region"
            )
        check_cuda_region(self._bodies.settings(request))
        self._shared_memory.register_cuda(route.region)

    def cuda_unregister(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> None:
        """Do nothing: there are no regions of CUDA memory, and an unknown one is no error."""
        self._shared_memory.check_allowed()
        connection.respond(200)

    def _respond_after(self, connection: HttpConnection, work: Answer[None]) -> HttpExchange | None:
        return self._respond_when_known(connection, work, lambda _: connection.respond(200))


def _document(region: Region) -> dict[str, Any]:
    return {
        "name": region.name,
        "key": region.key,
        "offset": region.offset,
        "byte_size": region.byte_size,
    }
