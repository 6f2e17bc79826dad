# SPDX-License-Identifier: Apache-2.0
"""The metrics page in OpenMetrics: who gets it, names, exemplars and slow requests."""

from __future__ import annotations

import types

import pytest

from pytriton.base.messages import RequestFields
from pytriton.base.nvml import DeviceReading
from pytriton.serving.engine.latencies import SLOW_SLOTS, LatencyPlan
from pytriton.serving.repository.services.custom_metrics import CustomMetrics, WorkerMetrics
from pytriton.serving.server.metrics.api import MetricsApi
from pytriton.serving.server.metrics.exposition import (
    OPEN_END,
    MetricSample,
    SampleFamily,
    exemplar_text,
    prefers_openmetrics,
)
from pytriton.serving.server.metrics.page import MachineReading, MetricsPage, custom_families
from pytriton.serving.server.options.metrics_options import DEFAULT_QUANTILES, MetricsOptions
from tests.server.http_fakes import Client, get
from tests.server.http_models import Service
from tests.server.metrics.test_distributions import MS, answer, model

parser = pytest.importorskip("prometheus_client.openmetrics.parser")

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PLAN = LatencyPlan(
    latency_buckets_s=(0.001, 0.01, 1.0), quantiles=DEFAULT_QUANTILES, first_responses=True
)


def identified(one, trace_id="", request_id="", request_ms=7):
    """Count a request of a model that has these ids."""
    answer(one, request_ms=request_ms)
    inference = types.SimpleNamespace(
        chunk=None,
        index=0,
        trace=types.SimpleNamespace(trace_id=lambda _: trace_id) if trace_id else None,
        request=types.SimpleNamespace(fields=RequestFields(id=request_id)),
    )
    one.statistics.latencies.on_identified((inference,), request_ms * MS, 2 * MS, 5 * MS, 0)


def page(*models, plan=PLAN, custom=(), gpus=(), is_open=True):
    made = MetricsPage(MetricsOptions(latencies=plan), read_machine=lambda: MachineReading(0, 0, 0))
    texts = made.begin({index: gpu.uuid for index, gpu in enumerate(gpus)}, is_open=is_open)
    for each in models:
        texts.add(each)
    return b"".join(made.finish(texts, custom, gpus)).decode()


def families(text):
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


@pytest.mark.parametrize(
    "accept, expected",
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0", True),
        ("Application/OpenMetrics-Text;version=1.0.0,text/plain;q=0.5", True),
        ("application/openmetrics-text;q=0.3,text/plain;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
        ("application/openmetrics-text;version=9.0.0", False),
        ("application/openmetrics-text;version=9.0.0,text/plain;q=0.1", False),
        (PROMETHEUS, True),
    ],
)
def test_accept_header_chooses_the_format(accept, expected):
    assert prefers_openmetrics(accept) is expected


def test_scraper_gets_openmetrics_if_it_asks_for_it():
    service = Service()
    client = Client(MetricsApi(service.engine, service.options, service.loop))
    client.send(b"GET /metrics HTTP/1.1\r\nHost: h\r\nAccept: %b\r\n\r\n" % PROMETHEUS.encode())
    client.send(get(b"/metrics"))

    opened, text = client.answers()
    assert (
        opened.headers[b"Content-Type"]
        == b"application/openmetrics-text; version=1.0.0; charset=utf-8"
    )
    assert opened.body.endswith(b"# EOF\n")
    assert "nv_inference_request_success" in families(opened.body.decode())
    assert text.headers[b"Content-Type"] == b"text/plain; charset=utf-8"
    assert b"# EOF" not in text.body


def test_page_is_valid_openmetrics():
    models = [
        model("max_batch_size: 8 response_cache { enable: true }", "a", PLAN),
        model('metric_tags { key: "x" value: "y\\\\z\\n" }', "b", PLAN),
    ]
    for number, one in enumerate(models):
        answer(one)
        identified(one, "0af7", f"r{number}")
    custom = [
        SampleFamily("jobs_total", "counter", 'a "help"', [MetricSample(2, {"of": "x"})]),
        SampleFamily(
            "sizes",
            "histogram",
            "sizes",
            [
                MetricSample(3, {}, "_count"),
                MetricSample(1.5, {}, "_sum"),
                MetricSample(2, {"le": "1"}, "_bucket"),
                MetricSample(3, {"le": "+Inf"}, "_bucket"),
            ],
        ),
    ]
    found = families(page(*models, custom=custom, gpus=[DeviceReading("GPU-a", 0.5, 2, 1)]))

    assert found["nv_inference_request_latency_seconds"].type == "histogram"
    assert found["nv_inference_request_summary_us"].type == "summary"
    assert found["nv_inference_count"].type == "unknown"
    assert [sample.name for sample in found["nv_inference_count"].samples] == [
        "nv_inference_count"
    ] * 2
    assert (found["jobs"].type, found["jobs"].samples[0].name) == ("counter", "jobs_total")
    assert found["jobs"].documentation == 'a "help"'
    assert [sample.name for sample in found["sizes"].samples][-2:] == ["sizes_count", "sizes_sum"]


