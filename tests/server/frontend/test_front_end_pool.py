# SPDX-License-Identifier: Apache-2.0
"""The pool of front ends: which one gets a client, and how one that ended is replaced."""

from __future__ import annotations

import asyncio
import math
import socket

import pytest

from pytriton.base.errors import InternalError, ServerError
from pytriton.runtime.executor.launcher import ZygoteGoneError
from pytriton.runtime.executor.python_process import StartedZygote
from pytriton.runtime.executor.worker import LocalWorker
from pytriton.runtime.transport.frames import LogChange
from pytriton.runtime.transport.frontend_frames import (
    Configure,
    Connections,
    ConnectionsEnded,
    CredentialFailures,
    EndConnections,
    KeysWithdrawn,
    LetClientsLeave,
    LimitUse,
    Pong,
)
from pytriton.runtime.transport.link import socket_pair
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import Model
from pytriton.serving.server.api.local_client import LocalClient
from pytriton.serving.server.api.services import ClientService
from pytriton.serving.server.frontend import pool
from pytriton.serving.server.frontend import pool as pool_module
from pytriton.serving.server.frontend import session as session_module
from pytriton.serving.server.frontend.pool import FrontEndPool
from pytriton.serving.server.frontend.process import receive_clients
from pytriton.serving.server.frontend.remote_client import RemoteClient
from pytriton.serving.server.options.server_options import LogOptions, ServerOptions
from pytriton.serving.server.process.event_loop import Activity
from pytriton.serving.server.process.logs import LogControl
from pytriton.serving.server.tracing.settings import TraceSettings
from pytriton.testing import FakeEventLoop
from tests.contract.seam import Control
from tests.e2e.loop_waiting import comes_true
from tests.e2e.waiting import DEADLINE_S
from tests.fakes import model_spec


class FakeFrontEnd:
    """The other end of a forked process, in the test's own."""

    def __init__(self, loop, spec, pid):
        channel, theirs = socket_pair()
        clients, self.clients = socket_pair()
        self.clients.setblocking(False)
        self.frames = []
        self.kills = 0
        self.worker = LocalWorker(
            spec.instance_name, pid, (channel, clients), self._kill, loop.create_future()
        )
        self.client = RemoteClient(
            theirs,
            loop,
            on_exiting=lambda: None,
            on_frame=self.frames.append,
            on_lost=lambda error: None,
        )
        self._is_closed = False

    def start(self):
        self.client.link.start()

    def pause(self):
        """Read no messages; returns the function that reads on."""
        channel = self.client.link._channel
        channel.stop_watching()
        return channel.start

    def report(self, http=0, grpc=0, opening=0, taken=0, capacity=100):
        self.client.link.send(Connections(http, grpc, opening, taken, capacity))

    def received(self):
        """The clients that it was given since the last time."""
        clients = list(receive_clients(self.clients))
        for _, client in clients:
            client.close()
        return [protocol for protocol, _ in clients]

    def die(self, reason="killed by SIGKILL (9)"):
        if not self._is_closed:
            self._is_closed = True
            self.client.link.close()
            self.clients.close()
            if not self.worker.exited.done():
                self.worker.exited.set_result(reason)

    def _kill(self):
        self.kills += 1
        self.die()


class FakeZygote:
    """Forks front ends that the test plays."""

    def __init__(self, loop, start_process=None):
        self.is_open = True
        self.is_silent = False  # new front ends read nothing until they are started
        self.failures: list[Exception] = []
        self.forked: list[FakeFrontEnd] = []
        self._loop = loop

    def start(self):
        pass

    async def fork(self, spec):
        await asyncio.sleep(0)
        if not self.is_open:
            raise ZygoteGoneError
        if self.failures:
            raise self.failures.pop(0)
        front_end = FakeFrontEnd(self._loop, spec, 1000 + len(self.forked))
        self.forked.append(front_end)
        if not self.is_silent:
            front_end.start()
        return front_end.worker

    async def close(self):
        self.is_open = False


