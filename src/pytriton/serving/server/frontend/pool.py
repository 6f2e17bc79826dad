# SPDX-License-Identifier: Apache-2.0
"""The front ends of a server in processes of their own: starts them, and passes clients to them.

A front end hangs if it does not answer a ping although the core's loop ran and read all that it
sent. One that works, or that waits for a processor or a disk, has more time: a machine under load
is not its fault. `FrontEndHeartbeat` and `RestartDelays` decide that, and do no I/O.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections import Counter, deque
from typing import TYPE_CHECKING

import msgspec

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.errors import InternalError
from pytriton.base.log_switches import LogFeed
from pytriton.runtime.executor.launcher import RunningZygote, ZygoteGoneError
from pytriton.runtime.executor.worker import WorkerSpec, describe_loss
from pytriton.runtime.transport.arena import DEFAULT_LIMIT_BYTES, MemoryTrimmer
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
    LimitUse,
    Ping,
    PolicyChange,
    Pong,
    RegistryTaken,
    ReloadCertificates,
)
from pytriton.serving.engine.costs import ReportedCosts
from pytriton.serving.server.frontend.process import pass_client, spawn_zygote
from pytriton.serving.server.frontend.regions import RegionFeed
from pytriton.serving.server.frontend.registry_feed import RegistryFeed
from pytriton.serving.server.frontend.session import FrontEndSession, SharedParts
from pytriton.serving.server.process.event_loop import read_activity
from pytriton.serving.server.shared_memory.shared_memory import LocalRegions

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from pytriton.base.log_switches import LogSwitches
    from pytriton.runtime.executor.python_process import StartedZygote
    from pytriton.runtime.executor.worker import LocalWorker
    from pytriton.runtime.transport.frames import Frame
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.server.api.local_client import LocalClient
    from pytriton.serving.server.api.services import ClientService
    from pytriton.serving.server.options.server_options import ServerOptions
    from pytriton.serving.server.process.event_loop import Activity
    from pytriton.serving.server.tracing.tracing import Tracing

PING_INTERVAL_S = 1.0
SILENCE_LIMIT_S = 3.0
# Of processor time. With requests of 48 MB on a machine with eight times as much work as cores,
# the longest stall of a loop was 2 s of real time.
WORK_LIMIT_S = 30.0
_STABLE_S = 1.0  # a front end that ends after this time did not fail to start
# By the number of early ends in a row. The first may be an accident.
_RESTART_DELAYS_S = (0.0, 0.0, 0.1, 0.5, 1.0)

logger = logging.getLogger(__name__)

_LAUNCH_RETRY_S = 0.5  # after a start for which the system had no process or no memory
_MAX_PER_ITERATION = 256
_MAX_WAITING_CLIENTS = 4096  # while no front end can take them
_RETRY_S = 0.01
_END_S = 1.0  # in addition to the timeout of connections
_EXIT_S = 1.0  # for a process to end that has closed its connection


def _ignore(news: object) -> None:
    """Do nothing with what a front end without a policy does not send."""


class FrontEndMember:
    """One front end, as the pool sees it."""

    def __init__(self, index: int, worker: LocalWorker) -> None:
        self.index = index
        self.worker = worker
        self.session: FrontEndSession | None = None
        self.heartbeat = FrontEndHeartbeat()
        self.ready_s = math.inf  # when it could serve clients first
        self.is_ready = False  # it has the registry, so that it can serve clients
        self.passed_count = 0
        self.use = LimitUse()
        # The tickets of its clients, by the numbers by which it reports that they have left.
        self.tickets: dict[int, tuple[ClientService, object]] = {}
        self.counts = (0, 0)  # connections over HTTP and gRPC
        self.load = 0  # connections, with those that it has not taken yet
        self.capacity = sys.maxsize  # how many clients it can serve, as far as known
        self.on_ended: asyncio.Future[None] | None = None

    @property
    def name(self) -> str:
        return f"front end {self.index}"

    def on_connections(self, frame: Connections) -> None:
        self.counts = (frame.http, frame.grpc)
        # Clients that were passed and are not counted yet are on their way: without them, a burst
        # of new clients would all go to the front end that reported last.
        self.load = frame.http + frame.grpc + frame.opening + self.passed_count - frame.taken
        self.capacity = frame.capacity

    @property
    def has_room(self) -> bool:
        """Whether it can serve another client."""
        return self.load < self.capacity


class FrontEndPool:
    """Runs front ends; has the same methods as a `FrontEnd` in this process.

    Without a `zygote`, the process that forks front ends is started as a program.
    """

    def __init__(
        self,
        engine: Engine,
        client: LocalClient,
        tracing: Tracing | None,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        zygote: StartedZygote | None = None,
        log: LogFeed | None = None,
        policy: bytes = b"",
    ) -> None:
        self._options = options
        self._loop = loop
        self._policy = policy  # in MessagePack; empty: there is none
        self.on_access_refusals: Callable[[dict[str, int]], None] = _ignore
        # Counts wrong credentials of front ends here as well, and returns those of all processes.
        self.on_credential_failures: Callable[[dict[str, int]], None] = _ignore
        self.credential_failures: Callable[[], dict[str, int]] = dict
        self.on_keys_withdrawn: Callable[[str], None] = _ignore
        # Front ends select requests for traces by these; they travel with the registry.
        trace_rates = None if tracing is None else tracing.settings.rates
        self._registry = RegistryFeed(engine, client.is_serving, loop, trace_rates)
        if options.access_log.fields:
            engine.observers.add("costs", ReportedCosts())
        memory = MemoryTrimmer(loop)
        feed = RegionFeed(LocalRegions(), loop)
        self._shared = SharedParts(engine, client, tracing, self._registry, memory, loop, feed)
        self._zygote = RunningZygote(loop, spawn_zygote if zygote is None else lambda: zygote)
        self._members: dict[int, FrontEndMember] = {}
        self._log = LogFeed() if log is None else log
        self._log.add(self._on_log_change)
        self._delays = [RestartDelays() for _ in range(options.frontend_processes)]
        self._beat_timer: asyncio.TimerHandle | None = None
        # With the ticket of each client.
        self._waiting: deque[tuple[ClientService, socket.socket, object]] = deque()
        # Called with the service and the ticket of each client that has left and has a ticket.
        self.on_client_left: Callable[[ClientService, object], None] | None = None
        self._tasks = BackgroundTasks(loop)
        # Of front ends that have ended
        self._past_refusals: Counter[str] = Counter()
        self._past_handshakes: Counter[str] = Counter()
        self._is_open = True
        self._is_retry_due = False
        self._first_ready: asyncio.Future[None] = loop.create_future()

    def set_options(self, options: ServerOptions) -> None:
        """Use other settings for the front ends that are not started yet."""
        self._options = options

    async def start(self) -> None:
        """Start all front ends; returns when all of them can serve clients.

        Raises:
            ServerError: A front end could not start.
        """
        self._zygote.start()
        self._beat_timer = self._loop.call_later(PING_INTERVAL_S, self._beat)
        await asyncio.gather(*(self._launch(index) for index in range(len(self._delays))))
        await self._first_ready

    def taker(self, service: ClientService) -> ClientPasser:
        """Returns the object that takes the accepted clients of a service."""
        return ClientPasser(self, service)

    @property
    def connection_counts(self) -> tuple[int, int]:
        """The number of clients that are connected over HTTP and over gRPC."""
        members = self._members.values()
        return sum(each.counts[0] for each in members), sum(each.counts[1] for each in members)

    @property
    def limit_uses(self) -> list[LimitUse]:
        """How near the front ends are to their limits, as they said within the last second."""
        past = LimitUse(
            refusals=dict(self._past_refusals), handshake_failures=dict(self._past_handshakes)
        )
        return [*(member.use for member in self._members.values()), past]

    @property
    def client_capacity(self) -> int:
        """How many clients the file descriptors of the front ends suffice for."""
        capacities = [each.capacity for each in self._members.values() if each.is_ready]
        return min(sum(capacities), sys.maxsize)

    @property
    def pids(self) -> list[int]:
        return [member.worker.pid for member in self._members.values()]

    def reload_certificates(self) -> None:
        """Let all front ends read the files of encrypted ports again."""
        for member in self._members.values():
            if member.session is not None:
                member.session.send(ReloadCertificates())

    def let_clients_leave(self) -> None:
        """Let all front ends ask their clients to use other connections."""
        for member in self._members.values():
            if member.session is not None:
                member.session.send(LetClientsLeave())

    def begin_shutdown(self) -> None:
        """Tell all front ends that the server accepts no more requests."""
        # The registry says that the server exits, so front ends refuse new requests by themselves.
        self._registry.push()

    async def end_connections(self, timeout_s: float) -> None:
        """Let all front ends close their connections and end."""
        self._is_open = False
        self._drop_waiting()
        ending = []
        # Each one closes its connections after the responses that it owes, and reports that.
        for member in self._members.values():
            if member.session is not None:
                member.on_ended = self._loop.create_future()
                ending.append(member.on_ended)
                member.session.send(EndConnections(timeout_s))
        if ending:
            await asyncio.wait(ending, timeout=max(_END_S, timeout_s) + _END_S)
        await self.close()

    async def close(self) -> None:
        """End all front ends at once."""
        self._is_open = False
        self._drop_waiting()
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        self._tasks.cancel()
        self._shared.tasks.cancel()
        for member in list(self._members.values()):
            self._end_member(member)
        await self._zygote.close()
        self._shared.memory.stop()

    # Processes

    async def _launch(self, index: int) -> None:
        spec = WorkerSpec(f"front end {index}", f"pytriton front end {index}")
        try:
            worker = await self._zygote.fork(spec)
        except ZygoteGoneError:
            # Several front ends may find at once that the zygote is gone; the first one replaces
            # it.
            if not self._zygote.is_open and self._is_open:
                self._zygote = RunningZygote(self._loop, spawn_zygote)
                self._zygote.start()
            worker = await self._zygote.fork(spec)
        member = FrontEndMember(index, worker)
        # A front end that does not take clients must not block the core.
        worker.fork_socket.setblocking(False)
        self._members[index] = member
        member.session = FrontEndSession(
            member.name,
            worker.channel,
            self._shared,
            on_event=lambda frame: self._on_event(member, frame),
            on_lost=lambda error: self._on_lost(member, error),
        )
        member.session.start(self._configuration())
        if failures := self.credential_failures():
            member.session.send(CredentialFailures(failures))

    def _configuration(self) -> Configure:
        count = self._options.frontend_processes
        return Configure(
            msgspec.msgpack.encode(self._options),
            self._log.switches,
            DEFAULT_LIMIT_BYTES // count,
            self._policy,
        )

    def set_policy(self, policy: bytes) -> None:
        """Let all front ends decide by another policy, also those that are started later."""
        self._policy = policy
        for member in self._members.values():
            if member.session is not None:
                member.session.send(PolicyChange(policy))

    def share_failures(self, counts: dict[str, int]) -> None:
        """Let all front ends count wrong credentials that came to this process, by address."""
        self._share(CredentialFailures(counts))

    def share_withdrawal(self, issuer: str) -> None:
        """Let all front ends fetch the keys of an issuer, of which some were withdrawn."""
        self._share(KeysWithdrawn(issuer))

    def _share(
        self, news: CredentialFailures | KeysWithdrawn, sender: FrontEndMember | None = None
    ) -> None:
        for member in list(self._members.values()):  # sending may find that one has ended
            if member is not sender and member.session is not None:
                member.session.send(news)

    def _on_log_change(self, switches: LogSwitches) -> None:
        for member in self._members.values():
            if member.session is not None:
                member.session.send(LogChange(switches))

    def _on_event(self, member: FrontEndMember, frame: Frame) -> None:
        if isinstance(frame, Connections):
            member.on_connections(frame)
            for number in frame.left:
                self._leave(*member.tickets.pop(number))
            if self._waiting and member.is_ready and member.has_room:
                self._pass_waiting()
        elif isinstance(frame, AccessRefusals):
            self.on_access_refusals(frame.counts)
        elif isinstance(frame, CredentialFailures):
            self.on_credential_failures(frame.counts)
            self._share(frame, member)
        elif isinstance(frame, KeysWithdrawn):
            self.on_keys_withdrawn(frame.issuer)
            self._share(frame, member)
        elif isinstance(frame, Pong):
            member.heartbeat.on_answer(frame.number)
            member.use = frame.use
        elif isinstance(frame, ConnectionsEnded):
            _finish(member)
        elif isinstance(frame, RegistryTaken) and not member.is_ready:
            self._on_ready(member)

    def _on_ready(self, member: FrontEndMember) -> None:
        member.is_ready = True
        member.ready_s = self._loop.time()
        logger.debug("%s serves clients in process %d", member.name, member.worker.pid)
        self._pass_waiting()
        ready_count = sum(each.is_ready for each in self._members.values())
        if not self._first_ready.done() and ready_count == self._options.frontend_processes:
            self._first_ready.set_result(None)

    def _on_lost(self, member: FrontEndMember, error: Exception) -> None:
        """Replace a front end that has ended; its clients see that the connection was reset."""
        self._end_member(member)
        # A front end that fails at the start would fail again: the server does not start then.
        if not self._first_ready.done():
            failure = InternalError(f"{member.name} could not start: {describe_loss(error)}")
            self._first_ready.set_exception(failure)
            return
        if self._is_open:
            self._tasks.start(self._replace(member))

    async def _replace(self, member: FrontEndMember) -> None:
        served_s = self._loop.time() - member.ready_s
        # The socket may close before the process has ended; its exit status is worth a short wait.
        exited = member.worker.exited
        await asyncio.wait([exited], timeout=_EXIT_S)
        reason = exited.result() if exited.done() else "its connection was lost"
        logger.error("%s (process %d) %s", member.name, member.worker.pid, reason)
        await asyncio.sleep(self._delays[member.index].after(served_s))
        said = ""
        while self._is_open and (failure := await self._try_launch(member.index)):
            if failure != said:
                said = failure
                logger.error("%s cannot be started again yet: %s", member.name, failure)
            await asyncio.sleep(_LAUNCH_RETRY_S)

    async def _try_launch(self, index: int) -> str:
        """Start a front end; returns why it could not be started."""
        try:
            await self._launch(index)
        except ZygoteGoneError:
            return "the process that forks front ends has ended"
        except Exception as error:  # noqa: BLE001  it is tried again
            return str(error) or type(error).__name__
        return ""

    def _beat(self) -> None:
        """Ping all front ends, and replace those that hang."""
        self._beat_timer = self._loop.call_later(PING_INTERVAL_S, self._beat)
        for member in list(self._members.values()):
            session, heartbeat = member.session, member.heartbeat
            if session is None:
                continue
            number = heartbeat.beat(self._loop.time(), read_activity(member.worker.pid))
            if number is not None:
                session.send(Ping(number))
            # An answer that waits to be read here is an answer: then this loop is the slow one.
            elif heartbeat.failure and not session.has_unread:
                name, pid = member.name, member.worker.pid
                logger.error("%s (process %d) %s; it is killed", name, pid, heartbeat.failure)
                self._on_lost(member, TimeoutError(heartbeat.failure))

    def _end_member(self, member: FrontEndMember) -> None:
        if self._members.get(member.index) is member:
            del self._members[member.index]
        member.is_ready = False
        member.counts = (0, 0)
        self._past_refusals.update(member.use.refusals)
        self._past_handshakes.update(member.use.handshake_failures)
        member.use = LimitUse()
        _finish(member)
        if member.session is not None:
            member.session.close()
        member.worker.fork_socket.close()
        member.worker.kill()
        tickets, member.tickets = member.tickets, {}
        for service, ticket in tickets.values():
            self._leave(service, ticket)

    # Clients

    def _leave(self, service: ClientService, ticket: object) -> None:
        if ticket is not None and self.on_client_left is not None:
            self.on_client_left(service, ticket)

    @property
    def is_full(self) -> bool:
        """Whether no front end has room for a client; those that are replaced will have some."""
        # While none is ready, clients wait here instead of in the queue of the listening socket.
        ready = [member for member in self._members.values() if member.is_ready]
        return bool(ready) and not any(member.has_room for member in ready)

    def pass_client(
        self, service: ClientService, client: socket.socket, ticket: object = None
    ) -> None:
        """Pass a client to the front end with the fewest connections."""
        ready = [member for member in self._members.values() if member.is_ready and member.has_room]
        # The socket of the front end may be full, or its process may have just ended.
        # One that has not answered for a second may hang.
        for member in sorted(ready, key=lambda each: (each.heartbeat.is_late, each.load)):
            if pass_client(member.worker.fork_socket, service, client):
                member.passed_count += 1
                member.load += 1
                if ticket is not None:
                    member.tickets[member.passed_count] = (service, ticket)
                client.close()
                return
        if len(self._waiting) < _MAX_WAITING_CLIENTS:
            self._waiting.append((service, client, ticket))
            if ready and not self._is_retry_due:  # their sockets are full
                self._is_retry_due = True
                self._loop.call_later(_RETRY_S, self._pass_waiting)
        else:
            client.close()
            self._leave(service, ticket)

    def _pass_waiting(self) -> None:
        self._is_retry_due = False
        waiting, self._waiting = self._waiting, deque()
        for service, client, ticket in waiting:
            self.pass_client(service, client, ticket)

    def _drop_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft()[1].close()

    def __repr__(self) -> str:
        return f"<FrontEndPool {len(self._members)} of {self._options.frontend_processes}>"


class ClientPasser:
    """Passes the accepted clients of one service to front ends; see `ClientTaker`."""

    max_per_iteration = _MAX_PER_ITERATION

    def __init__(self, pool: FrontEndPool, service: ClientService) -> None:
        self._pool = pool
        self._service = service

    @property
    def is_full(self) -> bool:
        """Whether no front end has room for another client."""
        return self._pool.is_full

    def take(self, sock: socket.socket, ticket: object = None) -> None:
        """Pass a client to a front end."""
        self._pool.pass_client(self._service, sock, ticket)


def _finish(member: FrontEndMember) -> None:
    if member.on_ended is not None and not member.on_ended.done():
        member.on_ended.set_result(None)


class FrontEndHeartbeat:
    """The pings to one front end and its answers.

    Attributes:
        is_answered: Whether the last ping was answered.
        is_late: Whether the answer was missing when the next ping was due.
    """

    def __init__(self) -> None:
        self.is_answered = True
        self.is_late = False
        self._number = 0  # of the last ping
        self._seen_s = 0.0
        self._processor_s = 0.0
        self._silent_s = 0.0
        self._worked_s = 0.0

    def beat(self, now_s: float, activity: Activity | None) -> int | None:
        """Count the time since the last call; to be called every `PING_INTERVAL_S`.

        Returns the number of the ping to send now; None while the last one has no answer.
        `activity` is None if the system does not tell that of the process.
        """
        # After a longer pause the core did not run either: its machine was suspended, for example.
        elapsed_s = min(now_s - self._seen_s, PING_INTERVAL_S)
        self._seen_s = now_s
        used_s = elapsed_s if activity is None else activity.processor_s - self._processor_s
        self._processor_s = 0.0 if activity is None else activity.processor_s
        if self.is_answered:
            self.is_answered = False
            self._silent_s = self._worked_s = 0.0
            self._number += 1
            return self._number
        self.is_late = True
        if used_s or (activity is not None and activity.is_runnable):
            self._silent_s = 0.0
            self._worked_s += used_s
        else:
            self._silent_s += elapsed_s
        return None

    def on_answer(self, number: int) -> None:
        """Note the answer to a ping."""
        if number == self._number:
            self.is_answered = True
            self.is_late = False

    @property
    def failure(self) -> str:
        """Why the front end counts as hung; empty if it does not."""
        if self.is_answered:
            return ""
        if self._silent_s >= SILENCE_LIMIT_S:
            return f"did not answer for {self._silent_s:.0f} s and did nothing"
        if self._worked_s >= WORK_LIMIT_S:
            return f"did not answer while it used {self._worked_s:.0f} s of processor time"
        return ""


class RestartDelays:
    """Delays before one front end is started again; they grow with early ends in a row."""

    def __init__(self) -> None:
        self._early_ends = 0  # in a row

    def after(self, served_s: float) -> float:
        """Returns the delay after an end; `served_s` is for how long clients were served."""
        self._early_ends = 0 if served_s >= _STABLE_S else self._early_ends + 1
        return _RESTART_DELAYS_S[min(self._early_ends, len(_RESTART_DELAYS_S) - 1)]
