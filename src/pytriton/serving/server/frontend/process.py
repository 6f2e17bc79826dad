# SPDX-License-Identifier: Apache-2.0
"""The process of a front end, which serves the clients that the core passes to it, and its zygote.

The server forks the zygote before it starts threads and its event loop, which takes some
milliseconds and shares the memory of all modules. If it is killed, the server starts another one,
as a program.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import logging
import os
import signal
import socket
import traceback
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.lazy_module import LazyModule
from pytriton.runtime.executor.python_process import StartedZygote, fork_zygote, start_zygote
from pytriton.runtime.transport.frames import LogChange
from pytriton.runtime.transport.frontend_frames import (
    AccessRefusals,
    Configure,
    Connections,
    ConnectionsEnded,
    CredentialFailures,
    EndConnections,
    KeysWithdrawn,
    LetClientsLeave,
    PolicyChange,
    RegionUpdate,
    ReloadCertificates,
)
from pytriton.runtime.transport.loop_spinner import allow_spinning
from pytriton.runtime.transport.zygote import ForkServer, ZygoteLink, set_process_title
from pytriton.serving.server.api.services import ClientService
from pytriton.serving.server.frontend.front_end import FrontEnd
from pytriton.serving.server.frontend.records import set_up_logging
from pytriton.serving.server.frontend.regions import RemoteRegions
from pytriton.serving.server.frontend.remote_client import RemoteClient
from pytriton.serving.server.frontend.remote_tracing import RemoteTracing
from pytriton.serving.server.options.server_options import ServerOptions
from pytriton.serving.server.process.event_loop import freeze_memory, new_event_loop
from pytriton.serving.server.process.resources import client_limit, lowest_free, usable_cores
from pytriton.serving.server.process.tls import TlsPorts
from pytriton.serving.server.tracing.settings import TraceSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

    from pytriton.base.log_switches import LogSwitches
    from pytriton.runtime.transport.frames import Frame
    from pytriton.serving.server.access import control, failure_feed, policy
    from pytriton.serving.server.access.control import AccessControl
    from pytriton.serving.server.access.policy import Policy
    from pytriton.serving.server.process.clients import ClientOpener
else:
    control = LazyModule("pytriton.serving.server.access.control")
    failure_feed = LazyModule("pytriton.serving.server.access.failure_feed")
    policy = LazyModule("pytriton.serving.server.access.policy")

_REFUSALS_S = 1.0  # between two reports of refused requests
# They may reach a whole group of processes; the core decides what they mean.
_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MAX_CLIENTS = 64  # that a front end takes in one iteration of its event loop


def _read_policy(packed: bytes) -> Policy:
    return msgspec.msgpack.decode(packed, type=policy.Policy)


def pass_client(link: socket.socket, service: ClientService, client: socket.socket) -> bool:
    """Pass a client on; returns False if the front end does not take it now, or has ended."""
    try:
        socket.send_fds(link, [service.value], [client.fileno()])
    except OSError:
        return False
    return True


def receive_clients(link: socket.socket) -> Iterator[tuple[ClientService, socket.socket | None]]:
    """Yields the clients that wait, up to a limit; ends early if the core has closed the link.

    A client is None if this process had no free descriptor for it; the system has closed it then.
    """
    for _ in range(_MAX_CLIENTS):
        try:
            letter, descriptors, _, _ = socket.recv_fds(link, 1, 1)
        except (BlockingIOError, ConnectionResetError):
            return
        if not letter:
            return
        client = socket.socket(fileno=descriptors[0]) if descriptors else None
        yield ClientService(letter), client


def run_front_end(channel_descriptor: int, clients_descriptor: int) -> None:
    """Make this process a front end, and serve until the core ends.

    One socket is for messages, over the other the core passes clients.
    """
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # No child process may keep these sockets open.
    for descriptor in (channel_descriptor, clients_descriptor):
        os.set_inheritable(descriptor, False)
    allow_spinning(usable_cores())
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    channel = socket.socket(fileno=channel_descriptor)
    clients = socket.socket(fileno=clients_descriptor)
    loop.run_until_complete(_serve(channel, clients, loop))


async def _serve(
    channel: socket.socket, clients: socket.socket, loop: asyncio.AbstractEventLoop
) -> None:
    ended: asyncio.Future[None] = loop.create_future()
    process = FrontEndProcess(channel, clients, loop, ended)
    process.start()
    await ended


class FrontEndProcess:
    """The state of the process."""

    def __init__(
        self,
        channel: socket.socket,
        clients: socket.socket,
        loop: asyncio.AbstractEventLoop,
        ended: asyncio.Future[None],
    ) -> None:
        self._clients = clients
        self._loop = loop
        self._ended = ended
        self._tasks = BackgroundTasks(loop)
        self._front_end: FrontEnd | None = None  # until the options have come
        self._access: AccessControl | None = None  # None: there is no policy
        self._told_refusals: Counter[str] = Counter()
        self._takers: dict[ClientService, ClientOpener] = {}
        self._taken_count = 0
        self._has_tickets = False  # the core wants to know which clients have left
        self._left: list[int] = []  # since the last report
        self._own_descriptors = 0  # those that are open without clients
        self._is_report_due = False
        self._client = RemoteClient(
            channel,
            loop,
            on_exiting=self._on_exiting,
            on_frame=self._on_frame,
            on_lost=self._on_lost,
        )
        self._regions = RemoteRegions(self._client)
        clients.setblocking(False)

    def start(self) -> None:
        self._client.link.start()

    def _on_frame(self, frame: Frame) -> None:
        if isinstance(frame, Configure):
            self._configure(frame)
        elif isinstance(frame, PolicyChange | CredentialFailures | KeysWithdrawn):
            self._on_access_frame(frame)
        elif isinstance(frame, LogChange):
            self._use(frame.switches)
        elif isinstance(frame, RegionUpdate):
            self._regions.apply(frame)
        elif isinstance(frame, EndConnections):
            self._tasks.start(self._end_connections(frame.timeout_s))
        elif self._front_end is not None:
            if isinstance(frame, ReloadCertificates):
                self._front_end.reload_certificates()
            elif isinstance(frame, LetClientsLeave):
                self._front_end.let_clients_leave()

    def _on_access_frame(self, frame: PolicyChange | CredentialFailures | KeysWithdrawn) -> None:
        assert self._access is not None, "a server has a policy from its start, or never"
        if isinstance(frame, PolicyChange):
            self._access.use(_read_policy(frame.policy))
        elif isinstance(frame, KeysWithdrawn):
            self._access.fetch_keys(frame.issuer)
        else:
            self._access.count_failures(frame.counts)

    def _use(self, switches: LogSwitches) -> None:
        logging.getLogger().setLevel(switches.lowest_level)
        if self._front_end is not None:
            self._front_end.set_verbose(switches.verbose)

    def _configure(self, frame: Configure) -> None:
        options = msgspec.msgpack.decode(frame.options, type=ServerOptions)
        set_up_logging(self._client.link, frame.log)
        self._client.use_namespaces(is_on=options.repository.namespacing)
        self._client.suggest_names(is_on=options.names_are_public)
        self._client.tell_reasons(is_on=not options.hide_exceptions)
        self._client.link.limit_memory(frame.memory_bytes)
        is_tracing = TraceSettings.read(options.trace_settings).config.makes_traces
        if is_tracing:
            tracing = RemoteTracing(self._client.link.send, self._client)
            self._client.observers.add("tracing", tracing)
        if frame.policy:
            self._access = control.AccessControl(
                _read_policy(frame.policy), options.access.own_key, proxies=options.proxies
            )
            self._access.on_withdrawn = self._tell_withdrawn
            self._access.start(self._loop)
            failure_feed.FailureFeed(self._loop, self._access, self._tell_failures)
            self._loop.call_later(_REFUSALS_S, self._report_refusals)
        self._front_end = FrontEnd(
            self._client,
            options,
            self._loop,
            TlsPorts(self._loop, is_quiet=True),  # the core writes about the same files
            self._on_connections_changed,
            regions=self._regions,
            access=self._access,
        )
        self._client.limit_use = self._front_end.limit_use
        self._use(frame.log)
        self._has_tickets = options.limits.max_connections_per_address > 0
        if self._has_tickets:
            self._front_end.on_client_left = self._on_client_left
        # Openers exist for all services at once: clients come from one socket, in any order.
        for service, endpoint in options.services().items():
            if endpoint.allow:
                self._takers[service] = self._front_end.taker(service)
        self._own_descriptors = lowest_free(self._clients.fileno())
        self._report_connections()  # now, so that the core knows the capacity first
        # Only now: a client needs the APIs, and the core has to know the capacity before it passes
        # any.
        self._loop.add_reader(self._clients.fileno(), self._on_clients)
        # What exists now stays; collections need not look at it.
        freeze_memory()

    def _report_refusals(self) -> None:
        """Tell the core what was refused since the last report, for its metrics."""
        self._loop.call_later(_REFUSALS_S, self._report_refusals)
        assert self._access is not None
        news = self._access.refusals - self._told_refusals
        if news:
            self._told_refusals = self._access.refusals.copy()
            self._client.link.send(AccessRefusals(dict(news)))

    def _tell_failures(self, counts: dict[str, int]) -> None:
        self._client.link.send(CredentialFailures(counts))

    def _tell_withdrawn(self, issuer: str) -> None:
        self._client.link.send(KeysWithdrawn(issuer))

    def _on_exiting(self) -> None:
        if self._front_end is not None:
            self._front_end.begin_shutdown()

    async def _end_connections(self, timeout_s: float) -> None:
        if self._front_end is not None:
            await self._front_end.end_connections(timeout_s)
        self._client.link.send(ConnectionsEnded())

    def _on_lost(self, error: Exception) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    # Clients

    def _on_clients(self) -> None:
        for service, client in receive_clients(self._clients):
            # Counted even if its descriptor was lost: the core counts it as passed.
            self._taken_count += 1
            # The core counts in the same order.
            ticket = self._taken_count if self._has_tickets else None
            if client is not None:
                self._takers[service].take(client, ticket)
            elif ticket is not None:
                self._left.append(ticket)
            self._on_connections_changed()

    def _on_client_left(self, service: ClientService, ticket: int) -> None:
        self._left.append(ticket)
        self._on_connections_changed()

    def _on_connections_changed(self) -> None:
        # One report for all changes of an iteration.
        if not self._is_report_due:
            self._is_report_due = True
            self._loop.call_soon(self._report_connections)

    def _report_connections(self) -> None:
        self._is_report_due = False
        if self._front_end is not None:
            http, grpc = self._front_end.connection_counts
            opening = sum(taker.opening_count for taker in self._takers.values())
            capacity = client_limit() - self._own_descriptors
            left, self._left = self._left, []
            self._client.link.send(
                Connections(http, grpc, opening, self._taken_count, capacity, left)
            )


def fork_front_end_zygote() -> StartedZygote:
    """Fork a zygote off this process, which must not have threads or a running event loop yet."""
    return fork_zygote(_run)


# Starts a zygote as a program.
spawn_zygote = functools.partial(start_zygote, "pytriton.serving.server.frontend.process")


def _run(control: socket.socket) -> NoReturn:
    """Serve fork requests, or a front end in a forked process; never returns."""
    code = 1
    try:
        for number in _IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        # Existing objects are never garbage, and a collector that visits them would copy their
        # pages in every fork.
        gc.collect()
        gc.freeze()
        set_process_title("pytriton zygote of front ends")
        fork = ForkServer(ZygoteLink(control)).serve()
        if fork is not None:
            set_process_title(fork.title)
            run_front_end(fork.channel_descriptor, fork.fork_descriptor)
        code = 0
    except BaseException:  # noqa: BLE001  nothing above this frame belongs to this process
        traceback.print_exc()
    finally:
        os._exit(code)


def main(arguments: list[str] | None = None) -> None:
    """Serve the socket with the inherited descriptor `--control-fd`."""
    parser = argparse.ArgumentParser(prog="python -m pytriton.serving.server.frontend.process")
    parser.add_argument("--control-fd", type=int, required=True, metavar="N")
    options = parser.parse_args(arguments)
    os.set_inheritable(options.control_fd, False)
    _run(socket.socket(fileno=options.control_fd))


if __name__ == "__main__":
    main()
