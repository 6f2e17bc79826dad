# SPDX-License-Identifier: Apache-2.0
"""Starts of actors in the launcher process, on a cluster without processes."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from pytriton.runtime.cluster import launcher
from pytriton.runtime.cluster.cluster import ClusterError, ClusterGoneError, Whereabouts, group_name
from pytriton.runtime.cluster.launcher import ActorStarts
from pytriton.runtime.cluster.messages import (
    Connect,
    Connected,
    Ended,
    Kill,
    Nodes,
    Placed,
    StartInstance,
    StartRefused,
    Waiting,
)
from pytriton.runtime.executor.remote.starter import NodeStatus, ProcessPlace, StartOrder
from pytriton.runtime.executor.worker import Placement, WorkerSpec

VERSION = "1.2.3"


class FakeShell:
    def __init__(self, name, cluster, reservation):
        self.name = name
        self.cluster = cluster
        self.reservation = reservation
        self.place = asyncio.get_running_loop().create_future()
        self.ended = asyncio.get_running_loop().create_future()
        self.started = None  # the arguments
        self.refusal = ""
        self.is_stopped = False

    async def where(self):
        return await asyncio.shield(self.place)

    async def start(self, order, rank, variables):
        if self.refusal:
            raise ClusterError(self.refusal)
        self.started = (order, rank, dict(variables))
        self.cluster.last_pid += 1
        return self.cluster.last_pid

    async def wait(self):
        return await asyncio.shield(self.ended)

    def stop(self):
        self.is_stopped = True
        self.end("killed by SIGKILL (9)")

    def end(self, reason):
        if not self.ended.done():
            self.ended.set_result(reason)

    def die(self, text):
        """As if its node was lost."""
        for future in (self.place, self.ended):
            if not future.done():
                future.set_exception(ClusterError(text))
                future.exception()


class FakeReservation:
    def __init__(self, name, bundles, outlives_us):
        self.name = name
        self.bundles = bundles
        self.outlives_us = outlives_us
        self.is_ready = False


class FakeCluster:
    """Attributes: what it has now, and `places_at_once`: whether an actor runs when created."""

    def __init__(self, *nodes):
        self.node_list = nodes or (NodeStatus("n1", "node-1", {"CPU": 8.0}),)
        self.shells = {}
        self.reservations = {}
        self.places_at_once = True
        self.version = VERSION
        self.is_gone = False
        self.last_pid = 100
        self.is_closed = False
        self.wanted_nodes = {}  # by the actor's name
        self.asked = []  # the names of all that was to be created
        self.created = []
        self.creates = asyncio.Event()  # cleared: nothing is created yet, as the head is slow
        self.creates.set()

    async def connect(self, address, namespace, working_dir):
        if self.is_gone:
            raise ClusterGoneError("no route to the head")
        return address or "found:6379", "10.0.0.1"

    async def nodes(self):
        if self.is_gone:
            raise ClusterGoneError("no route to the head")
        return tuple(self.node_list)

    async def create_shell(self, name, resources, *, node_id="", reservation=None, rank=0):
        self.wanted_nodes[name] = node_id

        def create():
            if name in self.shells:
                raise ClusterError(f"the name {name} is taken")
            shell = self.shells[name] = FakeShell(name, self, reservation)
            if self.places_at_once:
                self.place(name)
            return shell

        return await self._call(name, create)

    async def _call(self, name, function):
        """Call a function as in a thread: it is called also if nobody waits for it any more."""

        async def call():
            await self.creates.wait()
            self.created.append(name)
            return function()

        self.asked.append(name)
        return await asyncio.shield(asyncio.ensure_future(call()))

    def place(self, name, node_id="n1", address="10.0.0.1"):
        self.shells[name].place.set_result(Whereabouts(self.version, node_id, address, 7000))

    async def find_shells(self):
        return dict(self.shells)

    async def kill(self, shell):
        if self.shells.pop(shell.name, None) is None:
            raise ClusterError("no such actor")
        shell.die("killed")

    async def reserve(self, name, bundles, *, outlives_us):
        def create():
            reservation = FakeReservation(name, [dict(each) for each in bundles], outlives_us)
            self.reservations[name] = reservation
            return reservation

        return await self._call(name, create)

    async def is_ready(self, reservation):
        return reservation.is_ready

    async def find_reservations(self, prefix):
        return {name: each for name, each in self.reservations.items() if name.startswith(prefix)}

    async def release(self, reservation):
        self.reservations.pop(reservation.name, None)

    async def close(self):
        self.is_closed = True


NAMESPACE = "pytriton-1"
NAME = "Add_0_0-00000001"
ROOMY = NodeStatus("n1", "node-1", {"CPU": 8.0})
FULL = NodeStatus("n1", "node-1", {"CPU": 2.0}, {"CPU": 0.5})


class Rig:
    """Starts on a fake cluster, and what they told the server."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.told = asyncio.Queue()
        self.starts = ActorStarts(cluster, self.told.put_nowait)

    async def connect(self, *known):
        await self.starts.connect(Connect("", NAMESPACE, "", VERSION, known))
        return await self.next_of(Connected)

    def start(self, name=NAME, **placement):
        spec = WorkerSpec(name.rpartition("-")[0], "title", placement=Placement(**placement))
        self.starts.obey(StartInstance(StartOrder(name, spec, ("tcp:10.0.0.1:9",), "secret")))

    async def next_of(self, kind):
        while True:
            message = await asyncio.wait_for(self.told.get(), 60)
            if isinstance(message, kind):
                return message


