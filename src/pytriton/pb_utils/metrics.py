# SPDX-License-Identifier: Apache-2.0
"""Metrics of a model's own, shown on the server's metrics page next to the built-in ones."""

from __future__ import annotations

import enum
import itertools
import os
import weakref
from collections.abc import Sequence
from typing import Any

from pytriton.pb_utils.arguments import text
from pytriton.pb_utils.failures import TritonModelException
from pytriton.pb_utils.runtime import ask_server, current_runtime, refuse, require_runtime

_PURPOSE = "keep metrics"
_NEW_FAMILY = "Error when creating MetricFamily"
_NEW_METRIC = "Error when creating Metric"
_count = itertools.count(1)


class MetricKind(enum.Enum):
    """What a family's metrics do: only grow, go up and down, or count values by size."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class MetricFamily:
    """Metrics with one name that differ in their labels.

    Instances and models that name the same family share it; its first description stays. It goes
    from the metrics page when the last object of it is deleted. Keep it for as long as its metrics.

    Args:
        name: of the metrics, as Prometheus allows it.
        description: their help text.
        kind: `MetricFamily.COUNTER`, `MetricFamily.GAUGE` or `MetricFamily.HISTOGRAM`.

    Raises:
        TypeError: an argument has the wrong type.
        TritonModelException: the name is not allowed or taken by another kind, or there is no
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
        ask_server(
            _PURPOSE,
            _NEW_FAMILY,
            "new_family",
            family=self._number,
            name=self._name,
            description=description,
            kind=kind.name,
        )
        _release_with(self, "delete_family", family=self._number)

    def Metric(  # noqa: N802  the name that models use
        self, labels: dict[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """A metric of this family; one with the same labels shares its value.

        Args:
            labels: what tells it from the others.
            buckets: a list of upper bounds, increasing; for histograms, which need them.

        Raises:
            TritonModelException: labels or buckets are not as described.
        """
        return Metric(self, self._number, self._kind, _checked_labels(labels), buckets)

    def __repr__(self) -> str:
        return f"MetricFamily({self._name!r}, {self._kind.name})"


class Metric:
    """One line of the metrics page, from `MetricFamily.Metric`; gone when its last object is."""

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
        ask_server(
            _PURPOSE,
            _NEW_METRIC,
            "new_metric",
            family=family_number,
            metric=self._number,
            labels=labels,
            buckets=_checked_buckets(buckets, kind),
        )
        _release_with(self, "delete_metric", metric=self._number)

    def increment(self, value: float) -> None:
        """Add to the value; a counter's value never falls.

        Raises:
            TritonModelException: it is a histogram, or the value of a counter would fall.
        """
        prefix = "Failed to increment metric value"
        number = self._checked(value, prefix, "Increment", MetricKind.COUNTER, MetricKind.GAUGE)
        if self._kind is MetricKind.COUNTER and not number >= 0:
            refuse(
                _PURPOSE,
                prefix,
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by"
                " non-negative values.",
            )
        require_runtime(_PURPOSE).notify("increment", metric=self._number, value=number)

    def set(self, value: float) -> None:
        """Replace the value of a gauge.

        Raises:
            TritonModelException: it is no gauge.
        """
        number = self._checked(value, "Failed to set metric value", "Set", MetricKind.GAUGE)
        require_runtime(_PURPOSE).notify("set", metric=self._number, value=number)

    def observe(self, value: float) -> None:
        """Count a value in the bucket of a histogram that it belongs to.

        Raises:
            TritonModelException: it is no histogram.
        """
        prefix = "Failed to observe metric value"
        number = self._checked(value, prefix, "Observe", MetricKind.HISTOGRAM)
        require_runtime(_PURPOSE).notify("observe", metric=self._number, value=number)

    def value(self) -> float:
        """The value, with what other instances and models added to it.

        Raises:
            TritonModelException: it is a histogram, which has many.
        """
        prefix = "Failed to get metric value"
        self._checked(0, prefix, "Value", MetricKind.COUNTER, MetricKind.GAUGE)
        return float(ask_server(_PURPOSE, prefix, "value", metric=self._number))

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
            refuse(
                _PURPOSE,
                prefix,
                f"TRITONSERVER_METRIC_KIND_{self._kind.name} does not support {operation}",
            )
        return float(value)


def _new_number() -> int:
    """A number that no other object of this worker has, nor any of its forked children's."""
    return os.getpid() << 32 | next(_count)


def _release_with(owner: object, action: str, **arguments: int) -> None:
    """Let the server hear when `owner` is gone; all is released anyway when the process ends."""
    weakref.finalize(owner, _release, os.getpid(), action, arguments).atexit = False


def _release(process: int, action: str, arguments: dict[str, int]) -> None:
    runtime = current_runtime()
    if runtime is not None and os.getpid() == process:  # a forked child only has copies
        runtime.notify(action, **arguments)


def _checked_labels(labels: Any) -> dict[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
    checked = {}
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            refuse(
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
