# SPDX-License-Identifier: Apache-2.0
"""What is known of a cluster at one moment, for metrics, for the page and for people."""

from __future__ import annotations

import enum

import msgspec


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
