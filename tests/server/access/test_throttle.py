# SPDX-License-Identifier: Apache-2.0
"""How long addresses wait that send wrong credentials."""

from __future__ import annotations

import pytest

from pytriton.serving.server.access.throttle import MAX_ADDRESSES, MAX_WAIT_S, Throttle


def fail(throttle: Throttle, count: int, address: str = "10.0.0.1", now_s: float = 0.0) -> None:
    for _ in range(count):
        throttle.on_failure(address, now_s)


def test_address_waits_after_the_limit():
    throttle = Throttle(10)

    fail(throttle, 9)
    before = throttle.wait_s("10.0.0.1", 0)
    fail(throttle, 1)

    assert before == 0
    assert throttle.wait_s("10.0.0.1", 0) == 1
    assert throttle.wait_s("10.0.0.1", 0.75) == 0.25
    assert throttle.wait_s("10.0.0.1", 1) == 0
    assert throttle.wait_s("10.0.0.2", 0) == 0


def test_wait_grows_with_each_failure_up_to_a_minute():
    throttle = Throttle(1)
    waits, now_s = [], 0.0
    for _ in range(9):
        throttle.on_failure("a", now_s)
        waits.append(throttle.wait_s("a", now_s))
        now_s += waits[-1]

    assert waits == [1, 2, 4, 8, 16, 32, MAX_WAIT_S, MAX_WAIT_S, MAX_WAIT_S]


def test_failures_are_forgotten_after_a_minute():
    throttle = Throttle(2)

    throttle.on_failure("a", 0)
    throttle.on_failure("a", 61)
    throttle.on_failure("b", 0)
    throttle.on_failure("b", 59)

    assert throttle.wait_s("a", 61) == 0
    assert throttle.wait_s("b", 59) == 1


def test_limit_of_0_is_none():
    throttle = Throttle(0)

    fail(throttle, 1000)

    assert throttle.wait_s("10.0.0.1", 0) == 0


@pytest.mark.parametrize(
    "one,other,is_same",
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_network_of_one_client_counts_as_one_address(one, other, is_same):
    throttle = Throttle(1)

    throttle.on_failure(one, 0)

    assert bool(throttle.wait_s(other, 0)) is is_same


def test_table_of_addresses_is_bounded():
    throttle = Throttle(1)

    for number in range(MAX_ADDRESSES + 10):
        throttle.on_failure(str(number), 0)

    assert len(throttle) == MAX_ADDRESSES
    assert throttle.wait_s("0", 0) == 0
    assert throttle.wait_s(str(MAX_ADDRESSES + 9), 0) == 1


def test_failures_of_another_process_count_together():
    one, other = Throttle(10), Throttle(10)
    fail(one, 12)
    other.on_failure("10.0.0.1", 0, 4)
    before = other.wait_s("10.0.0.1", 0)
    other.on_failure("10.0.0.1", 0, 8)

    assert before == 0
    assert other.wait_s("10.0.0.1", 0) == one.wait_s("10.0.0.1", 0) == 4


@pytest.mark.parametrize("count", [16, 17, 1_000_000_000])
def test_many_failures_at_once_wait_for_a_minute(count):
    throttle = Throttle(10)

    throttle.on_failure("10.0.0.1", 0, count)

    assert throttle.wait_s("10.0.0.1", 0) == MAX_WAIT_S


def test_failures_that_count_are_told_to_a_process_that_begins():
    one, other = Throttle(2), Throttle(2)
    fail(one, 3, now_s=50)
    fail(one, 1, "10.0.0.2", now_s=0)
    fail(one, 1, "10.0.0.3", now_s=50)

    for address, count in one.counts(100).items():
        other.on_failure(address, 100, count)

    assert one.counts(100) == other.counts(100) == {"10.0.0.1": 3, "10.0.0.3": 1}
    assert other.wait_s("10.0.0.1", 100) == 2
    assert other.wait_s("10.0.0.3", 100) == 0
