# SPDX-License-Identifier: Apache-2.0
"""The server's side of the launcher process, whose other side is played by the tests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys

import pytest

from pytriton.base.errors import InternalError, UnavailableError, UnsupportedError
from pytriton.base.settings import RayOptions
from pytriton.runtime.cluster import executor as launcher_process
from pytriton.runtime.cluster.executor import Backoff, RayExecutor, require_ray
from pytriton.runtime.cluster.messages import (
    TO_LAUNCHER,
    Connect,
    Connected,
    ConnectFailed,
    Ended,
    Kill,
    LauncherLink,
    Nodes,
    Placed,
    StartInstance,
    StartRefused,
    Waiting,
)
from pytriton.runtime.executor.python_process import StartedZygote
from pytriton.runtime.executor.remote.starter import (
    ActorState,
    NodeStatus,
    ProcessPlace,
    StartOrder,
)
from pytriton.runtime.executor.worker import InstanceUnavailableError, Placement, WorkerSpec
from pytriton.runtime.transport.link import stream_pair

NODES = (NodeStatus("n1", "node-1", {"CPU": 2.0}),)
CONNECTED = Connected("10.0.0.1:6379", "10.0.0.1", NODES)
PLACES = (ProcessPlace("node-1", "n1", 17),)


class Launcher:
    """The other end: a socket, and a process that does nothing."""

    def __init__(self, loop, messages):
        ours, theirs = stream_pair()
        self.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        self.started = StartedZygote(self.process, ours)
        self.link = LauncherLink(theirs, loop, TO_LAUNCHER, messages.put_nowait, self.end)
        self.link.start()

    def end(self):
        self.link.close()
        self.process.stdin.close()

    def say(self, *messages):
        for message in messages:
            self.link.send(message)


class Rig:
    """A starter, and the launcher processes that it has started."""

    def __init__(self, options):
        self.loop = asyncio.get_running_loop()
        self.launchers = []
        self.messages = asyncio.Queue()
        self.starts_none = False
        self.starter = RayExecutor(options, self.loop, self._start)

    def _start(self):
        if self.starts_none:
            raise OSError("no memory")
        self.launchers.append(Launcher(self.loop, self.messages))
        return self.launchers[-1].started

    def say(self, *messages):
        self.launchers[-1].say(*messages)

    async def next_of(self, kind):
        while True:
            message = await asyncio.wait_for(self.messages.get(), 60)
            if isinstance(message, kind):
                return message

    async def connected(self):
        connecting = asyncio.ensure_future(self.starter.connect())
        await self.next_of(Connect)
        self.say(CONNECTED)
        return await connecting

    async def placed(self, number=1):
        starting = asyncio.ensure_future(self.starter.start(order(number)))
        await self.next_of(StartInstance)
        self.say(Placed(order(number).name, PLACES))
        return await starting


def order(number=1, **placement):
    spec = WorkerSpec(
        f"Add_0_{number}", "title", placement=Placement(**placement), model="Add", version=2
    )
    return StartOrder(f"Add_0_{number}-0000000{number}", spec, ("tcp:10.0.0.1:9",), "secret")


@contextlib.asynccontextmanager
async def rig(**options):
    made = Rig(RayOptions(**options))
    yield made
    await made.starter.close()
    for launcher in made.launchers:
        launcher.process.wait()


async def until(condition):
    while not condition():  # noqa: ASYNC110  a status has no events
        await asyncio.sleep(0)


def run(case):
    asyncio.run(case())


def test_log_names_the_cluster(caplog):
    async def case():
        async with rig() as it:
            await it.connected()

    with caplog.at_level(logging.INFO):
        run(case)

    assert "connected to the Ray cluster at 10.0.0.1:6379, which has 1 node" in caplog.messages


def test_launcher_process_is_started_once_for_all_that_connect():
    async def case():
        async with rig(address="10.0.0.1:6379", working_dir="/code") as it:
            connecting = [asyncio.ensure_future(it.starter.connect()) for _ in range(2)]
            asked = await it.next_of(Connect)
            it.say(CONNECTED)
            answers = await asyncio.gather(*connecting)

            answers.append(await it.starter.connect())

            assert (asked.address, asked.working_dir, asked.known) == ("10.0.0.1:6379", "/code", ())
            assert asked.namespace.startswith("pytriton-")
            assert answers == [CONNECTED] * 3
            assert len(it.launchers) == 1

    run(case)


def test_cluster_that_is_not_there_is_an_error_and_is_looked_for_again_when_asked():
    async def case():
        async with rig() as it:
            connecting = asyncio.ensure_future(it.starter.connect())
            await it.next_of(Connect)
            it.say(ConnectFailed("nobody listens at 10.0.0.1:6379"))
            with pytest.raises(UnavailableError, match="nobody listens"):
                await connecting
            problem = it.starter.status().problem
            answer = await it.connected()  # at once, while the first process may still be ending

            assert "nobody listens" in problem
            assert answer == CONNECTED

    run(case)


def test_launcher_process_that_ends_before_it_says_anything_is_an_error():
    async def case():
        async with rig() as it:
            connecting = asyncio.ensure_future(it.starter.connect())
            await it.next_of(Connect)
            it.launchers[0].end()

            with pytest.raises(UnavailableError, match="its output in the server's log says why"):
                await connecting

    run(case)


def test_order_does_not_show_its_secret():
    assert order().token == "secret"
    assert "secret" not in f"{order()} {order()!r} {StartInstance(order())!r}"


def test_started_process_has_its_places_and_its_end():
    async def case():
        async with rig() as it:
            await it.connected()
            process = await it.placed()
            (actor,) = it.starter.status().actors
            it.say(Ended(order().name, "exited with code 1", is_status_known=True))
            reason = await process.exited

            assert process.places == PLACES
            assert (actor.model, actor.version, actor.instance) == ("Add", 2, "Add_0_1")
            assert (actor.node, actor.pid, actor.state) == ("node-1", 17, ActorState.STARTING)
            assert reason == "exited with code 1"
            assert it.starter.status().actors == ()

    run(case)


def test_lost_process_is_told_from_one_that_ended():
    async def case():
        async with rig() as it:
            await it.connected()
            process = await it.placed()
            it.say(Ended(order().name, "is lost, as its node died", is_status_known=False))

            with pytest.raises(InstanceUnavailableError, match="its node died"):
                await process.exited

    run(case)


def test_start_without_room_fails_in_time_with_what_is_missing():
    async def case():
        async with rig() as it:
            await it.connected()
            starting = asyncio.ensure_future(it.starter.start(order(start_timeout_s=60.0)))
            await it.next_of(StartInstance)
            it.say(Waiting(order().name, "it needs 9 GPU"))
            await until(lambda: it.starter._processes[order().name].waits_for)
            (actor,) = it.starter.status().actors
            time = it.loop.time
            it.loop.time = lambda: time() + 60
            with pytest.raises(InstanceUnavailableError, match="within 60 s: it needs 9 GPU"):
                await starting
            killed = await it.next_of(Kill)

            assert actor.state is ActorState.PENDING
            assert killed.name == order().name

    run(case)


def test_cancelled_start_is_killed():
    async def case():
        async with rig() as it:
            await it.connected()
            starting = asyncio.ensure_future(it.starter.start(order()))
            await it.next_of(StartInstance)
            starting.cancel()
            killed = await it.next_of(Kill)

            assert killed.name == order().name

    run(case)


@pytest.mark.parametrize(
    "is_unavailable, kind", [(True, InstanceUnavailableError), (False, InternalError)]
)
def test_refused_start_says_why(is_unavailable, kind):
    async def case():
        async with rig() as it:
            await it.connected()
            starting = asyncio.ensure_future(it.starter.start(order()))
            await it.next_of(StartInstance)
            it.say(StartRefused(order().name, "no pytriton there", is_unavailable))

            with pytest.raises(kind, match="Cannot start 'Add_0_1': no pytriton there"):
                await starting

    run(case)


def test_launcher_process_that_ends_is_started_again_and_told_what_runs():
    async def case():
        async with rig() as it:
            await it.connected()
            running = await it.placed(1)
            forgotten = await it.placed(2)
            waiting = asyncio.ensure_future(it.starter.start(order(3)))
            await it.next_of(StartInstance)
            it.launchers[0].end()
            await until(lambda: not it.starter.status().is_connected)
            forgotten.kill()
            late = asyncio.ensure_future(it.starter.start(order(4)))
            again = await it.next_of(Connect)
            it.say(CONNECTED)
            names = [(await it.next_of(StartInstance)).order.name for _ in range(2)]
            it.say(Placed(order(3).name, PLACES), Placed(order(4).name, PLACES))
            await asyncio.gather(waiting, late)

            assert again.known == (order(1).name,)
            assert names == [order(3).name, order(4).name]
            assert not running.exited.done()
            assert await forgotten.exited == "was killed"
            assert it.starter.status().launcher_restarts == 1

    run(case)


def test_process_that_is_killed_while_the_launcher_process_connects_again_is_killed_then():
    async def case():
        async with rig() as it:
            await it.connected()
            process = await it.placed()
            it.launchers[0].end()
            again = await it.next_of(Connect)
            assert it.starter.status().unreachable_s > 0
            process.kill()
            it.say(CONNECTED)
            killed = await it.next_of(Kill)

            assert again.known == (order().name,)
            assert killed.name == order().name

    run(case)


def test_launcher_process_that_cannot_be_started_is_an_error_and_is_tried_again():
    async def case():
        async with rig() as it:
            it.starts_none = True
            with pytest.raises(UnavailableError, match="cannot be started: no memory"):
                await it.starter.connect()
            it.starts_none = False
            await it.connected()
            running = await it.placed()
            it.starts_none = True
            it.launchers[0].end()
            await until(lambda: it.starter.status().problem)
            with pytest.raises(InstanceUnavailableError, match="cannot be started: no memory"):
                await it.starter.start(order(2))
            it.starts_none = False
            await it.next_of(Connect)
            it.say(CONNECTED)
            await until(lambda: it.starter.status().is_connected)
            await it.placed(3)

            assert not running.exited.done()

    run(case)


def test_lost_head_fails_starts_at_once_and_lets_instances_go_on():
    async def case():
        async with rig() as it:
            await it.connected()
            running = await it.placed(1)
            waiting = asyncio.ensure_future(it.starter.start(order(2)))
            await it.next_of(StartInstance)
            it.say(Nodes(NODES, "the head does not answer"))
            with pytest.raises(InstanceUnavailableError, match="the head does not answer"):
                await waiting
            with pytest.raises(InstanceUnavailableError, match="the head does not answer"):
                await it.starter.start(order(3))
            lost = it.starter.status()
            it.say(Nodes(NODES))
            await until(lambda: it.starter.status().is_connected)
            await it.placed(4)

            assert (lost.is_connected, lost.problem) == (False, "the head does not answer")
            assert lost.unreachable_s > 0
            assert it.starter.status().unreachable_s == 0
            assert not running.exited.done()

    run(case)


def test_cluster_that_is_away_after_a_restart_fails_starts_at_once(caplog):
    async def case():
        async with rig() as it:
            await it.connected()
            running = await it.placed(1)
            it.launchers[0].end()
            await it.next_of(Connect)
            it.say(ConnectFailed("no route"))
            await until(lambda: it.starter.status().problem)
            with pytest.raises(InstanceUnavailableError, match="no route"):
                await it.starter.start(order(2))
            await it.next_of(Connect)  # once more
            with pytest.raises(InstanceUnavailableError, match="no route"):
                await it.starter.start(order(3))
            it.say(ConnectFailed("no route"))
            await it.next_of(Connect)
            it.say(CONNECTED)
            await until(lambda: it.starter.status().is_connected)
            await it.placed(4)

            assert not running.exited.done()

    run(case)

    told = [message for message in caplog.messages if "instances that run go on" in message]
    assert told == ["the Ray cluster cannot be reached: no route; instances that run go on"]


def shown(it):
    status = it.starter.status()
    return status.nodes, status.problem


def test_recoveries_are_a_head_that_answers_again_a_new_node_and_a_new_launcher_process():
    more = (*NODES, NodeStatus("n2", "node-2", {"CPU": 2.0}))
    counts = []

    async def case():
        async with rig() as it:
            await it.connected()
            counts.append(it.starter.recovery.count)
            for nodes in (Nodes(NODES), Nodes(NODES, "gone"), Nodes(NODES), Nodes(more)):
                it.say(nodes)
                status = nodes.nodes, nodes.problem
                await until(lambda status=status: shown(it) == status)
                counts.append(it.starter.recovery.count)
            it.say(Nodes(NODES))  # one less is no recovery
            await until(lambda: it.starter.status().nodes == NODES)
            counts.append(it.starter.recovery.count)
            it.launchers[0].end()
            await it.next_of(Connect)
            it.say(CONNECTED)
            await until(lambda: it.starter.status().is_connected)
            counts.append(it.starter.recovery.count)

    run(case)

    assert counts == [0, 0, 0, 1, 2, 2, 3]


def test_closed_starter_ends_its_processes_and_starts_none():
    async def case():
        async with rig() as it:
            await it.connected()
            process = await it.placed()
            await it.starter.close()

            assert it.launchers[0].process.wait() == 0
            assert process.exited.done()
            with pytest.raises(UnavailableError, match="stopping"):
                await it.starter.start(order(2))

    run(case)


def test_delays_between_restarts_grow_and_begin_again_after_a_calm_time():
    backoff = Backoff()
    delays = []
    for _ in range(12):
        backoff.on_start(100.0)
        delays.append(backoff.on_end(101.0))
    backoff.on_start(200.0)

    assert delays[:3] == [0.2, 0.4, 0.8]
    assert delays[-1] == 15.0
    assert backoff.on_end(300.0) == 0.2


def test_missing_ray_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(launcher_process.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(UnsupportedError, match=r"pip install 'pytriton\[ray\]'"):
        require_ray()


def test_missing_ray_is_told_before_anything_is_started(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed

    async def scenario():
        executor = RayExecutor(RayOptions(), asyncio.get_running_loop())
        with pytest.raises(UnsupportedError, match="need the package ray, which is not installed"):
            await executor.launcher()
        assert not executor.status().is_connected
        await executor.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", range(5))
def test_caller_that_is_given_up_when_its_process_is_placed_does_not_go_on(turns):
    async def case():
        async with rig() as it:
            await it.connected()

            async def launch():
                await it.starter.start(order())
                await asyncio.Event().wait()

            launching = asyncio.ensure_future(launch())
            await it.next_of(StartInstance)
            it.starter._processes[order().name].on_placed(PLACES)
            for _ in range(turns):
                await asyncio.sleep(0)
            launching.cancel()
            await asyncio.wait([launching], timeout=60)

            assert launching.cancelled()

    run(case)
