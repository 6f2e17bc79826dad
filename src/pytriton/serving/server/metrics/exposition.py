# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format and OpenMetrics, for families that are read when the page is scraped.

`prometheus_client` is not used because it ends the name of every counter in `_total`, and Triton
does not. OpenMetrics demands this ending of a counter, so Triton's counters are of the type
`unknown` there, which keeps their names: a scraper that changes the format finds the same series.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

KINDS = ("counter", "gauge", "histogram", "summary")  # in the order of a page

Number = int | float

TEXT_TYPE = b"text/plain; charset=utf-8"
OPEN_TYPE = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
OPEN_END = "# EOF\n"
_OPEN_VERSIONS = ("", "0.0.1", "1.0.0")  # of OpenMetrics, in an Accept header; "": any
# The names and values of an exemplar's labels together, by OpenMetrics.
_EXEMPLAR_CHARACTERS = 128
_TOTAL = "_total"


def prefers_openmetrics(accept: str) -> bool:
    """Returns whether an Accept header asks for OpenMetrics rather than for the text format."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for choice in accept.lower().split(","):
        name, *parameters = (part.strip() for part in choice.split(";"))
        values = dict(part.split("=", 1) for part in parameters if "=" in part)
        is_open = name == "application/openmetrics-text"
        if name in weights and not (is_open and values.get("version", "") not in _OPEN_VERSIONS):
            weights[name] = max(weights[name], _weight(values.get("q", "1")))
    return 0 < weights["application/openmetrics-text"] >= weights["text/plain"]


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


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

    def open_text(self) -> str:
        """Returns the family's lines in OpenMetrics; empty for a family without values."""
        ordered = _open_samples(self.samples) if self.kind == "histogram" else self.samples
        lines = [
            f"{self.name}{sample.suffix}{_braced(_open_labels(sample))} "
            f"{number_text(sample.value)}\n"
            for sample in ordered
        ]
        return open_family_text(self.name, self.kind, self.help, lines)


def _open_samples(samples: Iterable[MetricSample]) -> Iterator[MetricSample]:
    """Yields the values of histograms: of each, buckets come before the count and the sum.

    OpenMetrics has no sum that may go down, and no count without a sum: the buckets have it, too.
    """
    groups: dict[str, tuple[list[MetricSample], list[MetricSample]]] = {}
    for sample in samples:
        own = {name: value for name, value in sample.labels.items() if name != "le"}
        buckets, others = groups.setdefault(labels_text(own), ([], []))
        (buckets if sample.suffix == "_bucket" else others).append(sample)
    for _, (buckets, others) in sorted(groups.items()):
        yield from buckets
        goes_down = any(each.labels["le"].startswith("-") for each in buckets)
        if not goes_down and all(each.value >= 0 for each in others):
            yield from others


def _open_labels(sample: MetricSample) -> Mapping[str, str]:
    """Returns labels with a bucket's bound as OpenMetrics writes it."""
    labels = sample.labels
    if sample.suffix != "_bucket":
        return labels
    return {**labels, "le": _bound_text(float(labels["le"]))}


def family_text(name: str, kind: str, help_text: str, lines: Iterable[str]) -> str:
    """Returns the lines of a family under its head; empty if there are none."""
    body = "".join(lines)
    if not body:
        return ""
    escaped = help_text.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {escaped}\n# TYPE {name} {kind}\n{body}"


def open_family_text(name: str, kind: str, help_text: str, lines: Iterable[str]) -> str:
    """Returns the lines of a family in OpenMetrics under its head; empty if there are none.

    A counter whose name does not end in `_total` is of the type `unknown`.
    """
    body = "".join(lines)
    if not body:
        return ""
    if kind == "counter":
        kind = "counter" if name.endswith(_TOTAL) else "unknown"
        name = name.removesuffix(_TOTAL)
    return f"# TYPE {name} {kind}\n# HELP {name} {_escaped(help_text)}\n{body}"


def exemplar_text(labels: Mapping[str, str], value: Number, at_s: float) -> str:
    """Returns what follows the value of a bucket or of a counter; a long last label is cut."""
    left = _EXEMPLAR_CHARACTERS
    short = {}
    for name, text in labels.items():
        if text:
            short[name] = text[: left - len(name)]
            left -= len(name) + len(short[name])
    return f" # {{{labels_text(short)}}} {number_text(value)} {at_s:.3f}"


def open_histogram_lines(
    name: str,
    labels: str,
    bounds: Sequence[float],
    counts: Sequence[int],
    total: Number,
    exemplars: Sequence[str] = (),
) -> str:
    """Returns the lines of one histogram in OpenMetrics.

    `exemplars` has the texts of the buckets, empty for those that have none.
    """
    head = f'{name}_bucket{{{labels},le="'
    rows = zip((*bounds, math.inf), counts, exemplars or [""] * len(counts), strict=True)
    buckets = [f'{head}{_bound_text(bound)}"}} {count}{text}\n' for bound, count, text in rows]
    return (
        f"{''.join(buckets)}{name}_count{{{labels}}} {counts[-1]}\n"
        f"{name}_sum{{{labels}}} {number_text(total)}\n"
    )


def _bound_text(bound: float) -> str:
    return "+Inf" if math.isinf(bound) else repr(float(bound))


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
