# SPDX-License-Identifier: Apache-2.0
"""Both ends of the regions of client shared memory: the core has them, front ends have copies.

A region is a descriptor, which travels with the message about it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pytriton.base.errors import UnavailableError
from pytriton.runtime.transport.frontend_frames import (
    CudaRegionRecord,
    RegionRecord,
    RegionsTaken,
    RegionUpdate,
)
from pytriton.serving.server.shared_memory.region_file import received_file
from pytriton.serving.server.shared_memory.regions import DeviceRegion, Region, RegionTable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from pytriton.serving.server.frontend.remote_client import RemoteClient
    from pytriton.serving.server.frontend.session import FrontEndSession
    from pytriton.serving.server.shared_memory.shared_memory import LocalRegions

_MAX_PER_MESSAGE = 100  # regions; Linux passes up to 253 descriptors with a message


class _Updates:
    """The updates that one front end has been sent and has not applied yet."""

    def __init__(self) -> None:
        self.last = 0  # the number of the last one
        # By number, with their regions: the descriptors have to be open until they have arrived.
        self.open: dict[int, Sequence[Region | DeviceRegion]] = {}


class RegionFeed:
    """Keeps the regions of all front ends equal to the core's, whose changes it observes."""

    def __init__(self, regions: LocalRegions, loop: asyncio.AbstractEventLoop) -> None:
        self.regions = regions
        self._loop = loop
        self._readers: dict[FrontEndSession, _Updates] = {}
        # Each with the updates that it waits for.
        self._waiters: list[tuple[dict[FrontEndSession, int], asyncio.Future[None]]] = []
        regions.table.on_changed = self._on_changed
        regions.settled = self.settled

    def add(self, reader: FrontEndSession) -> None:
        """Send all regions to a new front end, and changes from now on."""
        self._readers[reader] = _Updates()
        self._send(reader, self.regions.table.all_regions(), ())

    def remove(self, reader: FrontEndSession) -> None:
        """Forget a front end that has ended."""
        self._readers.pop(reader, None)
        self._tell_waiters()

    def on_taken(self, reader: FrontEndSession, number: int) -> None:
        """Called when a front end has applied an update."""
        # Late reports of a front end that was removed are ignored.
        updates = self._readers.get(reader)
        if updates is not None:
            updates.open.pop(number, None)
            self._tell_waiters()

    async def settled(self) -> None:
        """Wait until every front end has applied all changes."""
        expected = {
            reader: updates.last for reader, updates in self._readers.items() if updates.open
        }
        if expected:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((expected, waiter))
            await waiter

    def _tell_waiters(self) -> None:
        waiting = []
        for expected, waiter in self._waiters:
            if any(self._is_open(reader, number) for reader, number in expected.items()):
                waiting.append((expected, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiters = waiting

    def _is_open(self, reader: FrontEndSession, number: int) -> bool:
        updates = self._readers.get(reader)
        return updates is not None and any(each <= number for each in updates.open)

    def _on_changed(self, added: Iterable[Region | DeviceRegion], removed: Iterable[str]) -> None:
        added, removed = list(added), list(removed)
        for reader in list(self._readers):
            self._send(reader, added, removed)

    def _send(
        self,
        reader: FrontEndSession,
        added: Sequence[Region | DeviceRegion],
        removed: Sequence[str],
    ) -> None:
        """Send a change in as many messages as it takes; nothing if nothing has changed."""
        updates = self._readers[reader]
        # Removals bring no descriptors, so one message has all of them.
        if removed:
            self._send_message(reader, updates, (), removed)
        # Linux passes a limited number of descriptors with one message.
        for start in range(0, len(added), _MAX_PER_MESSAGE):
            self._send_message(reader, updates, added[start : start + _MAX_PER_MESSAGE], ())

    def _send_message(
        self,
        reader: FrontEndSession,
        updates: _Updates,
        added: Sequence[Region | DeviceRegion],
        removed: Sequence[str],
    ) -> None:
        updates.last += 1
        updates.open[updates.last] = added
        files = [region for region in added if isinstance(region, Region)]
        records = [
            RegionRecord(region.name, region.key, region.offset, region.byte_size)
            for region in files
        ]
        cuda = [
            CudaRegionRecord(each.name, each.number, each.handle, each.device, each.byte_size)
            for each in added
            if isinstance(each, DeviceRegion)
        ]
        descriptors = [region.file.descriptor for region in files]
        update = RegionUpdate(updates.last, records, list(removed), cuda)
        reader.send_regions(update, descriptors)


logger = logging.getLogger(__name__)


class RemoteRegions:
    """A copy of the core's regions. See `RegionControl`."""

    def __init__(self, client: RemoteClient) -> None:
        self.table = RegionTable()
        self.ask = client.ask
        self._link = client.link

    def apply(self, frame: RegionUpdate) -> None:
        """Apply a change of the core's regions, whose descriptors came with the message."""
        # Requests that use the region keep its file open until they have ended.
        for name in frame.removed:
            self.table.remove(name)
        try:
            descriptors = self._link.take_descriptors(len(frame.added))
        except UnavailableError as error:
            names = ", ".join(record.name for record in frame.added)
            logger.warning("requests of this front end cannot use the regions %s: %s", names, error)
            descriptors = []
        for record, descriptor in zip(frame.added, descriptors, strict=bool(descriptors)):
            file = received_file(descriptor)
            self.table.add(Region(record.name, record.key, record.offset, record.byte_size, file))
        for cuda in frame.added_cuda:
            self.table.add(
                DeviceRegion(cuda.name, cuda.number, cuda.handle, cuda.device, cuda.byte_size)
            )
        self._link.send(RegionsTaken(frame.number))
