# SPDX-License-Identifier: Apache-2.0
"""The connections of clients in one process, over HTTP and gRPC, and verbose lines about them."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from pytriton.base.lazy_module import LazyModule
from pytriton.base.request_ids import request_ids
from pytriton.serving.server.access_log.setup import open_access_log
from pytriton.serving.server.api.services import ClientService
from pytriton.serving.server.grpc.api import GrpcApi, tls_context
from pytriton.serving.server.http.api import HttpApi
from pytriton.serving.server.openai.routes import SEGMENT, OpenAIRoutes
from pytriton.serving.server.process.clients import ClientOpener
from pytriton.serving.server.shared_memory.shared_memory import ClientSharedMemory, LocalRegions

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import ExecutionTrace, InferRequest, InferResponse, ResponseSink
    from pytriton.protocol.grpc import CallHead
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.grpc.call import GrpcCall
    from pytriton.serving.server.grpc.connection import GrpcConnection
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.reader import HttpRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.cloud import apis as cloud_apis
    from pytriton.serving.server.cloud.api import CloudApi
    from pytriton.serving.server.grpc.connection import GrpcConnection
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.options.server_options import ServerOptions
    from pytriton.serving.server.shared_memory.shared_memory import RegionControl
    from pytriton.serving.server.tracing.tracing import TraceBeginner
else:
    cloud_apis = LazyModule("pytriton.serving.server.cloud.apis")

logger = logging.getLogger(__name__)

_monotonic_ns = time.monotonic_ns

_TENSORS_LEVEL = 2

_FLUSH_S = 1.0  # for responses to reach their clients, even if the exit timeout is over


class FrontEnd:
    """Serves accepted clients; it does not know whether the engine is in this process."""

    def __init__(
        self,
        engine: EngineClient,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        tracing: TraceBeginner | None,
        on_connections_changed: Callable[[], None] | None = None,
        *,
        regions: RegionControl | None = None,
    ) -> None:
        self._engine = engine
        self._options = options
        self._loop = loop
        self._shared_memory = ClientSharedMemory(
            LocalRegions() if regions is None else regions,
            engine,
            loop,
            is_allowed=options.allow_client_shared_memory,
            process_count=options.frontend_processes,
        )
        self._http = HttpApi(engine, options, loop, tracing, shared_memory=self._shared_memory)
        # Found only where no route of the KServe protocol fits.
        self._http.other_apis[SEGMENT] = OpenAIRoutes(self._http, engine).resolve
        self._grpc = GrpcApi(engine, options, loop, tracing, self._shared_memory)
        self._access_log = open_access_log(options.access_log, loop)
        if self._access_log is not None:
            self._access_log.use_http(self._http)
            self._access_log.use_grpc(self._grpc)
            self._access_log.use_engine(engine)
        # After the access log, which replaces classes; this replaces methods of objects.
        self._verbose = VerboseRequests(engine, self._http, self._grpc)
        self._cloud: list[CloudApi] = []
        self._openers: list[ClientOpener] = []
        self._on_connections_changed = on_connections_changed
        if on_connections_changed is not None:
            self._http.connections.on_changed = on_connections_changed
            self._grpc.connections.on_changed = on_connections_changed

    def set_options(self, options: ServerOptions) -> None:
        """Use other settings for the services whose clients are not taken yet."""
        self._options = options

    def set_verbose(self, level: int) -> None:
        """Log what clients ask for; 0: log nothing about it."""
        self._verbose.set_level(level)

    async def start(self) -> None:
        """Do nothing: everything is in this process."""

    def taker(self, service: ClientService) -> ClientOpener:
        """Returns the object that takes the accepted clients of a service.

        Raises:
            ServerError: The files for TLS cannot be used.
        """
        if service is ClientService.HTTP:
            opener = ClientOpener(self._loop, self._http.make_connection)
        elif service is ClientService.GRPC:
            files = self._options.grpc_tls
            tls = tls_context(files) if files is not None else None
            opener = ClientOpener(self._loop, self._grpc.make_connection, tls)
        else:
            opener = ClientOpener(self._loop, self._cloud_api(service).make_connection)
        opener.on_changed = self._on_connections_changed
        self._openers.append(opener)
        return opener

    def _cloud_api(self, service: ClientService) -> CloudApi:
        api = cloud_apis.make_cloud_api(service, self._http, self._engine, self._options)
        api.connections.on_changed = self._http.connections.on_changed
        if self._access_log is not None:
            self._access_log.use_http(api)
        self._cloud.append(api)
        return api

    @property
    def connection_counts(self) -> tuple[int, int]:
        """The number of clients that are connected over HTTP and over gRPC."""
        cloud = sum(len(api.connections) for api in self._cloud)
        return len(self._http.connections) + cloud, len(self._grpc.connections)

    def let_clients_leave(self) -> None:
        """Serve on, but ask all clients to use other connections, which lead to other servers."""
        for api in (self._http, *self._cloud):
            api.let_clients_leave()
        self._grpc.begin_shutdown()

    def begin_shutdown(self) -> None:
        """Ask all gRPC clients to open no more calls."""
        self._grpc.begin_shutdown()

    async def end_connections(self, timeout_s: float) -> None:
        """Close all connections, each after its client has received its responses."""
        # Clients in the middle of a TLS handshake have no connection yet that could be ended.
        for opener in self._openers:
            opener.abandon()
        connections: list[HttpConnection | GrpcConnection] = [
            *self._http.connections,
            *(connection for api in self._cloud for connection in api.connections),
            *self._grpc.connections,
        ]
        if connections:
            ending = [connection.end() for connection in connections]
            await asyncio.wait(ending, timeout=max(_FLUSH_S, timeout_s))
        self._http.close()
        self._grpc.close()
        self._shared_memory.close()
        if self._access_log is not None:
            self._access_log.log.close()


class VerboseRequests:
    """Replaces methods that every request calls while the level is above 0.

    Attributes of the objects hide these methods, so a request costs nothing more while the level
    is 0; tests in all of them would be 1 % of the work for a small request. No request travels as a
    column meanwhile.
    """

    def __init__(self, engine: EngineClient, http: HttpApi, grpc: GrpcApi) -> None:
        self._level = 0
        self._infer = engine.infer
        self._handle = http.handle
        self._open_call = grpc.open_call
        self._replaced: list[tuple[object, str, Callable[..., Any], Callable[..., Any]]] = [
            (engine, "infer", self._infer, self._log_infer),
            (http, "handle", self._handle, self._log_handle),
            (grpc, "open_call", self._open_call, self._log_open_call),
        ]
        for table in grpc.column_tables:
            self._replaced.append((table, "take", table.take, _take_nothing))

    def set_level(self, level: int) -> None:
        """Begin or end to log requests, or change how much is logged of them."""
        was_on, self._level = self._level > 0, level
        if was_on == (level > 0):
            return
        for owner, name, method, logged in self._replaced:
            # The original method is set again, not deleted: `LocalClient` has some as attributes.
            vars(owner)[name] = logged if level else method

    def _log_infer(
        self,
        request: InferRequest,
        sink: ResponseSink,
        trace: ExecutionTrace | None = None,
        fitting: ServedModel | None = None,
    ) -> Inference:
        if self._level >= _TENSORS_LEVEL:
            log_tensors(request)
        return self._infer(request, LoggedRequest(request, sink), trace, fitting)

    def _log_handle(self, connection: HttpConnection, request: HttpRequest) -> HttpExchange | None:
        head = request.head
        logger.debug(
            "HTTP request: %s %s", head.method.decode("latin-1"), head.target.decode("latin-1")
        )
        if head.resolved is not None:
            # What was learned for this head is learned again when the log is quiet.
            head.resolved.forms = None
        return self._handle(connection, request)

    def _log_open_call(
        self, connection: GrpcConnection, stream_id: int, head: CallHead
    ) -> GrpcCall | None:
        logger.debug("gRPC call: %s", head.path)
        return self._open_call(connection, stream_id, head)


def _take_nothing(*_: Any) -> None:
    """Let no request travel as a column."""


class LoggedRequest:
    """A sink that passes everything on, and logs the end."""

    __slots__ = ("_begun_ns", "_request", "_response_count", "_sink")

    def __init__(self, request: InferRequest, sink: ResponseSink) -> None:
        self._request = request
        self._sink = sink
        self._response_count = 0
        self._begun_ns = _monotonic_ns()

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        self._sink.on_response(response, final=final)
        self._response_count += response is not None
        if final:
            self._log_end(f"was answered with {self._response_count} response(s)")

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        self._sink.on_error(error, final=final)
        if final:
            self._log_end(f"failed: {error.message}" if error.message else "was cancelled")

    def on_refused(self, error: ServerError) -> None:
        self._sink.on_refused(error)
        self._log_end(f"was refused: {error.message}")

    def _log_end(self, how: str) -> None:
        took_us = (_monotonic_ns() - self._begun_ns) // 1000
        name = self._request.model_name
        _log(self._request, "request for model '%s' took %d us and %s", name, took_us, how)


def log_tensors(request: InferRequest) -> None:
    """Log what a request brings and asks for."""
    inputs = ", ".join(
        f"{tensor.name} {tensor.dtype.name} {list(tensor.shape)}"
        for tensor in request.inputs.values()
    )
    outputs = "all outputs" if request.outputs is None else ", ".join(request.outputs)
    _log(request, "request for model '%s' with %s, for %s", request.model_name, inputs, outputs)


def _log(request: InferRequest, text: str, *arguments: object) -> None:
    with request_ids({0: request.id} if request.id else {}):
        logger.debug(text, *arguments)
