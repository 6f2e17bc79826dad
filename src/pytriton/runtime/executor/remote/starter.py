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

# In the reason of an end: before the last output of the process. That is for the log, not for
# clients: the output of a model may be confidential.
LAST_OUTPUT = ", after it had written:\n"


class StartOrder(msgspec.Struct, frozen=True):
    """How to start the process of an instance, and where it connects to."""

    name: str  # the name of this start; another start of the same instance has another name
    spec: WorkerSpec  # the instance; it has a placement
    # Where the process connects to, the best first: `unix:NAME` or `tcp:HOST:PORT`.
    addresses: tuple[str, ...]
    # Proves to the server that the process is the one of this start, and the other way round. It is
    # a secret.
    token: str

    def __repr__(self) -> str:
        return f"<StartOrder {self.name}>"  # without the secret


class ProcessPlace(msgspec.Struct, frozen=True):
    """Where a process runs."""

    node: str  # the node's name or address, for people
    node_id: str  # the unique id of the node
    pid: int  # the process that connects to the server


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
    """The state of an actor."""

    PENDING = "pending"  # the cluster has no room for it yet
    STARTING = "starting"  # its process runs, and loads the model
    RUNNING = "running"  # its instance gets batches; set by the owner of the instances


class ActorStatus(msgspec.Struct, frozen=True):
    """A process on the cluster that is an instance, or one of several that are one together."""

    name: str  # its name on the cluster
    instance: str
    model: str = ""
    version: int = 0
    namespace: str = ""  # the model's namespace, if it has one
    node: str = ""  # the name of its node; empty while it is pending
    node_id: str = ""  # the unique id of the node
    pid: int = 0  # the process on that node; 0 while it is pending
    rank: int = 0  # its number among those of the instance
    state: ActorState = ActorState.PENDING  # how far it has come


class NodeStatus(msgspec.Struct, frozen=True):
    """A machine of the cluster."""

    node_id: str  # the unique id of the node
    name: str  # its name or address, as `ActorStatus.node` has it
    total: dict[str, float] = {}  # how much it has of each resource
    available: dict[str, float] = {}  # how much of that is free; empty if that is not known


class ClusterStatus(msgspec.Struct, frozen=True):
    """The cluster as the server knows it."""

    is_connected: bool = False  # whether the process that starts actors runs and is connected
    problem: str = ""  # why it is not
    address: str = ""
    nodes: tuple[NodeStatus, ...] = ()  # the nodes that are alive
    actors: tuple[ActorStatus, ...] = ()  # those of this server
    launcher_restarts: int = 0  # how often that process was started again
    # For how long the cluster has not answered; nodes are those from before that.
    unreachable_s: float = 0.0


class ClusterExecutor(Protocol):
    """Starts the processes of instances on a cluster. A server makes it when it is first needed."""

    async def launcher(self) -> Launcher:
        """Returns what starts processes there; the first call connects to the cluster.

        Raises:
            ServerError: The cluster cannot be reached, or a package is missing.
        """

    def status(self) -> ClusterStatus:
        """Returns the last known status of the cluster."""

    async def close(self) -> None:
        """End all processes that were started there, and the connection."""
