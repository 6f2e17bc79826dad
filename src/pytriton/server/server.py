# SPDX-License-Identifier: Apache-2.0
"""The server: opens the ports, holds the engine, and ends in order."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import TYPE_CHECKING

from pytriton.engine.cache import ResponseCache
from pytriton.engine.engine import Engine
from pytriton.errors import UnavailableError
from pytriton.server.binding.bound_control import BoundControl
from pytriton.server.grpc.api import GrpcApi
from pytriton.server.grpc.tls import tls_context
from pytriton.server.http.api import HttpApi
from pytriton.server.metrics.api import MetricsApi
from pytriton.server.process.acceptor import Acceptor
from pytriton.server.tracing.settings import TraceSettings
from pytriton.server.tracing.tracing import Tracing

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

    from pytriton.engine.control import ModelControl
    from pytriton.engine.model import Model
    from pytriton.server.grpc.connection import GrpcConnection
    from pytriton.server.http.connection import HttpConnection
    from pytriton.server.metrics.exposition import Family
    from pytriton.server.options.server_options import Endpoint, ServerOptions

logger = logging.getLogger(__name__)

_BACKLOG = 4096
_FLUSH_S = 1.0  # for answers to reach their clients, even when all other time to exit is over
_EXPORT_S = 2.0  # for the last spans to be sent, if anybody takes them
_LEAST_EXPORT_S = 0.2  # the same when all time to exit is over


class Server:
    """One server process's front ends and models."""

    def __init__(
        self,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        engine: Engine | None = None,
        cache: ResponseCache | None = None,
        control: ModelControl | None = None,
        custom_metrics: Callable[[], Iterable[Family]] = tuple,
        tracing: Tracing | None = None,
    ) -> None:
        self.options = options
        self.engine = engine or Engine(strict_readiness=options.strict_readiness)
        self.cache = cache
        if cache is None and options.cache_bytes:
            self.cache = ResponseCache(options.cache_bytes)
        self._loop = loop
        control = control or BoundControl(self.engine, loop)
        traces = TraceSettings.read(options.trace_settings) if tracing is None else tracing.settings
        self._tracing = tracing or Tracing.start(traces)
        self._http = HttpApi(self.engine, options, loop, control, traces, self._tracing)
        self._grpc = GrpcApi(self.engine, options, loop, control, traces, self._tracing)
        self._metrics = MetricsApi(self.engine, options, loop, custom_metrics)
        self._acceptors: list[Acceptor] = []
        self.http_port = self.grpc_port = self.metrics_port = 0

    async def start(self) -> None:
        """Open the ports; UnavailableError says which one could not be had."""
        options = self.options
        for name, endpoint in (("SageMaker", options.sagemaker), ("Vertex AI", options.vertex_ai)):
            if endpoint.allow:
                logger.warning("%s requests are not served: this server has no such port", name)
        if options.grpc.allow:
            tls = tls_context(options.grpc_tls) if options.grpc_tls is not None else None
            self.grpc_port = self._listen(options.grpc, self._grpc.make_connection, "GRPC", tls)
        if options.http.allow:
            self.http_port = self._listen(options.http, self._http.make_connection, "HTTP")
        if options.metrics.allow:
            self.metrics_port = self._listen(
                options.metrics, self._metrics.make_connection, "Metrics"
            )

    @property
    def connection_counts(self) -> tuple[int, int]:
        """How many clients are connected over HTTP and over gRPC."""
        return len(self._http.connections), len(self._grpc.connections)

    async def stop(self, timeout_s: float) -> None:
        """Refuse new requests, let what runs finish, then end connections and models."""
        self.refuse_requests()
        end = self._loop.time() + timeout_s
        for model in await self.drain(timeout_s):
            model.stop()
        await self.end_connections(end - self._loop.time())

    async def drain(self, timeout_s: float) -> list[Model]:
        """Wait until no model has requests, at most for so long; the models."""
        models = [*self.engine.models(), *self.engine.leaving]
        await asyncio.gather(*(model.drain(timeout_s) for model in models))
        return models

    def refuse_requests(self) -> None:
        """Take no new connections and no new requests; what runs goes on."""
        self.engine.refuse()
        for acceptor in self._acceptors:
            acceptor.close()
        self._grpc.begin_shutdown()

    async def end_connections(self, timeout_s: float) -> None:
        """End all connections, each when its client has what it is due, and send the last spans."""
        connections: list[HttpConnection | GrpcConnection] = [
            *self._http.connections,
            *self._grpc.connections,
            *self._metrics.connections,
        ]
        end = self._loop.time() + timeout_s
        for acceptor in self._acceptors:
            acceptor.abandon()
        if connections:
            ending = [connection.end() for connection in connections]
            await asyncio.wait(ending, timeout=max(_FLUSH_S, timeout_s))
        self._http.tasks.cancel()
        self._grpc.tasks.cancel()
        if self._tracing is not None:
            left_s = end - self._loop.time()
            await self._tracing.close(min(_EXPORT_S, max(_LEAST_EXPORT_S, left_s)))

    def _listen(
        self,
        endpoint: Endpoint,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        name: str,
        tls: ssl.SSLContext | None = None,
    ) -> int:
        sock = _bind(endpoint, name)
        acceptor = Acceptor(self._loop, sock, make_protocol, tls)
        acceptor.start()
        self._acceptors.append(acceptor)
        port: int = sock.getsockname()[1]
        logger.debug("%s is served at %s:%d", name, endpoint.address, port)
        return port


def _bind(endpoint: Endpoint, name: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if endpoint.reuse_port:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((endpoint.address, endpoint.port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise UnavailableError(_bind_failure(endpoint, name, error)) from error
    return sock


def _bind_failure(endpoint: Endpoint, name: str, error: OSError) -> str:
    place = f"{endpoint.address}:{endpoint.port}"
    if error.errno == errno.EADDRINUSE:
        return f"failed to start {name} service: Unavailable - Socket '{place}' already in use "
    return f"failed to start {name} service: Unavailable - Socket '{place}': {error.strerror}"
