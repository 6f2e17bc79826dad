# SPDX-License-Identifier: Apache-2.0
"""Histograms and summaries on the metrics page, and the labels of models."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from pytriton.base.model_spec import ModelSpec
from pytriton.base.nvml import DeviceReading
from pytriton.serving.engine.config import config_from_text, normalise_config, spec_from_config
from pytriton.serving.engine.latencies import Latencies, LatencyPlan, Quantile
from pytriton.serving.engine.stats import BatchRecord, ModelStatistics
from pytriton.serving.server.metrics.exposition import MetricSample, SampleFamily
from pytriton.serving.server.metrics.page import MachineReading, MetricsPage
from pytriton.serving.server.options.metrics_options import DEFAULT_QUANTILES, MetricsOptions

MS = 1_000_000
PLAN = LatencyPlan(
    latency_buckets_s=(0.001, 0.01, 2.5),
    first_responses=True,
    quantiles=(Quantile(0.5, 0.05), Quantile(0.99, 0.001)),
)


@dataclass
class FakeModel:
    spec: ModelSpec
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    running_count: int = 0


def model(text="", name="m", plan=PLAN):
    config = config_from_text(f'name: "{name}" backend: "python" {text}', "config.pbtxt")
    made = FakeModel(spec_from_config(normalise_config(config, (0, 1)), 1))
    made.statistics.latencies = Latencies(plan, made.spec, lambda: 0)
    return made


def answer(one, rows=2, request_ms=7):
    one.statistics.record_alike(
        BatchRecord(rows, 0, 1 * MS, 4 * MS, 5 * MS, 1, rows, request_ms * MS, 2 * MS), 1, now_ms=1
    )


def page(*models, plan=PLAN, custom=(), gpus=()):
    made = MetricsPage(MetricsOptions(latencies=plan), read_machine=lambda: MachineReading(0, 0, 0))
    texts = made.begin({index: gpu.uuid for index, gpu in enumerate(gpus)})
    for each in models:
        texts.add(each)
    return b"".join(made.finish(texts, custom, gpus)).decode()


def series(text, family):
    return [line for line in text.splitlines() if line.startswith((f"{family}{{", f"{family}_"))]


def test_histograms_of_streams():
    stream = model("model_transaction_policy { decoupled: true }", name="stream")
    stream.statistics.latencies.on_first_response(5 * MS)
    stream.statistics.latencies.on_next_responses(2, 40 * MS)
    text = page(model(), stream)

    first = series(text, "nv_inference_first_response_latency_seconds")
    assert [line.split()[-1] for line in first] == ["1", "0.005", "0", "1", "1", "1"]
    assert all('{model="stream",version="1"' in line for line in first)
    assert series(text, "nv_inference_response_interval_seconds") == [
        'nv_inference_response_interval_seconds_count{model="stream",version="1"} 2',
        'nv_inference_response_interval_seconds_sum{model="stream",version="1"} 0.04',
        'nv_inference_response_interval_seconds_bucket{model="stream",version="1",le="0.001"} 0',
        'nv_inference_response_interval_seconds_bucket{model="stream",version="1",le="0.01"} 0',
        'nv_inference_response_interval_seconds_bucket{model="stream",version="1",le="2.5"} 2',
        'nv_inference_response_interval_seconds_bucket{model="stream",version="1",le="+Inf"} 2',
    ]


def test_server_without_streams_has_no_families_of_them():
    text = page(model())

    assert "nv_inference_first_response_latency_seconds" not in text
    assert "nv_inference_response_interval_seconds" not in text


def test_histograms_of_a_model():
    one = model("max_batch_size: 4")
    answer(one)
    answer(one, rows=3, request_ms=9000)
    text = page(one)

    assert series(text, "nv_inference_request_latency_seconds") == [
        'nv_inference_request_latency_seconds_count{model="m",version="1"} 2',
        'nv_inference_request_latency_seconds_sum{model="m",version="1"} 9.007',
        'nv_inference_request_latency_seconds_bucket{model="m",version="1",le="0.001"} 0',
        'nv_inference_request_latency_seconds_bucket{model="m",version="1",le="0.01"} 1',
        'nv_inference_request_latency_seconds_bucket{model="m",version="1",le="2.5"} 1',
        'nv_inference_request_latency_seconds_bucket{model="m",version="1",le="+Inf"} 2',
    ]
    assert 'nv_inference_queue_latency_seconds_sum{model="m",version="1"} 0.004' in text
    assert 'nv_inference_queue_latency_seconds_bucket{model="m",version="1",le="0.01"} 2' in text
    assert 'nv_inference_compute_latency_seconds_sum{model="m",version="1"} 0.01' in text
    assert series(text, "nv_inference_batch_size") == [
        'nv_inference_batch_size_count{model="m",version="1"} 2',
        'nv_inference_batch_size_sum{model="m",version="1"} 5',
        'nv_inference_batch_size_bucket{model="m",version="1",le="1"} 0',
        'nv_inference_batch_size_bucket{model="m",version="1",le="2"} 1',
        'nv_inference_batch_size_bucket{model="m",version="1",le="4"} 2',
        'nv_inference_batch_size_bucket{model="m",version="1",le="+Inf"} 2',
    ]
    assert series(text, "nv_inference_first_response_histogram_ms") == [
        'nv_inference_first_response_histogram_ms_count{model="m",version="1"} 2',
        'nv_inference_first_response_histogram_ms_sum{model="m",version="1"} 9007',
        'nv_inference_first_response_histogram_ms_bucket{model="m",version="1",le="100"} 1',
        'nv_inference_first_response_histogram_ms_bucket{model="m",version="1",le="500"} 1',
        'nv_inference_first_response_histogram_ms_bucket{model="m",version="1",le="2000"} 1',
        'nv_inference_first_response_histogram_ms_bucket{model="m",version="1",le="5000"} 1',
        'nv_inference_first_response_histogram_ms_bucket{model="m",version="1",le="+Inf"} 2',
    ]


def test_summaries_of_a_model_as_triton_writes_them():
    one = model()
    answer(one)
    text = page(one)

    assert series(text, "nv_inference_queue_summary_us") == [
        'nv_inference_queue_summary_us_count{model="m",version="1"} 1',
        'nv_inference_queue_summary_us_sum{model="m",version="1"} 2000',
        'nv_inference_queue_summary_us{model="m",version="1",quantile="0.5"} 2000',
        'nv_inference_queue_summary_us{model="m",version="1",quantile="0.99"} 2000',
    ]
    assert "nv_cache_hit_summary_per_model" not in text


def test_summaries_of_a_model_with_cache():
    text = page(model("response_cache { enable: true }"))

    assert 'nv_cache_hit_summary_per_model{model="m",version="1",quantile="0.5"} NaN' in text
    assert 'nv_cache_miss_summary_per_model_count{model="m",version="1"} 0' in text
    assert "nv_inference_request_summary_us" not in text
    assert "nv_inference_queue_summary_us" in text


def test_kinds_come_in_tritons_order_with_the_custom_ones_last_in_each():
    custom = [
        SampleFamily("my_gauge", "gauge", "", [MetricSample(1, {})]),
        SampleFamily("my_histogram", "histogram", "", [MetricSample(1, {}, "_count")]),
        SampleFamily("my_counter", "counter", "", [MetricSample(1, {})]),
    ]
    heads = [line.split() for line in page(model(), custom=custom).splitlines() if "# TYPE" in line]
    kinds = [kind for _, _, _, kind in heads]

    assert kinds == sorted(kinds, key=["counter", "gauge", "histogram", "summary"].index)
    for kind in ("counter", "gauge", "histogram"):
        assert [name for _, _, name, its in heads if its == kind][-1] == f"my_{kind}"


@pytest.mark.parametrize(
    "plan,present,absent",
    [
        (LatencyPlan(), ["nv_inference_batch_size"], ["first_response", "summary"]),
        (LatencyPlan(histograms=False), [], ["latency_seconds", "batch_size", "histogram"]),
        (
            LatencyPlan(histograms=False, first_responses=True),
            ["nv_inference_first_response_histogram_ms"],
            ["latency_seconds", "batch_size", "summary"],
        ),
    ],
)
def test_families_that_are_not_wanted_are_not_shown(plan, present, absent):
    text = page(model(plan=plan), plan=plan)

    assert all(name in text for name in present)
    assert not any(name in text for name in absent)


def test_tags_of_a_model_are_labels():
    tags = 'metric_tags [ { key: "team" value: "blue" }, { key: "model" value: "q\\"z" } ]'
    text = page(model(tags))

    labels = '_model="q\\"z",_team="blue",model="m"'
    assert f'nv_inference_count{{{labels},version="1"}} 0' in text
    assert f'nv_inference_request_failure{{{labels},reason="OTHER",version="1"}} 0' in text


def test_model_on_one_gpu_has_its_uuid():
    gpus = [DeviceReading("GPU-a", 0.5), DeviceReading("GPU-b", 0.25)]
    on_gpu = model("instance_group [ { kind: KIND_GPU gpus: [ 1 ] } ]")
    text = page(on_gpu, model("instance_group [ { kind: KIND_CPU } ]", "other"), gpus=gpus)

    assert 'nv_inference_count{gpu_uuid="GPU-b",model="m",version="1"} 0' in text
    assert 'nv_inference_count{model="other",version="1"} 0' in text
    assert 'nv_gpu_utilization{gpu_uuid="GPU-a"} 0.5' in text


def test_page_is_valid_for_prometheus():
    parser = pytest.importorskip("prometheus_client.parser")
    plan = LatencyPlan(first_responses=True, quantiles=DEFAULT_QUANTILES)
    models = [
        model("max_batch_size: 8 response_cache { enable: true }", "a", plan),
        model('metric_tags { key: "x" value: "y\\\\z\\n" }', "b", plan),
    ]
    for one in models:
        answer(one)
    text = page(*models, plan=plan, gpus=[DeviceReading("GPU-a", 0.5, 2, 1, 3.0, 4.0, 5.0)])

    families = {family.name: family for family in parser.text_string_to_metric_families(text)}

    assert families["nv_inference_request_latency_seconds"].type == "histogram"
    assert families["nv_inference_request_summary_us"].type == "summary"
    counts = [
        sample.value
        for sample in families["nv_inference_batch_size"].samples
        if sample.name.endswith("_bucket") and sample.labels["le"] == "+Inf"
    ]
    assert counts == [1, 1]
    assert not any(math.isnan(sample.value) for sample in families["nv_inference_count"].samples)
