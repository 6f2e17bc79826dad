# SPDX-License-Identifier: Apache-2.0
"""A launcher process that hangs is noticed, killed and replaced; without Ray."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

from pytriton.base.settings import RayOptions
from pytriton.runtime.cluster import messages
from pytriton.runtime.cluster.executor import RayExecutor
from pytriton.runtime.cluster.messages import (
    SILENT_BEATS,
    SILENT_BEATS_AT_START,
    Beat,
    LauncherHeartbeat,
)
from pytriton.runtime.executor.python_process import StartedZygote
from pytriton.runtime.transport.link import stream_pair
from pytriton.testing import FakeClock
from tests.cluster.test_starter import rig, until

# The launcher process itself, with a cluster without processes in the place of Ray.
LAUNCHER = """
import sys, types
from pytriton.runtime.cluster import launcher
from tests.cluster.test_actor_starts import FakeCluster
launcher.BEAT_S = 0.02
sys.modules[launcher._RAY] = types.SimpleNamespace(RayCluster=lambda on_stuck: FakeCluster())
launcher.main(sys.argv[1:])
"""


@pytest.fixture
def loop():
    return FakeClock()


@pytest.fixture
def silent(loop):
    """A heartbeat of a process that has been started, and what it has told."""
    told = []
    beating = LauncherHeartbeat(loop, lambda: told.append(beating.silent_s))
    beating.start()
    return beating, told


def test_process_that_says_nothing_is_told_once(loop, silent):
    beating, told = silent
    beating.on_running()
    loop.advance(SILENT_BEATS * messages.BEAT_S)
    before = list(told)
    loop.advance(100 * messages.BEAT_S)

    assert before == []
    assert told == [(SILENT_BEATS + 1) * messages.BEAT_S]


def test_process_that_speaks_now_and_then_is_alive(loop, silent):
    beating, told = silent
    beating.on_running()
    for _ in range(5):
        loop.advance(SILENT_BEATS * messages.BEAT_S)
        beating.on_message()

    assert told == []


def test_process_that_starts_may_be_silent_for_longer(loop, silent):
    _, told = silent
    loop.advance(SILENT_BEATS_AT_START * messages.BEAT_S)
    before = list(told)
    loop.advance(messages.BEAT_S)

    assert before == []
    assert len(told) == 1


def test_process_that_is_over_is_not_looked_at(loop, silent):
    beating, told = silent
    beating.stop()
    beating.stop()
    loop.advance(1000 * messages.BEAT_S)

    assert told == []


def test_process_that_was_started_again_has_its_own_time(loop, silent):
    beating, told = silent
    beating.on_running()
    loop.advance(SILENT_BEATS * messages.BEAT_S)
    beating.start()
    loop.advance(SILENT_BEATS_AT_START * messages.BEAT_S)

    assert told == []


def test_beats_keep_a_launcher_process_and_silence_ends_it(monkeypatch, caplog):
    async def case():
        async with rig() as it:
            await it.connected()
            process = await it.placed()
            for _ in range(SILENT_BEATS):
                it.starter._heartbeat.look()
            it.say(Beat())
            await until(lambda: not it.starter._heartbeat.silent_s)
            alive = it.starter.status()
            it.starter._on_silent()
            away = it.starter.status()

            assert alive.is_connected
            assert not away.is_connected
            assert not process.exited.done()
            assert it.launchers[0].process.wait() == -signal.SIGKILL

    asyncio.run(case())

    assert "has not said anything for" in caplog.text


def test_stopped_launcher_process_is_killed_and_another_one_connects(monkeypatch):
    processes = []

    def start():
        ours, theirs = stream_pair()
        with theirs:
            command = [sys.executable, "-c", LAUNCHER, "--control-fd", str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        processes.append(process)
        return StartedZygote(process, ours)

    async def case():
        starter = RayExecutor(RayOptions(), asyncio.get_running_loop(), start)
        await starter.connect()
        os.kill(processes[0].pid, signal.SIGSTOP)
        monkeypatch.setattr(messages, "BEAT_S", 0.02)  # not before, as it starts slowly
        starter._heartbeat.start()
        starter._heartbeat.on_running()
        await until(lambda: starter.status().launcher_restarts)
        monkeypatch.undo()
        await starter.connect()
        first = processes[0].wait()
        restarts = starter.status().launcher_restarts
        await starter.close()

        assert first == -signal.SIGKILL
        assert restarts == len(processes) - 1

    asyncio.run(case())


def test_call_of_ray_that_does_not_return_is_told_though_nobody_waits_for_it(monkeypatch):
    ray_cluster = pytest.importorskip(
        "pytriton.runtime.cluster.ray_cluster", reason="ray is not installed"
    )
    monkeypatch.setattr(ray_cluster, "_STUCK_S", 0.05)
    hangs = threading.Event()
    told = []

    def hanging():
        hangs.wait()

    async def case():
        cluster = ray_cluster.RayCluster(lambda *call: told.append(call))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(cluster._call(hanging), 0.01)
        await until(lambda: told)
        hangs.set()

    asyncio.run(case())

    assert told == [("hanging", 0.05)]