class Scene:
    def __init__(self, count, monkeypatch):
        self.loop = FakeEventLoop()
        self.engine = engine = Engine()
        log = LogControl(LogOptions())
        self.client = client = LocalClient(
            engine, Control(), TraceSettings.read([]), change_log_settings=log.change
        )
        options = ServerOptions(frontend_processes=count)
        ours, self._theirs = socket.socketpair()
        self._ours = ours
        started = StartedZygote(None, ours)
        self.pool = FrontEndPool(engine, client, None, options, self.loop, started, log.feed)
        self.zygotes = [FakeZygote(self.loop)]
        self.pool._zygote = self.zygotes[0]
        monkeypatch.setattr(pool_module, "RunningZygote", self._new_zygote)
        self._clients = []

    def _new_zygote(self, loop, start_process):
        self.zygotes.append(FakeZygote(loop))
        return self.zygotes[-1]

    @property
    def front_ends(self):
        return [each for zygote in self.zygotes for each in zygote.forked]

    def start(self):
        self.loop.run_until_complete(asyncio.wait_for(self.pool.start(), DEADLINE_S))
        return self.front_ends

    def connect(self, protocol=ClientService.HTTP):
        """Accept a client, and pass it on."""
        far, near = socket.socketpair()
        self._clients.append(far)
        self.pool.taker(protocol).take(near)
        return far

    def until(self, condition):
        assert self.loop.run_until_complete(comes_true(condition))

    def run(self):
        self.loop.run()

    def close(self):
        self.loop.run_until_complete(self.pool.close())
        for each in self.front_ends:
            each.die()
        for each in (*self._clients, self._ours, self._theirs):
            each.close()
        self.loop.run()
        self.loop.close()


@pytest.fixture
def scene(monkeypatch):
    made = []

    def make(count=2):
        made.append(Scene(count, monkeypatch))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def one(scene):
    return scene()


def test_start_ends_when_all_front_ends_have_the_registry(scene):
    one = scene(3)
    one.zygotes[0].is_silent = True
    starting = one.loop.create_task(one.pool.start())
    states = []
    one.run()
    for front_end in one.front_ends:
        states.append(starting.done())
        front_end.start()
        one.run()
        one.run()

    assert states == [False] * 3
    assert starting.done()
    assert [type(each.frames[0]) for each in one.front_ends] == [Configure] * 3
    assert one.pool.pids == [1000, 1001, 1002]


def test_client_goes_to_the_front_end_with_the_fewest_connections(one):
    first, second = one.start()
    first.report(http=2, grpc=1)
    second.report(opening=1)
    one.run()
    for _ in range(4):
        one.connect(ClientService.GRPC)

    # One has 3 connections, two are given to the other, then they take turns.
    assert [len(first.received()), len(second.received())] == [1, 3]
    assert one.pool.connection_counts == (2, 1)


def test_no_front_end_gets_more_clients_than_it_has_descriptors_for(one):
    first, second = one.start()
    first.report(capacity=1)
    second.report(http=3, capacity=5)
    one.run()
    for _ in range(3):
        assert not one.pool.is_full
        one.connect()

    assert one.pool.is_full
    one.connect()  # it was accepted just before that
    assert [len(first.received()), len(second.received())] == [1, 2]

    second.report(http=4, taken=2, capacity=5)
    one.run()

    assert [len(first.received()), len(second.received())] == [0, 1]


def test_clients_that_a_front_end_has_not_taken_yet_count(one):
    first, second = one.start()
    for _ in range(6):
        one.connect()
    assert (len(first.received()), len(second.received())) == (3, 3)
    first.report(http=0, taken=1)  # one was taken and has disconnected, two are on their way
    second.report(http=3, taken=3)
    one.run()
    one.connect()

    assert (len(first.received()), len(second.received())) == (1, 0)


