# SPDX-License-Identifier: Apache-2.0
"""Client shared memory as the front ends of both protocols use it, and the regions of the core."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.errors import (
    ServerError,
    UnsupportedError,
    error_for_clients,
)
from pytriton.serving.engine.client import question
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

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")
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

    def ask(
        self, method: Callable[Concatenate[Any, _P], _T], /, *args: _P.args, **arguments: _P.kwargs
    ) -> _T:
        """Register or unregister regions: `method` is one of `LocalRegions`; name the arguments."""


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
        self.control = control
        self._engine = engine
        self._is_allowed = is_allowed
        self._budget = machine_budget(process_count)
        self._tasks = BackgroundTasks(loop)
        self._background = Background(loop, "regions", _WORKERS)

    def close(self) -> None:
        self._tasks.cancel()
        self._background.close()

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
        return self.control.table

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
        region_request.start(self.control.table, model)
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

    def ask(
        self, method: Callable[Concatenate[Any, _P], _T], /, *args: _P.args, **arguments: _P.kwargs
    ) -> _T:
        return method(self, *args, **arguments)

    # Each change is known to all front ends when it is done

    @question()
    def register(self, name: str, key: str, offset: int, byte_size: int) -> Answer[None]:
        """Register a region; see `Regions`."""
        self.table.register(name, key, offset, byte_size)
        return self.settled()

    @question()
    def register_cuda(self, name: str, handle: bytes, device: int, byte_size: int) -> Answer[None]:
        """Register a region of GPU memory; see `Regions`."""
        self.table.register_cuda(name, handle, device, byte_size)
        return self.settled()

    @question()
    def unregister(self, name: str) -> Answer[None]:
        """Unregister a region, or all without a name."""
        self.table.unregister(name)
        return self.settled()

    @question()
    def unregister_cuda(self, name: str) -> Answer[None]:
        """Unregister a region of GPU memory, or all without a name."""
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
