# SPDX-License-Identifier: Apache-2.0
"""The server: opens the ports of a core, and closes their connections in order."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import TYPE_CHECKING

from pytriton.errors import UnavailableError
from pytriton.server.api.authorization import Authorization, Protocol
from pytriton.server.grpc.api import GrpcApi
from pytriton.server.grpc.tls import tls_context
from pytriton.server.http.api import HttpApi
from pytriton.server.metrics.api import MetricsApi
from pytriton.server.process.acceptor import Acceptor
from pytriton.transport.control import Started

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from pytriton.server.core import Core
    from pytriton.server.grpc.connection import GrpcConnection
    from pytriton.server.http.connection import HttpConnection
    from pytriton.server.options.server_options import Endpoint, ServerOptions

logger = logging.getLogger(__name__)

_BACKLOG = 4096
_FLUSH_S = 1.0  # for responses to reach their clients, even if the exit timeout is over


class Server:
    """The ports of one server process. Its models belong to the core."""

    def __init__(self, core: Core, options: ServerOptions, loop: asyncio.AbstractEventLoop) -> None:
        self.core = core
        self.options = options
        self._loop = loop
        shared = (core.engine, options, loop, core.control, core.trace_settings, core.tracing)
        self._http = HttpApi(*shared)
        self._grpc = GrpcApi(*shared)
        self._metrics = MetricsApi(core.engine, options, loop, core.custom_metrics)
        self._acceptors: list[Acceptor] = []
        self.http_port = self.grpc_port = self.metrics_port = 0

    async def start(self) -> None:
        """Open the ports; raises UnavailableError with the port that could not be opened."""
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
        """The number of clients that are connected over HTTP and over gRPC."""
        return len(self._http.connections), len(self._grpc.connections)

    @property
    def ports(self) -> Started:
        """The ports for clients; 0: the protocol is not served."""
        return Started(self.http_port, self.grpc_port, self.metrics_port)

    def refuse_requests(self) -> None:
        """Refuse new connections and new requests; running requests continue."""
        self.core.engine.refuse()
        for acceptor in self._acceptors:
            acceptor.close()
        self._grpc.begin_shutdown()

    async def end_connections(self, timeout_s: float) -> None:
        """Close all connections, each after its client has received its responses."""
        connections: list[HttpConnection | GrpcConnection] = [
            *self._http.connections,
            *self._grpc.connections,
            *self._metrics.connections,
        ]
        for acceptor in self._acceptors:
            acceptor.abandon()
        if connections:
            ending = [connection.end() for connection in connections]
            await asyncio.wait(ending, timeout=max(_FLUSH_S, timeout_s))
        self._http.close()
        self._grpc.close()

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


def authorizations(options: ServerOptions) -> dict[Protocol, Authorization]:
    """Returns the restrictions of each protocol, which also apply to processes that bind models."""
    return {
        Protocol.HTTP: Authorization(options.http_restricted, Protocol.HTTP),
        Protocol.GRPC: Authorization(options.grpc_restricted, Protocol.GRPC),
    }


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
