# SPDX-License-Identifier: Apache-2.0
"""What is recorded of a model's latencies, by plan and by model."""

from __future__ import annotations

import logging

from pytriton.runtime.executor.inference import Outcome
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.latencies import (
    BATCH_SIZE,
    DEFAULT_LATENCY_BUCKETS_S,
    FIRST_RESPONSE,
    REQUEST,
    RESPONSE_INTERVAL,
    SLICE_NS,
    STREAM_START,
    Latencies,
    LatencyPlan,
    Quantile,
)
from pytriton.serving.engine.stats import BatchRecord, ModelStatistics
from pytriton.testing import FakeClock
from tests.fakes import model_spec, response

MS = 1_000_000
EVERYTHING = LatencyPlan(first_responses=True, quantiles=(Quantile(0.5, 0.05),))


def latencies_of(plan=EVERYTHING, clock=None, **spec):
    return Latencies(plan, model_spec(**spec), (clock or FakeClock(start_s=0)).monotonic_ns)


def median(summary, now=0):
    (value,) = summary.values_at((0.5,), now)
    return value


def test_requests_are_counted_by_their_whole_and_their_queue_time():
    latencies = latencies_of()
    latencies.on_requests(3, 7 * MS, 2 * MS)

    assert latencies.request.cumulative()[4:7] == [0, 0, 3]  # 2.5, 5 and 10 ms
    assert latencies.queue.cumulative()[3:5] == [0, 3]  # 1 and 2.5 ms
    assert latencies.first_response.cumulative() == [3] * 5
    assert latencies.first_response_ns == 21 * MS
    assert median(latencies.summaries.request) == 7000 >> 2 << 2
    assert median(latencies.summaries.queue) == 2000


def test_execution_is_counted_for_each_request():
    latencies = latencies_of()
    latencies.on_execution(2, 1 * MS, 4 * MS, 500_000)

    assert latencies.compute.cumulative()[5:7] == [0, 2]  # 5 and 10 ms
    assert median(latencies.summaries.compute_input) == 1000
    assert median(latencies.summaries.compute_output) == 500
    assert latencies.summaries.compute_infer.count == 2


def test_stream_has_a_first_response_of_its_own():
    latencies = latencies_of(decoupled=True)
    latencies.on_first_response(30 * MS)
    latencies.on_requests(1, 900 * MS, 0)

    assert latencies.first_response.cumulative() == [1] * 5
    assert latencies.first_response_ns == 30 * MS


def test_stream_has_the_times_between_its_responses():
    latencies = latencies_of(LatencyPlan(), decoupled=True)
    latencies.on_first_response(30 * MS)
    latencies.on_next_responses(1, 4 * MS)
    latencies.on_next_responses(5, 10 * MS)  # they came together

    assert latencies.stream_start.cumulative()[7:9] == [0, 1]  # 25 and 50 ms
    assert latencies.response_interval.cumulative()[3:6] == [0, 5, 6]  # 1, 2.5 and 5 ms
    assert (latencies.first_response_ns, latencies.response_interval_ns) == (30 * MS, 14 * MS)


def test_other_models_have_no_times_of_streams():
    latencies = latencies_of(LatencyPlan())
    latencies.on_first_response(30 * MS)
    latencies.on_next_responses(1, 4 * MS)

    assert (latencies.stream_start, latencies.response_interval) == (None, None)
    assert (latencies.first_response_ns, latencies.response_interval_ns) == (0, 0)


def test_first_response_of_other_models_is_counted_once():
    latencies = latencies_of()
    latencies.on_first_response(30 * MS)
    latencies.on_requests(1, 900 * MS, 0)

    assert latencies.first_response.cumulative() == [0, 0, 1, 1, 1]


def test_cached_answer_is_a_request_that_neither_waited_nor_ran():
    latencies = latencies_of(response_cache=True)
    latencies.on_cache_hit(40_000, 60_000)
    latencies.on_cache_misses(2, 100_000)
    latencies.on_cache_misses(0, 0)

    assert latencies.request.count == 1
    assert latencies.queue.count == latencies.compute.count == 0
    assert latencies.first_response.count == 1
    assert median(latencies.summaries.cache_hit) == 40
    assert (median(latencies.summaries.cache_miss), latencies.summaries.cache_miss.count) == (50, 2)
    assert latencies.summaries.request is None  # as in Triton


def test_models_without_cache_have_no_summaries_of_it():
    summaries = latencies_of().summaries

    assert summaries.cache_hit is None
    assert summaries.cache_miss is None


