# SPDX-License-Identifier: Apache-2.0
"""How many instances a load asks for: up soon, down late, never outside the limits."""

from __future__ import annotations

import math
import random

import pytest

from pytriton.serving.repository.loading.instance_scaler import (
    FIRST_RETRY_S,
    MAX_RETRY_S,
    InstanceLoad,
    ScalingPolicy,
    ScalingSettings,
)

SETTINGS = ScalingSettings(minimum=1, maximum=8, up_after_s=2.0, down_after_s=120.0)


def load(pending, running=0, present=8, capacity=1):
    return InstanceLoad(pending, running, present, 0, capacity)


@pytest.fixture
def policy():
    return ScalingPolicy(SETTINGS)


@pytest.mark.parametrize(
    "pending, running, capacity, target, need",
    [
        (0, 0, 4, 1.0, 1),
        (1, 0, 4, 1.0, 1),
        (4, 0, 4, 1.0, 1),
        (4, 1, 4, 1.0, 2),
        (5, 4, 4, 1.0, 3),
        (0, 32, 4, 1.0, 8),
        (1000, 0, 4, 1.0, 8),
        (8, 0, 4, 2.0, 1),
        (9, 0, 4, 2.0, 2),
        (4, 0, 4, 0.5, 2),
        (3, 0, 0, 1.0, 3),
    ],
)
def test_need_is_the_number_of_instances_for_full_batches(pending, running, capacity, target, need):
    policy = ScalingPolicy(ScalingSettings(minimum=1, maximum=8, target=target))

    assert policy.need(load(pending, running, capacity=capacity)) == need


def test_more_instances_are_wanted_in_one_step_after_the_time_for_it(policy):
    decisions = [policy.decide(now_s, load(5)) for now_s in (10.0, 10.5, 11.9, 12.0, 12.5)]

    assert decisions == [1, 1, 1, 5, 5]


def test_short_peak_starts_nothing(policy):
    seconds = [0.0, 1.0, 1.5, 2.0, 3.0]

    decisions = [
        policy.decide(now_s, load(each))
        for now_s, each in zip(seconds, [8, 8, 1, 8, 8], strict=True)
    ]

    assert decisions == [1, 1, 1, 1, 1]


def test_fewer_are_wanted_when_the_load_was_low_for_the_whole_time(policy):
    policy.decide(0.0, load(6))
    assert policy.decide(2.0, load(6)) == 6

    assert policy.decide(60.0, load(3)) == 6
    assert policy.decide(121.9, load(1)) == 6
    assert policy.decide(122.0, load(1)) == 3  # the highest need since 2.0
    assert policy.decide(179.9, load(1)) == 3
    assert policy.decide(180.0, load(1)) == 1
    assert policy.is_at_rest


def test_peak_within_the_time_keeps_the_instances(policy):
    policy.decide(0.0, load(6))
    policy.decide(2.0, load(6))
    for now_s in range(3, 1000):
        need = 6 if now_s % 100 == 0 else 1

        assert policy.decide(float(now_s), load(need)) == 6


def test_start_that_failed_is_not_asked_for_again_at_once(policy):
    policy.decide(0.0, load(5))
    policy.decide(2.0, load(5))

    assert policy.on_start_failed(3.0) == FIRST_RETRY_S
    assert policy.decide(3.0, InstanceLoad(5, 0, ready=2, starting=1)) == 3
    assert policy.decide(3.0 + FIRST_RETRY_S, InstanceLoad(5, 0, ready=2, starting=1)) == 5
    assert policy.on_start_failed(10.0) == 2 * FIRST_RETRY_S
    assert max(policy.on_start_failed(11.0) for _ in range(50)) == MAX_RETRY_S
    policy.on_started()
    assert policy.decide(12.0, InstanceLoad(5, 0, ready=2)) == 5
    assert policy.on_start_failed(13.0) == FIRST_RETRY_S


def test_start_after_a_recovery_is_asked_for_at_once_but_the_pauses_go_on_to_grow(policy):
    policy.decide(0.0, load(5))
    policy.decide(2.0, load(5))
    policy.on_start_failed(3.0)
    policy.on_recovery()

    assert policy.decide(3.0, InstanceLoad(5, 0, ready=2, starting=1)) == 5
    assert policy.on_start_failed(4.0) == 2 * FIRST_RETRY_S


def test_failed_start_keeps_no_instance_that_is_not_wanted(policy):
    policy.on_start_failed(0.0)

    assert policy.decide(1.0, InstanceLoad(0, 0, ready=3)) == 1


@pytest.mark.parametrize("seed", range(30))
def test_random_loads_keep_the_rules(seed):
    dice = random.Random(seed)
    minimum = dice.randint(1, 3)
    settings = ScalingSettings(
        minimum=minimum,
        maximum=minimum + dice.randint(0, 9),
        target=dice.choice([0.5, 1.0, 3.0]),
        up_after_s=dice.choice([0.0, 1.0, 2.0]),
        down_after_s=dice.choice([3.0, 20.0]),
    )
    policy = ScalingPolicy(settings)
    capacity = dice.choice([1, 4])
    now_s, requests, wanted = 0.0, 0, minimum
    needs = [(-math.inf, minimum)]
    for _ in range(600):
        now_s += dice.choice([0.1, 0.5, 0.5])
        if dice.random() < 0.2:
            requests = dice.choice([0, dice.randint(0, 10), dice.randint(0, 200)])
        running = dice.randint(0, requests)
        current = load(requests - running, running, capacity=capacity)
        needs.append((now_s, policy.need(current)))

        before, wanted = wanted, policy.decide(now_s, current)

        assert settings.minimum <= wanted <= settings.maximum
        if wanted > before:
            recent = [need for at, need in needs if at > now_s - settings.up_after_s]
            assert wanted == needs[-1][1]
            assert min(recent, default=wanted) > before
        if wanted < before:
            recent = [need for at, need in needs if at > now_s - settings.down_after_s]
            assert wanted == max(recent)


@pytest.mark.parametrize("requests", [0, 1, 7, 8, 9, 33, 1000])
def test_constant_load_has_the_same_number_for_ever(policy, requests):
    one = load(requests, capacity=4)
    decisions = [policy.decide(0.5 * step, one) for step in range(2000)]

    assert set(decisions[4:]) == {policy.need(one)}
