# SPDX-License-Identifier: Apache-2.0
"""Ray behind the interface of `pytriton.runtime.cluster.cluster`: every call of Ray's API is here.

Most calls of Ray wait for its head, so they are made in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from pytriton.base.background_tasks import take_error
from pytriton.runtime.cluster.actor import ActorShell
from pytriton.runtime.cluster.cluster import (
    ClusterError,
    ClusterGoneError,
    Reservation,
    Whereabouts,
    describe_failure,
    is_cluster_gone,
)
from pytriton.runtime.executor.remote.starter import NodeStatus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pytriton.runtime.cluster.cluster import Shell

Result = TypeVar("Result")

_THREADS = 16
# Ray gives up a head that does not answer after 60 s, unless it is told otherwise, and with it this
# process. A call that takes longer is not expected to return.
_STUCK_S = 90.0
_CLIENT = "ray://"
_LISTEN_S = 10.0
_SHOWN = ("object_store_memory", "memory")  # of the resources that Ray adds to each node
_REMOVED = "REMOVED"
_READY = "CREATED"


class RayShell:
    """An actor by its handle; see `Shell`."""

    def __init__(self, name: str, handle: Any) -> None:
        self.name = name
        self.handle = handle

    async def where(self) -> Whereabouts:
        """See `Shell`."""
        return Whereabouts(*await _result(self.handle.where.remote()))

    async def start(self, order: str, rank: int, variables: Mapping[str, str]) -> int:
        """See `Shell`."""
        pid, error = await _result(self.handle.start.remote(order, rank, dict(variables)))
        if not pid:
            raise ClusterError(error)
        return int(pid)

    async def wait(self) -> str:
        """See `Shell`."""
        return str(await _result(self.handle.wait.remote()))

    def stop(self) -> None:
        """See `Shell`."""
        self.handle.stop.remote()


class RayReservation:
    """A placement group; see `Reservation`."""

    def __init__(self, name: str, group: PlacementGroup) -> None:
        self.name = name
        self.group = group


class RayCluster:
    """The cluster that this process has connected to as a driver, or as a client of Ray's.

    Args:
        on_stuck: Called with the name of a call that does not return, and for how long it has not.
    """

    def __init__(self, on_stuck: Callable[[str, float], None]) -> None:
        self._on_stuck = on_stuck
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ray")
        self._is_client = False

    async def connect(self, address: str, namespace: str, working_dir: str) -> tuple[str, str]:
        """See `Cluster`."""
        address = address or os.environ.get("RAY_ADDRESS", "") or "auto"
        self._is_client = address.startswith(_CLIENT)
        return await self._call(_connect, address, namespace, working_dir)

    async def nodes(self) -> tuple[NodeStatus, ...]:
        """See `Cluster`."""
        return await self._call(_nodes, not self._is_client)

    async def create_shell(
        self,
        name: str,
        resources: Mapping[str, float],
        *,
        node_id: str = "",
        reservation: Reservation | None = None,
        rank: int = 0,
    ) -> Shell:
        """See `Cluster`."""
        strategy: Any = "DEFAULT"
        if node_id:
            # What we know of the node may be old: without the last argument, Ray would wait for it.
            strategy = NodeAffinitySchedulingStrategy(
                node_id, soft=True, _spill_on_unavailable=True
            )
        if isinstance(reservation, RayReservation):
            strategy = PlacementGroupSchedulingStrategy(
                reservation.group, placement_group_bundle_index=rank
            )
        handle = await self._call(_create, name, dict(resources), strategy)
        return RayShell(name, handle)

    async def find_shells(self) -> Mapping[str, Shell]:
        """See `Cluster`."""
        return await self._call(_find_shells)

    async def kill(self, shell: Shell) -> None:
        """See `Cluster`."""
        assert isinstance(shell, RayShell)
        await self._call(ray.kill, shell.handle)

    async def reserve(
        self, name: str, bundles: Sequence[Mapping[str, float]], *, outlives_us: bool
    ) -> Reservation:
        """See `Cluster`."""
        group = await self._call(
            ray.util.placement_group,
            [dict(bundle) for bundle in bundles],
            "PACK",
            name,
            "detached" if outlives_us else None,
        )
        return RayReservation(name, group)

    async def is_ready(self, reservation: Reservation) -> bool:
        """See `Cluster`."""
        assert isinstance(reservation, RayReservation)
        row = await self._call(ray.util.placement_group_table, reservation.group)
        return bool(row.get("state") == _READY)

    async def find_reservations(self, prefix: str) -> Mapping[str, Reservation]:
        """See `Cluster`."""
        return await self._call(_find_groups, prefix)

    async def release(self, reservation: Reservation) -> None:
        """See `Cluster`."""
        assert isinstance(reservation, RayReservation)
        await self._call(ray.util.remove_placement_group, reservation.group)

    async def close(self) -> None:
        """See `Cluster`."""
        await self._call(ray.shutdown)

    async def _call(self, function: Callable[..., Result], *arguments: object) -> Result:
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(_STUCK_S, self._on_stuck, function.__name__, _STUCK_S)
        # The thread's own future: that of the event loop is over when nobody waits any more.
        answer = self._threads.submit(function, *arguments)
        answer.add_done_callback(lambda _: _cancel(loop, alarm))
        return await _answer(asyncio.wrap_future(answer))


def _cancel(loop: asyncio.AbstractEventLoop, alarm: asyncio.TimerHandle) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(alarm.cancel)


async def _result(reference: Any) -> Any:
    """Returns what a method of an actor answers.

    If the wait is cancelled, Ray's future is not: it logs an error when it cannot set its result.
    """
    answer = asyncio.wrap_future(reference.future())
    answer.add_done_callback(take_error)  # there may be no waiter
    return await _answer(asyncio.shield(answer))


async def _answer(answer: Awaitable[Result]) -> Result:
    """Returns the result of a call; an error of Ray's becomes one of ours."""
    try:
        return await answer
    except Exception as error:
        text = describe_failure(error)
        raise (ClusterGoneError if is_cluster_gone(error) else ClusterError)(text) from error


