# SPDX-License-Identifier: Apache-2.0
"""The interface to a cluster that starts processes: a starter, and the cluster's status."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

import msgspec

from pytriton.runtime.executor.worker import WorkerSpec

if TYPE_CHECKING:
    import asyncio

    from pytriton.runtime.executor.worker import Launcher, Recovery

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


class ProcessPlace(msgspec.Struct, frozen=True):
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

    places: tuple[ProcessPlace, ...]  # of each process of the group, by rank
    # Done when any of them has ended; the result describes the end. Raises if the fate of the
    # process is unknown.
    exited: asyncio.Future[str]

    def kill(self) -> None:
        """End all of them."""


class ProcessStarter(Protocol):
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


class ActorState(enum.Enum):
    """How far an actor has come."""

    PENDING = "pending"  # the cluster has no room for it yet
    STARTING = "starting"  # its process runs, and loads the model
    RUNNING = "running"  # its instance gets batches; said by who knows the instances


class ActorStatus(msgspec.Struct, frozen=True):
    """A process on the cluster that is an instance, or one of several that are one together.

    Attributes:
        name: Its name on the cluster.
        instance: The instance.
        model: The model's name.
        version: The model's version.
        namespace: The model's namespace, if it has one.
        node: The name of its node; empty while it is pending.
        node_id: What tells nodes apart.
        pid: The process on that node; 0 while it is pending.
        rank: Its number among those of the instance.
        state: How far it has come.
    """

    name: str
    instance: str
    model: str = ""
    version: int = 0
    namespace: str = ""
    node: str = ""
    node_id: str = ""
    pid: int = 0
    rank: int = 0
    state: ActorState = ActorState.PENDING


class NodeStatus(msgspec.Struct, frozen=True):
    """A machine of the cluster.

    Attributes:
        node_id: What tells nodes apart.
        name: Its name or address, as `ActorStatus.node` has it.
        total: How much it has of each resource.
        available: How much of that is free; empty if that is not known.
    """

    node_id: str
    name: str
    total: dict[str, float] = {}
    available: dict[str, float] = {}


class ClusterStatus(msgspec.Struct, frozen=True):
    """The cluster as the server knows it.

    Attributes:
        is_connected: Whether the process that starts actors runs and is connected.
        problem: Why it is not.
        address: The cluster's address.
        nodes: The nodes that are alive.
        actors: Those of this server.
        launcher_restarts: How often that process was started again.
        unreachable_s: For how long the cluster has not answered; nodes are those from before that.
    """

    is_connected: bool = False
    problem: str = ""
    address: str = ""
    nodes: tuple[NodeStatus, ...] = ()
    actors: tuple[ActorStatus, ...] = ()
    launcher_restarts: int = 0
    unreachable_s: float = 0.0


class ClusterExecutor(Protocol):
    """Starts the processes of instances on a cluster. A server makes it when it is first needed."""

    async def launcher(self) -> Launcher:
        """Returns what starts processes there; the first call connects to the cluster.

        Raises:
            ServerError: The cluster cannot be reached, or a package is missing.
        """

    def status(self) -> ClusterStatus:
        """Returns what is known of the cluster, without asking it."""

    async def close(self) -> None:
        """End all processes that were started there, and the connection."""
