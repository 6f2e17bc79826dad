# SPDX-License-Identifier: Apache-2.0
"""The regions of a server, in the process of its core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.serving.server.shared_memory.region_file import open_file
from pytriton.serving.server.shared_memory.regions import Regions
from pytriton.serving.server.shared_memory.shared_memory import ClientSharedMemory

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from pytriton.serving.engine.client import Answer, EngineClient

_LEAST_COUNT = 64
_MOST_COUNT = 65536


class LocalRegions:
    """Registers regions in this process. See `RegionControl`."""

    def __init__(self, table: Regions | None = None) -> None:
        self.table = Regions(open_file, max_region_count()) if table is None else table
        # Waits until every front end knows the change; None: all are in this process.
        self.settled: Callable[[], Awaitable[None]] | None = None

    def register(self, name: str, key: str, offset: int, byte_size: int) -> Answer[None]:
        self.table.register(name, key, offset, byte_size)
        return None if self.settled is None else self._settle()

    def unregister(self, name: str) -> Answer[None]:
        self.table.unregister(name)
        return None if self.settled is None else self._settle()

    async def _settle(self) -> None:
        if self.settled is not None:
            await self.settled()


def local_shared_memory(
    engine: EngineClient, loop: asyncio.AbstractEventLoop, *, is_allowed: bool
) -> ClientSharedMemory:
    """Returns the shared memory of a front end that is alone, with regions of its own."""
    return ClientSharedMemory(LocalRegions(), engine, loop, is_allowed=is_allowed)


def max_region_count() -> int:
    """Returns how many regions may be registered: a quarter of the file descriptors, at most."""
    try:
        import resource  # noqa: PLC0415  it does not exist on every platform
    except ImportError:
        return _LEAST_COUNT
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_COUNT
    return min(max(_LEAST_COUNT, soft // 4), _MOST_COUNT)
