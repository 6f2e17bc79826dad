# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_Metric...: metrics of a backend, which the server keeps and shows with its own."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InternalError, InvalidArgumentError, UnsupportedError
from pytriton.runtime.native_backend.exports import export
from pytriton.runtime.native_backend.memory import (
    Handles,
    put_double,
    put_half_word,
    put_word,
    required_text,
    view,
)
from pytriton.runtime.native_backend.parameters import Parameters
from pytriton.runtime.pb_utils.failures import TritonModelException

if TYPE_CHECKING:
    from pytriton.runtime.python_backend.runtime import WorkerRuntime

_COUNTER, _GAUGE, _HISTOGRAM = _KINDS = ("COUNTER", "GAUGE", "HISTOGRAM")
_DOUBLE_BYTES = 8


@dataclass(slots=True)
class _Family:
    number: int  # by which the server knows it
    kind: str
    metric_count: int = 0


@dataclass(slots=True)
class _Metric:
    number: int
    family: _Family


class Metrics:
    """The families and metrics that the backend has made.

    Args:
        runtime: Reaches the server.
        parameters: The labels of metrics are parameters.
    """

    def __init__(self, runtime: WorkerRuntime, parameters: Parameters) -> None:
        self._runtime = runtime
        self._parameters = parameters
        self._numbers = itertools.count(1)
        self._families: Handles[_Family] = Handles("a family of metrics")
        self._metrics: Handles[_Metric] = Handles("a metric")
        self._buckets: Handles[list[float]] = Handles("arguments of a metric")

    def _call(self, action: str, **arguments: Any) -> Any:
        try:
            return self._runtime.call(action, **arguments)
        except TritonModelException as error:
            raise InvalidArgumentError(str(error)) from None

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
        if family.metric_count:
            raise InternalError(
                "Must call MetricDelete on all dependent metrics before calling MetricFamilyDelete."
            )
        self._families.pop(handle)
        self._runtime.notify("delete_family", family=family.number)

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
        self._make(place, family, labels, count, None)

    @export("TRITONSERVER_MetricNewWithArgs")
    def _new_with_arguments(
        self, place: int, family: int, labels: int, count: int, arguments: int
    ) -> None:
        # Triton's Python backend passes NULL for counters and gauges, and deletes that, too.
        buckets = self._buckets.get(arguments) if arguments else None
        self._make(place, family, labels, count, buckets)

    def _make(
        self, place: int, handle: int, labels: int, count: int, buckets: list[float] | None
    ) -> None:
        family = self._families.get(handle)
        names = self._parameters.read_labels(labels, count)
        if family.kind == _HISTOGRAM and not buckets:
            # In Triton's words: arguments without buckets are not yet those of a histogram.
            missing = buckets is None
            raise InvalidArgumentError(
                "Bucket boundaries not found in Metric args."
                if missing
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
        family.metric_count += 1
        put_word(place, self._metrics.add(metric))

    @export("TRITONSERVER_MetricDelete")
    def _delete(self, handle: int) -> None:
        metric = self._metrics.pop(handle)
        metric.family.metric_count -= 1
        self._runtime.notify("delete_metric", metric=metric.number)

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
        self._runtime.notify("increment", metric=metric.number, value=value)

    @export("TRITONSERVER_MetricSet")
    def _set(self, handle: int, value: float) -> None:
        metric = self._checked(handle, "Set", _GAUGE)
        self._runtime.notify("set", metric=metric.number, value=value)

    @export("TRITONSERVER_MetricObserve")
    def _observe(self, handle: int, value: float) -> None:
        metric = self._checked(handle, "Observe", _HISTOGRAM)
        self._runtime.notify("observe", metric=metric.number, value=value)

    def _checked(self, handle: int, operation: str, *supporting: str) -> _Metric:
        metric = self._metrics.get(handle)
        kind = metric.family.kind
        if kind not in supporting:
            raise UnsupportedError(f"TRITONSERVER_METRIC_KIND_{kind} does not support {operation}")
        return metric