def test_clients_wait_until_a_front_end_is_ready(scene):
    one = scene(1)
    (front_end,) = one.start()
    one.zygotes[0].is_silent = True
    front_end.die()
    one.run()
    far = one.connect(ClientService.GRPC)
    one.until(lambda: len(one.front_ends) == 2)
    new = one.front_ends[1]
    assert new.received() == []
    new.start()
    one.run()

    assert new.received() == [ClientService.GRPC]
    far.setblocking(False)
    assert far.recv(1) == b""  # the test has closed the only other end


def test_full_front_ends_get_the_waiting_clients_later_and_each_once(scene):
    one = scene(1)
    (front_end,) = one.start()
    for _ in range(1500):
        one.connect()
    taken = []

    def read():
        taken.extend(front_end.received())
        return len(taken) == 1500

    one.until(read)
    one.run()

    assert front_end.received() == []
    assert not one.pool._waiting
    assert len([each for each in one.loop._scheduled if not each.cancelled()]) <= 3


def test_front_end_that_ended_is_replaced_and_the_other_stays(one, caplog):
    first, second = one.start()
    first.report(http=5)
    one.run()
    first.die()
    one.until(lambda: len(one.front_ends) == 3)
    one.run()
    new = one.front_ends[2]

    assert new.worker.instance_name == "front end 0"
    assert one.pool.connection_counts == (0, 0)
    assert "front end 0 (process 1000) killed by SIGKILL (9)" in caplog.text
    assert (first.worker.fork_socket.fileno(), second.kills) == (-1, 0)
    one.connect()
    one.connect()
    assert (len(new.received()), len(second.received())) == (1, 1)


class FakeDelays:
    """Keeps for how long front ends have served clients."""

    def __init__(self) -> None:
        self.served_s: list[float] = []

    def after(self, served_s: float) -> float:
        self.served_s.append(served_s)
        return 0.0


def test_delay_of_a_restart_depends_on_the_time_for_which_clients_were_served(scene):
    one = scene(1)
    delays = one.pool._delays[0] = FakeDelays()
    one.start()
    member = one.pool._members[0]
    member.ready_s -= 100.0
    one.front_ends[0].die()
    one.zygotes[0].is_silent = True
    one.until(lambda: len(one.front_ends) == 2)
    one.front_ends[1].die()  # before it could serve a client
    one.until(lambda: len(one.front_ends) == 3)

    assert delays.served_s[0] >= 100.0
    assert delays.served_s[1:] == [-math.inf]


def test_front_end_that_cannot_be_forked_is_tried_again(scene, monkeypatch, caplog):
    monkeypatch.setattr(pool_module, "_LAUNCH_RETRY_S", 0.001)
    one = scene(1)
    one.start()
    one.zygotes[0].failures = [InternalError("no process")] * 5 + [InternalError("no memory")]
    one.front_ends[0].die()
    one.until(lambda: len(one.front_ends) == 2)

    for reason in ("no process", "no memory"):  # each is said once, however long it lasts
        assert caplog.text.count(f"front end 0 cannot be started again yet: {reason}") == 1


@pytest.fixture
def idle(monkeypatch):
    """No front end ever works, and silence is not tolerated."""
    monkeypatch.setattr(pool_module, "read_activity", lambda pid: Activity(0.0, is_runnable=False))
    monkeypatch.setattr(pool, "SILENCE_LIMIT_S", 0.0)


def test_front_end_that_does_not_answer_is_killed_and_replaced(one, idle, caplog):
    first, second = one.start()
    first.pause()
    far = one.connect()
    one.pool._beat()
    one.run()
    one.pool._beat()
    one.until(lambda: len(one.front_ends) == 3)
    one.run()

    assert (first.kills, second.kills) == (1, 0)
    assert "front end 0 (process 1000) did not answer for 0 s and did nothing" in caplog.text
    assert far.recv(1) == b""
    one.connect()
    one.connect()
    assert (len(second.received()), len(one.front_ends[2].received())) == (1, 1)


