# SPDX-License-Identifier: Apache-2.0
"""Summarises traces by model: how many requests there were, and what their parts took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytriton.tools.trace_summary.times import PARTS, protocol_of, times_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytriton.tools.trace_summary.reading import TracedRequest

_NS_PER_US = 1000.0


@dataclass(frozen=True)
class PartTimes:
    """The times that one part of all requests took, in microseconds."""

    avg: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class ModelSummary:
    """The requests for one version of a model, over one protocol or as calls."""

    model: str
    version: int
    protocol: str  # empty for calls of models
    count: int
    parts: dict[str, PartTimes]
    composing: tuple[ModelSummary, ...] = ()  # of steps and calls that were made for them

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain values."""
        return {
            "model": self.model,
            "version": self.version,
            "protocol": self.protocol.lower(),
            "count": self.count,
            "times_us": {
                part: {name: round(value, 3) for name, value in vars(times).items()}
                for part, times in self.parts.items()
            },
            "composing": [each.to_json() for each in self.composing],
        }


def summarise(requests: Iterable[TracedRequest], model: str = "") -> list[ModelSummary]:
    """Summarise requests of clients, with the calls that were made for them.

    Args:
        requests: All requests and calls.
        model: Only those for this model, whoever made them.
    """
    known = {request.number: request for request in requests}
    roots = {number: _root(request, known) for number, request in known.items()}
    if model:
        return _grouped([each for each in known.values() if each.model == model])
    callers: dict[tuple[str, int, str], list[TracedRequest]] = {}
    calls: dict[tuple[str, int, str], list[TracedRequest]] = {}
    for number, request in known.items():
        key = _key(roots[number])
        (callers if roots[number] is request else calls).setdefault(key, []).append(request)
    return [
        _summary(key, callers[key], tuple(_grouped(calls.get(key, ())))) for key in sorted(callers)
    ]


def _root(request: TracedRequest, known: dict[int, TracedRequest]) -> TracedRequest:
    """Returns the request of a client for which a call was made, as far as that is known."""
    seen = set()
    while request.parent in known and request.number not in seen:
        seen.add(request.number)
        request = known[request.parent]
    return request


def _key(request: TracedRequest) -> tuple[str, int, str]:
    return request.model, request.version, protocol_of(request)


def _grouped(requests: Iterable[TracedRequest]) -> list[ModelSummary]:
    groups: dict[tuple[str, int, str], list[TracedRequest]] = {}
    for request in requests:
        groups.setdefault(_key(request), []).append(request)
    return [_summary(key, groups[key]) for key in sorted(groups)]


def _summary(
    key: tuple[str, int, str],
    requests: Sequence[TracedRequest],
    composing: tuple[ModelSummary, ...] = (),
) -> ModelSummary:
    times = [times_of(request) for request in requests]
    parts = {}
    for part, _ in PARTS:
        values = sorted(each[part] / _NS_PER_US for each in times if part in each)
        if values:
            parts[part] = _part_times(values)
    return ModelSummary(*key, len(requests), parts, composing)


def _part_times(values: list[float]) -> PartTimes:
    return PartTimes(
        sum(values) / len(values),
        percentile(values, 50),
        percentile(values, 90),
        percentile(values, 99),
        values[-1],
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the value below which so many percent of sorted values lie, between neighbours."""
    at = (len(values) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return min(values[high], values[low] + (values[high] - values[low]) * (at - low))
