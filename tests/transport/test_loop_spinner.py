# SPDX-License-Identifier: Apache-2.0
"""An event loop polls before it sleeps only while that pays and nobody else needs the core."""

from __future__ import annotations

import os
import socket

import pytest

from pytriton.runtime.transport import loop_spinner
from pytriton.runtime.transport.loop_spinner import (
    DEVICE_SPIN_NS,
    MESSAGE_SPIN_NS,
    SPIN_NS,
    LinuxMachine,
    LoopSpinner,
    MessagePoller,
    SpinPolicy,
    allow_spinning,
    allowed_cores_of_device_workers,
    allowed_cores_of_workers,
    make_spinner,
)

CORES = 2
LONG_NS = 10**10


class FakeMachine:
    """A machine whose clock moves by two microseconds with each look for an event."""

    def __init__(self):
        self.time_ns = LONG_NS
        self.event_ns = None  # when the next event comes; None: never
        self.step_ns = 2_000
        self.running = CORES
        self.looks = 0

    def now_ns(self):
        return self.time_ns

    def has_event(self):
        self.looks += 1
        self.time_ns += self.step_ns
        return self.event_ns is not None and self.time_ns > self.event_ns

    def running_count(self):
        return self.running


class Rig:
    def __init__(self):
        self.machine = FakeMachine()
        self.scheduled = []
        self.spinner = LoopSpinner(self.scheduled.append, self.machine, CORES)
        self.policy = SpinPolicy()

    def spin(self, event_after_ns=None):
        """Returns how often the spinner looked for an event."""
        machine = self.machine
        machine.looks = 0
        if event_after_ns is not None:
            machine.event_ns = machine.time_ns + event_after_ns
        self.spinner.spin_soon(self.policy)
        while self.scheduled:
            self.scheduled.pop()()
        machine.event_ns = None
        return machine.looks

    def spins_again(self):
        return self.spin(50_000) > 0


@pytest.fixture
def rig():
    return Rig()


def test_spinner_polls_until_the_event_comes(rig):
    assert rig.spin(50_000) == 26
    assert rig.spins_again()


def test_spinner_gives_up_after_its_time_and_pauses(rig):
    began_ns = rig.machine.time_ns

    assert rig.spin() == SPIN_NS // 2_000
    assert rig.machine.time_ns - began_ns == SPIN_NS
    assert not rig.spins_again()
    rig.machine.time_ns += 1_000_000
    assert rig.spins_again()


def test_spinner_does_not_poll_while_somebody_waits_for_a_core(rig):
    rig.machine.running = CORES + 1

    assert rig.spin(50_000) == 0
    rig.machine.running = CORES
    assert not rig.spins_again()


def test_spinner_stops_when_another_process_got_its_core(rig):
    rig.machine.step_ns = 100_000

    assert rig.spin() == 1
    rig.machine.step_ns = 2_000
    assert not rig.spins_again()


def test_spinner_pauses_if_the_loop_has_other_work_anyway(rig):
    assert rig.spin(0) == 1
    assert not rig.spins_again()


def test_pause_doubles_with_each_failure_up_to_a_second_and_ends_with_a_success():
    policy = SpinPolicy()
    pauses_ms = []
    for _ in range(12):
        policy.record(0, is_success=False)
        pauses_ms.append(next(ms for ms in range(2000) if policy.resume_ns <= ms * 1_000_000))
    policy.record(0, is_success=True)
    policy.record(0, is_success=False)

    assert pauses_ms == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]
    assert policy.resume_ns <= 1_000_000


def test_spinner_polls_once_for_all_that_ask_in_an_iteration(rig):
    rig.spinner.spin_soon(rig.policy)
    rig.spinner.spin_soon(rig.policy)

    assert len(rig.scheduled) == 1


def test_machine_sees_events_of_a_loop_and_running_threads():
    uvloop = pytest.importorskip("uvloop")
    loop = uvloop.new_event_loop()
    near, far = socket.socketpair()
    try:
        near.setblocking(False)
        loop.add_reader(near.fileno(), near.recv, 1)
        loop.call_later(0.001, loop.stop)  # the loop registers descriptors before it waits
        loop.run_forever()
        load_fd = os.open("/proc/loadavg", os.O_RDONLY)
        machine = LinuxMachine(loop._get_backend_id(), load_fd)
        has_event_before = machine.has_event()
        far.send(b"x")

        assert not has_event_before
        assert machine.has_event()
        assert machine.running_count() >= 1
    finally:
        loop.close()
        near.close()
        far.close()


@pytest.fixture
def _restored_cores(monkeypatch):
    monkeypatch.setattr(loop_spinner, "_allowed_cores", 1)


@pytest.mark.usefixtures("_restored_cores")
def test_only_processes_with_two_cores_that_were_told_so_poll():
    uvloop = pytest.importorskip("uvloop")
    loop = uvloop.new_event_loop()
    try:
        untold = make_spinner(loop)
        allow_spinning(2)

        assert untold is None
        assert make_spinner(loop) is not None
    finally:
        loop.close()


def test_reader_polls_a_socket_until_a_message_comes_and_pauses_if_none_does():
    machine = FakeMachine()
    poller = MessagePoller(machine, CORES)
    machine.event_ns = machine.time_ns + 100_000

    poller.poll()
    assert machine.looks == 51
    machine.event_ns = None
    poller.poll()
    assert machine.looks == 51 + MESSAGE_SPIN_NS // 2_000
    poller.poll()
    assert machine.looks == 51 + MESSAGE_SPIN_NS // 2_000


def test_reader_does_not_poll_while_somebody_waits_for_a_core():
    machine = FakeMachine()
    machine.running = CORES + 1

    MessagePoller(machine, CORES).poll()

    assert machine.looks == 0


def test_workers_poll_only_if_nobody_but_this_process_waits_for_them(monkeypatch):
    monkeypatch.setattr(loop_spinner, "_allowed_cores", 1)
    monkeypatch.setattr(loop_spinner, "_allowed_cores_of_workers", 0)

    allow_spinning(4, also_workers=True)
    assert allowed_cores_of_workers() == 4
    allow_spinning(4)
    assert allowed_cores_of_workers() == 0


def test_spinner_polls_longer_for_what_takes_longer(rig):
    rig.machine.event_ns = rig.machine.time_ns + 300_000
    rig.spinner.spin_soon(rig.policy, DEVICE_SPIN_NS)
    rig.scheduled.pop()()

    assert rig.machine.looks == 151
    assert rig.policy.resume_ns == 0


def test_poller_of_a_worker_with_gpu_memory_waits_longer():
    machine = FakeMachine()
    machine.event_ns = machine.time_ns + 300_000
    MessagePoller(machine, CORES, DEVICE_SPIN_NS).poll()

    assert machine.looks == 151


@pytest.mark.parametrize("cores, polling", [(1, 0), (2, 0), (3, 1), (16, 14)])
def test_workers_with_gpu_memory_leave_cores_to_client_and_front_end(monkeypatch, cores, polling):
    monkeypatch.setattr(loop_spinner, "_allowed_cores", cores)

    assert allowed_cores_of_device_workers() == polling
