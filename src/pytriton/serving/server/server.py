# SPDX-License-Identifier: Apache-2.0
"""The server: opens the ports of a core, and closes their connections in order."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import socket
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from pytriton.base.errors import UnavailableError
from pytriton.base.lazy_module import LazyModule
from pytriton.base.security import random_token
from pytriton.protocol.http2 import Http2Limits, frames
from pytriton.runtime.transport.control import ServerAccess, Started
from pytriton.serving.server.access_log.setup import check_destination
from pytriton.serving.server.api.authorization import (
    Authorization,
    RestrictedProtocol,
    required_headers,
)
from pytriton.serving.server.api.local_client import MAX_LOADS, LocalClient
from pytriton.serving.server.api.origins import FOREIGN_PAGES
from pytriton.serving.server.api.request_memory import REQUEST_MEMORY, RequestMemory
from pytriton.serving.server.api.services import ClientService
from pytriton.serving.server.api.shortage import UNREAD_ANSWERS
from pytriton.serving.server.frontend.front_end import FrontEnd
from pytriton.serving.server.http.connection import plain_refusal
from pytriton.serving.server.http.http1_connection import encode_refusal
from pytriton.serving.server.metrics.api import MAX_SCRAPES, MetricsApi
from pytriton.serving.server.page.history import Sampler
from pytriton.serving.server.page.routes import owns
from pytriton.serving.server.process.clients import Acceptor, AddressLimit, ClientOpener
from pytriton.serving.server.process.event_loop import ProcessorClock
from pytriton.serving.server.process.resources import descriptors_in_use, usable_memory
from pytriton.serving.server.process.tls import GRPC_PROTOCOLS, HTTP_PROTOCOLS, TlsPorts
from pytriton.serving.server.recording.setup import RequestCopies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytriton.runtime.executor.python_process import StartedZygote
    from pytriton.serving.server.access import failure_feed, in_force
    from pytriton.serving.server.access.decisions import Client
    from pytriton.serving.server.access.failure_feed import FailureFeed
    from pytriton.serving.server.access.in_force import PolicyInForce
    from pytriton.serving.server.cloud import vertex_ai
    from pytriton.serving.server.core import Core
    from pytriton.serving.server.frontend import pool as front_end_pool
    from pytriton.serving.server.frontend import process as front_end_zygote
    from pytriton.serving.server.frontend.pool import FrontEndPool
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.request import HttpRequest, RequestHead
    from pytriton.serving.server.metrics import machine as machine_metrics
    from pytriton.serving.server.metrics.exposition import SampleFamily
    from pytriton.serving.server.metrics.machine import LimitReading
    from pytriton.serving.server.options.endpoints import EndpointOptions
    from pytriton.serving.server.options.server_options import ServerOptions
    from pytriton.serving.server.page import api as page_api
    from pytriton.serving.server.page.api import PageApi
    from pytriton.serving.server.process.clients import ClientTaker
else:
    failure_feed = LazyModule("pytriton.serving.server.access.failure_feed")
    in_force = LazyModule("pytriton.serving.server.access.in_force")
    page_api = LazyModule("pytriton.serving.server.page.api")
    machine_metrics = LazyModule("pytriton.serving.server.metrics.machine")
    vertex_ai = LazyModule("pytriton.serving.server.cloud.vertex_ai")
    front_end_pool = LazyModule("pytriton.serving.server.frontend.pool")
    front_end_zygote = LazyModule("pytriton.serving.server.frontend.process")

logger = logging.getLogger(__name__)

_BACKLOG = 4096
# As Triton calls its services in the log.
_NAMES = {
    ClientService.GRPC: "GRPC",
    ClientService.HTTP: "HTTP",
    ClientService.SAGEMAKER: "Sagemaker",
    ClientService.VERTEX_AI: "Vertex AI",
}
# Limits of single requests and clients, whose use nobody sums up.
_REFUSING_LIMITS = (
    *("http_body_bytes", "http_header_bytes", "http_request_time", FOREIGN_PAGES),
    *("grpc_message_bytes", "grpc_request_time", "grpc_connection"),
)
_FLUSH_S = 1.0  # for the last metrics to reach their readers


class LazyPage:
    """Makes the page for the first request to it.

    Its code is imported then: it takes 13 ms, and nobody looks at the page of most servers.
    """

    def __init__(self, make: Callable[[], PageApi]) -> None:
        self._make = make
        self._page: PageApi | None = None

    def owns(self, path: bytes) -> bool:
        """Returns whether the page answers requests for a path."""
        return owns(path)

    def handle(self, connection: HttpConnection, request: HttpRequest) -> HttpExchange | None:
        """Answer a request now, or return the exchange that will answer it."""
        return self._opened().handle(connection, request)

    def route_refusal(self, head: RequestHead, client: Client) -> tuple[int, str] | None:
        """Returns why a request may have no large body; None if it may."""
        return self._opened().route_refusal(head, client)

    def _opened(self) -> PageApi:
        if self._page is None:
            self._page = self._make()
        return self._page

    def close(self) -> None:
        """Cancel what is running when the server stops."""
        if self._page is not None:
            self._page.close()


class NetworkServer:
    """The ports of one server process. Its models belong to the core."""

    def __init__(
        self,
        core: Core,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        zygote: StartedZygote | None = None,
    ) -> None:
        self.core = core
        self.options = options = _with_request_memory(_with_own_key(_with_page_token(options)))
        self._access: PolicyInForce | None = None
        if options.access.config is not None:
            self._access = in_force.PolicyInForce(
                options.access.config, options.access.own_key, options.proxies
            )
            core.engine.set_quotas(self._access.policy.quotas)
            self._access.add(lambda policy: core.engine.set_quotas(policy.quotas))
        access = None if self._access is None else self._access.control
        self._loop = loop
        self._tls = TlsPorts(loop)
        client = LocalClient(
            core.engine,
            core.control,
            core.trace_settings,
            strict_readiness=options.strict_readiness,
            change_log_settings=core.log.change,
        )
        client.look_again = core.look_again
        self._client = client
        self._request_memory = RequestMemory(options.request_memory_share)  # of this process
        self._failure_feed: FailureFeed | None = None  # of several processes
        self._front_end = self._make_front_end(client, zygote)
        self._metrics = MetricsApi(
            core.engine,
            options,
            loop,
            core.custom_metrics,
            core.cluster_status,
            self._server_families,
            self._request_memory,
            access,
        )
        core.engine.costs.clock = ProcessorClock(self._front_end_pids).read
        self._copies = RequestCopies(core.engine.observers, options, loop)
        client.let_answer(LocalClient.record, self._copies.record)
        client.let_answer(LocalClient.metrics_page, self._metrics.page)
        self._metrics.on_gpus_found = self._show_gpu_memory
        client.registrations = core.registrations
        client.let_answer(LocalClient.ports, lambda: self.ports)
        self._page = LazyPage(functools.partial(self._make_page, client, time.time()))
        self._sampler = Sampler(
            core.engine.models, lambda: core.engine.failures.unknown_refusals, loop
        )
        if options.has_page:
            self._metrics.other_paths = self._page
        self._acceptors: list[Acceptor] = []
        self._addresses: dict[ClientService, AddressLimit] = {}
        self._front_end.on_client_left = self._on_client_left
        self._ports: dict[ClientService, int] = {}
        self.metrics_port = 0

    def _make_front_end(
        self, client: LocalClient, zygote: StartedZygote | None
    ) -> FrontEnd | FrontEndPool:
        """Returns what serves clients: this process, or others."""
        core, options, loop, access = self.core, self.options, self._loop, self._access
        if not options.frontend_processes:
            control = None if access is None else access.control
            front_end = FrontEnd(client, options, loop, self._tls, access=control)
            self._request_memory = front_end.request_memory
            front_end.set_verbose(core.log.feed.switches.verbose)
            core.log.feed.add(lambda switches: front_end.set_verbose(switches.verbose))
            return front_end
        pool = front_end_pool.FrontEndPool(
            core.engine,
            client,
            core.tracing,
            options,
            loop,
            zygote,
            core.log.feed,
            b"" if access is None else access.packed,
        )
        if access is not None:
            pool.on_access_refusals = access.count_elsewhere
            pool.on_credential_failures = access.control.count_failures
            pool.credential_failures = lambda: access.control.failure_counts
            # Those of metrics and the page, whose clients come to this process.
            self._failure_feed = failure_feed.FailureFeed(loop, access.control, pool.share_failures)
            pool.on_keys_withdrawn = access.control.fetch_keys
            access.control.on_withdrawn = pool.share_withdrawal
            access.add(lambda policy: pool.set_policy(msgspec.msgpack.encode(policy)))
        return pool

    def _front_end_pids(self) -> Sequence[int]:
        return () if isinstance(self._front_end, FrontEnd) else self._front_end.pids

    async def start(self) -> None:
        """Open the ports; raises UnavailableError with the port that could not be opened."""
        options = self.options
        if options.vertex_ai.allow:
            vertex_ai_options = vertex_ai.check_vertex_ai(
                options.vertex_ai_options,
                None if self.core.awaits_bound_models else self.core.engine.ready_models(),
            )
            options = msgspec.structs.replace(options, vertex_ai_options=vertex_ai_options)
            self._front_end.set_options(options)
        try:
            check_destination(options.access_log)
        except OSError as error:
            raise UnavailableError(f"failed to open the access log: {error}") from error
        self._read_certificates(options)
        if self._access is not None:
            self._access.start(self._loop)
        self._copies.start()
        await self._front_end.start()
        for service, endpoint in options.services().items():
            if endpoint.allow:
                taker = self._front_end.taker(service)
                self._addresses[service] = addresses = self._address_limit()
                self._ports[service] = self._listen(
                    endpoint,
                    taker,
                    _NAMES[service],
                    addresses,
                    refusal=self._connection_refusal(service),
                )
        if options.metrics.allow:
            tls = None if options.tls is None else self._tls.port(options.tls, HTTP_PROTOCOLS)
            opener = ClientOpener(self._loop, self._metrics.make_connection, tls)
            addresses = self._address_limit()
            opener.on_left = self._metrics.connections.on_left = addresses.leave
            self.metrics_port = self._listen(
                options.metrics,
                opener,
                "Metrics",
                addresses,
                refusal=self._connection_refusal(None),
                is_essential=True,
            )
            self._metrics.start()
        if options.has_page:
            self._sampler.start()

    @property
    def connection_counts(self) -> tuple[int, int]:
        """The number of clients that are connected over HTTP and over gRPC."""
        return self._front_end.connection_counts

    @property
    def http_port(self) -> int:
        """The port of HTTP; 0: it is not served."""
        return self._ports.get(ClientService.HTTP, 0)

    @property
    def grpc_port(self) -> int:
        """The port of gRPC; 0: it is not served."""
        return self._ports.get(ClientService.GRPC, 0)

    @property
    def cloud_ports(self) -> tuple[int, int]:
        """The ports of SageMaker and Vertex AI; 0: it is not served."""
        return self._ports.get(ClientService.SAGEMAKER, 0), self._ports.get(
            ClientService.VERTEX_AI, 0
        )

    @property
    def ports(self) -> Started:
        """The ports for clients; 0: the protocol is not served."""
        return Started(
            self.http_port, self.grpc_port, self.metrics_port, uses_tls=self.options.uses_tls
        )

    @property
    def access(self) -> ServerAccess:
        """What opens this server, for processes of the same user."""
        options, own_key = self.options, self.options.access.own_key
        return ServerAccess(
            (self.http_port, self.grpc_port, self.metrics_port),
            (options.http.address, options.grpc.address, options.metrics.address),
            required_headers(options.http_restricted, RestrictedProtocol.HTTP, own_key),
            required_headers(options.grpc_restricted, RestrictedProtocol.GRPC, own_key),
            options.page.token if options.has_page else "",
            options.uses_tls,
            options.hide_exceptions,
        )

    def _read_certificates(self, options: ServerOptions) -> None:
        """Read the files of all encrypted ports, before front ends do so as well.

        This process then watches the files, and tells about them.
        """
        if options.tls is not None:
            self._tls.port(options.tls, HTTP_PROTOCOLS)
        if options.grpc.allow and options.grpc_tls is not None:
            self._tls.port(options.grpc_tls, GRPC_PROTOCOLS)

    def reload_certificates(self) -> None:
        """Read the files of encrypted ports again, for handshakes from now on."""
        self._tls.reload()
        if self.options.frontend_processes:
            self._front_end.reload_certificates()

    def let_clients_leave(self) -> None:
        """Serve on, but ask all clients to use other connections, which lead to other servers."""
        self._front_end.let_clients_leave()

    def refuse_requests(self) -> None:
        """Refuse new connections and new requests; running requests continue."""
        self.core.engine.refuse()
        for acceptor in self._acceptors:
            acceptor.close()
        self._front_end.begin_shutdown()

    async def end_connections(self, timeout_s: float) -> None:
        """Close all connections, each after its client has received its responses."""
        for acceptor in self._acceptors:
            acceptor.close()
        self._copies.close()
        if self._access is not None:
            self._access.stop()
        if self._failure_feed is not None:
            self._failure_feed.stop()
        await self._front_end.end_connections(timeout_s)
        self._metrics.stop()
        scrapes = [connection.end() for connection in list(self._metrics.connections)]
        if scrapes:
            await asyncio.wait(scrapes, timeout=_FLUSH_S)
        self._sampler.stop()
        self._page.close()
        self._tls.close()

    def _server_families(self) -> Iterator[SampleFamily]:
        yield from self._copies.families()
        if self._access is not None:
            watch = self._access.watch
            yield from machine_metrics.access_families(
                self._access.refusals, watch.failure_count, is_broken=bool(watch.failure)
            )
        pauses = sum(acceptor.pause_count for acceptor in self._acceptors)
        is_paused = any(acceptor.is_paused for acceptor in self._acceptors)
        yield from machine_metrics.accepting_families(pauses, is_paused=is_paused)
        yield from machine_metrics.limit_families(self._limit_readings())
        if self._tls.files:
            yield from machine_metrics.certificate_families(
                self._tls.reload_count,
                self._tls.failure_count,
                {files.options.server_cert: files.expiry_s for files in self._tls.files},
                self._handshake_failures(),
            )

    def _handshake_failures(self) -> Counter[str]:
        """Returns how many handshakes failed in all processes, by reason."""
        failures = self._tls.handshake_failures.copy()
        if self.options.frontend_processes:  # otherwise the front end has counted there as well
            for use in self._front_end.limit_uses:
                failures.update(use.handshake_failures)
        return failures

    def _limit_readings(self) -> Iterator[LimitReading]:
        reading = machine_metrics.LimitReading
        options, uses = self.options, self._front_end.limit_uses
        refusals = Counter(self._metrics.refusals)
        refusals[FOREIGN_PAGES] += self._metrics.origins.refused_count
        for use in uses:
            refusals.update(use.refusals)
        memory_bytes = sum(use.request_memory_bytes for use in uses)
        if options.frontend_processes:  # otherwise it is that of the front end
            memory_bytes += self._request_memory.used_bytes
            refusals[REQUEST_MEMORY] += self._request_memory.refused_count
        most_bytes = options.limits.max_request_memory_bytes or None
        yield reading(REQUEST_MEMORY, memory_bytes, most_bytes, refusals.pop(REQUEST_MEMORY, 0))
        unread = sum(use.unread_bytes for use in uses), sum(use.most_unread_bytes for use in uses)
        yield reading(UNREAD_ANSWERS, *unread, refusals.pop(UNREAD_ANSWERS, 0))
        clients, capacity = sum(self.connection_counts), self._front_end.client_capacity
        yield reading("connections", clients, None if capacity == sys.maxsize else capacity)
        if self._acceptors:
            used, most = descriptors_in_use(self._acceptors[0].descriptor)
            yield reading("descriptors", used, most)
        addresses = [acceptor.addresses for acceptor in self._acceptors]
        most_clients = max((each.most for each in addresses), default=0)
        refused = sum(each.refused_count for each in addresses)
        limit = options.limits.max_connections_per_address
        if limit:
            yield reading("connections_per_address", most_clients, limit, refused)
        client, metrics = self._client, self._metrics
        yield reading("loads", client.loading_count, MAX_LOADS, client.refused_loads)
        yield reading("scrapes", metrics.scrape_count, MAX_SCRAPES, metrics.refused_scrapes)
        calls = max((use.grpc_calls for use in uses), default=0)
        yield reading("grpc_calls_per_connection", calls, Http2Limits().max_concurrent_streams)
        for name in _REFUSING_LIMITS:
            yield reading(name, refusals=refusals[name])

    def _show_gpu_memory(self) -> None:
        self._client.gpu_memory = self._metrics.gpu_memory

    def _make_page(self, client: LocalClient, started_s: float) -> PageApi:
        return page_api.PageApi(
            self.core.engine,
            self.core.control,
            client,
            self.options,
            self._loop,
            self._metrics.machine,
            self.core.cluster_status,
            self._sampler.history,
            self.ports,
            started_s,
            None if self._access is None else self._access.control,
        )

    def _address_limit(self) -> AddressLimit:
        return AddressLimit(self.options.limits.max_connections_per_address)

    def _on_client_left(self, service: ClientService, ticket: object) -> None:
        self._addresses[service].leave(ticket)

    def _connection_refusal(self, service: ClientService | None) -> bytes:
        """Returns what a client gets whose address has too many connections; None: of metrics."""
        limit = self.options.limits.max_connections_per_address
        text = f"expected at most {limit} connections from one address, got more"
        is_grpc = service is ClientService.GRPC
        tls = self.options.grpc_tls if is_grpc else self.options.tls
        if tls is not None:  # it would be no TLS
            return b""
        if not is_grpc:
            return encode_refusal(plain_refusal(503, text))
        goaway = frames.goaway(0, frames.Http2ErrorCode.ENHANCE_YOUR_CALM, text.encode())
        return frames.frame(frames.SETTINGS, 0, 0, b"") + goaway

    def _listen(
        self,
        endpoint: EndpointOptions,
        clients: ClientTaker,
        name: str,
        addresses: AddressLimit,
        *,
        refusal: bytes,
        is_essential: bool = False,
    ) -> int:
        sock = _bind(endpoint, name)
        acceptor = Acceptor(
            self._loop,
            sock,
            clients,
            is_essential=is_essential,
            addresses=addresses,
            refusal=refusal,
        )
        acceptor.start()
        self._acceptors.append(acceptor)
        port: int = sock.getsockname()[1]
        logger.debug("%s is served at %s:%d", name, endpoint.address, port)
        return port


def prepare_front_ends(options: ServerOptions) -> StartedZygote | None:
    """Fork the process that forks front ends, if there will be any.

    This has to be before there is an event loop or a thread, as a fork should not copy them.
    """
    return front_end_zygote.fork_front_end_zygote() if options.frontend_processes else None


def authorizations(options: ServerOptions) -> dict[RestrictedProtocol, Authorization]:
    """Returns the restrictions of each protocol, which also apply to processes that bind models."""
    return {
        RestrictedProtocol.HTTP: Authorization(options.http_restricted, RestrictedProtocol.HTTP),
        RestrictedProtocol.GRPC: Authorization(options.grpc_restricted, RestrictedProtocol.GRPC),
    }


def _with_page_token(options: ServerOptions) -> ServerOptions:
    """Returns options with a random token where there is none: the user of the server can ask it.

    See `BinderPort`.
    """
    if options.page.token or not options.has_page:
        return options
    page = msgspec.structs.replace(options.page, token=random_token())
    return msgspec.structs.replace(options, page=page)


def _with_request_memory(options: ServerOptions) -> ServerOptions:
    """Returns options with the bytes for request bodies, by default half of the memory."""
    if options.limits.max_request_memory_bytes is not None:
        return options
    limits = msgspec.structs.replace(options.limits, max_request_memory_bytes=usable_memory() // 2)
    return msgspec.structs.replace(options, limits=limits)


def _with_own_key(options: ServerOptions) -> ServerOptions:
    """Returns options with a random key for processes of the same user, if there is a policy."""
    if options.access.config is None:
        return options
    access = msgspec.structs.replace(options.access, own_key=random_token())
    return msgspec.structs.replace(options, access=access)


def _bind(endpoint: EndpointOptions, name: str) -> socket.socket:
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


def _bind_failure(endpoint: EndpointOptions, name: str, error: OSError) -> str:
    place = f"{endpoint.address}:{endpoint.port}"
    if error.errno == errno.EADDRINUSE:
        return f"failed to start {name} service: Unavailable - Socket '{place}' already in use "
    return f"failed to start {name} service: Unavailable - Socket '{place}': {error.strerror}"
