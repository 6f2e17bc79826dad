# SPDX-License-Identifier: Apache-2.0
"""Histograms of durations."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.serving.engine.latencies import DEFAULT_LATENCY_BUCKETS_S, Histogram, count_within

SECOND_NS = 1_000_000_000


def test_value_on_a_bound_is_within_it():
    histogram = Histogram((0.001, 0.01), SECOND_NS)
    for ns in (0, 1_000_000, 1_000_001, 10_000_000, 10_000_001):
        histogram.add(ns)

    assert histogram.cumulative() == [2, 4, 5]
    assert histogram.count == 5


def test_equal_values_are_added_in_one_step():
    histogram = Histogram((100.0, 500.0), 1_000_000)
    histogram.add(200_000_000, count=7)

    assert histogram.cumulative() == [0, 7, 7]


@pytest.mark.parametrize("bound", DEFAULT_LATENCY_BUCKETS_S)
def test_limits_of_decimal_bounds_are_exact(bound):
    histogram = Histogram((bound,), SECOND_NS)
    histogram.add(round(bound * 1e9))

    assert histogram.cumulative() == [1, 1]


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 9))), st.sets(st.integers(1, 200)))
def test_sizes_are_counted_as_one_by_one(sizes, limits):
    bounds = sorted(map(float, limits))
    expected = [
        sum(count for size, count in sizes if size <= bound) for bound in (*bounds, float("inf"))
    ]

    assert count_within(sizes, bounds) == expected


def quantile_bucket(histogram: Histogram, rank: float) -> int:
    """The bucket in which Prometheus looks for a quantile."""
    counts = histogram.cumulative()
    return bisect_left(counts, rank * counts[-1])


@given(
    st.lists(st.integers(1, 20 * SECOND_NS), min_size=1, max_size=300), st.sampled_from([50, 99])
)
def test_quantile_is_in_the_bucket_of_the_true_one(durations_ns, percent):
    histogram = Histogram(DEFAULT_LATENCY_BUCKETS_S, SECOND_NS)
    for ns in durations_ns:
        histogram.add(ns)
    rank = -(-percent * len(durations_ns) // 100)  # rounded up
    true_ns = sorted(durations_ns)[rank - 1]

    expected = bisect_left(histogram.limits_ns, true_ns)

    assert quantile_bucket(histogram, percent / 100) == expected