@contextlib.asynccontextmanager
async def rig(*nodes, known=()):
    made = Rig(FakeCluster(*nodes))
    await made.connect(*known)
    yield made
    await made.starts.close(10)


async def until(condition):
    while not condition():  # noqa: ASYNC110  the fake has no events
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(launcher, "_ROOM_S", 0.001)
    monkeypatch.setattr(launcher, "_SILENCE_S", 0)


def run(case):
    asyncio.run(case())


def test_start_is_placed_and_its_end_is_told():
    async def case():
        async with rig() as it:
            it.start()
            placed = await it.next_of(Placed)
            order, rank, variables = it.cluster.shells[NAME].started
            it.cluster.shells[NAME].end("exited with code 3")
            ended = await it.next_of(Ended)

        assert placed == Placed(NAME, (ProcessPlace("node-1", "n1", 101),))
        assert (json.loads(order)["token"], rank, variables) == ("secret", 0, {})
        assert ended == Ended(NAME, "exited with code 3", is_status_known=True)
        assert it.cluster.shells == {}

    run(case)


def test_node_that_has_just_joined_is_told_by_its_name():
    async def case():
        async with rig() as it:
            it.cluster.places_at_once = False
            it.start()
            await until(lambda: NAME in it.cluster.shells)
            it.cluster.node_list += (NodeStatus("n2", "node-2", {"CPU": 8.0}),)
            it.cluster.place(NAME, "n2", "10.0.0.2")
            placed = await it.next_of(Placed)

        assert [place.node for place in placed.places] == ["node-2"]

    run(case)


def test_lost_actor_is_told_as_one_whose_end_nobody_knows():
    async def case():
        async with rig() as it:
            it.start()
            await it.next_of(Placed)
            it.cluster.shells[NAME].die("its node has died")
            ended = await it.next_of(Ended)

        assert "its node has died" in ended.reason
        assert not ended.is_status_known

    run(case)


def test_start_without_room_waits_with_a_reservation_that_ends_with_the_launcher():
    async def case():
        async with rig(FULL) as it:
            it.start()
            waiting = await it.next_of(Waiting)
            (reservation,) = it.cluster.reservations.values()
            actors_meanwhile = dict(it.cluster.shells)
            reservation.is_ready = True
            await it.next_of(Placed)

            assert "0.5 of 2 CPU free" in waiting.reason
            assert reservation.bundles == [{"CPU": 1.0}]
            assert not reservation.outlives_us
            assert actors_meanwhile == {}
            assert it.cluster.reservations == {}

    run(case)


def test_starts_side_by_side_count_the_room_that_others_take():
    async def case():
        async with rig(NodeStatus("n1", "node-1", {"CPU": 2.0}, {"CPU": 2.0})) as it:
            it.cluster.places_at_once = False
            names = [f"Add_0_{i}-{i:08x}" for i in range(3)]
            for name in names:
                it.start(name)
            waiting = await it.next_of(Waiting)

            assert waiting.name == names[2]
            assert sorted(it.cluster.shells) == names[:2]

    run(case)


def test_actor_that_lost_a_race_for_room_is_replaced_by_a_reservation(monkeypatch):
    async def case():
        async with rig() as it:
            it.cluster.places_at_once = False
            it.start()
            await until(lambda: it.cluster.shells)
            first = it.cluster.shells[NAME]
            await until(lambda: it.cluster.shells.get(NAME) not in (None, first))
            it.cluster.place(NAME)
            await it.next_of(Placed)

    monkeypatch.setattr(launcher, "_PATIENCE_S", 0.01)
    run(case)


