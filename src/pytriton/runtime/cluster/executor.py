# SPDX-License-Identifier: Apache-2.0
"""The Ray cluster of a server: opened with the first instance that runs there, closed with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pytriton.base.errors import UnavailableError
from pytriton.runtime.cluster.starter import RayStarter, require_ray
from pytriton.runtime.executor.remote.instance_port import InstancePort
from pytriton.runtime.executor.remote.remote_launcher import RemoteLauncher

if TYPE_CHECKING:
    from pytriton.base.settings import RayOptions
    from pytriton.runtime.executor.remote.starter import ClusterStatus
    from pytriton.runtime.executor.worker import Launcher


class RayExecutor:
    """Has the launcher of instances on a Ray cluster. It is used on the event loop's thread."""

    def __init__(self, options: RayOptions, loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._loop = loop
        self._starter = RayStarter(options, loop)
        self._opening = asyncio.Lock()
        self._port: InstancePort | None = None
        self._launcher: RemoteLauncher | None = None
        self._is_closed = False

    async def launcher(self) -> Launcher:
        """Returns what starts instances; connects to the cluster on the first call.

        Raises:
            UnsupportedError: Ray is not installed.
            UnavailableError: The cluster cannot be reached, or the port for instances not be
                opened. The next call tries again.
        """
        async with self._opening:
            if self._is_closed:
                raise UnavailableError("Server is stopping, no process is started any more")
            if self._launcher is None:
                require_ray()
                self._launcher = await self._open()
            return self._launcher

    def status(self) -> ClusterStatus:
        """Returns the last known status of the cluster."""
        return self._starter.status()

    async def close(self) -> None:
        """End all instances, and disconnect. It may be called twice."""
        self._is_closed = True
        if self._launcher is not None:
            await self._launcher.close()
        await self._starter.close()
        async with self._opening:
            if self._port is not None:
                await self._port.close()
                self._port = None

    def __repr__(self) -> str:
        return f"<RayExecutor {self._starter}>"

    async def _open(self) -> RemoteLauncher:
        cluster = await self._starter.connect()
        host = self._options.instance_address or cluster.node_address
        port = InstancePort(self._loop, host, self._options.instance_port)
        try:
            await port.open()
        except OSError as error:
            raise UnavailableError(
                f"The port for instances on {host}:{self._options.instance_port} cannot be opened: "
                f"{error}"
            ) from error
        self._port = port
        return RemoteLauncher(port, self._starter, self._loop)