def _connect(address: str, namespace: str, working_dir: str) -> tuple[str, str]:
    _check_listens(address)
    environment = {"working_dir": working_dir} if working_dir else None
    context = ray.init(
        address=address,
        namespace=namespace,
        runtime_env=environment,
        log_to_driver=False,
        configure_logging=False,
    )
    if address.startswith(_CLIENT):
        return address, _address_towards(address)
    return str(context.address_info["gcs_address"]), str(ray.util.get_node_ip_address())


def _check_listens(address: str) -> None:
    """Check that a process listens at an address with a port: Ray would try it for a minute."""
    place = urlsplit(address if "//" in address else f"//{address}")
    if place.hostname and place.port:
        try:
            socket.create_connection((place.hostname, place.port), _LISTEN_S).close()
        except OSError as error:
            raise ConnectionError(f"nobody answers at {address}: {error}") from error


def _address_towards(address: str) -> str:
    """Returns this machine's address on the way to another; nothing is sent."""
    target = urlsplit(address)
    family, kind, _, _, place = socket.getaddrinfo(
        target.hostname, target.port or 10001, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)
        name: str = probe.getsockname()[0]
        return name


def _nodes(has_state: bool) -> tuple[NodeStatus, ...]:
    free: Mapping[str, Mapping[str, float]] = {}
    # Ray has no public function for what is free on each node without its dashboard.
    if has_state and hasattr(ray._private.state, "available_resources_per_node"):  # noqa: SLF001
        free = ray._private.state.available_resources_per_node()  # noqa: SLF001
    return tuple(
        NodeStatus(
            node_id=node["NodeID"],
            name=node.get("NodeName") or node["NodeManagerAddress"],
            total=(total := _shown(node["Resources"])),
            # Ray leaves out what is used up.
            available={name: free[node["NodeID"]].get(name, 0.0) for name in total}
            if node["NodeID"] in free
            else {},
        )
        for node in ray.nodes()
        if node["Alive"]
    )


def _shown(resources: Mapping[str, float]) -> dict[str, float]:
    return {
        name: amount
        for name, amount in resources.items()
        if name not in _SHOWN and not name.startswith("node:") and "_group_" not in name
    }


def _create(name: str, resources: dict[str, float], strategy: Any) -> Any:
    return (
        ray.remote(ActorShell)
        .options(
            name=name,
            lifetime="detached",
            max_restarts=0,
            num_cpus=resources.pop("CPU", 0.0),
            num_gpus=resources.pop("GPU", 0.0),
            resources=resources or None,
            scheduling_strategy=strategy,
        )
        .remote()
    )


def _find_shells() -> dict[str, Shell]:
    found: dict[str, Shell] = {}
    for name in ray.util.list_named_actors():
        with contextlib.suppress(ValueError):  # it has ended since
            found[name] = RayShell(name, ray.get_actor(name))
    return found


def _find_groups(prefix: str) -> dict[str, Reservation]:
    found: dict[str, Reservation] = {}
    for row in ray.util.placement_group_table().values():
        if row["state"] != _REMOVED and row["name"].startswith(prefix):
            with contextlib.suppress(ValueError):  # it has ended since
                group = ray.util.get_placement_group(row["name"])
                found[row["name"]] = RayReservation(row["name"], group)
    return found
