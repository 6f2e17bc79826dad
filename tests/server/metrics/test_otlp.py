# SPDX-License-Identifier: Apache-2.0
"""Metrics for collectors of OpenTelemetry are those of the page."""

from __future__ import annotations

import pytest

from pytriton.serving.engine.latencies import LatencyPlan
from pytriton.serving.server.metrics.exposition import MetricSample, SampleFamily
from pytriton.serving.server.metrics.otlp import metrics_data, read_page
from tests.server.metrics.test_distributions import answer, model, page

PLAN = LatencyPlan(latency_buckets_s=(0.001, 0.01, 2.5))


def families(*models, custom=()):
    return {each.name: each for each in read_page(page(*models, plan=PLAN, custom=custom))}


def test_histogram_has_the_counts_of_each_bucket():
    one = model(plan=PLAN)
    for request_ms in (7, 8, 9000):
        answer(one, request_ms=request_ms)
    (point,) = families(one)["nv_inference_request_latency_seconds"].histograms.values()

    assert point.bounds == [0.001, 0.01, 2.5]
    assert point.counts == [0, 2, 0, 1]
    assert point.total == 9.015


def test_counter_keeps_its_labels():
    one = model('metric_tags { key: "x" value: "y\\\\z\\n" }', plan=PLAN)
    answer(one)
    found = families(one)["nv_inference_count"]

    assert found.kind == "counter"
    assert found.numbers == {(("_x", "y\\z\n"), ("model", "m"), ("version", "1")): 2.0}


def test_family_without_labels_is_read():
    custom = [SampleFamily("queue_count", "gauge", "a\nb", [MetricSample(2.5, {})])]

    assert families(custom=custom)["queue_count"].numbers == {(): 2.5}


@pytest.mark.parametrize("value", ["a\u2028b", "a\x0bb", "a\rb", "a} 1", 'a" b'])
def test_any_label_of_a_model_is_read(value):
    custom = [SampleFamily("jobs:done", "gauge", "help", [MetricSample(3, {"of": value})])]

    assert families(custom=custom)["jobs:done"].numbers == {(("of", value),): 3.0}


def test_exporter_takes_all_families():
    one = model(plan=PLAN)
    answer(one)
    data = metrics_data(read_page(page(one, plan=PLAN)), 1, 2)
    metrics = {each.name: each for each in data.resource_metrics[0].scope_metrics[0].metrics}

    assert metrics["nv_inference_count"].data.is_monotonic
    assert metrics["nv_inference_count"].data.data_points[0].value == 2
    (point,) = metrics["nv_inference_compute_latency_seconds"].data.data_points
    assert (point.count, point.time_unix_nano) == (1, 2)
    assert data.resource_metrics[0].resource.attributes["service.name"] == "triton-inference-server"
