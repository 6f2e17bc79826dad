# SPDX-License-Identifier: Apache-2.0
"""When a front end counts as hung, and when one that ended is started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pytriton.serving.server.frontend.pool import (
    PING_INTERVAL_S,
    SILENCE_LIMIT_S,
    WORK_LIMIT_S,
    FrontEndHeartbeat,
    RestartDelays,
)
from pytriton.serving.server.process.event_loop import Activity, read_activity
from tests.e2e.waiting import eventually


class Process:
    """A front end that a test lets work, and the clock of the core."""

    def __init__(self) -> None:
        self.heartbeat = FrontEndHeartbeat()
        self.now_s = 1000.0
        self.processor_s = 5.0

    def beat(
        self, seconds: float = PING_INTERVAL_S, *, works_s: float = 0.0, is_runnable: bool = False
    ) -> int | None:
        """Let some time pass in the core, in which the front end uses the processor."""
        self.now_s += seconds
        self.processor_s += works_s
        return self.heartbeat.beat(self.now_s, Activity(self.processor_s, is_runnable))

    def beats_until_failure(self, **activity) -> int:
        for count in range(1, 1000):
            self.beat(**activity)
            if self.heartbeat.failure:
                return count
        return 0


@pytest.fixture
def process():
    return Process()


def test_each_answer_is_followed_by_the_next_ping(process):
    numbers = []
    for _ in range(5):
        numbers.append(process.beat())
        process.heartbeat.on_answer(numbers[-1])

    assert numbers == [1, 2, 3, 4, 5]
    assert process.heartbeat.is_answered
    assert process.heartbeat.failure == ""


def test_front_end_that_does_nothing_and_does_not_answer_hangs_after_some_seconds(process):
    process.beat()

    assert process.beats_until_failure() == SILENCE_LIMIT_S / PING_INTERVAL_S
    assert process.heartbeat.failure == "did not answer for 3 s and did nothing"


def test_no_second_ping_is_sent_before_the_answer(process):
    assert [process.beat() for _ in range(3)] == [1, None, None]
    assert not process.heartbeat.is_answered


def test_late_answer_ends_the_wait(process):
    process.beat()
    process.beat()
    process.beat()
    process.heartbeat.on_answer(1)
    assert process.beat() == 2

    assert process.beats_until_failure() == SILENCE_LIMIT_S / PING_INTERVAL_S


def test_answer_to_an_earlier_ping_is_none_to_the_last(process):
    process.heartbeat.on_answer(process.beat())
    process.beat()
    process.heartbeat.on_answer(1)

    assert not process.heartbeat.is_answered


def test_time_in_which_the_core_did_not_run_does_not_count(process):
    process.beat()
    process.beat(3600)  # it was suspended, or stopped
    process.beat(3600)

    assert process.heartbeat.failure == ""
    assert process.beats_until_failure() == 1


@pytest.mark.parametrize("activity", [{"works_s": 0.01}, {"is_runnable": True}])
def test_front_end_that_works_or_waits_for_a_processor_does_not_hang(process, activity):
    process.beat()
    process.beat()
    process.beat()
    for _ in range(100):
        process.beat(**activity)

    assert process.heartbeat.failure == ""
    assert process.beats_until_failure() == SILENCE_LIMIT_S / PING_INTERVAL_S


def test_front_end_that_only_works_and_never_answers_hangs_at_last(process):
    process.beat()

    assert process.beats_until_failure(works_s=0.5, is_runnable=True) == 2 * WORK_LIMIT_S
    assert process.heartbeat.failure == "did not answer while it used 30 s of processor time"


def test_front_end_of_which_nothing_is_known_gets_the_time_of_one_that_works():
    heartbeat = FrontEndHeartbeat()
    beats = 0
    while not heartbeat.failure:
        heartbeat.beat(beats * PING_INTERVAL_S, None)
        beats += 1

    assert beats == 1 + WORK_LIMIT_S / PING_INTERVAL_S


def test_front_end_that_served_is_started_again_at_once():
    delays = RestartDelays()

    assert [delays.after(served_s=1.5) for _ in range(10)] == [0.0] * 10


def test_front_end_that_ends_again_and_again_soon_after_its_start_waits_longer():
    delays = RestartDelays()

    assert [delays.after(served_s=0.5) for _ in range(6)] == [0.0, 0.1, 0.5, 1.0, 1.0, 1.0]
    assert delays.after(served_s=2.0) == 0.0
    assert delays.after(served_s=0.5) == 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_activity_of_a_process_is_that_of_the_system():
    code = """input()
import time
end = time.process_time() + 0.1
while time.process_time() < end: pass
print(flush=True)
input()"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert eventually(lambda: not read_activity(process.pid).is_runnable)
        before = read_activity(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        worked = read_activity(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        stopped = read_activity(process.pid)
        process.kill()

    assert worked.processor_s - before.processor_s >= 0.08
    assert not stopped.is_runnable
    assert read_activity(process.pid) is None