def test_killed_start_leaves_nothing_however_far_it_has_come():
    async def case():
        async with rig(FULL) as it:
            it.start()
            await it.next_of(Waiting)
            it.starts.obey(Kill(NAME))
            await it.next_of(Ended)
            waiting_left = dict(it.cluster.reservations)

            it.cluster.node_list = ()
            it.cluster.places_at_once = False
            it.start("Free_0_0-00000002", num_cpus=0)
            await until(lambda: it.cluster.shells)
            it.starts.obey(Kill("Free_0_0-00000002"))
            await it.next_of(Ended)
            pending_left = dict(it.cluster.shells)

            it.cluster.places_at_once = True
            it.start("Free_0_0-00000003", num_cpus=0)
            await it.next_of(Placed)
            shell = it.cluster.shells["Free_0_0-00000003"]
            it.starts.obey(Kill("Free_0_0-00000003"))
            await it.next_of(Ended)

            assert (waiting_left, pending_left, it.cluster.shells) == ({}, {}, {})
            assert shell.is_stopped

    run(case)


@pytest.mark.parametrize(
    "node, placement",
    [(FULL, {}), (ROOMY, {}), (ROOMY, {"group_size": 2})],
    ids=["waits for room", "actor", "group"],
)
def test_start_that_is_killed_while_the_cluster_creates_for_it_leaves_nothing(node, placement):
    async def case():
        async with rig(node) as it:
            it.cluster.creates.clear()
            it.start(**placement)
            await until(lambda: it.cluster.asked)
            for _ in range(2):
                it.starts.obey(Kill(NAME))
                await asyncio.sleep(0.01)
            it.cluster.creates.set()
            await it.next_of(Ended)
            await until(lambda: it.cluster.created)
            await asyncio.wait_for(
                until(lambda: not it.cluster.shells and not it.cluster.reservations), 60
            )

    run(case)


def test_known_actors_that_a_new_cluster_does_not_have_are_lost_and_no_error(caplog):
    async def case():
        async with rig(known=(NAME,)) as it:
            assert (await it.next_of(Ended)).name == NAME
            assert not caplog.records

    run(case)


def test_start_is_refused_if_the_versions_differ():
    async def case():
        async with rig() as it:
            it.cluster.version = "0.9"
            it.start()
            refused = await it.next_of(StartRefused)

            assert "has version 0.9 of pytriton, and the server has 1.2.3" in refused.reason
            assert it.cluster.shells == {}

    run(case)


def test_actor_that_dies_before_it_runs_refuses_its_start():
    async def case():
        async with rig() as it:
            it.cluster.places_at_once = False
            it.start()
            await until(lambda: it.cluster.shells)
            it.cluster.shells[NAME].die("No module named 'pytriton'")
            refused = await it.next_of(StartRefused)

            assert refused == StartRefused(NAME, "No module named 'pytriton'", is_unavailable=False)

    run(case)


def test_group_has_a_reservation_that_lives_as_long_as_it_and_ranks_with_variables():
    async def case():
        async with rig() as it:
            it.cluster.places_at_once = False
            it.start(group_size=3, num_cpus=2)
            await until(lambda: len(it.cluster.shells) == 3)
            (reservation,) = it.cluster.reservations.values()
            it.cluster.place(NAME, "n1", "10.0.0.1")
            it.cluster.place(f"{NAME}/1", "n2", "10.0.0.2")
            it.cluster.place(f"{NAME}/2", "n1", "10.0.0.1")
            placed = await it.next_of(Placed)
            shells = list(it.cluster.shells.values())
            shells[1].end("exited with code 1")
            ended = await it.next_of(Ended)

            assert reservation.bundles == [{"CPU": 2.0}] * 3
            assert reservation.outlives_us
            assert {shell.reservation for shell in shells} == {reservation}
            assert [place.node_id for place in placed.places] == ["n1", "n2", "n1"]
            assert [shell.started[2] for shell in shells] == [
                {
                    "RANK": rank,
                    "WORLD_SIZE": "3",
                    "LOCAL_RANK": local,
                    "MASTER_ADDR": "10.0.0.1",
                    "MASTER_PORT": "7000",
                }
                for rank, local in (("0", "0"), ("1", "0"), ("2", "1"))
            ]
            assert ended.reason == "rank 1 exited with code 1"
            assert (it.cluster.shells, it.cluster.reservations) == ({}, {})

    run(case)


