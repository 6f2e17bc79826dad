# SPDX-License-Identifier: Apache-2.0
"""The clients of a scene: what they do, their real connections, and how many there are."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.chaos.schedule import Scene
from tests.workload import models
from tests.workload.asyncio_world import AsyncioWorld
from tests.workload.calls import Call, Form, Port
from tests.workload.generator import PROFILES, Generator, Profile
from tests.workload.sessions import ClientPlan, Judge, Session, Writers


class _Transport:
    """A transport that drops what is written after its end, where asyncio's raises an error."""

    def __init__(self, transport: Any, world: ChaosWorld) -> None:
        self._transport = transport
        self._world = world
        self._has_ended = False
        self.written_s = world.now()  # when something was last written

    def write(self, data: bytes) -> None:
        if not self._has_ended:
            self.written_s = self._world.now()
            self._transport.write(data)

    def write_eof(self) -> None:
        self._has_ended = True
        with contextlib.suppress(OSError):  # the other side has reset the connection
            self._transport.write_eof()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Watched(asyncio.Protocol):
    """Passes on what a transport says, and remembers until when the other side lived for sure.

    What it has sent may wait for this client for a while, and it may have ended since then. But it
    was sent after what this client had written before.
    """

    def __init__(self, protocol: Any, world: ChaosWorld) -> None:
        self._protocol = protocol
        self._world = world
        self._lived_s = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = _Transport(transport, self._world)
        self._lived_s = self._transport.written_s
        self._protocol.connection_made(self._transport)

    def data_received(self, data: bytes) -> None:
        self._lived_s = self._transport.written_s
        self._protocol.data_received(data)

    def eof_received(self) -> Any:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._world.on_silence(self._lived_s)
        self._protocol.connection_lost(error)
        self._world.on_silence(None)


class ChaosWorld(AsyncioWorld):
    """Time begins with it, and it tells since when a lost connection was silent."""

    def __init__(self, ports: Mapping[Port, int]) -> None:
        super().__init__(ports)
        loop, began_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        self.now: Callable[[], float] = lambda: loop.time() - began_s
        # Is told before the calls of a connection are lost, and again with None after that.
        self.on_silence: Callable[[float | None], None] = lambda _: None

    def connect(self, port: Port, protocol: Any) -> None:
        super().connect(port, Watched(protocol, self))


# Clients of all kinds. Models are loaded and unloaded by faults, which know when that is over.
PROFILE = Profile(
    {
        **PROFILES["mixed"].habits,
        "large": 2,
        "health": 2,
        "invalid_http": 1,
        "invalid_grpc": 1,
        # Regions stay registered after their clients, so resources would not be as before.
        "regions": 0,
    },
    rudeness=0.06,
    slowness=0.05,
)
_CALLS_OF_A_CLIENT = 30


def plans(scene: Scene, served: Sequence[str]) -> Iterator[ClientPlan]:
    """What the clients of a scene do, one after the other without end."""
    generator = Generator(random.Random(f"{scene.seed} {scene.server.value}"), PROFILE, served)
    while True:
        plan = generator.plan(generator.dice.integer(1, 2 * _CALLS_OF_A_CLIENT))
        for call in plan.calls:
            # A client that sends in pieces has chosen them for the size of its request.
            if call.model == "large" and not call.conduct.piece_bytes:
                _vary_size(generator, call)
        yield plan


def _vary_size(generator: Generator, call: Call) -> None:
    """Tensors up to some megabytes, and JSON that a process of its own reads."""
    dice = generator.dice
    if dice.chance(0.3):
        call.inputs = models.large_inputs(call.number, dice.integer(1 << 18, 1 << 20))
    elif dice.chance(0.5):
        call.form = Form.TEXT


class Crowd:
    """Keeps a number of clients busy: when one has done what it planned, another one comes."""

    def __init__(
        self, world: ChaosWorld, judge: Judge, plans: Iterator[ClientPlan], size: int, token: str
    ) -> None:
        self._world = world
        self._judge = judge
        self._plans = plans
        self._size = size
        self._writers = Writers(token)
        self._sessions: set[Session] = set()
        self._is_stopped = False
        self._all_done = asyncio.Event()

    def start(self) -> None:
        for _ in range(self._size):
            self._begin_next()

    def _begin_next(self) -> None:
        plan = next(self._plans, None)
        if plan is None:
            if not self._sessions:
                self._all_done.set()
            return
        session = Session(plan, self._world, self._judge, self._writers, self._done)
        self._sessions.add(session)
        session.start()

    def _done(self, session: Session) -> None:
        self._sessions.discard(session)
        if not self._is_stopped:
            self._begin_next()
        elif not self._sessions:
            self._all_done.set()

    async def finish(self, deadline_s: float) -> None:
        """Let all clients do the rest of their plans; those that take too long are given up."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_done.wait(), deadline_s)

    async def stop(self, deadline_s: float) -> list[Session]:
        """Begin no more calls and wait for those that are open; who is still not done then."""
        self._is_stopped = True
        for session in list(self._sessions):
            session.stop()
        if self._sessions:
            await self.finish(deadline_s)
        return list(self._sessions)
