# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format, for metric families that are read when the page is scraped.

`prometheus_client` is not used because it ends the name of every counter in `_total`, and Triton
does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; charset=utf-8"

Number = int | float


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a family; parts of a histogram have a suffix after the family's name."""

    value: Number
    labels: Mapping[str, str]
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """A named metric with all its values."""

    name: str
    kind: str  # counter, gauge or histogram
    help: str
    samples: Sequence[Sample]

    def text(self) -> str:
        """Returns the family's lines; empty for a family without values."""
        if not self.samples:
            return ""
        help_text = self.help.replace("\\", r"\\").replace("\n", r"\n")
        lines = [f"# HELP {self.name} {help_text}", f"# TYPE {self.name} {self.kind}"]
        lines += [
            f"{self.name}{sample.suffix}{_labels_text(sample.labels)} {_number_text(sample.value)}"
            for sample in self.samples
        ]
        return "\n".join(lines) + "\n"


def gauge(name: str, help_text: str, value: Number) -> Family:
    """Make a gauge with one value and no label."""
    return Family(name, "gauge", help_text, [Sample(value, {})])


def _labels_text(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    names = sorted(labels, key=_label_order)
    return "{" + ",".join(f'{name}="{_escaped(labels[name])}"' for name in names) + "}"


def _label_order(name: str) -> tuple[bool, str]:
    return name == "le", name  # the bound of a bucket comes last


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number_text(value: Number) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