def test_summaries_forget_after_a_minute():
    clock = FakeClock(start_s=0)
    latencies = latencies_of(clock=clock)
    latencies.on_requests(1, 5000, 5000)
    clock.advance(60)

    assert latencies.time_slice() == 5 == 60 * 1000 * MS // SLICE_NS
    assert median(latencies.summaries.request, latencies.time_slice()) != 5


def test_nothing_is_recorded_without_a_plan_for_it():
    latencies = latencies_of(LatencyPlan(histograms=False))
    latencies.on_requests(1, 1, 1)
    latencies.on_execution(1, 1, 1, 1)
    latencies.on_first_response(1)
    latencies.on_cache_hit(1, 1)

    parts = (latencies.request, latencies.queue, latencies.compute, latencies.first_response)
    assert parts == (None,) * 4
    assert latencies.batch_sizes == ()
    assert latencies.summaries is None


def test_model_chooses_the_buckets_of_a_family():
    chosen = {REQUEST: (0.5, 1.5), FIRST_RESPONSE: (7.0,), BATCH_SIZE: (3.0,)}
    chosen |= {STREAM_START: (9.0,), RESPONSE_INTERVAL: (0.1,)}
    latencies = latencies_of(histogram_buckets=chosen, decoupled=True)

    assert latencies.request.bounds == (0.5, 1.5)
    assert latencies.first_response.bounds == (7.0,)
    assert latencies.batch_sizes == (3.0,)
    assert latencies.stream_start.bounds == (9.0,)
    assert latencies.response_interval.bounds == (0.1,)
    assert latencies.queue.bounds == DEFAULT_LATENCY_BUCKETS_S


def test_bounds_of_batch_sizes_end_at_the_largest_batch():
    sizes = [latencies_of(max_batch_size=most).batch_sizes for most in (0, 1, 8, 9, 5000)]

    assert sizes[:3] == [(1,), (1,), (1, 2, 4, 8)]
    assert sizes[3] == (1, 2, 4, 8, 16)
    assert sizes[4][-1] == 1024


def test_engine_gives_each_model_its_own(scene):
    first, second = scene().model, scene().model
    engine = Engine(latency_plan=EVERYTHING)
    engine.add(first)
    engine.add(second)

    assert first.statistics.latencies is not None
    assert first.statistics.latencies is not second.statistics.latencies


def test_engine_without_a_plan_records_sums_only(scene):
    model = scene().model
    model.statistics.latencies = None
    Engine().add(model)

    assert model.statistics.latencies is None


def test_unknown_family_of_a_model_is_warned_about(scene, caplog):
    with caplog.at_level(logging.WARNING, "pytriton"):
        Engine(latency_plan=EVERYTHING).add(scene(histogram_buckets={"nv_other": (1.0,)}).model)

    (record,) = caplog.records
    assert "model 'm': 'nv_other' is no histogram whose buckets can be chosen" in record.message


def test_executions_alike_are_counted_one_by_one():
    statistics = ModelStatistics(latencies=latencies_of())
    record = BatchRecord(2, 0, 1 * MS, 3 * MS, 3 * MS, 1, 2, 4 * MS, 0)
    statistics.record_alike(record, 5, now_ms=1)

    latencies = statistics.latencies
    assert latencies.request.count == latencies.queue.count == latencies.compute.count == 5
    assert statistics.batch_sizes() == [(2, 5)]
    assert statistics.batch_rows == 10


def test_answers_of_a_model_are_recorded(scene):
    one = scene(max_batch_size=4)
    one.model.statistics.latencies = latencies = latencies_of()
    for _ in range(3):
        one.submit()
    for batch in list(one.instance.running):
        outcomes = [Outcome(position, response()) for position in range(len(batch.inferences))]
        one.instance.report(batch, outcomes)

    assert latencies.request.count == one.model.statistics.success_count
    assert latencies.queue.count == latencies.compute.count == latencies.request.count > 0


def test_first_response_of_a_stream_is_recorded(scene):
    one = scene(decoupled=True, batches=False, concurrency=8)
    one.model.statistics.latencies = latencies = latencies_of(decoupled=True)
    one.submit()
    batch = one.instance.running[0]
    for _ in range(3):
        one.instance.report(batch, [Outcome(0, response(), is_final=False)])
    one.instance.report(batch, [Outcome(0, None)])

    assert latencies.first_response.count == 1
    assert latencies.request.count == 1


def test_stream_without_a_response_has_no_first_one(scene):
    one = scene(decoupled=True, batches=False, concurrency=8)
    one.model.statistics.latencies = latencies = latencies_of(decoupled=True)
    one.submit()
    one.instance.report(one.instance.running[0], [Outcome(0, None)])

    assert latencies.first_response.count == 0
