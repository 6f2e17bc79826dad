# SPDX-License-Identifier: Apache-2.0
"""Custom metrics of models, shared by all workers of the server.

Families are identified by name, metrics by labels. All workers that acquire the same one share its
values. It exists until the last of them has released it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from pytriton.base.errors import AlreadyExistsError, InvalidArgumentError, UnsupportedError
from pytriton.serving.engine.config_rules import are_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

_COUNTER, _GAUGE, _HISTOGRAM = KINDS = ("COUNTER", "GAUGE", "HISTOGRAM")
_KIND_NAME = "TRITONSERVER_METRIC_KIND_"
# Of one worker. Who reads the page gets all of them, and the server makes it between requests.
MAX_FAMILIES = 1000
MAX_SERIES = 20_000
MAX_TEXT = 10_000
MAX_CHARACTERS = 4 << 20  # of names, labels and descriptions, as often as the page has them
_HISTOGRAM_SUFFIXES = ("_count", "_sum", "_bucket")
_is_metric_name = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*").fullmatch
_is_label_name = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*").fullmatch

Labels = tuple[tuple[str, str], ...]  # sorted by name
# The suffix after the family's name, the labels, the value.
Reading = tuple[str, dict[str, str], float]


class SharedMetric:
    """One counter or gauge, or one histogram."""

    __slots__ = ("_bounds", "_counts", "_total", "kind", "labels", "users")

    def __init__(self, kind: str, labels: Labels, bounds: Sequence[float]) -> None:
        self.kind = kind
        self.labels = labels
        self.users = 0
        self._total = 0.0  # the value, or the sum of the observed values
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)  # the last one counts values above all bounds

    @property
    def series(self) -> int:
        """The number of its lines on the metrics page."""
        return len(self._bounds) + 3 if self.kind == _HISTOGRAM else 1

    @property
    def text_size(self) -> int:
        """The number of characters of its labels, on each of its lines."""
        return sum([len(name) + len(value) for name, value in self.labels])

    def increment(self, value: float) -> None:
        """Add to a counter or gauge."""
        if self.kind == _HISTOGRAM:
            raise self._unsupported("Increment")
        if self.kind == _COUNTER and not value >= 0:
            raise InvalidArgumentError(
                f"{_KIND_NAME}COUNTER can only be incremented monotonically by non-negative values."
            )
        self._total += value

    def set(self, value: float) -> None:
        if self.kind != _GAUGE:
            raise self._unsupported("Set")
        self._total = value

    def observe(self, value: float) -> None:
        """Count a value in a histogram."""
        if self.kind != _HISTOGRAM:
            raise self._unsupported("Observe")
        self._total += value
        # NaN is below no bound.
        place = len(self._bounds) if math.isnan(value) else bisect_left(self._bounds, value)
        self._counts[place] += 1

    def value(self) -> float:
        """Returns the value of a counter or gauge."""
        if self.kind == _HISTOGRAM:
            raise self._unsupported("Value")
        return self._total

    def readings(self) -> Iterator[Reading]:
        """Yields the values that the metrics page shows."""
        labels = dict(self.labels)
        if self.kind != _HISTOGRAM:
            yield "", labels, self._total
            return
        yield "_count", labels, sum(self._counts)
        yield "_sum", labels, self._total
        for bound, count in zip((*self._bounds, math.inf), accumulate(self._counts), strict=True):
            yield "_bucket", {**labels, "le": bound_text(bound)}, count

    def _unsupported(self, operation: str) -> UnsupportedError:
        return UnsupportedError(f"{_KIND_NAME}{self.kind} does not support {operation}")


class SharedFamily:
    """All metrics of one name."""

    __slots__ = ("description", "kind", "metrics", "name", "users")

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name = name
        self.description = description
        self.kind = kind
        self.metrics: dict[Labels, SharedMetric] = {}
        self.users = 0

    def acquire(self, labels: Mapping[str, str], buckets: Sequence[float] | None) -> SharedMetric:
        """Returns the metric with these labels; the first user sets its buckets."""
        key = _checked_labels(labels, self.kind)
        bounds = _checked_bounds(buckets or ())
        metric = self.metrics.setdefault(key, SharedMetric(self.kind, key, bounds))
        metric.users += 1
        return metric

    def release(self, metric: SharedMetric) -> None:
        """End one use of the metric; the last one removes it."""
        metric.users -= 1
        if not metric.users:
            del self.metrics[metric.labels]

    def readings(self) -> Iterator[Reading]:
        """Yields the values that the metrics page shows."""
        for metric in self.metrics.values():
            yield from metric.readings()


class CustomMetrics:
    """The families of all models.

    Args:
        reserved: returns the names of the server's own families, which models cannot use.
    """

    def __init__(self, reserved: Callable[[], Collection[str]] = tuple) -> None:
        self._families: dict[str, SharedFamily] = {}
        self._line_owners: dict[str, str] = {}  # the family of each name that lines have
        self._reserved = reserved
        self._reserved_lines: frozenset[str] | None = None

    def acquire(self, name: str, description: str, kind: str) -> SharedFamily:
        """Returns the family of this name; the first user sets its description."""
        if kind not in KINDS:
            raise InvalidArgumentError(f"expected a kind of {', '.join(KINDS)}, got {kind!r:.40}")
        if not _is_metric_name(name):
            raise InvalidArgumentError("Invalid metric name")
        family = self._families.get(name)
        if family is None:
            family = self._add(name, description, kind)
        elif family.kind != kind:
            raise AlreadyExistsError("Family name already exists with different type")
        family.users += 1
        return family

    def _add(self, name: str, description: str, kind: str) -> SharedFamily:
        lines = _line_names(name, kind)
        if self._reserved_lines is None:
            own = [_line_names(each, kind) for each in self._reserved() for kind in KINDS]
            self._reserved_lines = frozenset().union(*own)
        if not self._reserved_lines.isdisjoint(lines):
            raise AlreadyExistsError(f"Family name '{name}' is one of the server's own")
        for line in lines:
            if line in self._line_owners:
                owner = self._line_owners[line]
                raise AlreadyExistsError(
                    f"Family name '{name}' cannot be beside '{owner}': both would be read as {line}"
                )
        self._line_owners.update(dict.fromkeys(lines, name))
        family = self._families[name] = SharedFamily(name, description, kind)
        return family

    def release(self, family: SharedFamily) -> None:
        """End one use of the family; the last one removes it."""
        family.users -= 1
        if not family.users:
            del self._families[family.name]
            for line in _line_names(family.name, family.kind):
                del self._line_owners[line]

    def families(self) -> Iterator[SharedFamily]:
        """Yields every family, in the order of creation."""
        yield from self._families.values()

    def __len__(self) -> int:
        return len(self._families)


class WorkerMetrics:
    """The families and metrics that one worker uses, by the worker's own numbers for them."""

    def __init__(self, shared: CustomMetrics) -> None:
        self._shared = shared
        self._families: dict[int, SharedFamily] = {}
        self._metrics_of: dict[int, set[int]] = {}  # of each family
        self._metrics: dict[int, tuple[int, SharedMetric]] = {}  # with the family's number
        self._series = 0  # lines on the page
        self._characters = 0  # there

    def new_family(self, family: int, name: str, description: str, kind: str) -> None:
        if family in self._families:
            raise InvalidArgumentError(f"expected a family with a new number, got {family} again")
        if len(self._families) >= MAX_FAMILIES:
            raise InvalidArgumentError(f"a model's instance has at most {MAX_FAMILIES} families")
        if len(name) + len(description) > MAX_TEXT:
            raise InvalidArgumentError(
                f"expected a name and a description of at most {MAX_TEXT} characters, got "
                f"{len(name) + len(description)}"
            )
        self._check_room(len(name) + len(description))
        owner = self._families[family] = self._shared.acquire(name, description, kind)
        self._metrics_of[family] = set()
        self._characters += len(owner.name) + len(owner.description)

    def new_metric(
        self, family: int, metric: int, labels: dict[str, str], buckets: list[float] | None
    ) -> None:
        owner = self._families.get(family)
        if owner is None:
            raise InvalidArgumentError("the metric's family has been deleted")
        if metric in self._metrics:
            raise InvalidArgumentError(f"expected a metric with a new number, got {metric} again")
        shared = owner.acquire(labels, buckets)
        if self._series + shared.series > MAX_SERIES or shared.text_size > MAX_TEXT:
            owner.release(shared)
            raise InvalidArgumentError(
                f"a model's instance has at most {MAX_SERIES} metrics and buckets, with labels of "
                f"{MAX_TEXT} characters each"
            )
        size = _page_size(owner, shared)
        try:
            self._check_room(size)
        except InvalidArgumentError:
            owner.release(shared)
            raise
        self._series += shared.series
        self._characters += size
        self._metrics[metric] = (family, shared)
        self._metrics_of[family].add(metric)

    def _check_room(self, size: int) -> None:
        if self._characters + size > MAX_CHARACTERS:
            raise InvalidArgumentError(
                f"the metrics of a model's instance have at most {MAX_CHARACTERS} characters of "
                "names, labels and descriptions on the page"
            )

    def delete_family(self, family: int) -> None:
        owner = self._families.pop(family, None)
        if owner is None:
            return
        for number in self._metrics_of.pop(family):
            self._release(owner, self._metrics.pop(number)[1])
        self._characters -= len(owner.name) + len(owner.description)
        self._shared.release(owner)

    def delete_metric(self, metric: int) -> None:
        """Release a metric, unless it was released with its family."""
        if metric in self._metrics:
            family, shared = self._metrics.pop(metric)
            self._metrics_of[family].discard(metric)
            self._release(self._families[family], shared)

    def _release(self, owner: SharedFamily, metric: SharedMetric) -> None:
        self._series -= metric.series
        self._characters -= _page_size(owner, metric)
        owner.release(metric)

    def increment(self, metric: int, value: float) -> None:
        """Add to a counter or gauge."""
        self._metric(metric).increment(value)

    def set(self, metric: int, value: float) -> None:
        self._metric(metric).set(value)

    def observe(self, metric: int, value: float) -> None:
        """Count a value in a histogram."""
        self._metric(metric).observe(value)

    def value(self, metric: int) -> float:
        """Returns the value of a counter or gauge."""
        return self._metric(metric).value()

    def close(self) -> None:
        """Release everything: the worker has ended."""
        for family in list(self._families):
            self.delete_family(family)

    def _metric(self, number: int) -> SharedMetric:
        if number not in self._metrics:
            raise InvalidArgumentError("the metric has been deleted")
        return self._metrics[number][1]


