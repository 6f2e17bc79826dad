# SPDX-License-Identifier: Apache-2.0
"""The page of metrics; its names, labels, help texts and order were recorded from Triton."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

import pytest

from pytriton.base.model_spec import ModelSpec
from pytriton.serving.engine.config import config_from_text, normalise_config, spec_from_config
from pytriton.serving.engine.stats import BatchRecord, FailureReason, ModelStatistics
from pytriton.serving.repository.services.custom_metrics import CustomMetrics, WorkerMetrics
from pytriton.serving.server.metrics.exposition import MetricSample, SampleFamily
from pytriton.serving.server.metrics.page import (
    MachineReading,
    MetricsPage,
    custom_families,
    read_machine,
    server_family_names,
)
from pytriton.serving.server.options.metrics_options import MetricsOptions
from pytriton.testing import FakeClock


@dataclass
class FakeModel:
    spec: ModelSpec
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    running_count: int = 3


@dataclass
class FakeMachine:
    readings: int = 0
    has_descriptors: bool = True

    def __call__(self) -> MachineReading:
        if not self.has_descriptors:
            raise OSError(errno.EMFILE, "Too many open files", "/proc/stat")
        self.readings += 1
        return MachineReading(self.readings / 8, 25234767872, 1487925248)


def model(name: str, *, version: int = 1, cache: bool = False) -> FakeModel:
    text = f'name: "{name}" backend: "python" ' + "response_cache { enable: true }" * cache
    config = normalise_config(config_from_text(text, "config.pbtxt"))
    return FakeModel(spec_from_config(config, version))


def page(
    *models: FakeModel, options: MetricsOptions | None = None, custom: tuple[SampleFamily, ...] = ()
) -> str:
    machine = FakeMachine()
    made = MetricsPage(options or MetricsOptions(), read_machine=machine, clock=FakeClock())
    return made.render(models, custom).decode()


def busy_model() -> FakeModel:
    busy = model("cached", cache=True)
    busy.statistics.record_batch(
        BatchRecord(
            rows=3,
            input_start_ns=0,
            infer_start_ns=38_031,
            output_start_ns=38_031 + 34_118_671,
            end_ns=38_031 + 34_118_671 + 176_673,
            succeeded=2,
            succeeded_rows=3,
            succeeded_ns=34_590_196,
            queue_ns=138_741,
        ),
        now_ms=1,
    )
    busy.statistics.record_cache_hit(47_418, 50_000, now_ms=2)
    busy.statistics.record_cache_misses(1, 51_348)
    busy.statistics.record_failures(4, 1, FailureReason.REJECTED)
    busy.statistics.pending_count = 5
    busy.statistics.load_ns = 1_500_000_000
    return busy


MODEL_PART = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="cached",version="1"} 3
# HELP nv_inference_request_failure Number of failed inference requests, all batch sizes
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="cached",reason="REJECTED",version="1"} 4
nv_inference_request_failure{model="cached",reason="CANCELED",version="1"} 0
nv_inference_request_failure{model="cached",reason="BACKEND",version="1"} 0
nv_inference_request_failure{model="cached",reason="OTHER",version="1"} 0
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
nv_inference_count{model="cached",version="1"} 3
# HELP nv_inference_exec_count Number of model executions performed \
(does not include cached requests)
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{model="cached",version="1"} 1
# HELP nv_inference_request_duration_us Cumulative inference request duration in microseconds \
(includes cached requests)
# TYPE nv_inference_request_duration_us counter
nv_inference_request_duration_us{model="cached",version="1"} 34640
# HELP nv_inference_queue_duration_us Cumulative inference queuing duration in microseconds \
(includes cached requests)
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{model="cached",version="1"} 138
# HELP nv_inference_compute_input_duration_us Cumulative compute input duration in microseconds \
(does not include cached requests)
# TYPE nv_inference_compute_input_duration_us counter
nv_inference_compute_input_duration_us{model="cached",version="1"} 76
# HELP nv_inference_compute_infer_duration_us Cumulative compute inference duration in \
microseconds (does not include cached requests)
# TYPE nv_inference_compute_infer_duration_us counter
nv_inference_compute_infer_duration_us{model="cached",version="1"} 68237
# HELP nv_inference_compute_output_duration_us Cumulative inference compute output duration in \
microseconds (does not include cached requests)
# TYPE nv_inference_compute_output_duration_us counter
nv_inference_compute_output_duration_us{model="cached",version="1"} 353
# HELP nv_cache_num_hits_per_model Number of cache hits per model
# TYPE nv_cache_num_hits_per_model counter
nv_cache_num_hits_per_model{model="cached",version="1"} 1
# HELP nv_cache_hit_duration_per_model Total cache hit duration per model, in microseconds
# TYPE nv_cache_hit_duration_per_model counter
nv_cache_hit_duration_per_model{model="cached",version="1"} 47
# HELP nv_cache_num_misses_per_model Number of cache misses per model
# TYPE nv_cache_num_misses_per_model counter
nv_cache_num_misses_per_model{model="cached",version="1"} 1
# HELP nv_cache_miss_duration_per_model Total cache miss (insert+lookup) duration per model, in \
microseconds
# TYPE nv_cache_miss_duration_per_model counter
nv_cache_miss_duration_per_model{model="cached",version="1"} 51
# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting \
execution per-model.
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="cached",version="1"} 5
# HELP nv_model_load_duration_secs Model load time in seconds
# TYPE nv_model_load_duration_secs gauge
nv_model_load_duration_secs{model="cached",version="1"} 1.5
# HELP nv_inference_running_request_count Instantaneous number of requests that instances work on \
per-model.
# TYPE nv_inference_running_request_count gauge
nv_inference_running_request_count{model="cached",version="1"} 3
"""
PINNED_PART = """\
# HELP nv_pinned_memory_pool_total_bytes Pinned memory pool total memory size, in bytes
# TYPE nv_pinned_memory_pool_total_bytes gauge
nv_pinned_memory_pool_total_bytes 268435456
# HELP nv_pinned_memory_pool_used_bytes Pinned memory pool used memory size, in bytes
# TYPE nv_pinned_memory_pool_used_bytes gauge
nv_pinned_memory_pool_used_bytes 0
"""
CPU_PART = """\
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.125
# HELP nv_cpu_memory_total_bytes CPU total memory (RAM), in bytes
# TYPE nv_cpu_memory_total_bytes gauge
nv_cpu_memory_total_bytes 25234767872
# HELP nv_cpu_memory_used_bytes CPU used memory (RAM), in bytes
# TYPE nv_cpu_memory_used_bytes gauge
nv_cpu_memory_used_bytes 1487925248
"""


