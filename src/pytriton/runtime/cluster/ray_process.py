# SPDX-License-Identifier: Apache-2.0
"""A process, or a group of them, that Ray starts for an instance, as the server sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.runtime.cluster.cluster import actor_name
from pytriton.runtime.executor.remote.starter import ActorState, ActorStatus
from pytriton.runtime.executor.worker import InstanceUnavailableError, Placement

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pytriton.base.errors import ServerError
    from pytriton.runtime.executor.remote.starter import Place, StartOrder


class RayProcess:
    """See `RemoteProcess`. The result of `exited` is how the process ended, where that is known.

    If it is not known, because the actor or its node was lost, `exited` has an exception.
    """

    def __init__(
        self,
        order: StartOrder,
        loop: asyncio.AbstractEventLoop,
        kill: Callable[[RayProcess], None],
    ) -> None:
        self.order = order
        self.instance = order.spec.instance_name
        self.places: tuple[Place, ...] = ()
        self.placed: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[str] = loop.create_future()
        self.waits_for = ""  # what the cluster lacks, while it is not placed
        self.is_killed = False
        self._kill = kill

    def kill(self) -> None:
        """See `RemoteProcess`."""
        if not self.exited.done():
            self._kill(self)

    def on_placed(self, places: tuple[Place, ...]) -> None:
        """The processes run."""
        self.places = places
        self.waits_for = ""
        if not self.placed.done():
            self.placed.set_result(None)

    def on_refused(self, error: ServerError) -> None:
        """They cannot be started."""
        if not self.placed.done():
            self.placed.set_exception(error)
            self.placed.exception()  # the start may have been cancelled, and nobody ask for it
        self.on_ended("was not started", is_known=True)

    def on_ended(self, reason: str, *, is_known: bool) -> None:
        """One of them has ended."""
        if not self.placed.done():
            self.on_refused(
                InstanceUnavailableError(f"Cannot start '{self.instance}': it {reason}")
            )
        elif not self.exited.done():
            if is_known:
                self.exited.set_result(reason)
            else:
                self.exited.set_exception(InstanceUnavailableError(reason))
                self.exited.exception()  # nobody has to ask for it

    def status(self) -> list[ActorStatus]:
        """Returns what is known of each actor."""
        spec = self.order.spec
        count = (spec.placement or Placement()).group_size
        actors = [
            ActorStatus(
                name=actor_name(self.order.name, rank),
                instance=spec.instance_name,
                model=spec.model,
                version=spec.version,
                namespace=spec.namespace,
                rank=rank,
            )
            for rank in range(count)
        ]
        if not self.places:
            return actors
        return [_placed(actor, place) for actor, place in zip(actors, self.places, strict=True)]

    def __repr__(self) -> str:
        return f"<RayProcess {self.order.name} placed={self.placed.done()} {self.exited}>"


def _placed(actor: ActorStatus, place: Place) -> ActorStatus:
    return ActorStatus(
        name=actor.name,
        instance=actor.instance,
        model=actor.model,
        version=actor.version,
        namespace=actor.namespace,
        node=place.node,
        node_id=place.node_id,
        pid=place.pid,
        rank=actor.rank,
        state=ActorState.STARTING,
    )
