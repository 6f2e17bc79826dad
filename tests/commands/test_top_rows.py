# SPDX-License-Identifier: Apache-2.0
"""What `pytriton top` makes of two samples, of keys and of the size of a terminal."""

from __future__ import annotations

import math

import pytest

from pytriton.tools.commands.top import view
from pytriton.tools.commands.top.rows import (
    RateHistory,
    Row,
    RowOrder,
    next_order,
    ordered,
    quantile,
    rows_of,
    sparkline,
)
from pytriton.tools.commands.top.samples import (
    add_page_numbers,
    read_metrics,
    read_statistics,
    series,
)
from pytriton.tools.commands.top.state import DOWN, ENTER, ESCAPE, UP, TopScreen, ViewState, keys_in

KEY = ("m", "1")


def metrics(requests, *, failed=0, buckets=(), extra=""):
    """Metrics of a model whose executions have two inferences each and take 2 ms."""
    labels = 'model="m",version="1"'
    lines = [
        f"nv_inference_request_success{{{labels}}} {requests}",
        f'nv_inference_request_failure{{model="m",reason="OTHER",version="1"}} {failed}',
        f'nv_inference_request_failure{{model="m",reason="BACKEND",version="1"}} {failed}',
        f"nv_inference_count{{{labels}}} {requests * 2}",
        f"nv_inference_exec_count{{{labels}}} {requests}",
        f"nv_inference_request_duration_us{{{labels}}} {requests * 2000}",
        f"nv_inference_queue_duration_us{{{labels}}} {requests * 500}",
        f"nv_inference_compute_infer_duration_us{{{labels}}} {requests * 1000}",
        f"nv_inference_pending_request_count{{{labels}}} 3",
        *(
            f'nv_inference_request_latency_seconds_bucket{{{labels},le="{bound}"}} {count}'
            for bound, count in buckets
        ),
        extra,
    ]
    return "\n".join(["# HELP nv_inference_count text", *lines])


def test_two_samples_give_rates_averages_and_batch_sizes():
    rows = 'nv_inference_batch_size_sum{model="m",version="1"}'
    before = read_metrics(metrics(100, extra=f"{rows} 200"), 10.0)
    after = read_metrics(metrics(300, failed=5, extra=f"{rows} 600"), 20.0)

    (row,) = rows_of(before, after, {KEY: ("READY", "")})
    assert (row.requests_s, row.inferences_s, row.errors_s, row.batch) == (21.0, 40.0, 1.0, 2.0)
    assert (row.average_ms, row.queue_ms, row.compute_ms) == (2.0, 0.5, 1.0)
    assert (row.pending, row.running, row.p99_ms, row.cache_hits) == (3.0, None, None, None)
    assert (row.state, row.succeeded, row.failed) == ("READY", 300.0, 10.0)


def test_batch_size_is_not_guessed_where_requests_failed_and_rows_are_not_known():
    before, after = read_metrics(metrics(1), 0.0), read_metrics(metrics(5, failed=1), 1.0)

    (row,) = rows_of(before, after, {})
    assert (row.batch, row.requests_s, row.errors_s) == (None, 6.0, 2.0)


