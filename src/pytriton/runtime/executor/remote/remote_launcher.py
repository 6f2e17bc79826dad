# SPDX-License-Identifier: Apache-2.0
"""Starts instances whose processes connect to the server: those of other machines."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InternalError, UnavailableError
from pytriton.runtime.executor.remote.remote_worker import RemoteWorker
from pytriton.runtime.executor.remote.starter import LAST_OUTPUT, StartOrder
from pytriton.runtime.executor.worker import InstanceUnavailableError, Placement, describe_exit

if TYPE_CHECKING:
    from pytriton.runtime.executor.remote.instance_port import InstancePort, RemoteLink, Ticket
    from pytriton.runtime.executor.remote.starter import RemoteProcess, Starter
    from pytriton.runtime.executor.worker import WorkerSpec

logger = logging.getLogger(__name__)

# From the start of a process to its connection: it imports numpy, perhaps from a slow disk.
CONNECT_TIMEOUT_S = 60.0
_TOKEN_BYTES = 32
# Ends about which a process does not write anything.
_WITHOUT_LAST_WORDS = (describe_exit(0), describe_exit(-9))
_CLOSED = "Server is stopping, no process is started any more"


class RemoteLauncher:
    """A starter starts the processes, which then connect to the port; see `Launcher`."""

    def __init__(
        self, port: InstancePort, starter: Starter, loop: asyncio.AbstractEventLoop
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

        Cancelling the task ends what was started.

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