def _line_names(name: str, kind: str) -> set[str]:
    """Returns the names that a family and its lines have on the page, in one format or the other.

    Scrapers refuse a page on which two families have one of them in common.
    """
    names = {name}
    if kind == _COUNTER:
        names.add(name.removesuffix("_total"))  # that of the family in OpenMetrics
    elif kind == _HISTOGRAM:
        names.update([name + suffix for suffix in _HISTOGRAM_SUFFIXES])
    return names


def _page_size(family: SharedFamily, metric: SharedMetric) -> int:
    """Returns how many characters of names and labels the lines of a metric have."""
    return metric.series * (len(family.name) + metric.text_size)


def bound_text(bound: float) -> str:
    """Returns a bucket's bound as text for its label."""
    if bound == math.inf:
        return "+Inf"
    return str(int(bound)) if bound.is_integer() else repr(bound)


def _checked_labels(labels: Mapping[str, str], kind: str) -> Labels:
    for name in labels:
        if not _is_label_name(name) or (kind == _HISTOGRAM and name == "le"):
            raise InvalidArgumentError("Invalid label name")
    return tuple(sorted(labels.items()))


def _checked_bounds(buckets: Sequence[float]) -> list[float]:
    bounds = [float(bound) for bound in buckets]
    if bounds and bounds[-1] == math.inf:  # every histogram has this bucket anyway
        bounds.pop()
    if not are_bounds(bounds):
        raise InvalidArgumentError("Bucket Boundaries must be strictly sorted")
    return bounds
