# SPDX-License-Identifier: Apache-2.0
"""The page of all metrics, which is made when it is scraped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytriton.base.nvml import DeviceReading
from pytriton.serving.engine.served_model import ManagedModel
from pytriton.serving.repository.services.custom_metrics import CustomMetrics
from pytriton.serving.server.metrics.cluster_families import CLUSTER_NAMES
from pytriton.serving.server.metrics.exposition import (
    KINDS,
    OPEN_END,
    MetricSample,
    SampleFamily,
    family_text,
    open_family_text,
)
from pytriton.serving.server.metrics.families import (
    ALL_FAMILIES,
    ModelFamily,
    ModelReading,
    shown_families,
)
from pytriton.serving.server.metrics.machine import (
    MachineReading,
    accepting_families,
    access_families,
    certificate_families,
    cpu_families,
    gpu_families,
    gpu_process_families,
    limit_families,
    pool_families,
    read_machine,
)
from pytriton.serving.server.options.metrics_options import MetricsOptions

if TYPE_CHECKING:
    from pytriton.serving.engine.costs import ServerCosts

SERVER_TIME = "nv_server_processor_seconds"
logger = logging.getLogger(__name__)


class ModelTexts:
    """The lines of models, gathered model by model and kept by family."""

    def __init__(
        self,
        families: Sequence[ModelFamily],
        gpu_uuids: Mapping[int, str],
        *,
        is_open: bool = False,
    ) -> None:
        self._columns: list[tuple[ModelFamily, list[str]]] = [(each, []) for each in families]
        self._gpu_uuids = gpu_uuids
        self.is_open = is_open

    def add(self, model: ManagedModel) -> None:
        """Read a model; this takes about 50 us."""
        reading = ModelReading.of(model, self._gpu_uuids, is_open=self.is_open)
        for family, texts in self._columns:
            texts.append(family.lines(reading))

    def families(self) -> Iterable[tuple[str, str]]:
        """Yields the kind and the text of each family."""
        text = open_family_text if self.is_open else family_text
        for family, texts in self._columns:
            yield family.kind, text(family.name, family.kind, family.help, texts)


class MetricsPage:
    """Renders the page, and reads the machine no more often than the interval allows."""

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

    def begin(
        self, gpu_uuids: Mapping[int, str] | None = None, *, is_open: bool = False
    ) -> ModelTexts:
        """Begin a page: the caller adds models to what this returns, and passes it to `finish`.

        It is in OpenMetrics if `is_open`, otherwise in the text format.
        """
        return ModelTexts(self._families, gpu_uuids or {}, is_open=is_open)

    def finish(
        self,
        models: ModelTexts,
        custom: Iterable[SampleFamily] = (),
        gpus: Sequence[DeviceReading] = (),
    ) -> list[bytes]:
        """Returns the parts of the page, with the custom metrics of models and those of GPUs."""
        parts = list(models.families())
        others = (*self._server_families(gpus), *custom)
        is_open = models.is_open
        parts += [(each.kind, each.open_text() if is_open else each.text()) for each in others]
        # Triton's page has all counters first, then all gauges, and so on.
        parts.sort(key=lambda part: KINDS.index(part[0]))
        texts = [text.encode() for _, text in parts if text]
        return [*texts, OPEN_END.encode()] if is_open else texts

    def render(self, models: Iterable[ManagedModel], custom: Iterable[SampleFamily] = ()) -> bytes:
        """Make the page of a machine without GPUs in one step."""
        texts = self.begin()
        for model in models:
            texts.add(model)
        return b"".join(self.finish(texts, custom))

    def _server_families(self, gpus: Sequence[DeviceReading]) -> Iterable[SampleFamily]:
        yield from pool_families(self._options.pinned_memory_pool_bytes)
        yield from gpu_families(gpus)
        if self._options.cpu and (machine := self.machine_now()) is not None:
            yield from cpu_families(machine)

    def machine_now(self) -> MachineReading | None:
        """Returns the numbers of the machine, which are at most as old as the options allow.

        Reading them takes descriptors. While there are none, the numbers are older, or missing.
        """
        now = self._clock()
        if self._machine is None or now - self._read_at >= self._options.interval_ms / 1000:
            try:
                self._machine = self._read_machine()
            except OSError as error:
                logger.warning("the use of the machine cannot be read: %s", error)
            self._read_at = now
        return self._machine


def cost_families(costs: ServerCosts) -> Iterator[SampleFamily]:
    """Share the time of the server among models, and yield how much there was to share."""
    costs.share()
    shared_ns, idle_ns = costs.spent_ns - costs.idle_ns, costs.idle_ns
    yield SampleFamily(
        SERVER_TIME,
        "counter",
        "Processor time of the server's processes: that models have a share of, and that of times "
        "without requests",
        [
            MetricSample(shared_ns / 1e9, {"state": "busy"}),
            MetricSample(idle_ns / 1e9, {"state": "idle"}),
        ],
    )


def custom_families(metrics: CustomMetrics) -> Iterable[SampleFamily]:
    """Yields the custom metrics of models."""
    for family in metrics.families():
        samples = [
            MetricSample(value, labels, suffix) for suffix, labels, value in family.readings()
        ]
        yield SampleFamily(family.name, family.kind.lower(), family.description, samples)


# Those that serving/server/recording makes, which most servers never import.
_RECORDING_NAMES = (
    "nv_recording_running",
    "nv_recording_request_count",
    "nv_recording_drop_count",
    "nv_recording_end_count",
    "nv_shadow_request_count",
    "nv_shadow_drop_count",
)


def server_family_names() -> frozenset[str]:
    """Returns the names that custom metrics of models cannot use."""
    of_machine = (
        *pool_families(0),
        *cpu_families(MachineReading(0, 0, 0)),
        *gpu_families(()),
        *accepting_families(0, is_paused=False),
        *limit_families(()),
        *gpu_process_families(()),
        *access_families({}, 0, is_broken=False),
        *certificate_families(0, 0, {}, {}),
    )
    names = [family.name for family in ALL_FAMILIES] + [family.name for family in of_machine]
    return frozenset([*names, *CLUSTER_NAMES, *_RECORDING_NAMES, SERVER_TIME])
