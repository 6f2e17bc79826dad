# SPDX-License-Identifier: Apache-2.0
"""Makes the metrics page when it is scraped, with Triton's names, labels and help texts.

`pytriton.engine.stats` records the numbers; `pytriton.server.metrics.exposition` formats them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytriton.engine.stats import FailureReason, InferenceDurations
from pytriton.repository.services.custom_metrics import CustomMetrics
from pytriton.server.api.documents import ReportedModel
from pytriton.server.metrics.exposition import Family, Number, Sample, gauge
from pytriton.server.options.metrics_options import MetricsOptions


@dataclass(frozen=True, slots=True)
class MachineReading:
    """CPU utilization and memory of the whole machine."""

    cpu_utilization: float  # from 0.0 to 1.0, since the previous reading
    memory_total_bytes: int
    memory_used_bytes: int


def read_machine() -> MachineReading:
    """Read the operating system's numbers; the first utilization in a process is 0."""
    import psutil  # noqa: PLC0415  takes 2 MiB, which only a server with scrapes needs

    memory = psutil.virtual_memory()
    return MachineReading(
        cpu_utilization=psutil.cpu_percent() / 100,
        memory_total_bytes=memory.total,
        memory_used_bytes=memory.total - memory.available,
    )


class MetricsPage:
    """Renders the page, and reads the machine no more often than the interval allows.

    Args:
        options: which metrics are served.
        read_machine: returns a reading.
        clock: returns the time of a monotonic clock, in seconds.
    """

    def __init__(
        self,
        options: MetricsOptions,
        *,
        read_machine: Callable[[], MachineReading] = read_machine,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._read_machine = read_machine
        self._clock = clock
        self._machine: MachineReading | None = None
        self._read_at = 0.0

    def render(self, models: Iterable[ReportedModel], custom: Iterable[Family] = ()) -> bytes:
        """Make the page.

        Args:
            models: the loaded versions.
            custom: the custom metrics of models.

        Returns:
            The text, of type `exposition.CONTENT_TYPE`.
        """
        families = (*self.families(models), *custom)
        return "".join(family.text() for family in families).encode()

    def families(self, models: Iterable[ReportedModel]) -> Iterable[Family]:
        """Returns the server's own families, in the order of the page."""
        readings = [_Reading.of(model) for model in models]
        yield from _model_families(readings, latencies=self._options.counter_latencies)
        yield from self._server_families()

    def _server_families(self) -> Iterable[Family]:
        pool = "Pinned memory pool {} memory size, in bytes"
        total = self._options.pinned_memory_pool_bytes
        yield gauge("nv_pinned_memory_pool_total_bytes", pool.format("total"), total)
        # The pool is never used: tensors are in memory shared with the instances.
        yield gauge("nv_pinned_memory_pool_used_bytes", pool.format("used"), 0)
        if self._options.cpu:
            now = self._machine_now()
            memory = "CPU {} memory (RAM), in bytes"
            yield gauge(
                "nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", now.cpu_utilization
            )
            yield gauge("nv_cpu_memory_total_bytes", memory.format("total"), now.memory_total_bytes)
            yield gauge("nv_cpu_memory_used_bytes", memory.format("used"), now.memory_used_bytes)

    def _machine_now(self) -> MachineReading:
        now = self._clock()
        if self._machine is None or now - self._read_at >= self._options.interval_ms / 1000:
            self._machine = self._read_machine()
            self._read_at = now
        return self._machine


@dataclass(frozen=True, slots=True)
class _Reading:
    """The numbers of one model version, read once for all families."""

    model: ReportedModel
    labels: dict[str, str]
    durations: InferenceDurations

    @classmethod
    def of(cls, model: ReportedModel) -> _Reading:
        labels = {"model": model.spec.name, "version": str(model.spec.version)}
        return cls(model, labels, model.statistics.inference_durations())


@dataclass(frozen=True, slots=True)
class _Column:
    """A family with one value for each model."""

    name: str
    help: str
    read: Callable[[_Reading], Number]
    kind: str = "counter"

    def family(self, readings: Iterable[_Reading]) -> Family:
        samples = [Sample(self.read(reading), reading.labels) for reading in readings]
        return Family(self.name, self.kind, self.help, samples)


_WITH_CACHED = "(includes cached requests)"
_WITHOUT_CACHED = "(does not include cached requests)"
_SUCCESSES = _Column(
    "nv_inference_request_success",
    "Number of successful inference requests, all batch sizes",
    lambda reading: reading.durations.success.count,
)
_EXECUTIONS = (
    _Column(
        "nv_inference_count",
        f"Number of inferences performed {_WITHOUT_CACHED}",
        lambda reading: reading.model.statistics.inference_count,
    ),
    _Column(
        "nv_inference_exec_count",
        f"Number of model executions performed {_WITHOUT_CACHED}",
        lambda reading: reading.model.statistics.execution_count,
    ),
)
_LATENCIES = (
    _Column(
        "nv_inference_request_duration_us",
        f"Cumulative inference request duration in microseconds {_WITH_CACHED}",
        lambda reading: reading.durations.success.ns // 1000,
    ),
    _Column(
        "nv_inference_queue_duration_us",
        f"Cumulative inference queuing duration in microseconds {_WITH_CACHED}",
        lambda reading: reading.durations.queue.ns // 1000,
    ),
    _Column(
        "nv_inference_compute_input_duration_us",
        f"Cumulative compute input duration in microseconds {_WITHOUT_CACHED}",
        lambda reading: reading.durations.compute_input.ns // 1000,
    ),
    _Column(
        "nv_inference_compute_infer_duration_us",
        f"Cumulative compute inference duration in microseconds {_WITHOUT_CACHED}",
        lambda reading: reading.durations.compute_infer.ns // 1000,
    ),
    _Column(
        "nv_inference_compute_output_duration_us",
        f"Cumulative inference compute output duration in microseconds {_WITHOUT_CACHED}",
        lambda reading: reading.durations.compute_output.ns // 1000,
    ),
)
_CACHE = (
    _Column(
        "nv_cache_num_hits_per_model",
        "Number of cache hits per model",
        lambda reading: reading.durations.cache_hit.count,
    ),
    _Column(
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        lambda reading: reading.durations.cache_hit.ns // 1000,
    ),
    _Column(
        "nv_cache_num_misses_per_model",
        "Number of cache misses per model",
        lambda reading: reading.durations.cache_miss.count,
    ),
    _Column(
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        lambda reading: reading.durations.cache_miss.ns // 1000,
    ),
)
_GAUGES = (
    _Column(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        lambda reading: reading.model.statistics.pending_count,
        kind="gauge",
    ),
    _Column(
        "nv_model_load_duration_secs",
        "Model load time in seconds",
        lambda reading: reading.model.statistics.load_ns / 1e9,
        kind="gauge",
    ),
    _Column(  # not one of Triton's
        "nv_inference_running_request_count",
        "Instantaneous number of requests that instances work on per-model.",
        lambda reading: reading.model.running_count,
        kind="gauge",
    ),
)


def _model_families(readings: list[_Reading], *, latencies: bool) -> Iterable[Family]:
    caching = [reading for reading in readings if reading.model.spec.response_cache]
    yield _SUCCESSES.family(readings)
    yield _failures(readings)
    for column in (*_EXECUTIONS, *(_LATENCIES if latencies else ())):
        yield column.family(readings)
    for column in _CACHE:
        yield column.family(caching)
    for column in _GAUGES:
        yield column.family(readings)


def custom_families(metrics: CustomMetrics) -> Iterable[Family]:
    """Yields the custom metrics of models."""
    for family in metrics.families():
        samples = [Sample(value, labels, suffix) for suffix, labels, value in family.readings()]
        yield Family(family.name, family.kind.lower(), family.description, samples)


def server_family_names() -> frozenset[str]:
    """Returns the names that custom metrics of models cannot use."""
    page = MetricsPage(MetricsOptions(), read_machine=lambda: MachineReading(0, 0, 0))
    return frozenset(family.name for family in page.families(()))


def _failures(readings: Iterable[_Reading]) -> Family:
    samples = [
        Sample(reading.model.statistics.failures[reason], reading.labels | {"reason": reason.value})
        for reading in readings
        for reason in FailureReason
    ]
    help_text = "Number of failed inference requests, all batch sizes"
    return Family("nv_inference_request_failure", "counter", help_text, samples)
