# SPDX-License-Identifier: Apache-2.0
"""The numbers of windows."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from pytriton.tools.perf.load.records import GeneratorState
from pytriton.tools.perf.measuring.summary import (
    Distribution,
    SummaryRules,
    busiest,
    choose,
    distribution_of,
    join,
    percentile_index,
    summarise,
)
from pytriton.tools.perf.server_state import Counted, ServerCounts
from tests.perf.runs import COUNTED, records, window


@pytest.mark.parametrize(
    "percentile, count, expected", [(50, 1, 0), (50, 2, 1), (99, 100, 98), (90, 11, 9), (99, 3, 2)]
)
def test_percentile_is_rounded_as_perf_analyzer_does(percentile, count, expected):
    assert percentile_index(percentile, count) == expected


def test_distribution_has_the_usual_percentiles_and_the_asked_one():
    found = distribution_of(np.arange(1, 101, dtype=np.int64) * 1000, 80)

    assert found is not None
    assert found.avg_us == 50.5
    assert found.percentiles == {50: 51, 80: 80, 90: 90, 95: 95, 99: 99}
    assert sum(found.counts) == 100
    assert found.curve_us[0] == 1
    assert found.curve_us[-1] == 100
    document = msgspec.to_builtins(found, str_keys=True)
    assert msgspec.convert(document, Distribution, str_keys=True) == found


def test_distribution_of_equal_times_and_of_none():
    found = distribution_of(np.full(3, 5000, np.int64))

    assert found is not None
    assert found.std_us == 0
    assert sum(found.counts) == 3
    assert distribution_of(np.zeros(0, np.int64)) is None


def test_windows_are_merged():
    summary = summarise([window(records(100)), window(records(50))], SummaryRules(batch_size=4))

    assert summary.requests == 150
    assert summary.duration_s == 2
    assert summary.throughput == 300
    assert summary.send_us == 20


def test_failed_requests_do_not_count_as_throughput():
    ok = np.arange(100) % 4 > 0
    found = records(ok=ok, errors={"no": 20, "never": 5})

    summary = summarise([window(found)], SummaryRules())

    assert (summary.requests, summary.failed) == (75, 25)
    assert list(summary.errors.items()) == [("no", 20), ("never", 5)]


def test_decoupled_requests_count_until_their_first_response():
    found = records(10, latency_us=1000, streams=4)

    first = summarise([window(found)], SummaryRules(is_decoupled=True))
    last = summarise([window(found)], SummaryRules())

    assert first.latency is not None
    assert last.latency is not None
    assert first.latency.min_us == 1000
    assert last.latency.min_us == 2500
    assert first.response_rate == 40


def test_times_between_responses_do_not_cross_requests():
    summary = summarise([window(records(10, streams=3))], SummaryRules(is_decoupled=True))

    assert summary.between is not None
    assert summary.between.count == 20
    assert summary.between.avg_us == 500
    assert summary.between.max_us == 500


def test_requests_without_responses_have_no_times_between_them():
    found = records(
        4,
        responses=np.array([2, 0, 1, 2]),
        response_ns=np.array([10, 20, 1000, 2000, 2040]) * 1000,
    )

    between = summarise([window(found)], SummaryRules()).between

    assert between is not None
    assert (between.count, between.min_us, between.max_us) == (2, 10, 40)


def test_server_counts_are_summed_and_absent_if_one_window_has_none():
    both = summarise([window(server=ServerCounts(COUNTED))] * 2, SummaryRules())
    one = summarise([window(server=ServerCounts(COUNTED)), window()], SummaryRules())

    assert both.server is not None
    assert both.server.model.requests == 200
    assert one.server is None


def test_counts_of_composing_models_are_subtracted_by_name():
    key = ("x", "1")
    before = ServerCounts(Counted(requests=1), {key: Counted(requests=2)})
    after = ServerCounts(Counted(requests=11), {key: Counted(requests=5), ("y", "1"): COUNTED})

    found = after - before

    assert found.model.requests == 10
    assert found.composing[key].requests == 3
    assert found.composing["y", "1"] == COUNTED


def test_joined_records_keep_responses_beside_their_requests():
    joined = join([records(2, streams=2), records(3, streams=2)])

    chosen = choose(joined, np.array([True, False, False, True, False]))

    assert len(chosen) == 2
    assert chosen.response_ns.tolist() == [
        *joined.response_ns[:2].tolist(),
        *joined.response_ns[6:8].tolist(),
    ]


def test_generator_is_the_limit_if_it_was_most_of_the_time():
    busy, idle = GeneratorState(cpu_share=1.0, is_limit=True), GeneratorState(cpu_share=0.2)

    assert busiest([busy, busy, idle]).is_limit
    assert not busiest([busy, idle, idle]).is_limit
    assert not busiest([]).is_limit