def test_label_le_of_a_gauge_is_no_bound():
    custom = [SampleFamily("level", "gauge", "of a model", [MetricSample(2, {"le": "low"})])]
    (sample,) = families(page(custom=custom))["level"].samples

    assert sample.labels == {"le": "low"}


def test_series_have_the_same_names_and_values_in_both_formats():
    one = model("max_batch_size: 8", plan=PLAN)
    identified(one, "0af7", "r")

    def series(text):
        lines = [line.partition(" # ")[0] for line in text.splitlines() if line[0] != "#"]
        return sorted(line.replace('.0"', '"') for line in lines)

    assert series(page(one)) == series(page(one, is_open=False))


def test_exemplar_of_a_bucket_is_its_newest_request_with_an_id():
    one = model(plan=PLAN)
    identified(one, "0af7", "first")
    identified(one, "1bf8", "second")
    identified(one, request_ms=8)
    identified(one, request_id="slower", request_ms=70)
    buckets = {
        sample.labels["le"]: sample
        for sample in families(page(one))["nv_inference_request_latency_seconds"].samples
        if sample.name.endswith("_bucket")
    }

    assert buckets["0.001"].exemplar is None
    assert buckets["0.01"].exemplar.labels == {"trace_id": "1bf8", "request_id": "second"}
    assert buckets["0.01"].exemplar.value == 0.007
    assert buckets["1.0"].exemplar.labels == {"request_id": "slower"}
    assert buckets["+Inf"].exemplar is None


@pytest.mark.parametrize("family", ["queue", "compute"])
def test_queue_and_computation_have_exemplars(family):
    one = model(plan=PLAN)
    identified(one, "0af7", "r")
    found = families(page(one))[f"nv_inference_{family}_latency_seconds"].samples

    shown = [sample.exemplar.labels for sample in found if sample.exemplar is not None]
    assert shown == [{"trace_id": "0af7", "request_id": "r"}]


def test_exemplar_is_no_longer_than_openmetrics_allows():
    text = exemplar_text({"trace_id": "a" * 32, "request_id": "é" * 200}, 1, 2)
    labels = text.partition("{")[2].partition("}")[0]

    assert len("trace_id" + "request_id") + labels.count("a" * 32) * 32 + labels.count("é") == 128


def test_slow_requests_have_slots_with_exemplars():
    one = model(plan=PLAN)
    for number in range(SLOW_SLOTS + 2):
        identified(one, str(number), f"r{number}", request_ms=1000)
    identified(one, "fast", "fast", request_ms=999)
    samples = {
        sample.labels["slot"]: sample
        for sample in families(page(one))["nv_inference_slow_requests"].samples
    }

    assert len(samples) == SLOW_SLOTS
    assert sum(sample.value for sample in samples.values()) == SLOW_SLOTS + 2
    assert samples["0"].value == 2
    assert samples["0"].exemplar.labels["request_id"] == f"r{SLOW_SLOTS}"
    assert samples["2"].exemplar.labels == {"trace_id": "2", "request_id": "r2"}


def test_slow_request_without_ids_has_its_duration():
    one = model(plan=PLAN)
    identified(one, request_ms=2500)
    (sample,) = families(page(one))["nv_inference_slow_requests"].samples

    assert (sample.exemplar.labels, sample.exemplar.value) == ({}, 2.5)


def test_text_format_has_no_slots():
    one = model(plan=PLAN)
    identified(one, "0af7", "r", request_ms=2500)

    assert "slow_requests" not in page(one, is_open=False)


def test_nothing_is_slow_without_histograms():
    one = model(plan=LatencyPlan(histograms=False))
    identified(one, "0af7", "r", request_ms=2500)

    assert "slow_requests" not in page(one, plan=LatencyPlan(histograms=False))


@pytest.mark.parametrize(
    "bounds,values", [([-1.0, 1.0], [0.5]), ([1.0], [-0.5]), ([], [float("nan")])]
)
def test_histogram_whose_sum_may_go_down_has_none(bounds, values):
    metrics = CustomMetrics()
    worker = WorkerMetrics(metrics)
    worker.new_family(1, "h", "", "HISTOGRAM")
    worker.new_metric(1, 1, {"a": "b"}, bounds)
    worker.new_metric(1, 2, {"a": "c"}, [1.0])
    for value in values:
        worker.observe(1, value)
    worker.observe(2, 2.5)
    (family,) = custom_families(metrics)

    (read,) = parser.text_string_to_metric_families(family.open_text() + OPEN_END)
    sums = [(each.labels, each.value) for each in read.samples if each.name == "h_sum"]
    assert sums == [({"a": "c"}, 2.5)]
    assert family.text().count("h_sum{") == 2
