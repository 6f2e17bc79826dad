# SPDX-License-Identifier: Apache-2.0
"""Segments of shared memory that are registered with CUDA's driver, which is a fake here."""

from __future__ import annotations

import os
import threading
import warnings

import numpy as np
import pytest

from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda import registration
from pytriton.runtime.cuda.registration import Registrar, RegistrarState
from pytriton.runtime.transport import memory
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.frames import MemoryFrame
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory import Segment
from pytriton.runtime.transport.memory_channel import MemoryChannel
from tests.cuda.fake_driver import FakeDriver

LIMIT = 1 << 40
SIZE = 1 << 16


class Process:
    """A registrar of this process with a fake driver, which the process may load later."""

    def __init__(self, monkeypatch, limit=LIMIT):
        self.driver = FakeDriver()
        self.is_loaded = True
        self.find_count = 0
        self.registrar = Registrar(self._find, limit)
        monkeypatch.setattr(memory, "observers", observers := [self.registrar])
        monkeypatch.setattr("pytriton.runtime.transport.memory_channel.observers", observers)

    def _find(self):
        self.find_count += 1
        return self.driver if self.is_loaded else None

    def settle(self):
        assert self.registrar.wait_until_done(30)

    @property
    def counts(self):
        self.settle()
        return self.registrar.counts()


@pytest.fixture
def process(monkeypatch):
    process = Process(monkeypatch)
    yield process
    for gate in process.driver.gates.values():
        gate.set()
    process.registrar.stop()


@pytest.fixture
def active(process):
    process.registrar.look()
    assert process.registrar.state is RegistrarState.ACTIVE
    return process


def message_with_block(ours, theirs, size=SIZE):
    """Send a block over a channel; returns what was received, with an array of it."""
    payload = ours.payload()
    data = np.arange(size, dtype=np.uint8)
    payload.add((data.data,), size)
    ours.send(MemoryFrame(), payload)
    return theirs.receive()


@pytest.fixture
def channels():
    sockets = socket_pair()
    pair = [MemoryChannel(sock, Arena()) for sock in sockets]
    yield pair
    for channel in pair:
        channel.close()


# Finding CUDA


def test_nothing_is_done_before_a_message_brings_shared_memory(process):
    segment = Segment(SIZE)

    assert process.find_count == 0
    assert process.registrar.state is RegistrarState.WATCHING
    del segment


def test_segments_from_before_cuda_was_found_are_registered(process):
    process.is_loaded = False
    segments = [Segment(SIZE), Segment(2 * SIZE)]
    process.registrar.look()
    assert process.registrar.state is RegistrarState.WATCHING
    process.is_loaded = True
    process.registrar.look()

    assert process.counts.registered_bytes == 3 * SIZE
    assert process.driver.registered == {each.address: each.size for each in segments}


def test_segment_that_is_gone_before_cuda_is_found_is_not_registered(process):
    process.is_loaded = False
    Segment(SIZE)
    process.is_loaded = True
    process.registrar.look()

    assert process.counts.registered == 0
    assert process.driver.calls["register_host"] == 0


def test_driver_without_a_context_in_use_is_left_alone(process):
    process.driver.active.clear()
    process.registrar.look()

    assert process.registrar.state is RegistrarState.WATCHING
    assert set(process.driver.calls) == {"active_devices"}


@pytest.mark.parametrize("code", [cuda_driver.NOT_INITIALIZED, cuda_driver.NO_DEVICE])
def test_driver_that_is_not_initialised_is_left_alone(process, code):
    process.driver.failing["active_devices"] = code
    process.registrar.look()

    assert process.registrar.state is RegistrarState.WATCHING


def test_cuda_is_looked_for_ever_more_rarely(process):
    process.is_loaded = False
    for _ in range(10_000):
        process.registrar.on_message()

    assert 30 < process.find_count < 60


def test_cuda_that_is_loaded_late_is_found(process, channels):
    ours, theirs = channels
    process.is_loaded = False
    for _ in range(5):
        message_with_block(ours, theirs)
    process.is_loaded = True
    for _ in range(4):
        message_with_block(ours, theirs)

    assert process.registrar.state is RegistrarState.ACTIVE
    assert process.counts.registered == 2  # the sender's mapping and the receiver's


# Registering


def test_new_segment_is_registered_once(active):
    segment = Segment(SIZE)

    assert active.counts.registered == 1
    assert active.driver.registered == {segment.address: SIZE}
    assert active.driver.calls["register_host"] == 1


