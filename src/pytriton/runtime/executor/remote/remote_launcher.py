# SPDX-License-Identifier: Apache-2.0
"""Starts instances whose processes connect to the server: those of other machines.

An instance may be made of several processes, the ranks of a group. They load the model together and
end together. Only rank 0 gets batches: how the others learn what to do is the model's own matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from typing import TYPE_CHECKING, Any

from msgspec import structs

from pytriton.base.background_tasks import take_error
from pytriton.base.errors import InternalError, UnavailableError
from pytriton.runtime.executor.call_server import CallServer
from pytriton.runtime.executor.remote.starter import LAST_OUTPUT, StartOrder
from pytriton.runtime.executor.worker import InstanceUnavailableError, Placement, describe_exit
from pytriton.runtime.transport.frames import Finalized, Initialized
from pytriton.runtime.transport.loop_channel import LoopChannel
from pytriton.runtime.transport.rendezvous import CONNECTION_LOST
from pytriton.runtime.transport.stream_channel import CHECK_INTERVAL_S, is_peer_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.runtime.executor.call_server import WorkerServices
    from pytriton.runtime.executor.remote.instance_port import InstancePort, RemoteLink, Ticket
    from pytriton.runtime.executor.remote.starter import ProcessPlace, ProcessStarter, RemoteProcess
    from pytriton.runtime.executor.worker import WorkerSpec
    from pytriton.runtime.transport.arena import Arena, MemoryTrimmer
    from pytriton.runtime.transport.channel import Channel, Received
    from pytriton.runtime.transport.frames import Finalize, Initialize, LogChange

logger = logging.getLogger(__name__)

# How long the others may take to finalize once rank 0 has: one may wait for work for ever.
_GRACE_S = 5.0
# How long the end of a process is waited for once it was killed or its connection was lost. Its
# machine may be out of reach. It is safe not to know more: the process is refused if it comes back.
END_TIMEOUT_S = 5.0
# How long the end of the connection is waited for once the process has ended: answers that it sent
# before may still be on their way.
_LAST_DATA_TIMEOUT_S = 1.0
# How starters describe the end of a process that has noticed first that the connection is lost.
_LOST_SERVER = describe_exit(CONNECTION_LOST)
# From the start of a process to its connection: it imports numpy, perhaps from a slow disk.
CONNECT_TIMEOUT_S = 60.0
_TOKEN_BYTES = 32
# Ends about which a process does not write anything.
_WITHOUT_LAST_WORDS = (describe_exit(0), describe_exit(-9))
_CLOSED = "Server is stopping, no process is started any more"


class RankGroup:
    """The server's ends of the processes of rank 1 and above, in this order.

    `on_lost` is called once with the reason as text when a connection was lost.
    """

    def __init__(
        self,
        name: str,
        channels: Sequence[Channel],
        places: Sequence[ProcessPlace],
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        services: WorkerServices,
        on_lost: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._finalized: asyncio.Future[None] = loop.create_future()
        self._unfinished = len(channels)
        self._timer: asyncio.TimerHandle | None = None
        self._members = [
            _Rank(self, f"rank {rank} of {name}", channel, place, memory, loop, services)
            for rank, (channel, place) in enumerate(zip(channels, places, strict=True), start=1)
        ]

    @property
    def size(self) -> int:
        """The number of processes, with rank 0."""
        return 1 + len(self._members)

    def begin(self, frame: Initialize) -> Initialize:
        """Let all ranks load the model; returns what rank 0 is to be sent."""
        frames = [
            structs.replace(
                frame,
                arguments={
                    **frame.arguments,
                    "model_group_rank": str(rank),
                    "model_group_size": str(self.size),
                },
            )
            for rank in range(self.size)
        ]
        for member, each in zip(self._members, frames[1:], strict=True):
            member.channel.start()
            member.channel.send(each)
        return frames[0]

    async def gather(self, first: asyncio.Future[Initialized]) -> Initialized:
        """Wait for all reports, of which `first` is that of rank 0; returns at the first failure.

        The others of a group wait for one that has failed, so they are not waited for. If a process
        ends, `close` cancels what the others would report, and `first` has the error.
        """
        first.add_done_callback(take_error)  # another rank may have failed before
        pending: set[asyncio.Future[Initialized]] = {first}
        pending.update(member.initialized for member in self._members)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                if not each.cancelled() and (report := each.result()).is_failure:
                    return report
        return first.result()

    def tell(self, frame: Finalize | LogChange) -> None:
        """Send all of them what rank 0 was sent."""
        for member in self._members:
            if member.channel.is_open:
                member.channel.send(frame)

    def on_first_finalized(self, end: Callable[[], None]) -> None:
        """Call `end` when the others have finalized, too, or have had time to."""
        self._timer = self._loop.call_later(_GRACE_S, self._end_finalizing)
        self._finalized.add_done_callback(lambda _: end())

    def close(self) -> None:
        """Close the connections; may be called twice."""
        self._end_finalizing()
        for member in self._members:
            member.close()

    def __repr__(self) -> str:
        return f"<RankGroup size={self.size} unfinished={self._unfinished}>"

    def on_member_lost(self, reason: str) -> None:
        """Report the loss of a connection."""
        self._on_lost(reason)

    def on_member_finalized(self) -> None:
        """Note that one more has finalized."""
        self._unfinished -= 1
        if not self._unfinished:
            self._end_finalizing()

    def _end_finalizing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._finalized.done():
            self._finalized.set_result(None)


class _Rank:
    """One process: it reports how the model was loaded, and may write to the log."""

    def __init__(
        self,
        group: RankGroup,
        name: str,
        channel: Channel,
        place: ProcessPlace,
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        services: WorkerServices,
    ) -> None:
        self.initialized: asyncio.Future[Initialized] = loop.create_future()
        self._group = group
        self._name = name
        self._node = place.node
        self._where = f"node {place.node}, process {place.pid}"
        self.channel = LoopChannel(
            channel, loop, memory, name, on_message=self._on_message, on_lost=self._on_lost
        )
        self._call_server = CallServer(self.channel, services, f"{name}@{place.node}")

    def close(self) -> None:
        self._call_server.close()
        self.channel.close()
        self.initialized.cancel()

    def __repr__(self) -> str:
        return f"<_Member {self._name} {self._where}>"

    def _on_message(self, received: Received) -> None:
        frame = received.frame
        if isinstance(frame, Initialized):
            if frame.error:
                frame.error = f"On node '{self._node}': {self._name}: {frame.error}"
            if not self.initialized.done():
                self.initialized.set_result(frame)
        elif isinstance(frame, Finalized):
            self._group.on_member_finalized()
        else:
            self._call_server.handle(received)

    def _on_lost(self, error: Exception) -> None:
        self._group.on_member_lost(f"the connection of {self._name} was lost ({self._where})")


class RemoteWorker:
    """A process, or a group of them, whose rank 0 gets the batches; see `Worker`.

    `exited` is done when the process has ended, or some seconds after it was killed or lost. It is
    not to blame if its connection was lost and the cause of its end is unknown.
    """

    # Ends are told by other processes, so they take longer than those of this machine.
    exit_timeout_s: float = 0.1
    is_enclosed = False

    def __init__(
        self,
        instance_name: str,
        links: Sequence[RemoteLink],
        process: RemoteProcess,
        ticket: Ticket,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.instance_name = instance_name
        self.node = process.places[0].node
        self.pid = process.places[0].pid
        self.is_to_blame = True
        self.exited: asyncio.Future[str] = loop.create_future()
        self.loss = f"its connection was lost ({self._where})"
        self._links = links
        self._process = process
        self._ticket = ticket
        self._loop = loop
        self._is_lost = False
        self._is_killed = False
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begin to watch the process and its machine."""
        self._process.exited.add_done_callback(self._on_exited)
        self._check_machine()

    @property
    def fork_socket(self) -> socket.socket | None:
        """See `Worker`."""
        return self._links[0].fork_socket

    def open_channel(self, arena: Arena) -> Channel:
        """See `Worker`."""
        return self._links[0].open_channel(arena)

    def open_group(
        self,
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        services: WorkerServices,
        on_lost: Callable[[str], None],
    ) -> RankGroup | None:
        """See `Worker`."""
        if len(self._links) == 1:
            return None
        for link in self._links[1:]:
            if link.fork_socket is not None:
                link.fork_socket.close()  # the server calls no models for forks of these
        channels = [link.open_channel(memory.arena) for link in self._links[1:]]
        places = self._process.places[1:]
        return RankGroup(self.instance_name, channels, places, memory, loop, services, on_lost)

    def on_lost(self) -> None:
        """See `Worker`."""
        self._is_lost = True
        if self._process.exited.done():
            self._on_exited(self._process.exited)
        else:
            self.is_to_blame = False
            self._end_within(END_TIMEOUT_S)

    def kill(self) -> None:
        """See `Worker`."""
        if self.exited.done():
            return
        for link in self._links:
            with contextlib.suppress(OSError):  # it is closed already
                link.sock.shutdown(socket.SHUT_RDWR)
        self._is_lost = self._is_killed = True
        self._process.kill()
        self._end_within(END_TIMEOUT_S)

    def __repr__(self) -> str:
        return f"<RemoteWorker {self.instance_name} {self._where} exited={self.exited.done()}>"

    @property
    def _where(self) -> str:
        return f"node {self.node}, process {self.pid}"

    def _on_exited(self, exited: asyncio.Future[str]) -> None:
        how = _reason(exited)
        has_lost_server = how.startswith(_LOST_SERVER)
        reason = self.loss if has_lost_server else f"{how} ({self._where})"
        if not self._is_killed:
            is_known = not exited.cancelled() and exited.exception() is None
            self.is_to_blame = is_known and not has_lost_server
        if self._is_lost:
            logger.info("the process of instance %s ended: %s", self.instance_name, reason)
            self._end(reason)
        elif self._timer is None:
            self._timer = self._loop.call_later(_LAST_DATA_TIMEOUT_S, self._end, reason)

    def _check_machine(self) -> None:
        """Cut connections to a machine that is gone, which loses the instance."""
        if self._is_lost or self.exited.done():
            return
        for link in self._links:
            if is_peer_gone(link.sock):
                with contextlib.suppress(OSError):
                    link.sock.shutdown(socket.SHUT_RDWR)
        if any(link.fork_socket is None for link in self._links):  # the others are of this machine
            self._loop.call_later(CHECK_INTERVAL_S, self._check_machine)

    def _end_within(self, seconds: float) -> None:
        if self._timer is None and not self.exited.done():
            self._timer = self._loop.call_later(seconds, self._end, self.loss)

    def _end(self, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._ticket.revoke()
        if not self.exited.done():
            self.exited.set_result(reason)


def _reason(exited: asyncio.Future[str]) -> str:
    """Returns how a process ended, whatever its starter says about it, without its output."""
    if exited.cancelled():
        return "it is not known how it ended"
    error = exited.exception()
    return (exited.result() if error is None else str(error)).partition(LAST_OUTPUT)[0]


class RemoteLauncher:
    """A starter starts the processes, which then connect to the port; see `Launcher`."""

    def __init__(
        self, port: InstancePort, starter: ProcessStarter, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.recovery = starter.recovery
        self._port = port
        self._starter = starter
        self._loop = loop
        self._workers: set[RemoteWorker] = set()
        self._starts: set[Ticket] = set()  # those that are not connected yet
        self._is_closed = False

    async def launch(self, spec: WorkerSpec) -> RemoteWorker:
        """Start a process, or the group of the placement, and wait until it is connected.

        Cancelling the task ends all started processes.

        Raises:
            ServerError: The starter could not start it; see there.
            InternalError: It ended before it was connected.
            InstanceUnavailableError: It did not connect in time.
            UnavailableError: The launcher was closed.
        """
        self._require_open()
        placement = spec.placement or Placement()
        name = f"{spec.instance_name}-{secrets.token_hex(4)}"
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        ticket = self._port.expect(name, token, placement.group_size)
        self._starts.add(ticket)
        process = None
        try:
            order = StartOrder(name, spec, self._port.addresses, token)
            process = await self._starter.start(order)
            self._require_open()
            ticket.admit(process.places)
            await self._wait_connected(ticket, process, spec.instance_name)
            self._require_open()
            links = ticket.take()
        except BaseException:
            ticket.revoke()
            if process is not None:
                process.kill()
            raise
        finally:
            self._starts.discard(ticket)
        return self._adopt(spec.instance_name, process, ticket, links)

    async def close(self) -> None:
        """Kill all processes, and wait until they have ended; starter and port stay open."""
        self._is_closed = True
        for ticket in self._starts:
            ticket.fail(_CLOSED)
        workers = list(self._workers)
        for worker in workers:
            worker.kill()
        if workers:
            await asyncio.wait([worker.exited for worker in workers])

    def __repr__(self) -> str:
        return f"<RemoteLauncher workers={len(self._workers)}>"

    async def _wait_connected(
        self, ticket: Ticket, process: RemoteProcess, instance_name: str
    ) -> None:
        """Wait for the connections, or for what shows that there will be none."""
        connected = asyncio.ensure_future(ticket.connected())
        events: list[asyncio.Future[Any]] = [connected, process.exited]
        try:
            await asyncio.wait(
                events,
                timeout=CONNECT_TIMEOUT_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if connected.done():
                connected.result()
                return
        finally:
            connected.cancel()
        place = process.places[0]
        where = f"process {place.pid} of node {place.node}"
        to = self._port.addresses[-1]
        if process.exited.done():
            if (lost := process.exited.exception()) is not None:
                raise lost
            raise InternalError(
                f"Cannot start '{instance_name}': {where} ended before it was connected to the "
                f"server: {process.exited.result()}"
            )
        raise InstanceUnavailableError(
            f"Cannot start '{instance_name}': {where} did not connect to the server within "
            f"{CONNECT_TIMEOUT_S:g} s. The node has to reach {to}"
        )

    def _adopt(
        self, name: str, process: RemoteProcess, ticket: Ticket, links: list[RemoteLink]
    ) -> RemoteWorker:
        """Returns the worker of a process that is connected, which is watched from now on."""
        where = ", ".join(f"node '{each.node}' (process {each.pid})" for each in process.places)
        logger.info("Instance '%s' is started on %s and loads its model", name, where)
        worker = RemoteWorker(name, links, process, ticket, self._loop)
        self._workers.add(worker)
        worker.exited.add_done_callback(lambda _: self._workers.discard(worker))
        process.exited.add_done_callback(lambda exited: _log_last_output(name, exited))
        worker.watch()
        return worker

    def _require_open(self) -> None:
        if self._is_closed:
            raise UnavailableError(_CLOSED)


def _log_last_output(instance_name: str, exited: asyncio.Future[str]) -> None:
    """Log the last words of a process that crashed: they did not all come over its connection."""
    if exited.cancelled() or exited.exception() is not None:
        return
    how, _, lines = exited.result().partition(LAST_OUTPUT)
    if lines and how not in _WITHOUT_LAST_WORDS:
        logger.warning("the last output of instance %s (%s):\n%s", instance_name, how, lines)
