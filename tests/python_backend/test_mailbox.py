# SPDX-License-Identifier: Apache-2.0
"""One reader for many waiting threads."""

from __future__ import annotations

import threading

import pytest

from pytriton.runtime.backend import mailbox
from pytriton.runtime.backend.connection import ServerConnection
from pytriton.runtime.backend.mailbox import MessageInbox
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.frames import Cancel, CheckReady, Execute, ServiceReply
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from tests.e2e.waiting import DEADLINE_S, eventually


class Waiting(threading.Thread):
    """A thread that waits for something of its own."""

    def __init__(self, mailbox, inbox):
        super().__init__(daemon=True)
        self.mailbox = mailbox
        self.inbox = inbox
        self.is_over = False
        self.start()

    def run(self):
        try:
            self.mailbox.wait(self.inbox)
        except EOFError:
            self.is_over = True

    def is_done(self):
        self.join(DEADLINE_S)
        return not self.is_alive()


@pytest.fixture
def rig():
    ours, theirs = socket_pair()
    rig = ServerConnection(MemoryChannel(ours, Arena()))
    rig.server = MemoryChannel(theirs, Arena())
    rig.handlers[Execute] = rig.mailbox.jobs.put
    yield rig
    rig.server.close()
    rig.close()


def is_asleep(rig, thread):
    return thread.inbox in rig.mailbox._sleepers


def call(rig):
    inbox = MessageInbox()
    return inbox, rig.open_call(inbox)


def test_every_thread_gets_its_own_message(rig):
    calls = [call(rig) for _ in range(8)]
    threads = [Waiting(rig.mailbox, inbox) for inbox, _ in calls]
    assert eventually(lambda: len(rig.mailbox._sleepers) == 7)

    for _, number in reversed(calls):
        rig.server.send(ServiceReply(number, number))

    assert all(thread.is_done() for thread in threads)
    assert [inbox.messages[0].frame.value for inbox, _ in calls] == [n for _, n in calls]


def test_reader_that_is_done_wakes_another(rig):
    (first, first_number), (second, second_number) = call(rig), call(rig)
    reader = Waiting(rig.mailbox, first)
    assert eventually(lambda: rig.mailbox._has_reader)
    other = Waiting(rig.mailbox, second)
    assert eventually(lambda: is_asleep(rig, other))

    rig.server.send(ServiceReply(first_number))
    assert reader.is_done()
    assert eventually(lambda: rig.mailbox._has_reader)
    rig.server.send(ServiceReply(second_number))
    assert other.is_done()


def test_several_threads_wait_for_the_same_thing(rig):
    inbox, number = call(rig)
    threads = [Waiting(rig.mailbox, inbox) for _ in range(3)]
    rig.server.send(ServiceReply(number))
    assert all(thread.is_done() for thread in threads)


def test_end_of_the_connection_wakes_all(rig):
    threads = [Waiting(rig.mailbox, call(rig)[0]) for _ in range(4)]
    assert eventually(lambda: len(rig.mailbox._sleepers) == 3)
    rig.server.close()
    assert all(thread.is_done() and thread.is_over for thread in threads)
    with pytest.raises(EOFError):
        rig.mailbox.wait(MessageInbox())


def test_reader_gives_way_to_the_models_thread(rig):
    inbox, number = call(rig)
    reader = Waiting(rig.mailbox, inbox)
    assert eventually(lambda: rig.mailbox._has_reader)
    model = Waiting(rig.mailbox, rig.mailbox.jobs)
    assert eventually(lambda: is_asleep(rig, model))

    rig.server.send(Cancel(1, 0))  # of no interest to either
    rig.handlers[Cancel] = lambda received: None
    rig.server.send(Cancel(1, 0))
    assert eventually(lambda: is_asleep(rig, reader))
    rig.server.send(ServiceReply(number))
    assert reader.is_done()
    assert model.is_alive()
    rig.server.send(Execute(1, [], []))
    assert model.is_done()


def test_patient_thread_lets_the_models_thread_read(rig):
    inbox = MessageInbox(is_low_priority=True)
    rig.handlers[CheckReady] = inbox.put
    patient = Waiting(rig.mailbox, inbox)
    assert eventually(lambda: is_asleep(rig, patient))
    model = Waiting(rig.mailbox, rig.mailbox.jobs)
    assert eventually(lambda: rig.mailbox._has_reader)

    rig.server.send(CheckReady(1))
    assert patient.is_done()
    assert model.is_alive()
    rig.server.send(Execute(1, [], []))
    assert model.is_done()


def test_patient_thread_reads_while_nobody_else_does(rig):
    inbox = MessageInbox(is_low_priority=True)
    rig.handlers[CheckReady] = inbox.put
    patient = Waiting(rig.mailbox, inbox)
    rig.server.send(Execute(1, [], []))
    rig.server.send(CheckReady(1))
    assert patient.is_done()
    rig.mailbox.wait(rig.mailbox.jobs)
    assert len(rig.mailbox.jobs.messages) == 1


class Sleep:
    """Stands in for the lock that a patient thread sleeps on, and notes for how long it may."""

    def __init__(self, until):
        self.timeouts = []
        self._until = until

    def acquire(self, timeout=-1.0):
        self.timeouts.append(timeout)
        return self._until(self)

    def release(self):
        pass


def test_patient_thread_sleeps_on_while_the_models_thread_waits(rig, monkeypatch):
    inbox = MessageInbox(is_low_priority=True)

    def until(sleep):
        if sleep.timeouts[-1] < 0:
            inbox.messages.append(None)  # its message has come at last
        assert len(sleep.timeouts) < 10
        return bool(inbox.messages)

    sleep = Sleep(until)
    monkeypatch.setattr(rig.mailbox, "_add_sleeper", lambda waiter: sleep)
    rig.mailbox._has_reader = True
    rig.mailbox.wait(inbox)

    assert sleep.timeouts == [0.1, -1]


def test_patient_thread_that_sleeps_on_reads_when_the_models_thread_is_busy(rig, monkeypatch):
    monkeypatch.setattr(mailbox, "BUSY_TIMEOUT_S", 0.001)
    inbox = MessageInbox(is_low_priority=True)
    rig.handlers[CheckReady] = inbox.put
    model = Waiting(rig.mailbox, rig.mailbox.jobs)
    assert eventually(lambda: rig.mailbox._has_reader)
    patient = Waiting(rig.mailbox, inbox)
    assert eventually(lambda: inbox in rig.mailbox._resting)

    rig.server.send(Execute(1, [], []))
    assert model.is_done()
    rig.server.send(CheckReady(1))
    assert patient.is_done()


def test_what_is_there_is_read_without_waiting(rig):
    rig.mailbox.read_available()
    rig.server.send(Execute(1, [], []))
    rig.server.send(Execute(2, [], []))
    rig.mailbox.read_available()
    assert len(rig.mailbox.jobs.messages) == 2


def test_threads_in_a_crowd_lose_no_message(rig):
    """Many short waits of many threads, with answers in an order of their own."""
    rounds, count = 200, 6
    numbers = []
    lock = threading.Lock()
    failures = []

    def work():
        for _ in range(rounds):
            inbox, number = call(rig)
            with lock:
                numbers.append(number)
            rig.mailbox.wait(inbox)
            if inbox.messages[0].frame.value != number:
                failures.append(number)
            rig.close_call(number)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    answered = 0
    while answered < rounds * count:
        with lock:
            batch, numbers[:] = numbers[::-1], []
        for number in batch:
            rig.server.send(ServiceReply(number, number))
        answered += len(batch)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
