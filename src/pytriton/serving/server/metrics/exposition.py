# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format, for metric families that are read when the page is scraped.

`prometheus_client` is not used because it ends the name of every counter in `_total`, and Triton
does not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

KINDS = ("counter", "gauge", "histogram", "summary")  # in the order of a page

Number = int | float


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a family; parts of a histogram have a suffix after the family's name."""

    value: Number
    labels: Mapping[str, str]
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class SampleFamily:
    """A named metric with all its values."""

    name: str
    kind: str  # one of KINDS
    help: str
    samples: Sequence[MetricSample]

    def text(self) -> str:
        """Returns the family's lines; empty for a family without values."""
        if not self.samples:
            return ""
        lines = [
            f"{self.name}{sample.suffix}{_braced(sample.labels)} {number_text(sample.value)}\n"
            for sample in self.samples
        ]
        return family_text(self.name, self.kind, self.help, lines)


def family_text(name: str, kind: str, help_text: str, lines: Iterable[str]) -> str:
    """Returns the lines of a family under its head; empty if there are none."""
    body = "".join(lines)
    if not body:
        return ""
    escaped = help_text.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {escaped}\n# TYPE {name} {kind}\n{body}"


def histogram_lines(
    name: str, labels: str, bounds: tuple[float, ...], counts: Sequence[int], total: Number
) -> str:
    """Returns the lines of one histogram; counts are cumulative, the last is that of all values."""
    head = f'{name}_bucket{{{labels},le="'
    buckets = [
        f'{head}{bound}"}} {count}\n'
        for bound, count in zip(_bound_texts(bounds), counts, strict=True)
    ]
    return (
        f"{name}_count{{{labels}}} {counts[-1]}\n"
        f"{name}_sum{{{labels}}} {number_text(total)}\n{''.join(buckets)}"
    )


@functools.lru_cache
def _bound_texts(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(number_text(bound) for bound in (*bounds, math.inf))


def summary_lines(
    name: str,
    labels: str,
    ranks: Sequence[float],
    values: Sequence[Number],
    count: int,
    total: Number,
) -> str:
    """Returns the lines of one summary, with a value for each rank."""
    quantiles = [
        f'{name}{{{labels},quantile="{number_text(rank)}"}} {number_text(value)}\n'
        for rank, value in zip(ranks, values, strict=True)
    ]
    return (
        f"{name}_count{{{labels}}} {count}\n"
        f"{name}_sum{{{labels}}} {number_text(total)}\n{''.join(quantiles)}"
    )


def gauge(name: str, help_text: str, value: Number) -> SampleFamily:
    """Make a gauge with one value and no label."""
    return SampleFamily(name, "gauge", help_text, [MetricSample(value, {})])


def labels_text(labels: Mapping[str, str]) -> str:
    """Returns the text between the braces, sorted by name."""
    names = sorted(labels, key=lambda name: (name == "le", name))  # a bucket's bound comes last
    return ",".join([f'{name}="{_escaped(labels[name])}"' for name in names])


def _braced(labels: Mapping[str, str]) -> str:
    return f"{{{labels_text(labels)}}}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def number_text(value: Number) -> str:
    """Returns a number as Prometheus reads it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
