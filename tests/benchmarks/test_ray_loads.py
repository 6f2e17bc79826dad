# SPDX-License-Identifier: Apache-2.0
"""The rows of instances on Ray: who is compared, and what the figures are made of."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks import ray_large_calls, ray_large_loads, ray_loads
from benchmarks.http_loads import WrkReport
from benchmarks.plain_copy import PlainCopy
from benchmarks.ray_loads import Turn
from tests.cluster.ray_cluster import RayNodes


@pytest.fixture
def cluster():
    nodes = RayNodes(ray_loads.NODE)
    nodes.address = "127.0.0.1:6379"
    yield nodes
    nodes.stop()


def test_all_ways_to_ray_are_compared(cluster):
    titles = [one.title for one in ray_loads.contestants((cluster, cluster))]

    assert sorted(titles) == sorted({ray_loads.TABLE.subject, *ray_loads.TABLE.peers})


def test_ray_serve_is_left_out_where_it_is_not_installed(cluster):
    assert not any(one.is_ray_serve for one in ray_loads.contestants((cluster, None)))


def test_processor_time_of_what_runs_on_ray_has_that_of_the_cluster(cluster):
    on_ray = {one.title for one in ray_loads.contestants((cluster, cluster)) if one.cluster}

    assert on_ray == {*ray_loads.TABLE.peers, ray_loads.SUBJECT} - {
        ray_loads.LOCAL,
        ray_loads.BOUND,
    }


@pytest.mark.parametrize("module", [ray_loads, ray_large_loads])
def test_a_row_is_skipped_with_words_where_ray_is_not_installed(monkeypatch, capsys, module):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert module.measure(None, 0, 1) == {}
    assert "Ray is not installed (pip install 'ray[serve]')" in capsys.readouterr().err


def test_the_best_turn_counts_for_each_figure():
    fast = WrkReport(requests=1000, duration_us=1_000_000, p50_us=500, p99_us=4000, failed=0)
    slow = WrkReport(requests=500, duration_us=1_000_000, p50_us=900, p99_us=3000, failed=0)

    figures = ray_loads.figures_of([Turn(fast, 0.2), Turn(slow, 0.05)])

    assert [figure.value for figure in figures] == [1000, 100, 0.5, 3]


def test_rates_of_large_tensors_count_both_directions_of_an_echo():
    medians = [["one way", "a", 0.5], ["echo", "a", 0.5]]

    figures = ray_large_loads.figures_of(medians)["a"]

    assert [figure.value for figure in figures] == [32, 64]


def test_a_plain_copy_gives_back_what_it_got():
    data = memoryview(bytes(range(256)) * 1000)
    copy = PlainCopy(data)
    try:
        copy.send()
        assert copy.echo() == data
    finally:
        copy.close()


def test_calls_take_turns_and_their_median_counts():
    order = []
    calls = {("echo", name): lambda name=name: order.append(name) for name in "ab"}

    medians = ray_large_calls.medians_s(calls, seconds=0)

    assert order[:4] == ["a", "b", "a", "b"]
    assert medians.keys() == calls.keys()