def test_segment_is_unregistered_before_it_is_unmapped(active):
    segment = Segment(SIZE)
    active.settle()
    del segment

    assert active.counts.registered == 0
    # The fake reads the memory at that time: a segment that is unmapped would end the test run.
    assert active.driver.calls["unregister_host"] == 1
    assert active.driver.registered == {}


def test_memory_is_given_back_to_the_system_after_it_was_unregistered(active):
    segment = Segment(SIZE)
    active.settle()
    address = segment.address
    del segment
    active.settle()

    with open("/proc/self/maps", encoding="ascii") as maps:  # noqa: PTH123  a file of the kernel
        assert not any(line.startswith(f"{address:x}-") for line in maps)


def test_segment_that_ends_while_it_waits_is_not_registered(active):
    gate = active.driver.gates["register_host"] = threading.Event()
    first = Segment(SIZE)
    second = Segment(SIZE)
    del second
    gate.set()

    assert active.counts.registered == 1
    assert active.driver.registered == {first.address: SIZE}


def test_segment_that_ends_while_it_is_registered_is_unregistered(active):
    gate = active.driver.gates["register_host"] = threading.Event()
    segment = Segment(SIZE)
    while not active.driver.calls["register_host"]:
        os.sched_yield()
    del segment
    gate.set()

    assert active.counts.registered == 0
    assert active.driver.calls["unregister_host"] == 1


def test_memory_that_the_user_registered_is_left_to_him(active):
    gate = active.driver.gates["register_host"] = threading.Event()
    segment = Segment(SIZE)
    active.driver.registered[segment.address] = SIZE
    gate.set()

    assert active.counts.foreign == 1
    del segment
    assert active.counts.foreign == 0
    assert active.driver.calls["unregister_host"] == 0


def test_refused_segment_stays_as_it_was_and_others_are_registered(active):
    active.driver.failing["register_host"] = cuda_driver.OUT_OF_MEMORY
    refused = Segment(SIZE)
    assert active.counts.refused == 1
    del active.driver.failing["register_host"]
    other = Segment(SIZE)

    assert active.counts.registered == 1
    assert refused.release_later is None
    assert other.release_later is not None
    assert active.registrar.state is RegistrarState.ACTIVE


def test_no_more_memory_than_allowed_is_registered(monkeypatch):
    process = Process(monkeypatch, limit=3 * SIZE)
    process.registrar.look()
    first, second = Segment(2 * SIZE), Segment(2 * SIZE)
    try:
        assert process.counts.registered_bytes == 2 * SIZE
        assert process.counts.waiting == 1
        del first
        assert process.counts.registered_bytes == 2 * SIZE
        assert process.driver.registered == {second.address: 2 * SIZE}
    finally:
        process.registrar.stop()


@pytest.mark.parametrize("step", ["register_host", "active_devices", "using"])
def test_dead_driver_ends_the_registrar_and_nothing_else(active, step):
    active.driver.failing[step] = cuda_driver.LAUNCH_FAILED
    segment = Segment(SIZE)
    active.settle()

    assert active.registrar.state is RegistrarState.STOPPED
    assert "719" in active.registrar.failure
    del segment
    Segment(SIZE).view(0, 1)[0] = 1


def test_memory_that_cannot_be_unregistered_stays_mapped(active, caplog):
    segment = Segment(SIZE)
    active.settle()
    address = segment.address
    active.driver.failing["unregister_host"] = cuda_driver.INVALID_VALUE
    del segment
    active.settle()

    with open("/proc/self/maps", encoding="ascii") as maps:  # noqa: PTH123  a file of the kernel
        assert any(line.startswith(f"{address:x}-") for line in maps)
    assert f"{SIZE} bytes stay mapped" in caplog.text
    assert active.registrar.state is RegistrarState.ACTIVE


def test_context_that_was_reset_is_no_error(active):
    segment = Segment(SIZE)
    active.settle()
    active.driver.registered.clear()
    del segment

    assert active.counts.registered == 0
    assert active.registrar.state is RegistrarState.ACTIVE


def test_context_that_is_gone_is_not_made_anew(active):
    segment = Segment(SIZE)
    active.settle()
    active.driver.active.clear()
    del segment
    kept = Segment(SIZE)

    assert active.counts.waiting == 1
    assert active.driver.active == []
    del kept


# Releases


