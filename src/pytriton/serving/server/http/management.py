# SPDX-License-Identifier: Apache-2.0
"""The HTTP endpoints beside inference: health, metadata, settings, models and shared memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from pytriton.base.errors import InvalidArgumentError, UnavailableError, error_for_clients
from pytriton.protocol.repository import (
    LoadOverrides,
    check_model_name,
    check_repository,
    read_index,
    read_unload,
)
from pytriton.protocol.settings import (
    encode_log_settings,
    encode_trace_settings,
    read_log_settings,
    read_trace_settings,
)
from pytriton.protocol.shared_memory import read_cuda_region, read_system_region
from pytriton.serving.server.access.decisions import UNLOADS_OTHERS, patterns_of, sees_all, visible
from pytriton.serving.server.api import documents
from pytriton.serving.server.api.local_client import LocalClient
from pytriton.serving.server.http.handler import HttpExchange
from pytriton.serving.server.http.infer import respond_server_error

if TYPE_CHECKING:
    from pytriton.base.background_tasks import BackgroundTasks
    from pytriton.serving.engine.client import Answer, EngineClient, IndexEntry
    from pytriton.serving.server.http.bodies import Bodies, Deferred
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.reader import HttpRequest
    from pytriton.serving.server.http.routes import Route
    from pytriton.serving.server.shared_memory.shared_memory import ClientSharedMemory

logger = logging.getLogger(__name__)

T = TypeVar("T")
_TEXT_TYPE = b"text/plain"
_BINARY_TYPE = b"application/octet-stream"


class ManagementEndpoints:
    """Answers now, or later if the core, a repository or all front ends have to be waited for."""

    def __init__(
        self,
        engine: EngineClient,
        server_id: str,
        bodies: Bodies,
        shared_memory: ClientSharedMemory,
        tasks: BackgroundTasks,
    ) -> None:
        self._engine = engine
        self._server_id = server_id
        self._bodies = bodies
        self._shared_memory = shared_memory
        self._tasks = tasks
        self._logged_problem = ""  # the last logged reason for not being ready

    def handlers(self) -> dict[str, Callable[..., HttpExchange | None]]:
        """Returns the methods that answer, by the names in the table of routes."""
        return {
            "live": self._live,
            "ready": self._ready,
            "server_metadata": self._server_metadata,
            "model_metadata": self._model_metadata,
            "model_ready": self._model_ready,
            "model_config": self._model_config,
            "model_statistics": self._model_statistics,
            "all_statistics": self._model_statistics,
            "logging": self._log_settings,
            "trace_setting": self._trace_settings,
            "recording": self._recording,
            "recording_fetch": self._fetch_recording,
            "recording_stop": self._stop_recording,
            "repository_index": self._index,
            "repository_load": self._load,
            "repository_unload": self._unload,
            "system_memory_status": self._region_status,
            "system_memory_register": self._register_region,
            "system_memory_unregister": self._unregister_region,
            "cuda_memory_status": self._cuda_status,
            "cuda_memory_register": self._register_cuda,
            "cuda_memory_unregister": self._unregister_cuda,
        }

    def run_task(self, connection: HttpConnection, work: Coroutine[Any, Any, None]) -> HttpExchange:
        """Start a coroutine that answers; it is not cancelled if the client disconnects."""
        self._tasks.start(answer_errors(connection, lambda: work))
        return HttpExchange()

    def respond_when_known(
        self, connection: HttpConnection, answer: Answer[T], respond: Callable[[T], None]
    ) -> HttpExchange | None:
        """Respond with the engine's answer, now or when it has come."""
        if not isinstance(answer, Coroutine):
            respond(answer)
            return None

        async def respond_later() -> None:
            respond(await answer)

        return self.run_task(connection, respond_later())

    def _refuse_when_exiting(self) -> None:
        if self._engine.is_exiting:
            raise UnavailableError("Server exiting")

    # Health

    def _live(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        self._refuse_when_exiting()
        connection.respond(200, (), _TEXT_TYPE)

    def _ready(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        self._refuse_when_exiting()
        respond = partial(self._respond_ready, connection, sees_all(request.head.grant))
        return self.respond_when_known(connection, self._engine.ask(LocalClient.problem), respond)

    def _respond_ready(self, connection: HttpConnection, is_told: bool, problem: str) -> None:
        """Respond with Triton's statuses; for 400, the body has the reason, which names models."""
        if problem and problem != self._logged_problem:
            logger.info("The server is not ready: %s", problem)
        self._logged_problem = problem
        if problem:
            reason = f": {problem}" if is_told else ""
            connection.respond_error(400, f"Server is not ready{reason}")
        else:
            connection.respond(200, (), _TEXT_TYPE)

    def _model_ready(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        def respond(is_ready: bool) -> None:
            if is_ready:
                connection.respond(200, (), _TEXT_TYPE)
            else:
                connection.respond_error(400, "Model version not ready")

        is_ready = self._engine.ask(
            LocalClient.is_model_ready, name=route.model, version=route.version
        )
        return self.respond_when_known(connection, is_ready, respond)

    # Documents

    def _server_metadata(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> None:
        connection.respond(200, (documents.server_metadata(self._server_id),))

    def _model_metadata(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> None:
        model = self._engine.lookup(route.model, route.version)
        versions = (
            [model.spec.version] if route.version else self._engine.ready_versions(route.model)
        )
        connection.respond(200, (documents.model_metadata(model.spec, versions),))

    def _model_config(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        model = self._engine.lookup(route.model, route.version)
        connection.respond(200, (model.config_json,))

    def _model_statistics(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        grant = request.head.grant

        def respond(models: list[dict[str, Any]]) -> None:
            seen = visible(grant, models, itemgetter("name"))
            connection.respond(200, (documents.model_statistics(seen),))

        statistics = self._engine.ask(
            LocalClient.statistics, name=route.model, version=route.version
        )
        return self.respond_when_known(connection, statistics, respond)

    # Settings: a POST changes them, and all are reported

    def _log_settings(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        def respond(settings: dict[str, Any]) -> None:
            connection.respond(200, (encode_log_settings(settings),))

        changes: dict[str, Any] = {}
        if request.head.method == b"POST":
            changes = dict(read_log_settings(self._bodies.settings(request)))
        settings = self._engine.ask(LocalClient.change_log_settings, changes=changes)
        return self.respond_when_known(connection, settings, respond)

    def _trace_settings(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        def respond(settings: dict[str, list[str]]) -> None:
            connection.respond(200, (encode_trace_settings(settings),))

        changes: dict[str, list[str]] = {}
        if request.head.method == b"POST":
            changes = read_trace_settings(self._bodies.settings(request))
        settings = self._engine.ask(
            LocalClient.change_trace_settings, model_name=route.model, changes=changes
        )
        return self.respond_when_known(connection, settings, respond)

    # Recordings of requests

    def _recording(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        action = "start" if request.head.method == b"POST" else "status"
        return self._record(connection, request, action)

    def _fetch_recording(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        return self._record(connection, request, "fetch")

    def _stop_recording(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        return self._record(connection, request, "stop")

    def _record(
        self, connection: HttpConnection, request: HttpRequest, action: str
    ) -> HttpExchange | None:
        def respond(answer: Any) -> None:
            if isinstance(answer, bytes):
                connection.respond(200, (answer,), _BINARY_TYPE)
            else:
                connection.respond(200, (orjson.dumps(answer),))

        answer = self._engine.ask(
            LocalClient.record, action=action, body=bytes(self._bodies.settings(request))
        )
        return self.respond_when_known(connection, answer, respond)

    # Model repository

    def _index(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        grant = request.head.grant

        def respond(entries: list[IndexEntry]) -> None:
            seen = visible(grant, entries, attrgetter("name"))
            connection.respond(200, (documents.repository_index(seen),))

        check_repository(route.repository)
        entries = self._engine.ask(
            LocalClient.index, ready=read_index(self._bodies.settings(request))
        )
        return self.respond_when_known(connection, entries, respond)

    def _load(self, connection: HttpConnection, request: HttpRequest, route: Route) -> HttpExchange:
        check_repository(route.repository)
        grant = request.head.grant
        patterns = patterns_of(None if grant is None else grant.principal)
        reading = self._bodies.load(request)
        if isinstance(reading, LoadOverrides):
            loading = self._begin_load(route.model, reading, patterns)
        else:
            loading = self._load_later(route.model, reading, patterns)
        return self.run_task(connection, _respond_after(loading, connection))

    def _begin_load(
        self, name: str, overrides: LoadOverrides, patterns: Sequence[str] | None
    ) -> Coroutine[Any, Any, None]:
        """Refuse an invalid name at once; the coroutine returns when the model is ready."""
        check_model_name(name, is_path=True)
        self._refuse_when_exiting()
        return self._engine.ask(
            LocalClient.load,
            name=name,
            config=overrides.config,
            files=overrides.files,
            patterns=patterns,
        )

    async def _load_later(
        self, name: str, read: Deferred[LoadOverrides], patterns: Sequence[str] | None
    ) -> None:
        await self._begin_load(name, await read(), patterns)

    def _unload(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange:
        check_repository(route.repository)
        unload_dependents = read_unload(self._bodies.settings(request))
        if unload_dependents and not sees_all(request.head.grant):
            raise InvalidArgumentError(UNLOADS_OTHERS)
        check_model_name(route.model, is_path=False)
        self._refuse_when_exiting()
        unloading = self._engine.ask(
            LocalClient.unload, name=route.model, unload_dependents=unload_dependents
        )
        return self.run_task(connection, _respond_after(unloading, connection))

    # Shared memory of clients: answered when all front ends know the change

    def _region_status(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> None:
        regions = [
            {
                "name": region.name,
                "key": region.key,
                "offset": region.offset,
                "byte_size": region.byte_size,
            }
            for region in self._shared_memory.status(route.region)
        ]
        connection.respond(200, (orjson.dumps(regions),))

    def _register_region(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        self._shared_memory.check_allowed()
        if not route.region:
            raise InvalidArgumentError(
                "'region name' is necessary to register system shared memory region"
            )
        region = read_system_region(self._bodies.settings(request))
        registered = self._shared_memory.register(route.region, *region)
        return self.respond_when_known(connection, registered, lambda _: connection.respond(200))

    def _unregister_region(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        self._shared_memory.check_allowed()
        removed = self._shared_memory.unregister(route.region)
        return self.respond_when_known(connection, removed, lambda _: connection.respond(200))

    def _cuda_status(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        regions = [
            {"name": region.name, "device_id": region.device, "byte_size": region.byte_size}
            for region in self._shared_memory.cuda_status(route.region)
        ]
        connection.respond(200, (orjson.dumps(regions),))

    def _register_cuda(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        self._shared_memory.check_allowed()
        if not route.region:  # only HTTP checks this, as in Triton
            raise InvalidArgumentError(
                "'region name' is necessary to register cuda shared memory region"
            )
        region = read_cuda_region(self._bodies.settings(request))
        registered = self._shared_memory.register_cuda(route.region, *region)
        return self.respond_when_known(connection, registered, lambda _: connection.respond(200))

    def _unregister_cuda(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        self._shared_memory.check_allowed()
        removed = self._shared_memory.unregister_cuda(route.region)
        return self.respond_when_known(connection, removed, lambda _: connection.respond(200))


async def _respond_after(work: Coroutine[Any, Any, None], connection: HttpConnection) -> None:
    await work
    connection.respond(200)


async def answer_errors(connection: HttpConnection, work: Deferred[None]) -> None:
    """Run work that answers a request; its exception is the answer if it raises."""
    try:
        await work()
    except Exception as error:  # noqa: BLE001  the client gets it
        failure = error_for_clients(error, "it served a request in the background")
        respond_server_error(connection, failure)