def test_page_has_tritons_families_in_tritons_words():
    assert page(busy_model()) == MODEL_PART + PINNED_PART + CPU_PART


def test_family_without_a_number_prints_nothing():
    assert page() == PINNED_PART + CPU_PART
    assert "nv_cache" not in page(model("m"))


def test_cache_families_are_for_models_that_cache():
    text = page(model("plain"), model("caching", cache=True))

    assert 'nv_cache_num_hits_per_model{model="caching",version="1"} 0' in text
    assert 'nv_cache_num_hits_per_model{model="plain"' not in text


def test_every_version_has_a_series_under_one_head():
    text = page(model("m", version=1), model("m", version=2))

    assert text.count("# TYPE nv_inference_count counter") == 1
    assert 'nv_inference_count{model="m",version="1"} 0\n' in text
    assert 'nv_inference_count{model="m",version="2"} 0\n' in text


def test_tensors_between_models_are_shown_by_way_and_reason_while_their_model_is_there():
    caller = model("caller")
    caller.statistics.costs.gpu_tensors.update({"": 3, "sandbox": 1, "cannot_export": 2})
    name = "nv_inference_gpu_tensors_total"
    lines = [line for line in page(caller).splitlines() if line.startswith(f"{name}{{")]

    assert lines == [
        f'{name}{{model="caller",way="copied",reason="cannot_export",version="1"}} 2',
        f'{name}{{model="caller",way="copied",reason="sandbox",version="1"}} 1',
        f'{name}{{model="caller",way="shared",reason="",version="1"}} 3',
    ]
    assert name not in page(model("other"))


def test_latency_counters_can_be_switched_off():
    text = page(busy_model(), options=MetricsOptions(counter_latencies=False))

    assert "duration_us" not in text
    assert 'nv_inference_count{model="cached",version="1"} 3' in text


def test_cpu_gauges_can_be_switched_off_and_then_cost_nothing():
    machine = FakeMachine()
    made = MetricsPage(MetricsOptions(cpu=False), read_machine=machine, clock=FakeClock())

    assert made.render([]).decode() == PINNED_PART
    assert machine.readings == 0


