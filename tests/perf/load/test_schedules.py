# SPDX-License-Identifier: Apache-2.0
"""When requests begin that do not wait for answers."""

from __future__ import annotations

import itertools

import pytest

from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.driver import check_level, offsets_ns, share, share_of_number
from pytriton.tools.perf.load.plan import (
    Arrivals,
    Concurrency,
    FixedSchedule,
    Intervals,
    PeriodicConcurrency,
    RequestRate,
)

MILLISECOND = 1_000_000


def first(level, count):
    return list(itertools.islice(offsets_ns(level), count))


def test_constant_rate_is_even_and_does_not_drift():
    moments = first(RequestRate(3.0), 3_001)

    assert moments[:2] == [0, 333_333_333]
    assert moments[3_000] == 1_000_000_000_000


def test_poisson_gaps_depend_on_the_seed_alone_and_have_the_mean_of_the_rate():
    level = RequestRate(100.0, Arrivals.POISSON, seed=7)
    moments = first(level, 5_000)

    assert moments == first(level, 5_000)
    assert moments != first(RequestRate(100.0, Arrivals.POISSON, seed=8), 5_000)
    assert moments == sorted(moments)
    assert moments[-1] / 4_999 == pytest.approx(10 * MILLISECOND, rel=0.05)


def test_intervals_begin_again():
    assert first(Intervals((1, 2)), 5) == [0, 1_000, 3_000, 4_000, 6_000]


def test_schedule_ends():
    assert list(offsets_ns(FixedSchedule((0, 0.5, 20)))) == [0, 500_000, 20 * MILLISECOND]


def test_processes_share_a_schedule_without_loss():
    level = RequestRate(10.0, Arrivals.POISSON)
    shares = [list(itertools.islice(share(offsets_ns(level), each, 3), 4)) for each in range(3)]

    assert sorted(itertools.chain(*shares)) == first(level, 12)


def test_processes_share_a_number_without_loss():
    assert [share_of_number(8, each, 3) for each in range(3)] == [3, 3, 2]


@pytest.mark.parametrize(
    "level, text",
    [
        (Concurrency(0), "concurrency of 1 or more, got 0"),
        (RequestRate(0.0), "rate above 0, got 0"),
        (RequestRate(float("nan")), "rate above 0, got nan"),
        (Intervals(()), "not all of them 0"),
        (Intervals((0, 0)), "not all of them 0"),
        (Intervals((5, -1)), "0 microseconds or more"),
        (FixedSchedule(()), "at least one"),
        (FixedSchedule((3, 2)), "in their order"),
        (PeriodicConcurrency(5, 2), "end not below the start"),
    ],
)
def test_impossible_level_is_refused(level, text):
    with pytest.raises(GeneratorError, match=text):
        check_level(level)
