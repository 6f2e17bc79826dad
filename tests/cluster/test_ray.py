# SPDX-License-Identifier: Apache-2.0
"""Instances on a real Ray with three nodes, all of them processes of this machine.

These are few: decisions are tested without Ray, and the failures of whole servers under load
elsewhere.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from pytriton.base.settings import RayOptions
from pytriton.runtime.cluster.executor import RayExecutor
from pytriton.runtime.executor.worker import Placement, WorkerSpec
from tests.cluster.ray_cluster import RayNodes
from tests.examples.test_examples import EXAMPLES, check_commands

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.gpu,  # nodes that claim to have GPUs need an environment that hides none
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]

NODES = {
    "head": {"num_cpus": 2},
    "gpus": {"num_cpus": 4, "num_gpus": 2},
    "disks": {"num_cpus": 2, "resources": {"fast_disk": 2}},
}
# A server without ports: it starts two instances and a group, and waits for a third that has no
# room. It prints the process ids of its launcher process and of its instances.
SERVER = """
import asyncio, sys
from pytriton.runtime.cluster.executor import RayExecutor
from pytriton.runtime.executor.worker import Placement
from pytriton.runtime.executor.worker import WorkerSpec
from pytriton.base.settings import RayOptions

async def main():
    executor = RayExecutor(RayOptions(address=sys.argv[1]), asyncio.get_running_loop())
    launcher = await executor.launcher()
    def launch(name, **placement):
        spec = WorkerSpec(name, name, placement=Placement(**placement))
        return asyncio.ensure_future(launcher.launch(spec))
    await asyncio.gather(launch("One_0_0"), launch("Big_0_0", group_size=2))
    waiting = [launch("None_0_0", num_gpus=64), launch("Huge_0_0", num_gpus=64, group_size=2)]
    while sum(actor.pid == 0 for actor in executor.status().actors) < 3:
        await asyncio.sleep(0.05)
    pids = [actor.pid for actor in executor.status().actors if actor.pid]
    print(executor._process.process.pid, *pids, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await executor.close()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def nodes():
    cluster = RayNodes(NODES)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        cluster.start()
        yield cluster
    cluster.stop()


class Rig:
    """An executor on the cluster, and what tests do with it."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.loop = asyncio.new_event_loop()
        self.executor = RayExecutor(RayOptions(address=nodes.address), self.loop)
        self.workers = []
        self._count = 0

    def run(self, work):
        return self.loop.run_until_complete(work)

    async def launch(self, **placement):
        self._count += 1
        spec = WorkerSpec(
            f"Add_0_{self._count}",
            "worker of a test",
            placement=Placement(**placement),
            environment={"OF_THE_MODEL": "yes"},
        )
        launcher = await self.executor.launcher()
        self.workers.append(await launcher.launch(spec))
        return self.workers[-1]

    async def end(self):
        """End the instances, and close their connections, as they do."""
        workers, self.workers = self.workers, []
        for worker in workers:
            worker.kill()
            await worker.exited
            for link in worker._links:
                link.close()

    def launcher_pid(self):
        return self.executor._process.process.pid

    def wait_until_left(self, actors=0, groups=0):
        """Wait until the cluster has just so many."""
        return wait_until(
            lambda: [len(each) for each in self.nodes.left().values()] == [actors, groups]
        )


@pytest.fixture(scope="module")
def shared(nodes):
    rig = Rig(nodes)
    yield rig
    rig.run(rig.executor.close())
    rig.loop.close()


@pytest.fixture
def rig(shared):
    """The shared executor, on a cluster without actors."""
    shared.wait_until_left(actors=0, groups=0)
    yield shared
    shared.run(shared.end())


async def until(condition):
    while not condition():  # noqa: ASYNC110  a status has no events
        await asyncio.sleep(0.01)


def wait_until(condition, timeout_s=120.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition is not true in time"
        time.sleep(0.05)


def is_running(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def environment_of(pid):
    data = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(entry.split("=", 1) for entry in data.split("\0") if "=" in entry)


def test_killed_instance_leaves_no_process_and_no_actor(rig):
    async def case():
        worker = await rig.launch()
        worker.kill()
        await worker.exited
        return worker

    worker = rig.run(case())

    rig.wait_until_left(actors=0)
    wait_until(lambda: not is_running(worker.pid))


def test_process_that_ends_tells_how(rig):
    async def case():
        worker = await rig.launch()
        os.kill(worker.pid, signal.SIGKILL)
        return await worker.exited

    assert "killed by SIGKILL" in rig.run(case())


def test_group_starts_and_ends_together(rig):
    async def case():
        worker = await rig.launch(group_size=3)
        actors = rig.executor.status().actors
        pids = [actor.pid for actor in sorted(actors, key=lambda actor: actor.rank)]
        environments = [environment_of(pid) for pid in pids]
        os.kill(pids[1], signal.SIGKILL)
        await worker.exited
        return pids, environments

    pids, environments = rig.run(case())

    assert [each["RANK"] for each in environments] == ["0", "1", "2"]
    assert {each["WORLD_SIZE"] for each in environments} == {"3"}
    assert len({(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in environments}) == 1
    rig.wait_until_left(actors=0, groups=0)
    wait_until(lambda: not any(map(is_running, pids)))


@pytest.mark.parametrize("victims", ["server", "server and launcher"])
def test_nothing_is_left_of_a_killed_server(rig, victims):
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, rig.nodes.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        launcher, *instances = map(int, server.stdout.readline().split())
        is_there = len(rig.nodes.left()["actors"]) == 3
        if victims != "server":
            os.kill(launcher, signal.SIGKILL)
        server.kill()

    assert is_there
    rig.wait_until_left(actors=0, groups=0)
    wait_until(lambda: not any(map(is_running, [launcher, *instances])))


def test_example_of_bound_functions_does_what_its_page_says(rig, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", rig.nodes.address)
    check_commands(EXAMPLES / "ray" / "server.py")

    rig.wait_until_left(actors=0, groups=0)