def test_machine_is_read_no_more_often_than_the_interval():
    machine, clock = FakeMachine(), FakeClock()
    made = MetricsPage(MetricsOptions(interval_ms=2000), read_machine=machine, clock=clock)
    made.render([])
    clock.advance(1.9)
    assert b"nv_cpu_utilization 0.125\n" in made.render([])
    assert machine.readings == 1

    clock.advance(0.2)

    assert b"nv_cpu_utilization 0.25\n" in made.render([])
    assert b"nv_cpu_utilization 0.25\n" in made.render([])
    assert machine.readings == 2


def test_machine_that_cannot_be_read_keeps_its_last_numbers(caplog):
    machine, clock = FakeMachine(), FakeClock()
    made = MetricsPage(MetricsOptions(interval_ms=2000), read_machine=machine, clock=clock)
    made.render([])
    machine.has_descriptors = False
    clock.advance(3)

    assert b"nv_cpu_utilization 0.125\n" in made.render([])
    assert "the use of the machine cannot be read: [Errno 24] Too many open files" in caplog.text


def test_machine_that_was_never_read_is_not_on_the_page():
    machine = FakeMachine(has_descriptors=False)
    made = MetricsPage(MetricsOptions(), read_machine=machine, clock=FakeClock())

    assert made.render([]).decode() == PINNED_PART


def test_machine_reading_is_within_its_bounds():
    reading = read_machine()

    assert 0 <= reading.cpu_utilization <= 1
    assert 0 < reading.memory_used_bytes < reading.memory_total_bytes


def test_families_of_models_follow_with_their_labels_escaped_and_sorted():
    family = SampleFamily(
        "queue",
        "histogram",
        "How long\\it\nwaits",
        [
            MetricSample(3, {"le": "+Inf", "a": 'x"\\\n'}, "_bucket"),
            MetricSample(0.5, {}, "_sum"),
        ],
    )

    assert page(custom=(family,)).removeprefix(PINNED_PART + CPU_PART) == (
        "# HELP queue How long\\\\it\\nwaits\n"
        "# TYPE queue histogram\n"
        'queue_bucket{a="x\\"\\\\\\n",le="+Inf"} 3\n'
        "queue_sum 0.5\n"
    )


@pytest.mark.parametrize(
    "value,expected",
    [
        (2.0, "2"),
        (1e300, str(int(1e300))),
        (0.2562814070351759, "0.2562814070351759"),
        (float("nan"), "NaN"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
    ],
)
def test_numbers_are_written_as_prometheus_reads_them(value, expected):
    assert (
        SampleFamily("f", "gauge", "", [MetricSample(value, {})])
        .text()
        .endswith(f"\nf {expected}\n")
    )


def test_metrics_of_models_are_written_as_triton_writes_them():
    metrics = CustomMetrics()
    worker = WorkerMetrics(metrics)
    worker.new_family(1, "requests", "help text", "COUNTER")
    worker.new_family(2, "sizes", "of what", "HISTOGRAM")
    worker.new_family(3, "empty", "has no metric", "GAUGE")
    worker.new_metric(1, 1, {"b": "2", "a": "1"}, None)
    worker.new_metric(2, 2, {"z": "1"}, [0.1, 1.0])
    worker.increment(1, 1.5)
    worker.observe(2, 0.5)

    assert "".join(family.text() for family in custom_families(metrics)) == (
        "# HELP requests help text\n"
        "# TYPE requests counter\n"
        'requests{a="1",b="2"} 1.5\n'
        "# HELP sizes of what\n"
        "# TYPE sizes histogram\n"
        'sizes_count{z="1"} 1\n'
        'sizes_sum{z="1"} 0.5\n'
        'sizes_bucket{z="1",le="0.1"} 0\n'
        'sizes_bucket{z="1",le="1"} 1\n'
        'sizes_bucket{z="1",le="+Inf"} 1\n'
    )


def test_names_of_the_page_are_known():
    names = server_family_names()

    assert {"nv_inference_count", "nv_cpu_utilization", "nv_cache_num_hits_per_model"} <= names
    assert "pytriton_tls_handshake_failures_total" in names
    assert all(name.startswith(("nv_", "pytriton_tls_")) for name in names)
