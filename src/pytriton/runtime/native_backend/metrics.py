# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_Metric...: the functions on metrics of a backend or an application.

They only check; the metrics are kept where servers show them, and are known there by numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pytriton.base.errors import InternalError, InvalidArgumentError, UnsupportedError
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import (
    Handles,
    put_double,
    put_half_word,
    put_word,
    required_text,
    view,
)
from pytriton.runtime.native_backend.server_objects import Parameters

_COUNTER, _GAUGE, _HISTOGRAM = _KINDS = ("COUNTER", "GAUGE", "HISTOGRAM")
_DOUBLE_BYTES = 8


@dataclass(slots=True)
class _Family:
    number: int
    kind: str
    metrics: set[int] = field(default_factory=set)  # numbers; threads may change it without a lock


@dataclass(slots=True)
class _Metric:
    number: int
    family: _Family


class MetricFunctions:
    """The families and metrics that C code has made.

    Args:
        call: Performs an action of `WorkerMetrics` where metrics are kept, and returns its result;
            raises ServerError if it is refused.
        notify: The same without a result, for actions that cannot be refused.
        parameters: The labels of metrics are parameters.
    """

    def __init__(
        self, call: Callable[..., Any], notify: Callable[..., object], parameters: Parameters
    ) -> None:
        self._call = call
        self._notify = notify
        self._parameters = parameters
        self._numbers = itertools.count(1)
        self._families: Handles[_Family] = Handles("a family of metrics")
        self._metrics: Handles[_Metric] = Handles("a metric")
        self._buckets: Handles[list[float]] = Handles("arguments of a metric")

    # Families

    @export("TRITONSERVER_MetricFamilyNew")
    def _new_family(
        self, place: int, kind: int, name: bytes | None, description: bytes | None
    ) -> None:
        if not 0 <= kind < len(_KINDS):
            raise InvalidArgumentError("Unsupported kind passed to MetricFamily constructor.")
        family = _Family(next(self._numbers), _KINDS[kind])
        self._call(
            "new_family",
            family=family.number,
            name=required_text(name),
            description=required_text(description),
            kind=family.kind,
        )
        put_word(place, self._families.add(family))

    @export("TRITONSERVER_MetricFamilyDelete")
    def _delete_family(self, handle: int) -> None:
        family = self._families.get(handle)
        if family.metrics:
            raise InternalError(
                "Must call MetricDelete on all dependent metrics before calling MetricFamilyDelete."
            )
        self._families.pop(handle)
        self._notify("delete_family", family=family.number)

    @export("TRITONSERVER_GetMetricFamilyKind")
    def _family_kind(self, handle: int, place: int) -> None:
        put_half_word(place, _KINDS.index(self._families.get(handle).kind))

    # Metrics

    @export("TRITONSERVER_MetricArgsNew")
    def _new_arguments(self, place: int) -> None:
        put_word(place, self._buckets.add([]))

    @export("TRITONSERVER_MetricArgsSetHistogram")
    def _set_buckets(self, handle: int, bounds: int, count: int) -> None:
        self._buckets.get(handle)[:] = view(bounds, _DOUBLE_BYTES * count).cast("d")

    @export("TRITONSERVER_MetricArgsDelete")
    def _delete_arguments(self, handle: int) -> None:
        if handle:  # as for other objects in C, deleting NULL is allowed
            self._buckets.pop(handle)

    @export("TRITONSERVER_MetricNew")
    def _new(self, place: int, family: int, labels: int, count: int) -> None:
        self._new_with_arguments(place, family, labels, count, 0)

    @export("TRITONSERVER_MetricNewWithArgs")
    def _new_with_arguments(
        self, place: int, handle: int, labels: int, count: int, arguments: int
    ) -> None:
        # Triton's Python backend passes NULL for counters and gauges, and deletes that, too.
        buckets = self._buckets.get(arguments) if arguments else None
        family = self._families.get(handle)
        names = self._parameters.read_labels(labels, count)
        if family.kind == _HISTOGRAM and not buckets:
            # In Triton's words: arguments without buckets are not yet those of a histogram.
            raise InvalidArgumentError(
                "Bucket boundaries not found in Metric args."
                if buckets is None
                else "Metric args not set to histogram kind."
            )
        metric = _Metric(next(self._numbers), family)
        self._call(
            "new_metric",
            family=family.number,
            metric=metric.number,
            labels=names,
            buckets=buckets if family.kind == _HISTOGRAM else None,
        )
        family.metrics.add(metric.number)
        put_word(place, self._metrics.add(metric))

    @export("TRITONSERVER_MetricDelete")
    def _delete(self, handle: int) -> None:
        metric = self._metrics.pop(handle)
        metric.family.metrics.discard(metric.number)
        self._notify("delete_metric", metric=metric.number)

    @export("TRITONSERVER_GetMetricKind")
    def _kind(self, handle: int, place: int) -> None:
        put_half_word(place, _KINDS.index(self._metrics.get(handle).family.kind))

    @export("TRITONSERVER_MetricValue")
    def _value(self, handle: int, place: int) -> None:
        metric = self._checked(handle, "Value", _COUNTER, _GAUGE)
        put_double(place, float(self._call("value", metric=metric.number)))

    @export("TRITONSERVER_MetricIncrement")
    def _increment(self, handle: int, value: float) -> None:
        metric = self._checked(handle, "Increment", _COUNTER, _GAUGE)
        if metric.family.kind == _COUNTER and not value >= 0:
            raise InvalidArgumentError(
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by"
                " non-negative values."
            )
        self._notify("increment", metric=metric.number, value=value)

    @export("TRITONSERVER_MetricSet")
    def _set(self, handle: int, value: float) -> None:
        metric = self._checked(handle, "Set", _GAUGE)
        self._notify("set", metric=metric.number, value=value)

    @export("TRITONSERVER_MetricObserve")
    def _observe(self, handle: int, value: float) -> None:
        metric = self._checked(handle, "Observe", _HISTOGRAM)
        self._notify("observe", metric=metric.number, value=value)

    def _checked(self, handle: int, operation: str, *supporting: str) -> _Metric:
        metric = self._metrics.get(handle)
        kind = metric.family.kind
        if kind not in supporting:
            raise UnsupportedError(f"TRITONSERVER_METRIC_KIND_{kind} does not support {operation}")
        return metric
