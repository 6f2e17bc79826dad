# SPDX-License-Identifier: Apache-2.0
"""When crashed instances are started again; time is a number here."""

from __future__ import annotations

import pytest

from pytriton.serving.repository.loading.python_version import (
    CRASH_LIMIT,
    CRASH_PERIOD_S,
    LACK_DELAY_S,
    MAX_DELAY_S,
    GiveUp,
    Restart,
    RestartPolicy,
)


def test_first_restart_is_at_once_and_the_next_ones_wait_twice_as_long():
    policy = RestartPolicy(crash_limit=100)

    delays = [policy.on_exit(10.0 * count, "signal 11").delay_s for count in range(10)]

    assert delays == pytest.approx([0, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, MAX_DELAY_S])


def test_crash_loop_ends_with_a_reason_that_names_the_count_and_the_last_cause():
    policy = RestartPolicy()
    for count in range(CRASH_LIMIT - 1):
        assert isinstance(policy.on_exit(float(count), "exit status 1"), Restart)

    decision = policy.on_exit(4.0, "signal 9")

    assert decision == GiveUp(
        "its instances ended 5 times within 4.0 s and are not started again; "
        "the last time: signal 9"
    )


def test_crashes_spread_over_more_than_the_period_are_always_restarted():
    policy = RestartPolicy()

    decisions = [policy.on_exit(count * CRASH_PERIOD_S / 4, "x") for count in range(1000)]

    assert all(isinstance(decision, Restart) for decision in decisions)
    assert decisions[-1] == Restart(MAX_DELAY_S)


def test_stable_period_begins_the_count_anew():
    policy = RestartPolicy()
    for count in range(CRASH_LIMIT - 1):
        policy.on_exit(float(count), "x")

    assert policy.on_exit(CRASH_LIMIT + CRASH_PERIOD_S, "x") == Restart(0.0)
    assert "1 of 5 crashes, 1 restarts" in repr(policy)


def test_instances_lost_together_are_restarted_together_and_never_given_up():
    policy = RestartPolicy()

    first = [policy.on_loss(100.0 + 0.01 * count) for count in range(20)]
    later = [policy.on_loss(100.0 + 5.0 * count) for count in range(1, 10)]

    assert first == [Restart(0.0)] * 20
    assert [restart.delay_s for restart in later[:4]] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert later[-1] == Restart(MAX_DELAY_S)
    assert policy.on_loss(1000.0) == Restart(0.0)


def test_losses_do_not_count_as_crashes():
    policy = RestartPolicy()
    for count in range(100):
        policy.on_loss(float(count))

    decisions = [policy.on_exit(100.0 + count, "x") for count in range(CRASH_LIMIT)]

    assert [type(decision) for decision in decisions] == [Restart] * (CRASH_LIMIT - 1) + [GiveUp]


def test_lack_of_resources_is_tried_again_soon_for_ever_and_is_no_crash():
    policy = RestartPolicy()

    assert [policy.on_lack() for _ in range(100)] == [Restart(LACK_DELAY_S)] * 100
    assert policy.on_exit(0.0, "x") == Restart(0.0)
