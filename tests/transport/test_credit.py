# SPDX-License-Identifier: Apache-2.0
"""How far ahead of one client responses may run."""

from __future__ import annotations

import random

import pytest

from pytriton.runtime.transport.credit import (
    GRANT_RESPONSES,
    LARGE_RESPONSE_BYTES,
    RESPONSE_WINDOW,
    RESPONSE_WINDOW_BYTES,
    CreditWindow,
    is_grant_due,
)


def spent(*sizes):
    window = CreditWindow()
    for size in sizes:
        window.spend(size)
    return window


def test_window_is_open_until_count_or_bytes_are_spent():
    assert spent().is_open
    assert spent(*[1] * (RESPONSE_WINDOW - 1)).is_open
    assert not spent(*[1] * RESPONSE_WINDOW).is_open
    assert spent(RESPONSE_WINDOW_BYTES - 1).is_open
    assert not spent(RESPONSE_WINDOW_BYTES).is_open


def test_credit_gives_back_bytes_in_the_order_they_went():
    window = spent(RESPONSE_WINDOW_BYTES, 1)
    window.add(1)

    assert window.is_open
    window.spend(RESPONSE_WINDOW_BYTES - 1)
    assert not window.is_open


def test_more_credit_than_was_spent_is_no_gain():
    window = spent(1)
    window.add(1000)
    for _ in range(RESPONSE_WINDOW):
        window.spend(1)

    assert not window.is_open


@pytest.mark.parametrize("seed", range(5))
def test_counters_agree_after_each_step(seed):
    rng = random.Random(seed)
    window = CreditWindow()
    for _ in range(500):
        if rng.random() < 0.6:
            window.spend(rng.randrange(LARGE_RESPONSE_BYTES))
        else:
            window.add(rng.randrange(5))

        window.check_integrity()


def test_integrity_check_finds_credit_that_was_counted_twice():
    window = spent(1, 2)
    window._taken += 1

    with pytest.raises(AssertionError, match="1 responses are open, and 2 sizes are kept"):
        window.check_integrity()


def test_second_response_may_have_to_wait_for_the_first():
    window = spent()
    assert window.is_open_after_first
    assert not window.has_sent
    window.spend(1)
    assert window.is_open
    assert not window.is_open_after_first
    assert window.has_sent
    window.add(1)
    window.spend(1)

    assert window.is_open_after_first


@pytest.mark.parametrize(
    "count, size, is_due",
    [
        (1, 1, False),
        (GRANT_RESPONSES - 1, LARGE_RESPONSE_BYTES - 1, False),
        (GRANT_RESPONSES, 1, True),
        (1, LARGE_RESPONSE_BYTES, True),
    ],
)
def test_model_hears_after_half_a_window_or_a_large_response(count, size, is_due):
    assert is_grant_due(count, size) is is_due
