# SPDX-License-Identifier: Apache-2.0
"""Quantiles over a sliding window."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.serving.engine.latencies import SLICE_NS, SLICES, QuantileSummary

RANKS = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)


def summary_of(values, now=0):
    summary = QuantileSummary()
    for value in values:
        summary.add(value, 1, now)
    return summary


def test_window_is_a_minute_in_five_parts_as_in_triton():
    assert SLICES == 5
    assert SLICE_NS * SLICES == 60_000_000_000


def test_quantiles_of_few_values_are_those_values():
    summary = summary_of(range(1, 101))

    assert summary.values_at((0.5, 0.9, 0.99, 1.0), 0) == [50, 90, 99, 100]
    assert summary.count == 100


def test_empty_summary_has_no_quantiles():
    assert all(map(math.isnan, QuantileSummary().values_at(RANKS, 3)))


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 1000)), min_size=1),
    st.sampled_from(RANKS),
)
def test_value_is_at_most_a_thousandth_below_the_exact_one(counted, rank):
    summary = QuantileSummary()
    for value, count in counted:
        summary.add(value, count, 0)
    values = sorted(value for value, count in counted for _ in range(count))
    exact = values[max(0, math.ceil(rank * len(values)) - 1)]

    (value,) = summary.values_at((rank,), 0)

    assert exact * 0.999 <= value <= exact
    if exact < 2048:
        assert value == exact


@pytest.mark.parametrize("age,is_known", [(0, True), (SLICES - 1, True), (SLICES, False)])
def test_values_leave_the_window_but_not_the_count(age, is_known):
    summary = summary_of([7], now=100)
    (value,) = summary.values_at((0.5,), 100 + age)

    assert (value == 7) == is_known
    assert summary.count == 1


def test_window_moves_slice_by_slice():
    summary = QuantileSummary()
    for slice_number in range(20):
        summary.add(slice_number, 1, slice_number)

    assert summary.values_at((0.0, 1.0), 19) == [15, 19]
    assert summary.values_at((0.0, 1.0), 21) == [17, 19]


def test_number_of_different_values_is_limited():
    summary = summary_of(range(0, 100_000_000, 997))

    (kept,) = [values for _, values in summary._slices]
    assert len(kept) < 20_000
