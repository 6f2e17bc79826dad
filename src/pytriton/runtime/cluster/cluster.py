# SPDX-License-Identifier: Apache-2.0
"""What the launcher process needs of a cluster: Ray (`ray_cluster.py`), or a fake of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytriton.runtime.executor.remote.starter import NodeStatus


class ClusterError(Exception):
    """The cluster does not do what was asked; the text says why."""


class ClusterGoneError(ClusterError):
    """The cluster does not answer, or cannot be reached."""


class Whereabouts(NamedTuple):
    """Where an actor was placed."""

    version: str  # of this package
    node_id: str
    address: str
    free_port: int


class Shell(Protocol):
    """An actor that runs the process of an instance; see `runtime.cluster.actor.ActorShell`.

    All methods that are awaited raise `ClusterError` if the actor has died.
    """

    name: str

    async def where(self) -> Whereabouts:
        """Returns where it is, as soon as it is placed."""

    async def start(self, order: str, rank: int, variables: Mapping[str, str]) -> int:
        """Start the process; returns its id."""

    async def wait(self) -> str:
        """Returns how the process ended, when it has."""

    def stop(self) -> None:
        """Kill the process, after which the actor ends; does not wait."""


class Reservation(Protocol):
    """Resources that are set aside on nodes: a placement group."""

    name: str


class Cluster(Protocol):
    """A cluster that this process is connected to. All methods raise `ClusterError`."""

    async def connect(self, address: str, namespace: str, working_dir: str) -> tuple[str, str]:
        """Connect; returns the cluster's address, and that of this machine as nodes reach it."""

    async def nodes(self) -> tuple[NodeStatus, ...]:
        """Returns the nodes that are alive."""

    async def create_shell(
        self,
        name: str,
        resources: Mapping[str, float],
        *,
        node_id: str = "",
        reservation: Reservation | None = None,
        rank: int = 0,
    ) -> Shell:
        """Create an actor, which outlives this process; it need not be placed yet.

        With `node_id`, it is placed on that node, or on another one if there is no room.
        """

    async def find_shells(self) -> Mapping[str, Shell]:
        """Returns the actors of this namespace by their names."""

    async def kill(self, shell: Shell) -> None:
        """End an actor, also one that is not placed yet."""

    async def reserve(
        self, name: str, bundles: Sequence[Mapping[str, float]], *, outlives_us: bool
    ) -> Reservation:
        """Ask for resources; they need not be there yet."""

    async def is_ready(self, reservation: Reservation) -> bool:
        """Returns whether the resources are set aside."""

    async def find_reservations(self, prefix: str) -> Mapping[str, Reservation]:
        """Returns the reservations whose names begin so, by name."""

    async def release(self, reservation: Reservation) -> None:
        """Give resources back; actors that use them end."""

    async def close(self) -> None:
        """Disconnect."""
