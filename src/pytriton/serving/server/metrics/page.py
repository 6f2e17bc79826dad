# SPDX-License-Identifier: Apache-2.0
"""Makes the metrics page when it is scraped, with Triton's names, labels and help texts.

`serving.engine.stats` records the numbers; `serving.server.metrics.exposition` formats them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from pytriton.serving.engine.latencies import LatencyPlan
from pytriton.serving.repository.services.custom_metrics import CustomMetrics
from pytriton.serving.server.api.documents import ReportedModel
from pytriton.serving.server.metrics import cluster, model_families
from pytriton.serving.server.metrics.exposition import (
    KINDS,
    MetricSample,
    SampleFamily,
    family_text,
)
from pytriton.serving.server.metrics.machine import (
    DeviceReading,
    MachineReading,
    accepting_families,
    cpu_families,
    gpu_families,
    pool_families,
    read_machine,
)
from pytriton.serving.server.metrics.model_families import ModelFamily, ModelReading
from pytriton.serving.server.options.metrics_options import MetricsOptions


class ModelTexts:
    """The lines of models, gathered model by model and kept by family."""

    def __init__(self, families: Sequence[ModelFamily], gpu_uuids: Mapping[int, str]) -> None:
        self._columns: list[tuple[ModelFamily, list[str]]] = [(each, []) for each in families]
        self._gpu_uuids = gpu_uuids

    def add(self, model: ReportedModel) -> None:
        """Read a model; this takes about 50 us."""
        reading = ModelReading.of(model, self._gpu_uuids)
        for family, texts in self._columns:
            texts.append(family.lines(reading))

    def families(self) -> Iterable[tuple[str, str]]:
        """Yields the kind and the text of each family."""
        for family, texts in self._columns:
            yield family.kind, family_text(family.name, family.kind, family.help, texts)


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
        self._families = shown_families(options)
        self._read_machine = read_machine
        self._clock = clock
        self._machine: MachineReading | None = None
        self._read_at = 0.0

    def begin(self, gpu_uuids: Mapping[int, str] | None = None) -> ModelTexts:
        """Begin a page: the caller adds models to what this returns, and passes it to `finish`.

        Args:
            gpu_uuids: the names of devices by number.
        """
        return ModelTexts(self._families, gpu_uuids or {})

    def finish(
        self,
        models: ModelTexts,
        custom: Iterable[SampleFamily] = (),
        gpus: Sequence[DeviceReading] = (),
    ) -> list[bytes]:
        """Make the page.

        Args:
            models: the lines of the loaded versions.
            custom: the custom metrics of models.
            gpus: the devices.

        Returns:
            The parts of the text.
        """
        parts = list(models.families())
        others = (*self._server_families(gpus), *custom)
        parts += [(family.kind, family.text()) for family in others]
        # Triton's page has all counters first, then all gauges, and so on.
        parts.sort(key=lambda part: KINDS.index(part[0]))
        return [text.encode() for _, text in parts if text]

    def render(self, models: Iterable[ReportedModel], custom: Iterable[SampleFamily] = ()) -> bytes:
        """Make the page of a machine without GPUs in one step."""
        texts = self.begin()
        for model in models:
            texts.add(model)
        return b"".join(self.finish(texts, custom))

    def _server_families(self, gpus: Sequence[DeviceReading]) -> Iterable[SampleFamily]:
        yield from pool_families(self._options.pinned_memory_pool_bytes)
        yield from gpu_families(gpus)
        if self._options.cpu:
            yield from cpu_families(self.machine_now())

    def machine_now(self) -> MachineReading:
        """Returns the numbers of the machine, which are at most as old as the options allow."""
        now = self._clock()
        if self._machine is None or now - self._read_at >= self._options.interval_ms / 1000:
            self._machine = self._read_machine()
            self._read_at = now
        return self._machine


def shown_families(options: MetricsOptions) -> tuple[ModelFamily, ...]:
    """Returns the families of models that the options ask for, in the order of the page."""
    plan: LatencyPlan = options.latencies
    has_histograms = plan.histograms or plan.first_responses
    return (
        *model_families.COUNTS,
        *(model_families.LATENCY_COUNTERS if options.counter_latencies else ()),
        *model_families.CACHE,
        *model_families.GAUGES,
        *(model_families.HISTOGRAMS if has_histograms else ()),
        *(model_families.SUMMARIES if plan.quantiles else ()),
    )


def custom_families(metrics: CustomMetrics) -> Iterable[SampleFamily]:
    """Yields the custom metrics of models."""
    for family in metrics.families():
        samples = [
            MetricSample(value, labels, suffix) for suffix, labels, value in family.readings()
        ]
        yield SampleFamily(family.name, family.kind.lower(), family.description, samples)


def server_family_names() -> frozenset[str]:
    """Returns the names that custom metrics of models cannot use."""
    of_models = (
        *model_families.COUNTS,
        *model_families.LATENCY_COUNTERS,
        *model_families.CACHE,
        *model_families.GAUGES,
        *model_families.HISTOGRAMS,
        *model_families.SUMMARIES,
    )
    of_machine = (
        *pool_families(0),
        *cpu_families(MachineReading(0, 0, 0)),
        *gpu_families(()),
        *accepting_families(0, is_paused=False),
    )
    names = [family.name for family in of_models] + [family.name for family in of_machine]
    return frozenset([*names, *cluster.NAMES])
