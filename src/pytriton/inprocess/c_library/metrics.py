# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_Metric...: metrics of the application, and what servers report.

All servers of the process show the application's metrics.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.native_backend.exports import export
from pytriton.runtime.native_backend.memory import (
    Handles,
    Kept,
    put_double,
    put_half_word,
    put_word,
    required_text,
    view,
)
from pytriton.runtime.native_backend.parameters import Parameters
from pytriton.serving.repository.services.custom_metrics import KINDS, CustomMetrics, Family, Metric
from pytriton.serving.server.metrics.exposition import Family as ShownFamily
from pytriton.serving.server.metrics.page import custom_families, server_family_names

_HISTOGRAM = "HISTOGRAM"
_PROMETHEUS = 0


@dataclasses.dataclass(slots=True)
class _Page:
    """What a server reported once."""

    data: bytes
    address: int
    kept: Kept


@dataclasses.dataclass(slots=True)
class _OwnFamily:
    """A family of the application, and how many of its metrics there are."""

    family: Family
    metric_count: int = 0


@dataclasses.dataclass(slots=True)
class _OwnMetric:
    metric: Metric
    owner: _OwnFamily


class Metrics:
    """The metrics of this process. A lock keeps them whole while a server reads them."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._lock = threading.Lock()
        self._custom = CustomMetrics(server_family_names)
        self._pages: Handles[_Page] = Handles("metrics")
        self._families: Handles[_OwnFamily] = Handles("a family of metrics")
        self._metrics: Handles[_OwnMetric] = Handles("a metric")
        self._buckets: Handles[list[float]] = Handles("arguments of a metric")

    def families(self) -> Iterable[ShownFamily]:
        """Returns the families as a server shows them."""
        with self._lock:
            return list(custom_families(self._custom))

    def add_page(self, text: str) -> int:
        """Returns the handle of what a server reported."""
        kept, data = Kept(), text.encode()
        return self._pages.add(_Page(data, kept.string(data), kept))

    @export("TRITONSERVER_MetricsDelete")
    def _delete_page(self, handle: int) -> None:
        self._pages.pop(handle)

    @export("TRITONSERVER_MetricsFormatted")
    def _format(self, handle: int, number: int, base: int, size: int) -> None:
        page = self._pages.get(handle)
        if number != _PROMETHEUS:
            raise InvalidArgumentError(f"unknown metrics format '{number}'")
        put_word(base, page.address)
        put_word(size, len(page.data))

    # Families

    @export("TRITONSERVER_MetricFamilyNew")
    def _new_family(
        self, place: int, kind: int, name: bytes | None, description: bytes | None
    ) -> None:
        if not 0 <= kind < len(KINDS):
            raise InvalidArgumentError("Unsupported kind passed to MetricFamily constructor.")
        with self._lock:
            family = self._custom.acquire(
                required_text(name), required_text(description), KINDS[kind]
            )
        put_word(place, self._families.add(_OwnFamily(family)))

    @export("TRITONSERVER_MetricFamilyDelete")
    def _delete_family(self, handle: int) -> None:
        owner = self._families.get(handle)
        if owner.metric_count:
            raise InternalError(
                "Must call MetricDelete on all dependent metrics before calling MetricFamilyDelete."
            )
        self._families.pop(handle)
        with self._lock:
            self._custom.release(owner.family)

    @export("TRITONSERVER_GetMetricFamilyKind")
    def _family_kind(self, handle: int, place: int) -> None:
        put_half_word(place, KINDS.index(self._families.get(handle).family.kind))

    # Metrics

    @export("TRITONSERVER_MetricArgsNew")
    def _new_arguments(self, place: int) -> None:
        put_word(place, self._buckets.add([]))

    @export("TRITONSERVER_MetricArgsSetHistogram")
    def _set_buckets(self, handle: int, bounds: int, count: int) -> None:
        self._buckets.get(handle)[:] = view(bounds, 8 * count).cast("d")

    @export("TRITONSERVER_MetricArgsDelete")
    def _delete_arguments(self, handle: int) -> None:
        if handle:  # as for other objects in C, deleting NULL is allowed
            self._buckets.pop(handle)

    @export("TRITONSERVER_MetricNew")
    def _new(self, place: int, family: int, labels: int, count: int) -> None:
        self._new_with_arguments(place, family, labels, count, 0)

    @export("TRITONSERVER_MetricNewWithArgs")
    def _new_with_arguments(
        self, place: int, family: int, labels: int, count: int, arguments: int
    ) -> None:
        owner = self._families.get(family)
        buckets = self._buckets.get(arguments) if arguments else None
        if owner.family.kind == _HISTOGRAM and not buckets:
            # In Triton's words: arguments without buckets are not yet those of a histogram.
            raise InvalidArgumentError(
                "Bucket boundaries not found in Metric args."
                if buckets is None
                else "Metric args not set to histogram kind."
            )
        named = self._parameters.read_labels(labels, count)
        with self._lock:
            metric = owner.family.acquire(named, buckets)
            owner.metric_count += 1
        put_word(place, self._metrics.add(_OwnMetric(metric, owner)))

    @export("TRITONSERVER_MetricDelete")
    def _delete(self, handle: int) -> None:
        own = self._metrics.pop(handle)
        with self._lock:
            own.owner.metric_count -= 1
            own.owner.family.release(own.metric)

    @export("TRITONSERVER_GetMetricKind")
    def _kind(self, handle: int, place: int) -> None:
        put_half_word(place, KINDS.index(self._metrics.get(handle).metric.kind))

    @export("TRITONSERVER_MetricValue")
    def _value(self, handle: int, place: int) -> None:
        with self._lock:
            put_double(place, self._metrics.get(handle).metric.value())

    @export("TRITONSERVER_MetricIncrement")
    def _increment(self, handle: int, value: float) -> None:
        with self._lock:
            self._metrics.get(handle).metric.increment(value)

    @export("TRITONSERVER_MetricSet")
    def _set(self, handle: int, value: float) -> None:
        with self._lock:
            self._metrics.get(handle).metric.set(value)

    @export("TRITONSERVER_MetricObserve")
    def _observe(self, handle: int, value: float) -> None:
        with self._lock:
            self._metrics.get(handle).metric.observe(value)
