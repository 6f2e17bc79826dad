# SPDX-License-Identifier: Apache-2.0
"""The connections of clients in one process, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from pytriton.base.lazy_module import LazyModule
from pytriton.runtime.transport.frontend_frames import LimitUse
from pytriton.serving.server.access_log.setup import open_access_log
from pytriton.serving.server.api.origins import FOREIGN_PAGES
from pytriton.serving.server.api.request_memory import REQUEST_MEMORY, RequestMemory
from pytriton.serving.server.api.services import ClientService
from pytriton.serving.server.api.shortage import (
    UNREAD_ANSWERS,
    Shortage,
    UnreadAnswers,
    unread_limit,
)
from pytriton.serving.server.frontend.verbose_requests import VerboseRequests
from pytriton.serving.server.grpc.api import GrpcApi
from pytriton.serving.server.http.api import HttpApi
from pytriton.serving.server.landing.routes import LandingRoutes
from pytriton.serving.server.openai.routes import SEGMENTS, OpenAIRoutes
from pytriton.serving.server.process.clients import ClientOpener
from pytriton.serving.server.process.resources import client_limit, usable_memory
from pytriton.serving.server.process.tls import GRPC_PROTOCOLS, HTTP_PROTOCOLS
from pytriton.serving.server.shared_memory.shared_memory import ClientSharedMemory, LocalRegions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.access.control import AccessControl
    from pytriton.serving.server.api.pace import Holder
    from pytriton.serving.server.cloud import apis as cloud_apis
    from pytriton.serving.server.cloud.api import CloudApi
    from pytriton.serving.server.grpc.connection import GrpcConnection
    from pytriton.serving.server.http.http1_connection import Http1Connection
    from pytriton.serving.server.http.http2_connection import Http2ServerConnection
    from pytriton.serving.server.options.server_options import ServerOptions
    from pytriton.serving.server.process.clients import ConnectionSet
    from pytriton.serving.server.process.tls import TlsPorts
    from pytriton.serving.server.shared_memory.shared_memory import RegionControl
else:
    cloud_apis = LazyModule("pytriton.serving.server.cloud.apis")

_FLUSH_S = 1.0  # for responses to reach their clients, even if the exit timeout is over


class FrontEnd:
    """Serves accepted clients; it does not know whether the engine is in this process."""

    def __init__(
        self,
        engine: EngineClient,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        tls: TlsPorts,
        on_connections_changed: Callable[[], None] | None = None,
        *,
        regions: RegionControl | None = None,
        access: AccessControl | None = None,
    ) -> None:
        self._engine = engine
        self._options = options
        self._loop = loop
        self._tls = tls
        self._shared_memory = ClientSharedMemory(
            LocalRegions() if regions is None else regions,
            engine,
            loop,
            is_allowed=options.allow_client_shared_memory,
            process_count=options.frontend_processes,
        )
        # Of all protocols in this process; the budget is divided among processes.
        self.request_memory = RequestMemory(options.request_memory_share)
        self._http = HttpApi(
            engine,
            options,
            loop,
            shared_memory=self._shared_memory,
            request_memory=self.request_memory,
            access=access,
        )
        # Found only where no route of the KServe protocol fits.
        self._http.other_apis.update(dict.fromkeys(SEGMENTS, OpenAIRoutes(self._http, engine)))
        if options.landing_page != "none":
            self._http.resolve_unknown = LandingRoutes(self._http, engine, options).resolve
        self._grpc = GrpcApi(
            engine, options, loop, self._shared_memory, self.request_memory, access
        )
        self._access_log = open_access_log(options.access_log, loop, options.proxies)
        if self._access_log is not None:
            self._access_log.use_http(self._http)
            self._access_log.use_grpc(self._grpc)
            engine.observers.add("access log", self._access_log)
        self._verbose = VerboseRequests(engine, self._http, self._grpc)
        self._cloud: list[CloudApi] = []
        self._openers: list[ClientOpener] = []
        unread_bytes = unread_limit(usable_memory(), options.frontend_processes)
        self.unread = self._http.unread = self._grpc.unread = UnreadAnswers(loop, unread_bytes)
        memory = self.request_memory
        self._uploads_end = Shortage(
            loop, memory.missing_bytes, self._uploads, 2 * memory.limit_bytes
        )
        memory.on_refused = partial(loop.call_soon_threadsafe, self._uploads_end.begin)
        # Called with the service and the ticket of each client that has left and has a ticket.
        self.on_client_left: Callable[[ClientService, Any], None] | None = None
        self._on_connections_changed = on_connections_changed
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
        make_connection: Callable[[], asyncio.BaseProtocol]
        files, protocols = self._options.tls, HTTP_PROTOCOLS
        if service is ClientService.HTTP:
            connections: ConnectionSet[Any] = self._http.connections
            make_connection = self._http.make_connection
        elif service is ClientService.GRPC:
            files, protocols = self._options.grpc_tls, GRPC_PROTOCOLS
            connections = self._grpc.connections
            make_connection = self._grpc.make_connection
        else:
            api = self._cloud_api(service)
            connections = api.connections
            make_connection = api.make_connection
        tls = None if files is None else self._tls.port(files, protocols)
        opener = ClientOpener(self._loop, make_connection, tls)
        opener.on_changed = self._on_connections_changed
        if self.on_client_left is not None:
            opener.on_left = connections.on_left = partial(self.on_client_left, service)
        self._openers.append(opener)
        return opener

    def _cloud_api(self, service: ClientService) -> CloudApi:
        api = cloud_apis.make_cloud_api(service, self._http, self._engine, self._options)
        api.connections.on_changed = self._http.connections.on_changed
        if self._access_log is not None:
            self._access_log.use_http(api)
        self._cloud.append(api)
        return api

    def _connections(self) -> list[Http1Connection | Http2ServerConnection | GrpcConnection]:
        return [
            *self._http.connections,
            *(connection for api in self._cloud for connection in api.connections),
            *self._grpc.connections,
        ]

    def _uploads(self) -> Iterator[Holder]:
        """Returns the requests that are not complete and take memory."""
        for connection in self._connections():
            yield from connection.uploads()

    @property
    def connection_counts(self) -> tuple[int, int]:
        """The number of clients that are connected over HTTP and over gRPC."""
        cloud = sum(len(api.connections) for api in self._cloud)
        return len(self._http.connections) + cloud, len(self._grpc.connections)

    def limit_use(self) -> LimitUse:
        """Returns how near this process is to its limits."""
        refusals = Counter(self._grpc.work.refusals)
        for api in (self._http, *self._cloud):
            refusals.update(api.refusals)
            refusals[FOREIGN_PAGES] += api.origins.refused_count
        refusals[REQUEST_MEMORY] = self.request_memory.refused_count
        refusals[UNREAD_ANSWERS] = self.unread.ended_count
        calls = (connection.http2.open_streams for connection in self._grpc.connections)
        return LimitUse(
            self.request_memory.used_bytes,
            max(calls, default=0),
            dict(refusals),
            dict(self._tls.handshake_failures),
            self.unread.used_bytes,
            self.unread.limit_bytes,
        )

    @property
    def limit_uses(self) -> list[LimitUse]:
        """How near the processes with clients are to their limits."""
        return [self.limit_use()]

    @property
    def client_capacity(self) -> int:
        """How many clients the file descriptors suffice for."""
        return client_limit()

    def reload_certificates(self) -> None:
        """Read the files of encrypted ports again."""
        self._tls.reload()

    def let_clients_leave(self) -> None:
        """Serve on, but ask all clients to use other connections, which lead to other servers."""
        for api in (self._http, *self._cloud):
            api.let_clients_leave()
        self._grpc.begin_shutdown()

    def begin_shutdown(self) -> None:
        """Ask all clients of HTTP/2 to send no more requests and calls."""
        for api in (self._http, *self._cloud):
            api.begin_shutdown()
        self._grpc.begin_shutdown()

    async def end_connections(self, timeout_s: float) -> None:
        """Close all connections, each after its client has received its responses."""
        # Clients in the middle of a TLS handshake have no connection yet that could be ended.
        for opener in self._openers:
            opener.abandon()
        connections = self._connections()
        if connections:
            ending = [connection.end() for connection in connections]
            await asyncio.wait(ending, timeout=max(_FLUSH_S, timeout_s))
        self._http.close()
        self._grpc.close()
        self._shared_memory.close()
        if self._access_log is not None:
            self._access_log.log.close()
