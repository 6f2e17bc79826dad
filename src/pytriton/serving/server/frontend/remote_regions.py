# SPDX-License-Identifier: Apache-2.0
"""The regions of client shared memory as a front end in a process of its own has them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pytriton.base.errors import UnavailableError
from pytriton.runtime.transport.frontend_frames import RegionsTaken
from pytriton.serving.server.shared_memory.region_file import received_file
from pytriton.serving.server.shared_memory.regions import Region, RegionTable

if TYPE_CHECKING:
    from pytriton.runtime.transport.frontend_frames import RegionUpdate
    from pytriton.serving.server.frontend.core_link import CoreLink

logger = logging.getLogger(__name__)


class RemoteRegions:
    """A copy of the core's regions. See `RegionControl`."""

    def __init__(self, link: CoreLink) -> None:
        self.table = RegionTable()
        self._link = link

    async def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        await self._link.ask(
            "register_region", name=name, key=key, offset=offset, byte_size=byte_size
        )

    async def unregister(self, name: str) -> None:
        await self._link.ask("unregister_region", name=name)

    def apply(self, frame: RegionUpdate) -> None:
        """Apply a change of the core's regions, whose descriptors came with the message."""
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
        self._link.send(RegionsTaken(frame.number))
