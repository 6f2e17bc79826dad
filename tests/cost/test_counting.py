# SPDX-License-Identifier: Apache-2.0
"""The counter itself: it sees work in Python and calls of C, and what grows too fast."""

from __future__ import annotations

import pytest

from tests.cost.counting import Attack, assert_paid, work_of


def spend(rounds: int) -> None:
    for number in range(rounds):
        abs(number)


def test_work_is_lines_and_calls_of_c():
    few, many = work_of(lambda: spend(10)), work_of(lambda: spend(110))

    assert many - few == 300


def test_linear_work_is_paid():
    assert_paid(lambda size: Attack(size, lambda: spend(3 * size)))


def test_quadratic_work_is_not_paid():
    with pytest.raises(AssertionError):
        assert_paid(lambda size: Attack(size, lambda: spend(size * size // 40)))


def test_too_much_work_for_each_byte_is_not_paid():
    with pytest.raises(AssertionError):
        assert_paid(lambda size: Attack(size, lambda: spend(20 * size)))
