# SPDX-License-Identifier: Apache-2.0
"""What the rate limiter refuses, how large its pools are, and whose turn it is."""

from __future__ import annotations

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.serving.engine.rate_limiter import (
    InstanceLimits,
    RateLimitResource,
    ResourceLimiter,
    ResourceNeed,
)


def limits(priority: int = 1, device_id: int = 0, **counts: int) -> InstanceLimits:
    """Needs of global resources, by name."""
    needs = tuple(ResourceNeed(name, count, is_global=True) for name, count in counts.items())
    return InstanceLimits(resources=needs, priority=priority, device_id=device_id)


def on_device(device_id: int, **counts: int) -> InstanceLimits:
    needs = tuple(ResourceNeed(name, count) for name, count in counts.items())
    return InstanceLimits(resources=needs, device_id=device_id)


def given(name: str, count: int, device: int | None = None) -> RateLimitResource:
    return RateLimitResource(name=name, count=count, device=device)


def run(limiter: ResourceLimiter, steps: int) -> list:
    """Let one instance after the other have its turn; all wait all the time."""
    order = []
    for _ in range(steps):
        contender = limiter.next()
        limiter.start(contender)
        order.append(contender)
        limiter.end(contender)
        limiter.wait(contender)
    return order


@pytest.fixture
def limiter():
    return ResourceLimiter()


def test_pool_is_the_largest_need_of_any_instance(limiter):
    large = limiter.add("a", limits(R=4))
    limiter.add("b", limits(R=2))

    assert limiter.pools == {("R", None): (0, 4)}

    limiter.remove(large)

    assert limiter.pools == {("R", None): (0, 2)}


def test_each_device_has_a_pool_of_its_own(limiter):
    for device in (0, 1):
        contender = limiter.add("a", on_device(device, R=1))
        limiter.wait(contender)
        limiter.start(limiter.next())

    assert limiter.pools == {("R", 0): (1, 1), ("R", 1): (1, 1)}


@pytest.mark.parametrize(
    "resources, needs, limit",
    [
        ([given("R", 3)], limits(R=9), 3),
        ([given("R", 3)], on_device(0, R=9), 3),
        ([given("R", 3, 0)], on_device(0, R=9), 3),
        ([given("R", 3, 1)], on_device(0, R=9), 0),
        ([given("R", 3, 0)], limits(R=9), 3),
        ([given("R", 3, 0), given("R", 5, 1)], limits(R=9), 5),
        ([given("R", 3), given("R", 5, 0)], on_device(0, R=9), 5),
        ([given("R", 5), given("R", 3, 0)], on_device(0, R=9), 5),
        ([given("R", 5), given("R", 3)], on_device(0, R=9), 3),
        ([given("r", 9)], limits(R=9), 0),
    ],
)
def test_instance_that_could_never_start_is_refused(resources, needs, limit):
    limiter = ResourceLimiter(resources)
    with pytest.raises(InvalidArgumentError) as raised:
        limiter.add("a", needs)

    assert raised.value.message == (
        f'Resource count for "R" is limited to {limit} which will prevent scheduling of one or '
        "more model instances, the minimum required count is 9"
    )
    assert limiter.pools == {}


def test_explicit_count_is_the_size_of_the_pool():
    limiter = ResourceLimiter([given("R", 3)])
    limiter.add("a", limits(R=1))

    assert limiter.pools == {("R", None): (0, 3)}


def test_resource_that_nobody_needs_has_no_pool():
    limiter = ResourceLimiter([given("S", 1)])
    limiter.add("a", limits(R=0))

    assert limiter.pools == {}


@pytest.mark.parametrize(
    "second",
    [
        on_device(0, R=1),
        InstanceLimits(
            resources=(ResourceNeed("Q", 1), ResourceNeed("R", 1), ResourceNeed("R", 1, True))
        ),
    ],
)
def test_resource_is_either_global_or_of_devices(limiter, second):
    limiter.add("a", limits(R=1))
    with pytest.raises(InvalidArgumentError) as raised:
        limiter.add("b", second)

    assert raised.value.message == (
        'Resource "R" is present as both global and device-specific resource in the model '
        "configuration."
    )


def test_contradicting_resource_is_free_again_when_its_last_instance_is_removed(limiter):
    limiter.remove(limiter.add("a", limits(R=1)))
    limiter.add("b", on_device(0, R=1))

    assert limiter.pools == {("R", 0): (0, 1)}


def test_priority_zero_counts_as_one(limiter):
    zero = limiter.add("a", limits(R=1, priority=0))
    one = limiter.add("b", limits(R=1))
    limiter.wait(zero)
    limiter.wait(one)

    assert run(limiter, 4) == [zero, one, zero, one]


def test_instances_of_one_model_without_resources_share_by_priority(limiter):
    first = limiter.add("a", limits(priority=1))
    second = limiter.add("a", limits(priority=3))
    order = []
    for _ in range(8):  # one request at a time: nobody waits between
        limiter.wait(second)
        limiter.wait(first)
        contender = limiter.next()
        limiter.start(contender)
        limiter.end(contender)
        order.append(contender)
        limiter.withdraw(first)
        limiter.withdraw(second)

    assert order.count(first) == 6
    assert order.count(second) == 2


def test_others_do_not_change_the_turns_of_those_with_another_resource(limiter):
    first = limiter.add("a", limits(R=1, priority=1))
    second = limiter.add("b", limits(R=1, priority=2))
    busy = limiter.add("c", limits(S=1))
    limiter.wait(first)
    limiter.wait(second)
    turns = []
    for _ in range(30):
        turns += run(limiter, 1)
        for _ in range(100):
            limiter.wait(busy)
            limiter.start(busy)
            limiter.end(busy)

    assert turns.count(first) == 20


def test_removed_instance_gives_back_what_it_holds(limiter):
    holder, waiter = limiter.add("a", limits(R=1)), limiter.add("b", limits(R=1))
    limiter.wait(holder)
    limiter.start(holder)
    limiter.wait(holder)
    limiter.wait(waiter)
    limiter.remove(holder)

    assert limiter.next() is waiter


def test_stuck_batches_block_those_that_need_their_resources(limiter):
    holder, other = limiter.add("a", limits(R=1)), limiter.add("b", limits(R=1))
    free, large = limiter.add("c", limits(S=1)), limiter.add("d", limits(R=2, S=1))
    limiter.wait(holder)
    limiter.start(holder)

    assert list(limiter.blockers(other, {holder: 1})) == []  # there are two
    assert list(limiter.blockers(free, {holder: 1})) == []
    assert list(limiter.blockers(large, {holder: 1})) == [holder]
    assert list(limiter.blockers(large, {holder: 0})) == []

    limiter.wait(large)
    limiter.wait(other)

    assert list(limiter.blockers(other, {holder: 1})) == [holder]  # it waits behind the large one
    assert list(limiter.blockers(free, {holder: 1})) == [holder]


def test_those_behind_do_not_block(limiter):
    holder, other = limiter.add("a", limits(R=1)), limiter.add("b", limits(R=1))
    large = limiter.add("c", limits(R=2))
    limiter.wait(holder)
    limiter.start(holder)
    limiter.wait(other)
    limiter.wait(large)

    assert list(limiter.blockers(other, {holder: 1})) == []