def test_clients_go_to_the_front_ends_that_answer(scene, monkeypatch):
    monkeypatch.setattr(pool_module, "read_activity", lambda pid: Activity(0.0, is_runnable=True))
    one = scene()
    first, second = one.start()
    go_on = first.pause()
    one.pool._beat()
    one.run()
    one.pool._beat()
    for _ in range(4):
        one.connect()
    assert (len(first.received()), len(second.received())) == (0, 4)

    go_on()
    one.run()
    one.connect()

    assert (len(first.received()), len(second.received())) == (1, 0)


def test_front_end_whose_answer_was_not_read_yet_is_not_killed(one, idle):
    one.start()
    one.pool._beat()
    for each in one.front_ends:
        each.client.link._channel._on_readable()  # while the core's loop stands still
    for _ in range(3):
        one.pool._beat()
    one.run()

    assert [each.kills for each in one.front_ends] == [0, 0]
    assert all(member.heartbeat.is_answered for member in one.pool._members.values())


def test_new_zygote_is_started_when_the_old_one_has_ended(one):
    first, second = one.start()
    one.zygotes[0].is_open = False
    first.die()
    second.die()
    one.until(lambda: len(one.front_ends) == 4)
    one.run()

    assert len(one.zygotes) == 2
    assert len(one.zygotes[1].forked) == 2
    one.connect()
    one.connect()
    assert [each.received() for each in one.zygotes[1].forked] == [[ClientService.HTTP]] * 2


def test_start_fails_if_a_front_end_ends_at_once(one):
    one.zygotes[0].is_silent = True
    starting = one.loop.create_task(one.pool.start())
    one.run()
    one.front_ends[0].die()
    one.run()

    with pytest.raises(ServerError, match="front end 0 could not start: its process ended"):
        starting.result()


def test_all_front_ends_ask_their_clients_to_leave(one):
    front_ends = one.start()
    one.pool.let_clients_leave()
    one.run()

    assert [each.frames[-1] for each in front_ends] == [LetClientsLeave()] * 2


def test_log_settings_are_changed_when_all_front_ends_use_them(one):
    front_ends = one.start()
    go_on = front_ends[1].pause()
    changing = one.loop.create_task(one.client.change_log_settings({"log_verbose_level": 1}))
    one.until(lambda: isinstance(front_ends[0].frames[-1], LogChange))
    for _ in range(10):
        one.run()
    assert not changing.done()

    go_on()
    one.until(changing.done)

    assert changing.result()["log_verbose_level"] == 1
    assert [each.frames[-1].switches.verbose for each in front_ends] == [1, 1]


@pytest.mark.parametrize(
    "question,ready",
    [
        (lambda client: client.ask(LocalClient.is_model_ready, name="m", version=""), True),
        (lambda client: client.ask(LocalClient.is_ready), True),
        (lambda client: client.ask(LocalClient.problem), ""),
        (lambda client: client.ask(LocalClient.index), []),
    ],
)
def test_model_is_reported_as_ready_when_all_front_ends_know_it(one, question, ready):
    first, second = one.start()
    go_on = second.pause()
    model = Model(model_spec(1), one.loop)
    one.engine.add(model)
    one.engine.set_ready(model)
    asking = one.loop.create_task(question(first.client))
    one.until(lambda: first.client.find("m") is not None)
    for _ in range(10):
        one.run()
    assert not asking.done()

    go_on()
    one.until(asking.done)

    assert asking.result() == ready
    assert second.client.find("m") is not None


def test_front_end_that_hangs_does_not_keep_the_server_from_being_ready(scene, monkeypatch):
    monkeypatch.setattr(session_module, "_REGISTRY_SYNC_TIMEOUT_S", 0.01)
    one = scene()
    first, second = one.start()
    second.pause()
    one.engine.add(Model(model_spec(1), one.loop))
    asking = one.loop.create_task(
        first.client.ask(LocalClient.is_model_ready, name="m", version="")
    )
    one.until(asking.done)

    assert asking.result() is False