def test_block_is_released_after_the_work_of_the_gpu(active, channels):
    ours, theirs = channels
    received = message_with_block(ours, theirs)
    active.settle()
    gate = active.driver.gates["drain"] = threading.Event()
    del received

    assert ours.tracker.lent_count == 1
    assert not theirs.tracker.has_releases
    gate.set()
    active.settle()
    assert theirs.tracker.has_releases
    theirs.send_memory_update()
    ours.receive()
    assert ours.tracker.lent_count == 0


def test_one_wait_for_the_gpu_is_enough_for_many_blocks(active, channels):
    ours, theirs = channels
    messages = [message_with_block(ours, theirs) for _ in range(20)]
    active.settle()
    gate = active.driver.gates["drain"] = threading.Event()
    messages.pop()
    while not active.driver.calls["drain"]:
        os.sched_yield()
    messages.clear()
    gate.set()
    active.settle()

    assert active.driver.calls["drain"] == 2
    assert len(theirs.tracker._released) == 20


def test_lone_block_is_released_without_waiting_for_others(active, monkeypatch):
    waits, released = [], []
    monkeypatch.setattr(registration.time, "sleep", waits.append)
    active.registrar.release_later(lambda: released.append(0))
    active.settle()

    assert released == [0]
    assert waits == []


def test_blocks_that_follow_soon_wait_for_others(active, monkeypatch):
    waits, released = [], []
    monkeypatch.setattr(registration.time, "sleep", waits.append)
    monkeypatch.setattr(registration.time, "monotonic", lambda: 1000.0)
    for number in range(2):
        active.registrar.release_later(lambda number=number: released.append(number))
        active.settle()

    assert released == [0, 1]
    assert waits == [pytest.approx(registration._GATHER_S)]


def test_blocks_wait_for_the_gpu_also_if_no_page_can_be_pinned_for_that(active, channels):
    ours, theirs = channels
    received = message_with_block(ours, theirs)
    active.settle()
    active.driver.failing["drain"] = cuda_driver.OUT_OF_MEMORY
    del received
    active.settle()

    assert active.driver.calls["synchronize"] == 1
    assert len(theirs.tracker._released) == 1
    assert active.registrar.state is RegistrarState.ACTIVE


@pytest.mark.parametrize("code", [cuda_driver.ILLEGAL_ADDRESS, cuda_driver.ASSERT])
def test_blocks_are_released_although_the_driver_is_dead(active, channels, code):
    ours, theirs = channels
    received = message_with_block(ours, theirs)
    active.settle()
    active.driver.failing["drain"] = code
    del received
    active.settle()

    assert active.registrar.state is RegistrarState.STOPPED
    assert len(theirs.tracker._released) == 1


def test_blocks_are_released_at_once_after_the_end(active, channels):
    ours, theirs = channels
    received = message_with_block(ours, theirs)
    active.settle()
    active.registrar.stop()
    del received

    assert len(theirs.tracker._released) == 1
    active.registrar.stop()


def test_block_of_a_process_without_cuda_is_released_at_once(process, channels):
    process.is_loaded = False
    ours, theirs = channels
    received = message_with_block(ours, theirs)
    del received

    assert len(theirs.tracker._released) == 1


# Forks and failures around it


def test_forked_process_leaves_a_dead_driver_alone(active):
    segment = Segment(SIZE)
    active.settle()
    calls = dict(active.driver.calls)
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads beside a fork
        pid = os.fork()
    if pid == 0:
        active.registrar.after_fork()
        del segment
        Segment(SIZE)
        is_quiet = active.driver.calls == calls and active.registrar.counts().registered == 0
        os.write(writer, b"y" if is_quiet else b"n")
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 1)
    os.close(reader)
    os.waitpid(pid, 0)

    assert answer == b"y"
    assert active.counts.registered == 1


def test_process_forked_before_cuda_was_used_finds_it_itself(process):
    segment = Segment(SIZE)
    process.registrar.after_fork()
    process.registrar.look()

    assert process.counts.registered == 1
    del segment


def test_missing_thread_ends_the_registrar_only(process, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    process.registrar.look()

    assert process.registrar.state is RegistrarState.STOPPED
    assert "can't start new thread" in process.registrar.failure


def test_install_observes_once(monkeypatch):
    monkeypatch.setattr(memory, "observers", [])
    monkeypatch.setattr(registration.os, "register_at_fork", lambda **_: None)
    monkeypatch.setattr(registration.atexit, "register", lambda _: None)
    registration.install()
    registration.install()

    assert len(memory.observers) == 1
    assert memory.observers[0].state is RegistrarState.WATCHING
