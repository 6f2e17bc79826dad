# SPDX-License-Identifier: Apache-2.0
"""The launcher process, the only one of a server that imports Ray.

Run as `python -m pytriton.runtime.cluster.launcher`. It ends its actors and exits when the server
closes the control socket, or ends. If it is killed, they outlive it, so that instances go on. An
actor that waits for room must not: no process would be left to withdraw it. So an actor is created
only if there seems to be room; otherwise a reservation that ends with this process waits, which
Ray's autoscaler sees, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import logging
import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pytriton.base.background_tasks import within
from pytriton.runtime.cluster.cluster import (
    ClusterError,
    ClusterGoneError,
    actor_name,
    group_name,
    known_actors,
    unknown_actors,
    unknown_groups,
)
from pytriton.runtime.cluster.messages import (
    BEAT_S,
    TO_LAUNCHER,
    Beat,
    Connect,
    Connected,
    ConnectFailed,
    Ended,
    Kill,
    LauncherLink,
    Nodes,
    Placed,
    StartInstance,
    StartRefused,
    Waiting,
)
from pytriton.runtime.cluster.room import Spreading, describe_wait, has_room, wanted_resources
from pytriton.runtime.executor.remote.starter import ProcessPlace
from pytriton.runtime.executor.worker import Placement
from pytriton.runtime.transport.zygote import set_process_title

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from pytriton.runtime.cluster.cluster import Cluster, Reservation, Shell, Whereabouts
    from pytriton.runtime.cluster.messages import ToLauncher, ToServer
    from pytriton.runtime.executor.remote.starter import NodeStatus, StartOrder


_STOP_S = 2.0  # for an actor to kill its process and those that it has started
_Made = TypeVar("_Made")
_NODES_S = 2.0  # between two looks at the nodes
_NODES_TIMEOUT_S = 6.0  # after which the cluster counts as one that does not answer
_ROOM_S = 0.2  # between two looks at a reservation
_SILENCE_S = 1.0  # before the reason is told: what is known of the nodes may be older than that
# How long an actor may take until it runs, if there seemed to be room. A later attempt of the same
# start may take twice as long: the first may have been lost to a slow node, or to a race for room.
_PATIENCE_S = 15.0
_SMALLEST = {"CPU": 0.001}  # Ray reserves something or nothing


class ActorGroup:
    """The actors of one start, by rank. Whoever has created it calls `end`."""

    def __init__(
        self, cluster: Cluster, shells: Sequence[Shell], reservation: Reservation | None
    ) -> None:
        self._cluster = cluster
        self._shells = tuple(shells)
        self._reservation = reservation
        self._is_placed = False

    async def where(self) -> list[Whereabouts]:
        """Returns where each actor is, when all are placed.

        Raises:
            ClusterError: One of them died.
        """
        found = await asyncio.gather(*(shell.where() for shell in self._shells))
        self._is_placed = True
        return found

    async def start(
        self, order: StartOrder, found: Sequence[Whereabouts], names: Mapping[str, str]
    ) -> tuple[ProcessPlace, ...]:
        """Start the processes; returns their places. `names` has those of nodes by id.

        Raises:
            ClusterError: One of them could not be started.
        """
        text = msgspec.json.encode(order).decode()
        variables = rank_variables(found)
        pids = await asyncio.gather(
            *(shell.start(text, rank, variables[rank]) for rank, shell in enumerate(self._shells))
        )
        return tuple(
            ProcessPlace(node=names.get(each.node_id, each.address), node_id=each.node_id, pid=pid)
            for each, pid in zip(found, pids, strict=True)
        )

    def adopt(self) -> None:
        """Say that the actors are placed, as those are that another process has created."""
        self._is_placed = True

    async def wait(self) -> tuple[str, bool]:
        """Returns why the first of the processes ended, and whether its exit status says so."""
        waits = [asyncio.ensure_future(shell.wait()) for shell in self._shells]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            ended = next(iter(done))
            rank = waits.index(ended)
            reason, is_status_known = await _reason(ended)
        finally:
            for each in waits:
                each.cancel()
        return reason if len(waits) == 1 else f"rank {rank} {reason}", is_status_known

    async def end(self) -> None:
        """End all actors, and give their reservation back."""
        if self._is_placed and self._shells:
            # An actor that is killed by Ray cannot kill what its process has started.
            await asyncio.wait(
                [asyncio.ensure_future(_stop(shell)) for shell in self._shells], timeout=_STOP_S
            )
        for shell in self._shells:
            with contextlib.suppress(ClusterError):  # it has ended
                await self._cluster.kill(shell)
        if self._reservation is not None:
            with contextlib.suppress(ClusterError):
                await self._cluster.release(self._reservation)


def rank_variables(found: Sequence[Whereabouts]) -> list[dict[str, str]]:
    """Returns the environment variables of each rank, with the names of PyTorch."""
    if len(found) == 1:
        return [{}]
    nodes = [each.node_id for each in found]
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(found)),
            "LOCAL_RANK": str(nodes[:rank].count(each.node_id)),
            "MASTER_ADDR": found[0].address,
            "MASTER_PORT": str(found[0].free_port),
        }
        for rank, each in enumerate(found)
    ]


async def _stop(shell: Shell) -> None:
    shell.stop()
    with contextlib.suppress(ClusterError):
        await shell.wait()


async def _reason(ended: asyncio.Future[str]) -> tuple[str, bool]:
    try:
        return await ended, True
    except ClusterError as error:
        return f"is lost, as its actor ended: {error}", False


class ActorStarts:
    """All actors of one server. It is used on the event loop's thread."""

    def __init__(self, cluster: Cluster, send: Callable[[ToServer], None]) -> None:
        self._cluster = cluster
        self._send = send
        self._namespace = ""
        self._version = ""
        self._nodes: tuple[NodeStatus, ...] = ()
        self._starts: dict[str, asyncio.Task[None]] = {}
        # Those whose actors take room that the nodes did not know of when they were last asked.
        self._placing: dict[str, Placement] = {}
        self._placed: dict[str, Placement] = {}
        self._spreading = Spreading()
        self._watch: asyncio.Task[None] | None = None

    async def connect(self, message: Connect) -> None:
        """Connect, take over the actors that the server knows, and end the others.

        Raises:
            ClusterError: There is no cluster.
        """
        self._namespace, self._version = message.namespace, message.version
        address, node_address = await self._cluster.connect(
            message.address, message.namespace, message.working_dir
        )
        self._nodes = await self._cluster.nodes()
        await self._take_over(message.known)
        self._send(Connected(address, node_address, self._nodes))
        self._watch = asyncio.ensure_future(self._watch_nodes())

    def obey(self, message: ToLauncher) -> None:
        """Execute a message of the server, in a task of its own."""
        if isinstance(message, StartInstance):
            order = message.order
            self._run(order.name, self._start(order))
        elif isinstance(message, Kill):
            task = self._starts.get(message.name)
            if task is not None:
                task.cancel()

    async def close(self, timeout_s: float) -> None:
        """End all actors, and disconnect."""
        if self._watch is not None:
            self._watch.cancel()
        tasks = list(self._starts.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        if self._watch is not None:
            # The remains of starts that were cancelled while the cluster created something.
            with contextlib.suppress(ClusterError, asyncio.TimeoutError):
                await asyncio.wait_for(self._take_over(()), timeout_s)
        with contextlib.suppress(ClusterError, asyncio.TimeoutError):
            await asyncio.wait_for(self._cluster.close(), timeout_s)

    def __repr__(self) -> str:
        return f"<ActorStarts {self._namespace} starts={len(self._starts)}>"

    async def _take_over(self, known: Sequence[str]) -> None:
        shells = await self._cluster.find_shells()
        groups = await self._cluster.find_reservations(group_name(self._namespace, ""))
        for name in unknown_actors(shells, known):
            with contextlib.suppress(ClusterError):  # it has ended since
                await self._cluster.kill(shells[name])
        for name in unknown_groups(groups, self._namespace, known):
            with contextlib.suppress(ClusterError):
                await self._cluster.release(groups[name])
        for start, names in known_actors(shells, known).items():
            reservation = groups.get(group_name(self._namespace, start))
            group = ActorGroup(self._cluster, [shells[name] for name in names], reservation)
            group.adopt()
            self._run(start, self._watch_group(start, group, is_there=bool(names)))

    def _run(self, name: str, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._starts[name] = task
        task.add_done_callback(lambda _: self._on_done(name, task))

    def _on_done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._starts.get(name) is task:
            del self._starts[name]
        # The server kills an instance also because it has lost the connection to its node.
        self._spreading.remove(name, time.monotonic(), is_lost=task.cancelled())
        if task.cancelled():
            self._send(Ended(name, "was killed"))
        elif (error := task.exception()) is not None:
            logger.error("unexpected error with '%s'", name, exc_info=error)
            self._send(StartRefused(name, f"unexpected error in the launcher process: {error}"))
            self._send(Ended(name, "is lost, after an unexpected error in the launcher process"))

    async def _start(self, order: StartOrder) -> None:
        try:
            group, found = await self._place(order)
        except ClusterError as error:
            self._send(StartRefused(order.name, str(error), isinstance(error, ClusterGoneError)))
            return
        try:
            self._check_version(found)
            if {each.node_id for each in found} - {each.node_id for each in self._nodes}:
                self._nodes = await self._cluster.nodes()  # one of them has just joined
            names = {each.node_id: each.name for each in self._nodes}
            places = await group.start(order, found, names)
        except ClusterError as error:
            await _end(group)
            self._send(StartRefused(order.name, str(error), isinstance(error, ClusterGoneError)))
            return
        except BaseException:
            await _end(group)
            raise
        self._spreading.add(order.name, _model(order), found[0].node_id)
        self._send(Placed(order.name, places))
        await self._watch_group(order.name, group)

    async def _watch_group(self, name: str, group: ActorGroup, *, is_there: bool = True) -> None:
        reason, is_status_known = "is lost, as its actor is gone", False
        try:
            if is_there:
                reason, is_status_known = await group.wait()
        finally:
            await _end(group)
        self._spreading.remove(name, time.monotonic(), is_lost=not is_status_known)
        self._send(Ended(name, reason, is_status_known))

    async def _place(self, order: StartOrder) -> tuple[ActorGroup, list[Whereabouts]]:
        """Create the actors, and wait until they run; repeats that if others took their room."""
        placement = order.spec.placement or Placement()
        patience_s = _PATIENCE_S
        while True:
            await self._wait_for_room(order.name, placement)
            self._placing[order.name] = placement
            try:
                group = await self._create(order, placement)
                found = await _within(group, patience_s)
            finally:
                del self._placing[order.name]
            if found is not None:
                self._placed[order.name] = placement
                return group, found
            self._spreading.remove(order.name, time.monotonic(), is_lost=True)
            patience_s *= 2

    async def _wait_for_room(self, name: str, placement: Placement) -> None:
        wanted = wanted_resources(placement)
        if not wanted or self._seems_free(placement):
            return
        bundles = [wanted] * placement.group_size
        reservation = await self._reserve(name, bundles, outlives_us=False)
        said = ""
        began_s = time.monotonic()
        try:
            while not await self._cluster.is_ready(reservation):
                reason = describe_wait(wanted, placement.group_size, self._nodes)
                if reason != said and time.monotonic() - began_s >= _SILENCE_S:
                    self._send(Waiting(name, reason))
                    said = reason
                await asyncio.sleep(_ROOM_S)
        finally:
            # Also if this is cancelled meanwhile: it would be reserved until this process ends.
            await asyncio.shield(asyncio.ensure_future(self._release(reservation)))

    async def _release(self, reservation: Reservation) -> None:
        with contextlib.suppress(ClusterError):
            await self._cluster.release(reservation)

    def _seems_free(self, placement: Placement) -> bool:
        """Whether it has room beside those that are on their way to a node."""
        processes = [
            wanted_resources(each)
            for each in (*self._placing.values(), *self._placed.values(), placement)
            for _ in range(each.group_size)
        ]
        return has_room(processes, self._nodes)

    async def _create(self, order: StartOrder, placement: Placement) -> ActorGroup:
        name, wanted = order.name, wanted_resources(placement)
        reservation, node_id = None, ""
        if placement.group_size > 1:
            bundles = [wanted or _SMALLEST] * placement.group_size
            reservation = await self._reserve(name, bundles, outlives_us=True)
        elif placement.is_spread:
            model = _model(order)
            node_id = self._spreading.choose(model, wanted, self._nodes, time.monotonic())
            self._spreading.add(name, model, node_id)  # others are started at the same time
        shells: list[Shell] = []
        try:
            for rank in range(placement.group_size):
                creating = self._cluster.create_shell(
                    actor_name(name, rank),
                    wanted,
                    node_id=node_id,
                    reservation=reservation,
                    rank=rank,
                )
                shells.append(await _made(creating, self._cluster.kill))
        except BaseException:
            await _end(ActorGroup(self._cluster, shells, reservation))
            raise
        return ActorGroup(self._cluster, shells, reservation)

    async def _reserve(
        self, name: str, bundles: Sequence[Mapping[str, float]], *, outlives_us: bool
    ) -> Reservation:
        reserving = self._cluster.reserve(
            group_name(self._namespace, name), bundles, outlives_us=outlives_us
        )
        return await _made(reserving, self._cluster.release)

    def _check_version(self, found: Sequence[Whereabouts]) -> None:
        for each in found:
            if each.version != self._version:
                raise ClusterError(
                    f"the node {each.address} has version {each.version} of pytriton, and the "
                    f"server has {self._version}: install the server's version on all nodes"
                )

    async def _watch_nodes(self) -> None:
        while True:
            await asyncio.sleep(_NODES_S)
            counted = list(self._placed)
            try:
                nodes = await asyncio.wait_for(self._cluster.nodes(), _NODES_TIMEOUT_S)
            except (ClusterError, asyncio.TimeoutError) as error:
                reason = str(error) or f"no answer within {_NODES_TIMEOUT_S:g} s"
                self._send(Nodes(self._nodes, f"the head of the cluster does not answer: {reason}"))
                continue
            self._nodes = nodes
            for name in counted:
                self._placed.pop(name, None)
            self._send(Nodes(nodes))


def _model(order: StartOrder) -> tuple[str, str, int]:
    return order.spec.namespace, order.spec.model, order.spec.version


async def _made(making: Awaitable[_Made], undo: Callable[[_Made], Awaitable[None]]) -> _Made:
    """Returns the created object; undoes the creation if the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(making)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.ensure_future(_undo(task, undo)))
        raise


async def _undo(task: asyncio.Future[_Made], undo: Callable[[_Made], Awaitable[None]]) -> None:
    with contextlib.suppress(ClusterError):  # it was not made, or is gone
        await undo(await task)


async def _within(group: ActorGroup, patience_s: float) -> list[Whereabouts] | None:
    """Returns where the actors run; None if they do not run in time, then they are ended."""
    try:
        return await within(patience_s, group.where())
    except asyncio.TimeoutError:
        await _end(group)
        return None
    except BaseException:
        await _end(group)
        raise


async def _end(group: ActorGroup) -> None:
    """End actors, completely also if the task that does it is cancelled."""
    await asyncio.shield(asyncio.ensure_future(group.end()))


logger = logging.getLogger(__name__)

_RAY = "pytriton.runtime.cluster.ray_cluster"
_CONNECT_S = 60.0
_CLOSE_S = 4.0  # for each step of the end
_LAST_S = 15.0  # after which the process ends, whatever Ray does


class LauncherProcess:
    """Connects the control socket with the actors."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_over = asyncio.Event()
        self._link = LauncherLink(sock, loop, TO_LAUNCHER, self._on_message, self._is_over.set)
        self._starts: ActorStarts | None = None
        self._connecting: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Follow the messages of the server until it is gone."""
        self._link.start()
        self._beat()
        await self._is_over.wait()
        threading.Timer(_LAST_S, os._exit, [1]).start()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._starts is not None:
            await self._starts.close(_CLOSE_S)

    def _beat(self) -> None:
        if not self._is_over.is_set():
            self._link.send(Beat())
            self._loop.call_later(BEAT_S, self._beat)

    def _on_message(self, message: ToLauncher) -> None:
        if isinstance(message, Connect):
            self._connecting = asyncio.ensure_future(self._connect(message))
        elif self._starts is not None:
            self._starts.obey(message)

    async def _connect(self, message: Connect) -> None:
        try:
            self._starts = ActorStarts(await asyncio.to_thread(_load_ray), self._link.send)
            await asyncio.wait_for(self._starts.connect(message), _CONNECT_S)
        except ClusterError as error:
            self._link.send(ConnectFailed(str(error)))
        except asyncio.TimeoutError:
            self._link.send(ConnectFailed(f"no answer within {_CONNECT_S:g} s"))
        except Exception as error:  # a bug here must not leave the server waiting
            logger.exception("unexpected error while connecting to the Ray cluster")
            self._link.send(ConnectFailed(f"{type(error).__name__}: {error}"))
        else:
            _ignore_signals()  # again, as Ray has handlers of its own
            return
        self._is_over.set()


def _load_ray() -> Cluster:
    """Import Ray only now, so that a broken installation of it can be reported.

    Raises:
        ClusterError: It cannot be imported.
    """
    try:
        module = importlib.import_module(_RAY)
    except Exception as error:  # packages of wrong versions raise all kinds of errors
        raise ClusterError(f"the package ray cannot be imported: {error}") from error
    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns of threads that call it
    cluster: Cluster = module.RayCluster(_end_stuck)
    return cluster


def _end_stuck(call: str, seconds: float) -> None:
    """End this process, in which a call of Ray's does not return: the server starts another."""
    logger.error("%s has not returned for %g s; the launcher process ends", call, seconds)
    os._exit(1)


def _ignore_signals() -> None:
    """Leave it to the server when to end: these signals reach whole groups of processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main(arguments: list[str] | None = None) -> None:
    """Serve the socket with the inherited descriptor `--control-fd`."""
    parser = argparse.ArgumentParser(prog="python -m pytriton.runtime.cluster.launcher")
    parser.add_argument("--control-fd", type=int, required=True, metavar="N")
    options = parser.parse_args(arguments)
    _ignore_signals()
    os.set_inheritable(options.control_fd, False)
    set_process_title("pytriton launcher")
    asyncio.run(_run(socket.socket(fileno=options.control_fd)))
    os._exit(0)  # threads that wait for a lost cluster keep nothing


async def _run(sock: socket.socket) -> None:
    await LauncherProcess(sock, asyncio.get_running_loop()).run()


if __name__ == "__main__":
    main()
