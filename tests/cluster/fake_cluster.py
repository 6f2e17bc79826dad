# SPDX-License-Identifier: Apache-2.0
"""A cluster without processes, whose nodes and actors do what a test says."""

from __future__ import annotations

import asyncio

from pytriton.runtime.cluster.cluster import ClusterError, ClusterGoneError, Whereabouts
from pytriton.runtime.executor.remote.starter import NodeStatus

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
