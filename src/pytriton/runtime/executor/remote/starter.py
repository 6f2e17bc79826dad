# SPDX-License-Identifier: Apache-2.0
"""The interface to what starts processes elsewhere: a cluster, or a test with plain processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from pytriton.runtime.executor.worker import WorkerSpec

if TYPE_CHECKING:
    import asyncio

    from pytriton.runtime.executor.worker import Recovery

# In the reason of an end: what follows is what the process wrote last. It is for the log, not for
# clients: a model may have written what concerns nobody else.
LAST_OUTPUT = ", after it had written:\n"


class StartOrder(msgspec.Struct, frozen=True):
    """How to start the process of an instance, and where it connects to.

    Attributes:
        name: The name of this start; another start of the same instance has another name.
        spec: The instance; it has a placement.
        addresses: Where the process connects to, the best first: `unix:NAME` or `tcp:HOST:PORT`.
        token: Proves to the server that the process is the one of this start, and the other way
            round. It is a secret.
    """

    name: str
    spec: WorkerSpec
    addresses: tuple[str, ...]
    token: str

    def __repr__(self) -> str:
        return f"<StartOrder {self.name}>"  # without the secret


class Place(msgspec.Struct, frozen=True):
    """Where a process runs.

    Attributes:
        node: The node's name or address, for people.
        node_id: What tells nodes apart.
        pid: The process that connects to the server.
    """

    node: str
    node_id: str
    pid: int


class RemoteProcess(Protocol):
    """A started process, or a group of them that are one instance."""

    places: tuple[Place, ...]  # of each process of the group, by rank
    # Done when any of them has ended; the result describes the end. Raises if the fate of the
    # process is unknown.
    exited: asyncio.Future[str]

    def kill(self) -> None:
        """End all of them."""


class Starter(Protocol):
    """Starts processes that connect to the server.

    Attributes:
        recovery: Tells when a start that failed should be tried again at once.
    """

    recovery: Recovery

    async def start(self, order: StartOrder) -> RemoteProcess:
        """Start a process, or the group of the placement. Cancelling the task ends it.

        Raises:
            ServerError: It cannot be started, or not within the time of its placement.
        """

    async def close(self) -> None:
        """End all processes that were started."""
