# SPDX-License-Identifier: Apache-2.0
"""The processes of rank 1 and above of an instance that is made of several.

They load the model together with rank 0 and end together with it. Only rank 0 gets batches: how the
others learn what to do is the model's own matter.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import structs

from pytriton.runtime.executor.call_server import CallServer
from pytriton.runtime.transport.frames import Finalized, Initialized
from pytriton.runtime.transport.loop_channel import LoopChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.runtime.executor.call_server import WorkerServices
    from pytriton.runtime.executor.remote.starter import ProcessPlace
    from pytriton.runtime.transport.arena import MemoryTrimmer
    from pytriton.runtime.transport.channel import Channel, Received
    from pytriton.runtime.transport.frames import Finalize, Initialize, LogChange

# How long the others may take to finalize once rank 0 has: one may wait for work for ever.
_GRACE_S = 5.0


class RankGroup:
    """The server's ends of these processes.

    Args:
        name: The instance's name.
        channels: The channels, of rank 1 first.
        places: Where the processes run, in the same order.
        memory: The arena of the channels' payloads.
        loop: The event loop.
        services: What the processes may ask of the server.
        on_lost: Called once with the reason as text when a connection was lost.
    """

    def __init__(
        self,
        name: str,
        channels: Sequence[Channel],
        places: Sequence[ProcessPlace],
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        services: WorkerServices,
        on_lost: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._finalized: asyncio.Future[None] = loop.create_future()
        self._unfinished = len(channels)
        self._timer: asyncio.TimerHandle | None = None
        self._members = [
            _Rank(self, f"rank {rank} of {name}", channel, place, memory, loop, services)
            for rank, (channel, place) in enumerate(zip(channels, places, strict=True), start=1)
        ]

    @property
    def size(self) -> int:
        """The number of processes, with rank 0."""
        return 1 + len(self._members)

    def begin(self, frame: Initialize) -> Initialize:
        """Let all ranks load the model; returns what rank 0 is to be sent."""
        frames = [
            structs.replace(
                frame,
                arguments={
                    **frame.arguments,
                    "model_group_rank": str(rank),
                    "model_group_size": str(self.size),
                },
            )
            for rank in range(self.size)
        ]
        for member, each in zip(self._members, frames[1:], strict=True):
            member.channel.start()
            member.channel.send(each)
        return frames[0]

    async def gather(self, first: asyncio.Future[Initialized]) -> Initialized:
        """Wait for all reports, of which `first` is that of rank 0; returns at the first failure.

        The others of a group wait for one that has failed, so they are not waited for. If a process
        ends, `close` cancels what the others would report, and `first` has the error.
        """
        first.add_done_callback(_take_error)
        pending: set[asyncio.Future[Initialized]] = {first}
        pending.update(member.initialized for member in self._members)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                if not each.cancelled() and (report := each.result()).is_failure:
                    return report
        return first.result()

    def tell(self, frame: Finalize | LogChange) -> None:
        """Send all of them what rank 0 was sent."""
        for member in self._members:
            if member.channel.is_open:
                member.channel.send(frame)

    def on_first_finalized(self, end: Callable[[], None]) -> None:
        """Call `end` when the others have finalized, too, or have had time to."""
        self._timer = self._loop.call_later(_GRACE_S, self._end_finalizing)
        self._finalized.add_done_callback(lambda _: end())

    def close(self) -> None:
        """Close the connections; may be called twice."""
        self._end_finalizing()
        for member in self._members:
            member.close()

    def __repr__(self) -> str:
        return f"<RankGroup size={self.size} unfinished={self._unfinished}>"

    def on_member_lost(self, reason: str) -> None:
        """Report the loss of a connection."""
        self._on_lost(reason)

    def on_member_finalized(self) -> None:
        """Note that one more has finalized."""
        self._unfinished -= 1
        if not self._unfinished:
            self._end_finalizing()

    def _end_finalizing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._finalized.done():
            self._finalized.set_result(None)


def _take_error(report: asyncio.Future[Initialized]) -> None:
    if not report.cancelled():
        report.exception()  # another rank has failed before, and its error was told


class _Rank:
    """One process: it reports how the model was loaded, and may write to the log."""

    def __init__(
        self,
        group: RankGroup,
        name: str,
        channel: Channel,
        place: ProcessPlace,
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        services: WorkerServices,
    ) -> None:
        self.initialized: asyncio.Future[Initialized] = loop.create_future()
        self._group = group
        self._name = name
        self._node = place.node
        self._where = f"node {place.node}, process {place.pid}"
        self.channel = LoopChannel(
            channel, loop, memory, name, on_message=self._on_message, on_lost=self._on_lost
        )
        self._call_server = CallServer(self.channel, services, f"{name}@{place.node}")

    def close(self) -> None:
        self._call_server.close()
        self.channel.close()
        self.initialized.cancel()

    def __repr__(self) -> str:
        return f"<_Member {self._name} {self._where}>"

    def _on_message(self, received: Received) -> None:
        frame = received.frame
        if isinstance(frame, Initialized):
            if frame.error:
                frame.error = f"On node '{self._node}': {self._name}: {frame.error}"
            if not self.initialized.done():
                self.initialized.set_result(frame)
        elif isinstance(frame, Finalized):
            self._group.on_member_finalized()
        else:
            self._call_server.handle(received)

    def _on_lost(self, error: Exception) -> None:
        self._group.on_member_lost(f"the connection of {self._name} was lost ({self._where})")
