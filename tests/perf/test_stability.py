# SPDX-License-Identifier: Apache-2.0
"""When a level is stable, and which load comes next."""

from __future__ import annotations

import pytest

from pytriton.tools.perf.measuring.profiler import LoadRange, binary, linear
from pytriton.tools.perf.measuring.results import (
    LevelStatus,
    StabilityRules,
    WindowFigures,
    agreement,
    judge,
)


def windows(*pairs: tuple[float, float], requests: int = 10) -> list[WindowFigures]:
    return [WindowFigures(requests, throughput, latency) for throughput, latency in pairs]


def test_two_windows_are_not_enough():
    assert judge(windows((100, 10), (100, 10)), StabilityRules()) is None


def test_three_windows_within_the_percentage_are_stable():
    found = windows((100, 10), (109, 10.9), (105, 10.5))

    assert judge(found, StabilityRules(percentage=10)) is LevelStatus.STABLE
    assert judge(found, StabilityRules(percentage=8)) is None


@pytest.mark.parametrize("last", [(130, 10), (100, 13)])
def test_throughput_and_latency_both_count(last):
    assert judge(windows((100, 10), (100, 10), last), StabilityRules()) is None


def test_only_the_last_three_windows_count():
    found = windows((1, 1000), (100, 10), (100, 10), (100, 10))

    assert judge(found, StabilityRules()) is LevelStatus.STABLE


def test_empty_window_is_not_stable():
    found = [*windows((100, 10), (100, 10)), WindowFigures(0, 0.0, 0.0)]

    assert agreement(found).is_empty
    assert judge(found, StabilityRules(max_trials=3)) is LevelStatus.UNSTABLE


def test_level_is_given_up_after_the_last_trial():
    found = windows((100, 10), (200, 10), (100, 10))

    assert judge(found, StabilityRules(max_trials=4)) is None
    assert judge(found, StabilityRules(max_trials=3)) is LevelStatus.UNSTABLE


def test_latency_alone_does_not_matter_at_the_end_of_asynchronous_load():
    found = windows((100, 10), (100, 20), (100, 30))

    assert judge(found, StabilityRules(max_trials=3, is_async=True)) is LevelStatus.LATENCY_VARIES
    assert judge(found, StabilityRules(max_trials=3)) is LevelStatus.UNSTABLE


def test_level_over_the_limit_ends_also_if_it_is_not_stable():
    found = windows((100, 20), (300, 30), (100, 40))

    assert judge(found, StabilityRules(limit_us=15)) is LevelStatus.OVER_LIMIT
    assert judge(found, StabilityRules(limit_us=25)) is None


def visited(search, is_met) -> list[float]:
    values = [next(search)]
    try:
        while True:
            values.append(search.send(is_met(values[-1])))
    except StopIteration:
        return values


def test_linear_search_visits_the_range():
    assert visited(linear(LoadRange(1, 10, 3)), lambda _: True) == [1, 4, 7, 10]
    assert visited(linear(LoadRange(0.5, 1.5, 0.5)), lambda _: True) == [0.5, 1.0, 1.5]


def test_linear_search_ends_at_the_first_level_that_is_not_met():
    assert visited(linear(LoadRange(1, 10)), lambda value: value < 3) == [1, 2, 3]


def test_search_without_an_end_goes_on_until_the_limit():
    assert len(visited(linear(LoadRange(1, 0)), lambda value: value < 30)) == 30


@pytest.mark.parametrize(
    "limit, expected",
    [(1, [1, 8, 4, 2]), (3, [1, 8, 4, 2, 3]), (8, [1, 8]), (0, [1]), (5, [1, 8, 4, 6, 5])],
)
def test_binary_search_halves_the_range(limit, expected):
    assert visited(binary(LoadRange(1, 8)), lambda value: value <= limit) == expected


def test_binary_search_stops_at_its_step():
    assert visited(binary(LoadRange(1, 100, 40)), lambda value: value <= 30) == [1, 100, 50, 25]
