# SPDX-License-Identifier: Apache-2.0
"""The actors of one start: one, or several in a placement group, which live and end together."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from pytriton.runtime.cluster.cluster import ClusterError
from pytriton.runtime.executor.remote.starter import Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytriton.runtime.cluster.cluster import Cluster, Reservation, Shell, Whereabouts
    from pytriton.runtime.executor.remote.starter import StartOrder

_STOP_S = 2.0  # for an actor to kill its process and those that it has started


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
    ) -> tuple[Place, ...]:
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
            Place(node=names.get(each.node_id, each.address), node_id=each.node_id, pid=pid)
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
        """End all actors, and give back what was set aside for them."""
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
    """Returns what the process of each rank finds in its environment, as PyTorch names it."""
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
