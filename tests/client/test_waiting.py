# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pytriton.client.waiting import Wait


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def pauses_of(timeout_s):
    clock = Clock()
    wait = Wait(timeout_s, clock)
    pauses = []
    while (pause := wait.next_pause_s()) is not None:
        pauses.append(pause)
        clock.now += pause
    return pauses


def test_wait_looks_again_soon_at_first_and_every_second_later():
    pauses = pauses_of(10.0)

    assert pauses[0] == 0.01
    assert max(pauses) == 1.0
    assert pauses[:-1] == sorted(pauses[:-1])


def test_wait_ends_exactly_in_time():
    assert abs(sum(pauses_of(10.0)) - 10.0) < 1e-9


def test_wait_of_no_time_looks_once():
    assert pauses_of(0.0) == []


def test_limit_of_a_call_is_what_is_left():
    clock = Clock()
    wait = Wait(5.0, clock)
    clock.now += 3.0

    assert wait.limit_s() == 2.0


def test_limit_of_a_call_stays_positive():
    assert Wait(-1.0, Clock()).limit_s() > 0
