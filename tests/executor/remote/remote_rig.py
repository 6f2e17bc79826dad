# SPDX-License-Identifier: Apache-2.0
"""Instances whose processes connect to a port of the test, and what is left of them: nothing."""

from __future__ import annotations

import asyncio

from pytriton.runtime.executor.remote.instance_port import InstancePort
from pytriton.runtime.executor.remote.remote_launcher import RemoteLauncher
from pytriton.runtime.executor.worker import Placement, WorkerSpec
from tests.executor.remote.plain_starter import PlainStarter
from tests.executor.test_workers import Owner
from tests.executor.worker_rig import DEADLINE_S, run_leaving_nothing


class RemotePort(InstancePort):
    """A port that processes reach over one kind of address only, or look for elsewhere."""

    only = ""
    others = ()

    @property
    def addresses(self):
        if self.others:
            return self.others
        return tuple(each for each in super().addresses if each.startswith(self.only))


class RemoteOwner(Owner):
    """Starts remote instances, and hears of them."""

    def __init__(self, way, **starter) -> None:
        loop = asyncio.get_running_loop()
        self.port = RemotePort(loop, "127.0.0.1")
        self.port.only = way
        self.starter = PlainStarter(loop, **starter)
        super().__init__(RemoteLauncher(self.port, self.starter, loop))

    async def launch(self, name="m_0_0", *, placement=None, variables=None, **arguments):
        spec = WorkerSpec(name, "test", variables or {}, placement=placement or Placement())
        return await super().launch(name, spec=spec, **arguments)

    async def close(self) -> None:
        await self.launcher.close()
        for instance in self.instances:
            await instance.ended
        await self.starter.close()
        await self.port.close()


def run(scenario, way="tcp:", **starter):
    """Run a scenario, end what it has not ended, and see that nothing is left."""

    async def main():
        owner = RemoteOwner(way, **starter)
        await owner.port.open()
        try:
            await asyncio.wait_for(scenario(owner), DEADLINE_S)
        finally:
            await owner.close()

    run_leaving_nothing(main)