def test_all_connections_end_before_the_processes(one):
    front_ends = one.start()
    ending = one.loop.create_task(one.pool.end_connections(5.0))
    one.run()
    assert [each.frames[-1] for each in front_ends] == [EndConnections(5.0)] * 2
    assert [each.kills for each in front_ends] == [0, 0]
    for each in front_ends:
        assert not ending.done()
        each.client.link.send(ConnectionsEnded())
        one.run()
    one.until(ending.done)

    assert [each.kills for each in front_ends] == [1, 1]
    assert one.pool.pids == []


def test_end_does_not_wait_for_a_front_end_that_died(one):
    first, second = one.start()
    ending = one.loop.create_task(one.pool.end_connections(60.0))
    one.run()
    first.die()
    second.client.link.send(ConnectionsEnded())
    one.until(ending.done)
    one.run()

    assert len(one.front_ends) == 2


def test_clients_that_come_at_the_end_are_closed(scene):
    one = scene(1)
    one.start()
    one.front_ends[0].die()
    one.run()
    far = one.connect()
    one.loop.run_until_complete(one.pool.close())
    far.setblocking(False)

    assert far.recv(1) == b""


@pytest.mark.parametrize("turns", range(5))
def test_pool_that_is_closed_when_a_front_end_has_ended_does_not_replace_it(scene, turns):
    one = scene(1)
    (front_end,) = one.start()
    front_end.die()

    async def close():
        while not one.pool._tasks:  # noqa: ASYNC110  tasks have no event for that
            await asyncio.sleep(0)
        for _ in range(turns):  # somewhere between, it hears how the process ended
            await asyncio.sleep(0)
        await one.pool.close()
        for _ in range(5):
            await asyncio.sleep(0)

    one.loop.run_until_complete(close())

    assert len(one.pool._tasks) == 0


def failures_told(front_end):
    return [each.counts for each in front_end.frames if isinstance(each, CredentialFailures)]


def test_wrong_credentials_of_one_front_end_are_told_to_the_others(scene):
    one = scene(3)
    first, second, third = one.start()
    counted = []
    one.pool.on_credential_failures = counted.append
    second.client.link.send(CredentialFailures({"10.0.0.1": 2}))
    one.until(lambda: failures_told(third))

    assert counted == [{"10.0.0.1": 2}]
    assert failures_told(first) == failures_told(third) == [{"10.0.0.1": 2}]
    assert failures_told(second) == []


def test_keys_that_one_front_end_finds_withdrawn_are_fetched_by_the_others(scene):
    one = scene(3)
    first, second, third = one.start()
    fetched = []
    one.pool.on_keys_withdrawn = fetched.append
    second.client.link.send(KeysWithdrawn("https://a.example"))
    one.until(lambda: KeysWithdrawn("https://a.example") in third.frames)
    one.pool.share_withdrawal("https://b.example")
    one.until(lambda: KeysWithdrawn("https://b.example") in third.frames)

    assert fetched == ["https://a.example"]
    assert [
        [each.issuer[8] for each in front_end.frames if isinstance(each, KeysWithdrawn)]
        for front_end in (first, second, third)
    ] == [["a", "b"], ["b"], ["a", "b"]]


def test_front_end_that_is_replaced_learns_of_wrong_credentials(scene):
    one = scene(2)
    first, second = one.start()
    one.pool.credential_failures = lambda: {"10.0.0.1": 7}
    first.die()
    one.until(lambda: len(one.front_ends) == 3)
    new = one.front_ends[2]
    one.until(lambda: failures_told(new))

    assert failures_told(new) == [{"10.0.0.1": 7}]
    assert failures_told(second) == []
    assert isinstance(new.frames[0], Configure)


def test_failed_handshakes_of_a_front_end_that_ended_still_count(scene):
    one = scene(2)
    first, second = one.start()

    def total():
        return sum(use.handshake_failures.get("timeout", 0) for use in one.pool.limit_uses)

    for front_end, count in ((first, 2), (second, 3)):
        front_end.client.link.send(Pong(0, LimitUse(handshake_failures={"timeout": count})))
    one.until(lambda: total() == 5)
    first.die()
    one.until(lambda: len(one.front_ends) == 3)

    assert total() == 5
