# SPDX-License-Identifier: Apache-2.0
"""A cluster of plain processes of this machine, as `Core` sees one."""

from __future__ import annotations

from pytriton.runtime.executor.remote.remote_launcher import RemoteLauncher
from pytriton.runtime.executor.remote.starter import ClusterStatus
from tests.executor.remote.plain_starter import PlainStarter
from tests.executor.remote.remote_rig import RemotePort


class PlainCluster:
    """See `ClusterExecutor`; its processes connect over TCP, as those of other machines do."""

    def __init__(self, options, loop) -> None:
        self.options = options
        self.port = RemotePort(loop, "127.0.0.1")
        self.port.only = "tcp:"
        self.starter = PlainStarter(loop)
        self._launcher = RemoteLauncher(self.port, self.starter, loop)
        self._is_open = False

    async def launcher(self) -> RemoteLauncher:
        if not self._is_open:
            self._is_open = True
            await self.port.open()
        return self._launcher

    def status(self) -> ClusterStatus:
        return ClusterStatus(True, "", self.options.address, (), ())

    async def close(self) -> None:
        await self._launcher.close()
        await self.starter.close()
        await self.port.close()
