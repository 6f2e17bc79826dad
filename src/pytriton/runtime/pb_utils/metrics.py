# SPDX-License-Identifier: Apache-2.0
"""Custom metrics of models, shown on the server's metrics page next to the built-in ones."""

from __future__ import annotations

import enum
import itertools
import os
import weakref
from collections.abc import Sequence
from typing import Any

from pytriton.runtime.pb_utils.arguments import text
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.pb_utils.runtime import (
    call_service,
    current_runtime,
    raise_failure,
    require_runtime,
)

_PURPOSE = "keep metrics"
_NEW_FAMILY = "Error when creating MetricFamily"
_NEW_METRIC = "Error when creating Metric"
_count = itertools.count(1)


class MetricKind(enum.Enum):
    """The kinds of metrics: counters only increase, gauges are set, histograms count by size."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class MetricFamily:
    """Metrics that have the same name and differ in their labels.

    Instances and models that use the same name share a family; its first description is kept. The
    family leaves the metrics page when its last object is deleted. Keep it as long as its metrics.

    Args:
        name: The name of the metrics, as Prometheus allows it.
        description: The help text.
        kind: `MetricFamily.COUNTER`, `MetricFamily.GAUGE` or `MetricFamily.HISTOGRAM`.

    Raises:
        TypeError: An argument has the wrong type.
        TritonModelException: The name is not allowed or has another kind already, or there is no
            server.
    """

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self._name = text(name, "name")
        description = text(description, "description")
        if not isinstance(kind, MetricKind):
            raise TypeError(f"kind must be one of MetricFamily's constants, got {kind!r}")
        self._kind = kind
        self._number = _new_number()
        call_service(
            _PURPOSE,
            _NEW_FAMILY,
            "new_family",
            family=self._number,
            name=self._name,
            description=description,
            kind=kind.name,
        )
        _release_on_delete(self, "delete_family", family=self._number)

    def Metric(  # noqa: N802  the name that models use
        self, labels: dict[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """Create a metric of this family; metrics with the same labels share a value.

        Args:
            labels: Distinguish the metric from others of the family.
            buckets: A list of increasing upper bounds; required for histograms, only for them.

        Raises:
            TritonModelException: Labels or buckets are not as described.
        """
        return Metric(self, self._number, self._kind, _checked_labels(labels), buckets)

    def __repr__(self) -> str:
        return f"MetricFamily({self._name!r}, {self._kind.name})"


class Metric:
    """A metric from `MetricFamily.Metric`; removed from the page with its last object."""

    def __init__(
        self,
        family: MetricFamily,
        family_number: int,
        kind: MetricKind,
        labels: dict[str, str],
        buckets: Sequence[float] | None,
    ) -> None:
        self._family = weakref.ref(family)
        self._kind = kind
        self._number = _new_number()
        call_service(
            _PURPOSE,
            _NEW_METRIC,
            "new_metric",
            family=family_number,
            metric=self._number,
            labels=labels,
            buckets=_checked_buckets(buckets, kind),
        )
        _release_on_delete(self, "delete_metric", metric=self._number)

    def increment(self, value: float) -> None:
        """Add to the value; a counter never decreases.

        Raises:
            TritonModelException: It is a histogram, or a counter would decrease.
        """
        prefix = "Failed to increment metric value"
        number = self._checked(value, prefix, "Increment", MetricKind.COUNTER, MetricKind.GAUGE)
        if self._kind is MetricKind.COUNTER and not number >= 0:
            raise_failure(
                _PURPOSE,
                prefix,
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by"
                " non-negative values.",
            )
        require_runtime(_PURPOSE).notify("increment", metric=self._number, value=number)

    def set(self, value: float) -> None:
        """Replace the value of a gauge.

        Raises:
            TritonModelException: It is not a gauge.
        """
        number = self._checked(value, "Failed to set metric value", "Set", MetricKind.GAUGE)
        require_runtime(_PURPOSE).notify("set", metric=self._number, value=number)

    def observe(self, value: float) -> None:
        """Add a value to a histogram.

        Raises:
            TritonModelException: It is not a histogram.
        """
        prefix = "Failed to observe metric value"
        number = self._checked(value, prefix, "Observe", MetricKind.HISTOGRAM)
        require_runtime(_PURPOSE).notify("observe", metric=self._number, value=number)

    def value(self) -> float:
        """Returns the value, including changes by other instances and models.

        Raises:
            TritonModelException: It is a histogram, which has no single value.
        """
        prefix = "Failed to get metric value"
        self._checked(0, prefix, "Value", MetricKind.COUNTER, MetricKind.GAUGE)
        return float(call_service(_PURPOSE, prefix, "value", metric=self._number))

    def _checked(self, value: float, prefix: str, operation: str, *supporting: MetricKind) -> float:
        if not hasattr(value, "__float__"):
            raise TypeError(f"a metric's value must be a number, got {type(value)}")
        if self._family() is None:
            raise TritonModelException(
                f"{prefix}: Invalid metric operation as the corresponding 'MetricFamily' has been"
                " deleted. The 'MetricFamily' object should be deleted AFTER its corresponding"
                " 'Metric' objects have been deleted."
            )
        if self._kind not in supporting:
            raise_failure(
                _PURPOSE,
                prefix,
                f"TRITONSERVER_METRIC_KIND_{self._kind.name} does not support {operation}",
            )
        return float(value)


def _new_number() -> int:
    """Returns an id that is unique among the objects of this worker and of its forked children."""
    return os.getpid() << 32 | next(_count)


def _release_on_delete(owner: object, action: str, **arguments: int) -> None:
    """Notify the server when `owner` is deleted; the end of the process releases everything."""
    weakref.finalize(owner, _release, os.getpid(), action, arguments).atexit = False


def _release(process: int, action: str, arguments: dict[str, int]) -> None:
    runtime = current_runtime()
    if runtime is not None and os.getpid() == process:  # objects of a forked child are copies
        runtime.notify(action, **arguments)


def _checked_labels(labels: Any) -> dict[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
    checked = {}
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise_failure(
                _PURPOSE,
                _NEW_METRIC,
                f"expected labels of str to str, got {type(name)} to {type(value)}",
            )
        checked[text(name, "the name of a label")] = text(value, "the value of a label")
    return checked


def _checked_buckets(buckets: Any, kind: MetricKind) -> list[float] | None:
    if kind is not MetricKind.HISTOGRAM:
        if buckets is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        return None
    if buckets is None:
        raise TritonModelException("Failed to create metric. Missing required buckets.")
    if not isinstance(buckets, list):
        raise TritonModelException("Failed to create metric. Buckets must be a list.")
    return [float(bound) for bound in buckets]