def test_failed_executions_do_not_make_batches_smaller():
    def sample(runs, at_s):
        rows = f'nv_inference_batch_size_sum{{model="m",version="1"}} {runs * 3}'
        failed_runs = f'nv_inference_exec_count{{model="m",version="1"}} {runs // 2}'
        return read_metrics(metrics(runs // 2, extra=f"{rows}\n{failed_runs}"), at_s)

    (row,) = rows_of(sample(0, 1.0), sample(10, 2.0), {})

    assert row.batch == 3.0


def test_one_sample_gives_no_rates():
    (row,) = rows_of(None, read_metrics(metrics(100), 1.0), {})

    assert (row.requests_s, row.average_ms, row.pending) == (None, None, 3.0)


def test_model_that_was_loaded_again_counts_from_zero():
    before = read_metrics(metrics(100), 10.0)
    after = read_metrics(metrics(20), 20.0)

    (row,) = rows_of(before, after, {})
    assert (row.requests_s, row.average_ms) == (2.0, 2.0)


def test_idle_model_has_no_latency():
    sample = metrics(100, buckets=[(0.1, 100), (math.inf, 100)])

    (row,) = rows_of(read_metrics(sample, 1.0), read_metrics(sample, 2.0), {})
    assert (row.requests_s, row.average_ms, row.p50_ms, row.batch) == (0.0, None, None, None)


def test_percentiles_are_those_of_the_time_between():
    before = metrics(100, buckets=[(0.001, 100), (0.01, 100), (0.1, 100), ("+Inf", 100)])
    after = metrics(200, buckets=[(0.001, 100), (0.01, 150), (0.1, 198), ("+Inf", 200)])

    (row,) = rows_of(read_metrics(before, 1.0), read_metrics(after, 2.0), {})
    assert row.p50_ms == pytest.approx(10.0)
    assert row.p95_ms == pytest.approx(10 + 90 * 45 / 48)
    assert row.p99_ms == pytest.approx(100.0)  # beyond the last bound


@pytest.mark.parametrize(
    "histogram, share, expected",
    [
        ({}, 0.5, None),
        ({1.0: 0, math.inf: 0}, 0.5, None),
        ({1.0: 10, math.inf: 10}, 0.5, 0.5),
        ({1.0: 0, 2.0: 10, math.inf: 10}, 0.5, 1.5),
        ({1.0: 0, math.inf: 10}, 0.5, 1.0),
    ],
)
def test_quantile_is_linear_within_its_bucket(histogram, share, expected):
    assert quantile(histogram, share) == expected


def test_models_that_are_not_served_have_rows_with_their_reasons():
    rows = rows_of(None, read_metrics("", 1.0), {("x", "2"): ("UNAVAILABLE", "no file")})

    assert rows == [Row("x", "2", "UNAVAILABLE", "no file")]


def test_cache_machine_and_gpus_are_read():
    extra = (
        'nv_cache_num_hits_per_model{model="m",version="1"} 30\n'
        'nv_cache_num_misses_per_model{model="m",version="1"} 10\n'
        "nv_cpu_utilization 0.25\nnv_cpu_memory_used_bytes 1e9\n"
        'nv_gpu_utilization{gpu_uuid="a"} 0.5\nnv_gpu_memory_used_bytes{gpu_uuid="a"} 7\n'
        'nv_model_gpu_memory_bytes{gpu_uuid="a",model="m",version="1"} 3\n'
        'nv_model_gpu_memory_bytes{gpu_uuid="b",model="m",version="1"} 4\n'
        "not a line\nnv_cpu_memory_total_bytes nonsense\n"
    )
    zero = extra.replace(" 30", " 0").replace(" 10", " 0")
    before, after = (
        read_metrics(metrics(1, extra=zero), 1.0),
        read_metrics(metrics(1, extra=extra), 2.0),
    )

    (row,) = rows_of(before, after, {})
    assert row.cache_hits == 0.75
    assert row.gpu_memory == 7.0
    assert (after.cpu, after.memory_used, after.memory_total) == (0.25, 1e9, None)
    assert (after.gpus["a"].utilization, after.gpus["a"].memory_used) == (0.5, 7.0)


def test_labels_are_unescaped_and_namespaces_are_part_of_names():
    ((_, labels, value),) = series(r'a{model="x\"y\\z",le="+Inf"} 4')
    sample = read_metrics('nv_inference_count{model="m",namespace="n",version="1"} 4', 1.0)

    assert labels == {"model": 'x"y\\z', "le": "+Inf"}
    assert value == 4
    assert list(sample.models) == [("n::m", "1")]


def test_statistics_serve_where_there_are_no_metrics():
    def stats(count):
        part = {"count": count, "ns": count * 2_000_000}
        inference = {"success": part, "fail": {"count": 1}, "queue": part, "compute_infer": part}
        return {
            "name": "m",
            "version": "1",
            "inference_count": count * 3,
            "execution_count": count,
            "inference_stats": inference,
            "batch_stats": [{"batch_size": 4, "compute_infer": part}],
        }

    before, after = read_statistics([stats(0)], 0.0), read_statistics([stats(10)], 1.0)
    (row,) = rows_of(before, after, {})
    assert (row.requests_s, row.errors_s, row.batch, row.average_ms) == (10.0, 0.0, 4.0, 2.0)


def test_page_adds_memory_age_and_instances():
    sample = read_metrics(metrics(1), 1.0)
    entry = {"name": "m", "version": "1", "instances": 4, "missing": 1}
    last = {"machine": {"server_memory": 5e6}, "models": [entry]}
    add_page_numbers(sample, {"started": 100.0, "now": last}, 160.0)

    assert (sample.server_memory, sample.uptime_s) == (5e6, 60.0)
    assert (sample.models[KEY].instances, sample.models[KEY].missing) == (4, 1)


def test_rows_are_sorted_and_filtered():
    rows = [
        Row("b", "1", requests_s=5.0, p99_ms=1.0),
        Row("Aa", "1", requests_s=9.0, pending=2.0),
        Row("c", "1", average_ms=7.0, errors_s=1.0),
    ]

    def names(order, name_filter=""):
        return [row.name for row in ordered(rows, order, name_filter)]

    assert names(RowOrder.NAME) == ["Aa", "b", "c"]
    assert names(RowOrder.REQUESTS) == ["Aa", "b", "c"]
    assert names(RowOrder.LATENCY) == ["c", "b", "Aa"]
    assert names(RowOrder.ERRORS)[0] == "c"
    assert names(RowOrder.QUEUE)[0] == "Aa"
    assert names(RowOrder.NAME, "a") == ["Aa"]
    assert next_order(RowOrder.LATENCY) is RowOrder.NAME


def test_history_keeps_rates_of_all_and_of_each():
    history = RateHistory()
    history.add([Row("a", "1")])  # the first sample has no rates
    history.add([Row("a", "1", requests_s=4.0), Row("b", "1", requests_s=2.0)])

    assert list(history.total) == [6.0]
    assert list(history.models["a", "1"]) == [4.0]


def test_sparkline_reaches_from_nothing_to_the_largest():
    assert sparkline([0, 1, 2, 4], 10) == "▁▃▅█"
    assert sparkline([1, 2, 3], 2) == "▆█"
    assert sparkline([0, 0], 5) == "▁▁"
    assert sparkline([], 5) == ""


@pytest.mark.parametrize(
    "function, values",
    [
        (
            view.rate_text,
            {None: "-", 0: "0", 0.52: "0.5", 99.94: "99.9", 1234: "1234", 5e4: "50.0k"},
        ),
        (
            view.milliseconds_text,
            {None: "-", 0.123: "0.12ms", 4.21: "4.2ms", 99.9: "100ms", 999.6: "1.0s", 12345: "12s"},
        ),
        (view.batch_text, {None: "-", 1.0: "1", 2.55: "2.5", 128.2: "128"}),
        (view.size_text, {None: "-", 57.4 * 2**20: "57 MiB", 3.21 * 2**30: "3.2 GiB"}),
        (view.share_text, {None: "-", 0.456: "46%"}),
        (view.age_text, {5: "5 s", 150: "2 min", 11_520: "3 h 12 min", 93_600: "1 day 2 h"}),
    ],
)
def test_numbers_are_short(function, values):
    assert {value: function(value) for value in values} == values


def test_keys_are_told_apart():
    data = b"\x1b[A\x1b[Bq\r\x1b[6~\x1b[C\x7f\x1b"

    assert keys_in(data) == [UP, DOWN, "q", ENTER, "page down", "backspace", ESCAPE]


KEYS = [("a", "1"), ("b", "1"), ("c", "1")]


@pytest.mark.parametrize(
    "pressed, expected",
    [
        ([DOWN], {"selected": KEYS[1]}),
        ([DOWN, DOWN, DOWN, DOWN], {"selected": KEYS[2]}),
        ([UP], {"selected": KEYS[0]}),
        (["page down", "page up"], {"selected": KEYS[0]}),
        ([ENTER], {"screen": TopScreen.DETAILS, "selected": KEYS[0]}),
        ([ENTER, ESCAPE], {"screen": TopScreen.TABLE}),
        (["?"], {"screen": TopScreen.HELP}),
        (["?", "q"], {"is_over": True}),
        (["s", "s"], {"order": RowOrder.ERRORS}),
        (["p"], {"is_paused": True}),
        (["p", "p"], {"is_paused": False}),
        (["/", "q", "x", "backspace"], {"name_filter": "q", "is_typing": True, "is_over": False}),
        (["/", "a", ENTER], {"name_filter": "a", "is_typing": False}),
        (["/", "a", ESCAPE], {"name_filter": "", "is_typing": False}),
        (["/", "a", ENTER, ESCAPE], {"name_filter": ""}),
        (["z"], {"screen": TopScreen.TABLE, "is_over": False}),
    ],
)
def test_keys_change_what_is_shown(pressed, expected):
    state = ViewState()
    for key in pressed:
        state.press(key, KEYS)

    assert {name: getattr(state, name) for name in expected} == expected