def test_launcher_that_comes_back_keeps_known_actors_and_ends_the_others():
    async def case():
        it = Rig(FakeCluster())
        for name in (NAME, f"{NAME}/1", "Old_0_0-00000009"):
            await it.cluster.create_shell(name, {})
        for start in (NAME, "Old_0_0-00000009"):
            await it.cluster.reserve(group_name(NAMESPACE, start), [], outlives_us=True)
        await it.connect(NAME, "Gone_0_0-00000007")
        gone = await it.next_of(Ended)
        left = (sorted(it.cluster.shells), list(it.cluster.reservations))
        it.cluster.shells[f"{NAME}/1"].end("exited with code 2")
        ended = await it.next_of(Ended)

        assert gone.name == "Gone_0_0-00000007"
        assert left == ([NAME, f"{NAME}/1"], [group_name(NAMESPACE, NAME)])
        assert ended == Ended(NAME, "rank 1 exited with code 2", is_status_known=True)
        assert (it.cluster.shells, it.cluster.reservations) == ({}, {})
        await it.starts.close(10)

    run(case)


def test_instances_of_a_model_are_sent_to_different_nodes():
    names = [f"Add_0_{index}-0000000{index}" for index in range(3)]

    async def case():
        async with rig(ROOMY, NodeStatus("n2", "node-2", {"CPU": 8.0})) as it:
            it.cluster.places_at_once = False
            for name in names[:2]:  # at the same time
                it.start(name)
            await until(lambda: len(it.cluster.shells) == 2)
            for name in names[:2]:
                it.cluster.place(name, it.cluster.wanted_nodes[name])
                await it.next_of(Placed)
            it.cluster.shells[names[0]].end("exited with code 1")
            await it.next_of(Ended)
            it.start(names[2])
            await until(lambda: names[2] in it.cluster.shells)
            it.start("Packed_0_0-00000009", is_spread=False)
            await until(lambda: "Packed_0_0-00000009" in it.cluster.shells)

            wanted = it.cluster.wanted_nodes
            assert {wanted[name] for name in names[:2]} == {"n1", "n2"}
            assert wanted[names[2]] == wanted[names[0]]
            assert wanted["Packed_0_0-00000009"] == ""

    run(case)


def test_end_of_the_server_ends_all_actors():
    async def case():
        async with rig() as it:
            it.start()
            await it.next_of(Placed)
            it.start("Big_0_0-00000002", group_size=2)
            await it.next_of(Placed)
            shells = list(it.cluster.shells.values())

        assert [shell.is_stopped for shell in shells] == [True] * 3
        assert (it.cluster.shells, it.cluster.reservations) == ({}, {})
        assert it.cluster.is_closed

    run(case)


def test_head_that_does_not_answer_is_told_and_forgotten_when_it_is_back(monkeypatch):
    async def case():
        async with rig() as it:
            it.cluster.is_gone = True
            lost = await it.next_of(Nodes)
            it.cluster.is_gone = False
            while (back := await it.next_of(Nodes)).problem:
                pass

            assert "no route to the head" in lost.problem
            assert [node.name for node in lost.nodes] == ["node-1"]
            assert back.nodes == lost.nodes

    monkeypatch.setattr(launcher, "_NODES_S", 0.001)
    run(case)


def test_cluster_that_is_not_there_is_an_error():
    async def case():
        it = Rig(FakeCluster())
        it.cluster.is_gone = True

        with pytest.raises(ClusterGoneError, match="no route to the head"):
            await it.starts.connect(Connect("", NAMESPACE, "", VERSION))

    run(case)


def test_start_that_is_killed_while_its_reservation_is_given_back_leaves_nothing():
    async def case():
        async with rig(FULL) as it:
            release, has_thread, asked = it.cluster.release, asyncio.Event(), []

            async def release_later(reservation):
                """Wait for a free thread: a call that is cancelled until then is never made."""
                asked.append(reservation)
                await has_thread.wait()
                await release(reservation)

            it.cluster.release = release_later
            it.start()
            await until(lambda: it.cluster.reservations)
            (reservation,) = it.cluster.reservations.values()
            reservation.is_ready = True
            await until(lambda: asked)
            it.starts.obey(Kill(NAME))
            await it.next_of(Ended)
            has_thread.set()

            await asyncio.wait_for(until(lambda: not it.cluster.reservations), 60)

    run(case)
