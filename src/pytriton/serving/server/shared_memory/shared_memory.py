# SPDX-License-Identifier: Apache-2.0
"""Client shared memory as the front ends of both protocols use it, and the regions of the core."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.errors import (
    ServerError,
    UnsupportedError,
    error_for_clients,
)
from pytriton.serving.repository.reading.instances import visible_gpu_ids
from pytriton.serving.server.api.background import Background
from pytriton.serving.server.shared_memory.region_file import open_file
from pytriton.serving.server.shared_memory.region_request import RegionRequest, machine_budget
from pytriton.serving.server.shared_memory.regions import Regions, RegionTable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from pytriton.base.messages import InferRequest, ResponseSink
    from pytriton.protocol.shared_memory import RegionPlace
    from pytriton.serving.engine.client import Answer, EngineClient
    from pytriton.serving.server.shared_memory.region_request import Submit
    from pytriton.serving.server.shared_memory.regions import DeviceRegion, Region

logger = logging.getLogger(__name__)

_WORKERS = 4  # threads, which only wait for the kernel's copies
_DISABLED = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)


class RegionControl(Protocol):
    """Registers regions, in this process or in the core's.

    The table is only read by others. A region that is unregistered stays open while requests use
    it.
    """

    @property
    def table(self) -> RegionTable:
        """The registered regions, or this process's copy of them."""

    def register(self, name: str, key: str, offset: int, byte_size: int) -> Answer[None]:
        """Register a region; see `Regions`. It is known to all front ends when this is done."""

    def register_cuda(self, name: str, handle: bytes, device: int, byte_size: int) -> Answer[None]:
        """Register a region of GPU memory; see `register`."""

    def unregister(self, name: str) -> Answer[None]:
        """Unregister a region, or all without a name."""

    def unregister_cuda(self, name: str) -> Answer[None]:
        """Unregister a region of GPU memory, or all without a name."""


class ClientSharedMemory:
    """Answers requests about regions, and serves inference requests that use them.

    `process_count` front ends share the machine's memory; 0: this is alone.
    """

    def __init__(
        self,
        control: RegionControl,
        engine: EngineClient,
        loop: asyncio.AbstractEventLoop,
        *,
        is_allowed: bool,
        process_count: int = 0,
    ) -> None:
        self._control = control
        self._engine = engine
        self._is_allowed = is_allowed
        self._budget = machine_budget(process_count)
        self._tasks = BackgroundTasks(loop)
        self._background = Background(loop, "regions", _WORKERS)

    def close(self) -> None:
        self._tasks.cancel()
        self._background.close()

    # Regions

    def register(self, name: str, key: str, offset: int, byte_size: int) -> Answer[None]:
        return self._control.register(name, key, offset, byte_size)

    def unregister(self, name: str) -> Answer[None]:
        return self._control.unregister(name)

    def status(self, name: str) -> list[Region]:
        """Returns a region of system shared memory, or all without a name."""
        return self._control.table.system_regions(name)

    def register_cuda(self, name: str, handle: bytes, device: int, byte_size: int) -> Answer[None]:
        return self._control.register_cuda(name, handle, device, byte_size)

    def unregister_cuda(self, name: str) -> Answer[None]:
        return self._control.unregister_cuda(name)

    def cuda_status(self, name: str) -> list[DeviceRegion]:
        """Returns a region of GPU memory, or all without a name."""
        return self._control.table.cuda_regions(name)

    def check_allowed(self) -> None:
        """Check that clients may register and unregister regions.

        Raises:
            UnsupportedError: They may not.
        """
        if not self._is_allowed:
            raise UnsupportedError(_DISABLED)

    # Requests

    @property
    def table(self) -> RegionTable:
        """The regions that are registered."""
        return self._control.table

    def begin(
        self,
        request: InferRequest,
        places: Mapping[str, RegionPlace],
        sink: ResponseSink,
        submit: Submit,
    ) -> RegionRequest:
        """Serve a request that uses regions; see `RegionRequest`.

        Raises:
            ServerError: A region is unknown, too small, or cannot be read, the request does not fit
                its model, or there is no room for its inputs.
        """
        model = self._engine.lookup(request.model_name, request.model_version)
        region_request = RegionRequest(request, places, sink, submit, self._run_later, self._budget)
        region_request.start(self._control.table, model)
        return region_request

    def _run_later(
        self, work: Callable[[], None], then: Callable[[ServerError | None], None]
    ) -> None:
        async def run() -> None:
            error: ServerError | None = None
            try:
                await self._background.run(work)
            except Exception as raised:  # noqa: BLE001  the client gets it
                error = error_for_clients(raised, "it copied shared memory of a client")
            try:
                then(error)
            except Exception:
                logger.exception("a request with shared memory failed")

        self._tasks.start(run())


_LEAST_COUNT = 64
_MOST_COUNT = 65536


class LocalRegions:
    """Registers regions in this process. See `RegionControl`."""

    def __init__(self, table: Regions | None = None) -> None:
        if table is None:
            table = Regions(open_file, max_region_count(), visible_gpu_ids)
        self.table = table
        # Waits until every front end knows the change; at once if all are in this process.
        self.settled: Callable[[], Answer[None]] = lambda: None

    def register(self, name: str, key: str, offset: int, byte_size: int) -> Answer[None]:
        self.table.register(name, key, offset, byte_size)
        return self.settled()

    def register_cuda(self, name: str, handle: bytes, device: int, byte_size: int) -> Answer[None]:
        self.table.register_cuda(name, handle, device, byte_size)
        return self.settled()

    def unregister(self, name: str) -> Answer[None]:
        self.table.unregister(name)
        return self.settled()

    def unregister_cuda(self, name: str) -> Answer[None]:
        self.table.unregister_cuda(name)
        return self.settled()


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
