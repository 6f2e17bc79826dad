# SPDX-License-Identifier: Apache-2.0
"""What windows say together: the numbers of a level."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pytriton.tools.perf.load.records import GeneratorState, Records
from pytriton.tools.perf.measuring.distribution import Distribution, distribution_of
from pytriton.tools.perf.measuring.windows import Window, busiest, choose, join
from pytriton.tools.perf.server.statistics import ServerCounts


@dataclasses.dataclass(frozen=True, slots=True)
class WindowSummary:
    """The numbers of some windows.

    Attributes:
        requests: Requests that were answered well.
        failed: Requests that were not.
        throughput: Inferences a second: requests times the batch size.
        response_rate: Responses a second.
        latency: From the beginning to the last response; to the first one of decoupled models.
        send_us: Mean time until a request was sent.
        whole_us: Mean time until the last response.
        between: Times between the responses of a request, for streams.
        whole: Times to the last response, for streams.
        gpu: Gauges of the server's GPUs.
    """

    requests: int
    failed: int
    delayed: int
    sequences: int
    responses: int
    duration_s: float
    throughput: float
    response_rate: float
    latency: Distribution | None
    send_us: float = 0.0
    whole_us: float = 0.0
    between: Distribution | None = None
    whole: Distribution | None = None
    server: ServerCounts | None = None
    generator: GeneratorState = dataclasses.field(default_factory=GeneratorState)
    errors: Mapping[str, int] = dataclasses.field(default_factory=dict)
    gpu: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def latency_us(self, percentile: int | None) -> float:
        """The latency that counts: the mean, or a percentile; 0 without any request."""
        if self.latency is None:
            return 0.0
        if percentile is None:
            return self.latency.avg_us
        return self.latency.percentiles[percentile]

    @property
    def delayed_share(self) -> float:
        total = self.requests + self.failed
        return self.delayed / total if total else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class SummaryRules:
    """How windows are summed up.

    Attributes:
        batch_size: Inferences of a request.
        percentile: One more percentile.
        is_decoupled: The first response counts as latency.
    """

    batch_size: int = 1
    percentile: int | None = None
    is_decoupled: bool = False


def summarise(windows: Sequence[Window], rules: SummaryRules) -> WindowSummary:
    """The numbers of windows, taken together."""
    duration_s = sum(window.duration_s for window in windows)
    every = join([window.records for window in windows])
    good = choose(every, every.ok)
    ends = good.first_ns if rules.is_decoupled else good.last_ns
    responses = int(good.responses.sum())
    return WindowSummary(
        requests=len(good),
        failed=len(every) - len(good),
        delayed=int(every.delayed.sum()),
        sequences=len(np.unique(good.sequence_id[good.sequence_id > 0])),
        responses=responses,
        duration_s=duration_s,
        throughput=len(good) * rules.batch_size / duration_s,
        response_rate=responses / duration_s,
        latency=distribution_of(ends - good.begin_ns, rules.percentile),
        send_us=_mean_us(good.sent_ns - good.begin_ns),
        whole_us=_mean_us(good.last_ns - good.begin_ns),
        between=_between(good),
        whole=distribution_of(good.last_ns - good.begin_ns) if len(good.response_ns) else None,
        server=_server(windows),
        generator=busiest([window.records.generator for window in windows]),
        errors=_errors(windows),
        gpu=_gpu(windows),
    )


def _mean_us(times_ns: NDArray[np.int64]) -> float:
    return float(times_ns.mean()) / 1000 if len(times_ns) else 0.0


def _between(records: Records) -> Distribution | None:
    """Times between responses of the same request."""
    if len(records.response_ns) < 2:
        return None
    gaps = np.diff(records.response_ns)
    starts = np.cumsum(records.responses)[:-1]  # where the responses of the next request begin
    inside = np.ones(len(gaps), np.bool_)
    inside[starts[(starts > 0) & (starts <= len(gaps))] - 1] = False
    return distribution_of(gaps[inside])


def _server(windows: Sequence[Window]) -> ServerCounts | None:
    total: ServerCounts | None = None
    for window in windows:
        if window.server is None:
            return None
        total = window.server if total is None else total + window.server
    return total


def _errors(windows: Sequence[Window]) -> dict[str, int]:
    errors: Counter[str] = Counter()
    for window in windows:
        errors.update(window.records.errors)
    return dict(errors.most_common())


def _gpu(windows: Sequence[Window]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {}
    for window in windows:
        for gauge, by_gpu in window.gpu.items():
            for gpu, value in by_gpu.items():
                found.setdefault(gauge, {}).setdefault(gpu, []).append(value)
    return {
        gauge: {gpu: float(np.mean(values)) for gpu, values in by_gpu.items()}
        for gauge, by_gpu in found.items()
    }
